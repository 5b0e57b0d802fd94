"""Exchanges a few bytes between the workers of a job, once, over TCP.

Worker 0 listens, and every other worker connects to it. Numbers are big-endian, and each proof has
32 bytes:

1. The worker sends a greeting: magic, version of the protocol, rank, a random number.
2. Worker 0 answers: magic, version, a random number of its own; then its proof.
3. The worker sends its proof, number of workers, fingerprint of the job, the milliseconds that it
   will wait, length of its content; then the content and a proof for both.
4. Worker 0 replies that it has taken the worker in, and once all have come with the number of
   contents, and of each its length and itself; or with the kind of an error, length of its text,
   and that in UTF-8. A proof ends each reply.

With a secret of the job (`sok_embed.communicators.secret`) a proof is the HMAC-SHA256 under it of
the sender's role, of greeting and answer, and of the bytes that it confirms. So both sides know
that the other one belongs to the job before they send anything about it, no proof can be used
again, and bytes that were changed on their way are refused. If another process answers, a worker
goes on looking for worker 0; and worker 0 goes on listening, whichever process connects; each until
its time is over.

Without a secret proofs are zeros, and any process that reaches worker 0 can claim to be a worker.
Nothing is encrypted. Received bytes are copied and never executed.
"""

from __future__ import annotations

from sok_embed.communicators import rendezvous_wire as wire
from sok_embed.communicators.rendezvous_host import Host
from sok_embed.communicators.rendezvous_visitor import Visitor
from sok_embed.communicators.workers import Workers


def all_gather(
    content: bytes, workers: Workers, timeout: float, secret: bytes | None = None
) -> list[bytes]:
    """Gives every worker the contents of all. Collective: each worker calls it once.

    Args:
        content: The content that this worker sends to the others, 64 KiB at most.
        workers: This process among the workers, with an address.
        timeout: The most seconds that this takes, not counting the look-up of the address's name.
            It counts from the call of each worker, so it must be long enough for workers that start
            late.
        secret: The secret of the job, the same for all workers; `None`: every process is accepted.

    Returns:
        The contents, the one of worker 0 first.

    Raises:
        ValueError: For a content that is too long and workers without an address; if two workers
            have one rank, or describe another job than worker 0. Without a secret only
            the worker that does not fit raises it.
        TimeoutError: If a worker does not come in time, which the message on the other workers
            names; if worker 0 cannot be reached, or if the process that listens there does not know
            the secret.
        ConnectionError: If a worker ends before all have met.
        OSError: On worker 0, if it cannot listen at the address.
    """
    if len(content) > wire.MAX_CONTENT:
        raise ValueError(
            f"Expected at most {wire.MAX_CONTENT} bytes of each worker. Received: {len(content)}."
        )
    if workers.address is None:
        raise ValueError(
            "Expected workers with an address at which to meet. Received: workers of "
            f"{workers.launcher}, without an address. {wire.ANOTHER_PORT}"
        )
    if workers.size == 1:
        return [content]
    deadline = wire.deadline_in(timeout)
    if workers.rank == 0:
        return Host(workers, workers.address, deadline, secret).gather(content)
    return Visitor(content, workers, workers.address, deadline, secret).gather()
