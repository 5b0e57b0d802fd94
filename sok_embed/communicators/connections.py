"""The connections of this worker to all others, over which rows are exchanged."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.binding import _core
from sok_embed.communicators import rendezvous_wire as wire
from sok_embed.communicators.agreement import check_same
from sok_embed.communicators.base import Communicator
from sok_embed.communicators.connecting import Address, Listening, connect_all, hosts_of
from sok_embed.communicators.workers import Workers

# The environment variable for the host at which others reach this worker, if its guess is wrong.
HOST_VARIABLE = "SOK_EMBED_HOST"


class Connections(Communicator):
    """TCP connections to the other workers, or with two levels to some of them.

    Exchanges of different names may run at once, and in any order. If a worker is lost, or does not
    come to an exchange within the timeout, all exchanges end with an error on all other workers.
    """

    def __init__(self, mesh: _core.Mesh, rank: int, size: int) -> None:
        self._mesh, self._rank, self._size = mesh, rank, size

    @property
    def rank(self) -> int:
        """The number of this worker."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of workers."""
        return self._size

    def all_to_all(
        self, tensor: tf.Tensor, splits: tf.Tensor, name: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Communicator.all_to_all`."""
        rows, received, _ = tf_ops.all_to_all(tensor, splits, self._mesh.number, name)
        return rows, received

    def all_reduce(self, tensor: tf.Tensor, name: str, average: bool = False) -> tf.Tensor:
        """See `Communicator.all_reduce`.

        Each worker sums a part of the tensor and gives its sum to all, so that the result has the
        same bits everywhere, and a worker sends about twice the tensor, with any number of workers.
        float16 and bfloat16 are summed in float32.
        """
        if isinstance(tensor, tf.IndexedSlices):
            return self._all_reduce_slices(tensor, name, average)
        tensor = tf.convert_to_tensor(tensor)
        summed_in = tf.float32 if tensor.dtype in (tf.float16, tf.bfloat16) else tensor.dtype
        flat = tf.reshape(tf.cast(tensor, summed_in), [-1])
        elements = tf.size(flat)
        part = (elements + self._size - 1) // self._size
        flat = tf.pad(flat, [[0, part * self._size - elements]])
        splits = tf.fill([self._size], part)
        parts, _ = self.all_to_all(flat, splits, f"{name}.parts")
        total = tf.reduce_sum(tf.reshape(parts, [self._size, part]), 0)
        if average:
            total = total / tf.cast(self._size, summed_in)
        sums, _ = self.all_gather(total, f"{name}.sums")
        reduced = tf.reshape(sums[:elements], tf.shape(tensor))
        reduced.set_shape(tensor.shape)
        return tf.cast(reduced, tensor.dtype)

    def _all_reduce_slices(
        self, slices: tf.IndexedSlices, name: str, average: bool
    ) -> tf.IndexedSlices:
        """Gathers the slices of all workers; equal indices stay apart."""
        values, _ = self.all_gather(slices.values, f"{name}.values")
        indices, _ = self.all_gather(slices.indices, f"{name}.indices")
        if average:
            values = values / tf.cast(self._size, values.dtype)
        return tf.IndexedSlices(values, indices, slices.dense_shape)

    def broadcast(self, tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
        """See `Communicator.broadcast`."""
        tensor = tf.convert_to_tensor(tensor)
        flat = tf.reshape(tensor, [-1])
        received, _ = self.all_gather(flat if self._rank == root_rank else flat[:0], name)
        received = tf.reshape(received, tf.shape(tensor))
        received.set_shape(tensor.shape)
        return received

    def all_gather(self, tensor: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Communicator.all_gather`. The tensor is sent from where it lies."""
        tensor = tf.convert_to_tensor(tensor)
        splits = tf.fill([self._size], tf.shape(tensor)[0])
        rows, received, _ = tf_ops.all_to_all(
            tensor, splits, self._mesh.number, name, same_rows=True
        )
        return rows, received

    def barrier(self) -> None:
        """See `Communicator.barrier`."""
        nothing, of_each = tf.zeros([0], tf.int32), tf.zeros([self._size], tf.int32)
        tf_ops.all_to_all(
            nothing, of_each, self._mesh.number, "sok_embed.barrier", in_program_order=True
        )

    def exchange(
        self, tensor: tf.Tensor, splits: tf.Tensor, gradient_splits: tf.Tensor, name: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Communicator.exchange`."""
        rows, received_splits, _ = tf_ops.all_to_all(
            tensor, splits, self._mesh.number, f"{name}.rows", gradient_splits=gradient_splits
        )
        return rows, received_splits

    def stats(self) -> dict[str, float]:
        """Returns the number of `exchanges`, the `bytes_sent` to other workers, and `seconds`.

        With two levels, rows for workers of other hosts may be sent twice and count so. `seconds`
        is the time during which at least one exchange was under way.
        """
        stats = self._mesh.stats()
        return {name: stats[name] for name in ("exchanges", "bytes_sent", "seconds")}


# The connections of this process, and their job. Exchanges in graphs refer to them by number, so a
# second init for the same job gets the same.
_made: tuple[tuple[object, ...], _core.Mesh] | None = None


def shared_mesh(
    launcher: str,
    rank: int,
    size: int,
    host: Callable[[], str],
    timeout: float,
    gather: Callable[[bytes], list[bytes]],
    secret: bytes | None,
    meeting: str,
    levels: int = 1,
) -> _core.Mesh:
    """Returns the connections of this process to the workers of a job.

    They are made if there are none of that job, with that timeout and those levels, in this
    process, and after an error. Making them is collective. Those of another job stay while a
    communicator has them.

    Args:
        launcher: The program that started the workers.
        rank: The number of this worker.
        size: The number of workers.
        host: A function that returns the name or number by which other workers reach this one.
        timeout: The seconds that an exchange waits for a worker without a sign of life.
        gather: The collective function that takes the content of this worker and returns the
            contents of all, by rank.
        secret: The secret of the job. With one, only processes that know it can connect.
        meeting: The place where the workers of the job meet.
        levels: 1: a connection to each of the others; 2: to those of this host, and to one on each
            other host.

    Raises:
        ConnectionError: If another worker cannot be reached, or this one cannot listen.
        TimeoutError: If another worker does not come in time.
        ValueError: For a timeout that is not above 0, for workers with different levels, and with
            two levels for hosts with different numbers of workers.
    """
    global _made
    job = (os.getpid(), launcher, rank, size, timeout, secret, meeting, levels)
    if _made is not None and _made[0] == job and not _made[1].broken:
        return _made[1]
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        _core.watch_interrupts()
    workers = Workers(rank, size, 0, 1, None, launcher)
    with Listening(workers, host(), levels) as listening:
        addresses = [Address.from_bytes(each) for each in gather(listening.address.to_bytes())]
        given = [each.levels for each in addresses]
        check_same("levels", given, "Give sok_embed.init the same ones on all workers.")
        hosts = hosts_of(addresses) if levels == 2 else []
        made = connect_all(workers, addresses, listening, timeout, secret, hosts)
    places = [wire.shown((each.host, each.port)) for each in addresses]
    fds = [-1 if each is None else each.detach() for each in made]
    mesh = _core.Mesh(rank, timeout, list(zip(fds, places, strict=True)), hosts)
    _made = (job, mesh)
    return mesh


def host_of(peer: str, everybody_is_here: bool) -> str:
    """Returns the name or number by which other workers reach this one.

    Args:
        peer: A host that all workers can reach, by name or number.
        everybody_is_here: True if all workers are on this host.

    Returns:
        The value of the environment variable SOK_EMBED_HOST; without it, the number of the
        interface by which this host reaches `peer`.

    Raises:
        ValueError: For a SOK_EMBED_HOST that has no address.
    """
    if given := os.environ.get(HOST_VARIABLE):
        try:
            socket.getaddrinfo(given, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ValueError(
                f"Expected {HOST_VARIABLE} to be a name or number of this host that has an "
                f"address. Received: {HOST_VARIABLE}={given}: {error}. Set it to the name or "
                "number by which the other workers reach this host, or leave it out."
            ) from None
        return given
    if everybody_is_here:
        return "127.0.0.1"
    for candidate in (peer, socket.gethostname()):
        try:
            family, kind, _, _, address = socket.getaddrinfo(candidate, 9, type=socket.SOCK_DGRAM)[
                0
            ]
            # Nothing is sent: the system only chooses an interface.
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                found = str(probe.getsockname()[0])
        except OSError:
            continue
        # The number of an interface of IPv6 ends with the interface's name.
        if not ipaddress.ip_address(found.partition("%")[0]).is_loopback:
            return found
    return socket.gethostname()
