"""Workers that talk to each other over TCP alone, without Horovod."""

from __future__ import annotations

import functools

import tensorflow as tf

from sok_embed.communicators import rendezvous
from sok_embed.communicators.base import Communicator
from sok_embed.communicators.connections import Connections, host_of, shared_connections
from sok_embed.communicators.cores import share_cores
from sok_embed.communicators.gpus import pin_gpu as pin_one_gpu
from sok_embed.communicators.launchers import Workers
from sok_embed.communicators.rendezvous_wire import is_loopback
from sok_embed.communicators.secret import job_secret


class TcpCommunicator(Communicator):
    """The workers that a launcher has started, connected to each other. Making it is collective.

    Args:
        workers: The workers, as the launcher describes them.
        timeout: The seconds that workers wait for each other.
        pin_gpu: True if each worker of a host takes one of its GPUs.

    Raises:
        ConnectionError: If the others do not come, or cannot be reached.
        ValueError: Without an address at which workers can meet, and for a secret of the job that
            cannot be one.
    """

    def __init__(self, workers: Workers, timeout: float, pin_gpu: bool = True) -> None:
        if workers.address is None:
            raise ValueError(
                f"Expected an address at which the workers of {workers.launcher} can meet. "
                "Received: none. Set MASTER_ADDR to the host of worker 0 and MASTER_PORT to a free "
                "port there, the same for all workers."
            )
        share_cores(workers.local_size)
        if pin_gpu:
            pin_one_gpu(workers.local_rank, workers.local_size)
        self._workers = workers
        secret = job_secret()
        # All workers that meet at an address of the loopback interface are on this host.
        is_here = workers.on_one_host or is_loopback(workers.address)
        self._connections = shared_connections(
            workers.launcher,
            workers.rank,
            workers.size,
            functools.partial(host_of, workers.address[0], is_here),
            timeout,
            functools.partial(
                rendezvous.all_gather, workers=workers, timeout=timeout, secret=secret
            ),
            secret,
        )

    @property
    def rank(self) -> int:
        """The rank of this worker."""
        return self._workers.rank

    @property
    def size(self) -> int:
        """The number of workers."""
        return self._workers.size

    @property
    def connections(self) -> Connections:
        """The connections of exchanges."""
        return self._connections

    def all_to_all(
        self, tensor: tf.Tensor, splits: tf.Tensor, name: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Communicator.all_to_all`."""
        return self._connections.all_to_all(tensor, splits, name)

    def exchange(
        self, tensor: tf.Tensor, splits: tf.Tensor, gradient_splits: tf.Tensor, name: str
    ) -> tf.Tensor:
        """See `Communicator.exchange`."""
        return self._connections.exchange(tensor, splits, gradient_splits, name)

    def all_reduce(self, tensor: tf.Tensor, name: str, average: bool = False) -> tf.Tensor:
        """See `Communicator.all_reduce`."""
        return self._connections.all_reduce(tensor, name, average)

    def broadcast(self, tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
        """See `Communicator.broadcast`."""
        return self._connections.broadcast(tensor, root_rank, name)

    def barrier(self) -> None:
        """See `Communicator.barrier`."""
        self._connections.barrier()
