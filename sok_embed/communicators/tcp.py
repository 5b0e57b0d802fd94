"""Workers that communicate over TCP, without Horovod."""

from __future__ import annotations

import functools

from sok_embed.communicators import rendezvous
from sok_embed.communicators.connections import Connections, host_of, shared_mesh
from sok_embed.communicators.cores import share_cores
from sok_embed.communicators.gpus import pin_gpu as pin_one_gpu
from sok_embed.communicators.rendezvous_wire import is_loopback
from sok_embed.communicators.secret import job_secret
from sok_embed.communicators.workers import Workers


class TcpCommunicator(Connections):
    """The workers that a launcher has started, connected to each other. Making it is collective.

    Args:
        workers: The workers, as `launchers.find_workers()` or `engines.find_engine_workers()`
            returns them.
        timeout: The seconds that workers wait for each other.
        pin_gpu: True if each worker of a host takes one of its GPUs.
        levels: The levels of exchanges, 1 or 2, as for `sok_embed.init`.

    Raises:
        ConnectionError: If other workers do not come, or cannot be reached.
        ValueError: Without an address at which workers can meet, for a text that cannot be a
            secret of the job, for workers with different levels, and with two levels for hosts with
            different numbers of workers.
    """

    def __init__(
        self, workers: Workers, timeout: float, pin_gpu: bool = True, levels: int = 1
    ) -> None:
        if workers.address is None:
            raise ValueError(
                f"Expected an address at which the workers of {workers.launcher} can meet. "
                "Received: no address. Set MASTER_ADDR to the host of worker 0 and MASTER_PORT to "
                "a free port there, the same for all workers."
            )
        share_cores(workers.local_size)
        if pin_gpu:
            pin_one_gpu(workers.local_rank, workers.local_size)
        secret = job_secret()
        if secret is None and workers.secret is not None:
            secret = bytes.fromhex(workers.secret)
        # All workers that meet at an address of the loopback interface are on this host.
        is_here = workers.on_one_host or is_loopback(workers.address)
        mesh = shared_mesh(
            workers.launcher,
            workers.rank,
            workers.size,
            functools.partial(host_of, workers.address[0], is_here),
            timeout,
            functools.partial(
                rendezvous.all_gather, workers=workers, timeout=timeout, secret=secret
            ),
            secret,
            str(workers.address),
            levels,
        )
        super().__init__(mesh, workers.rank, workers.size)

    @property
    def connections(self) -> Connections:
        """The connections of exchanges, which are this communicator.

        A Horovod communicator may have none.
        """
        return self
