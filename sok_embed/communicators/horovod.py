"""Workers under Horovod: gloo, MPI or NCCL, as Horovod was built."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from sok_embed.communicators.base import Communicator
from sok_embed.communicators.connections import Connections, host_of, shared_mesh
from sok_embed.communicators.cores import share_cores
from sok_embed.communicators.gpus import pin_gpu as pin_one_gpu
from sok_embed.communicators.secret import job_secret

# The bytes in which Horovod gathers the address of a worker.
_ADDRESS_BYTES = 512
# The environment variables for the place where the workers of Horovod meet.
_MEETING = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")
# The milliseconds between two cycles of Horovod, if it reduces tensors. Its default, 1, is most of
# the time of a small reduction.
_CYCLE_TIME = "0.2"


def _import_horovod() -> Any:
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise ImportError(
            "Expected Horovod with TensorFlow support, for more than one worker. Received: "
            f"{error}. Build it with `make setup`, or run scripts/build_horovod.py in this "
            "environment; one worker needs no Horovod."
        ) from error
    return hvd


class HorovodCommunicator(Communicator):
    """The workers that `horovodrun` has started. Initialises Horovod if necessary.

    Args:
        exchange: The transport of all-to-all exchanges: `"tcp"`, connections of sok_embed's own, or
            `"horovod"`, Horovod's alltoall. With `"tcp"` dense tensors use the connections too,
            unless Horovod was built with NCCL, which reduces them on GPUs.
        timeout: The seconds that an exchange over TCP waits for a worker.
        pin_gpu: True if each worker of a host takes one of its GPUs.
        levels: The levels of exchanges over TCP, 1 or 2, as for `sok_embed.init`.

    Raises:
        ConnectionError: If another worker cannot be reached over TCP.
        ValueError: For workers with different levels, and with two levels for hosts with different
            numbers of workers and for exchanges that Horovod carries.
    """

    def __init__(
        self,
        exchange: str = "tcp",
        timeout: float = 600.0,
        pin_gpu: bool = True,
        levels: int = 1,
    ) -> None:
        if levels != 1 and exchange == "horovod":
            raise ValueError(
                'Expected levels=1 with exchange="horovod", which knows the way by itself. '
                f"Received: levels={levels}. Leave one of them out."
            )
        self._hvd = _import_horovod()
        self._reduces = exchange == "horovod" or bool(self._hvd.nccl_built())
        if self._reduces:
            os.environ.setdefault("HOROVOD_CYCLE_TIME", _CYCLE_TIME)
        self._hvd.init()
        share_cores(int(self._hvd.local_size()))
        if pin_gpu:
            pin_one_gpu(int(self._hvd.local_rank()), int(self._hvd.local_size()))
        self._connections = None
        if exchange == "tcp" and self.size > 1:
            self._connections = _connections(self._hvd, timeout, levels)

    @property
    def connections(self) -> Connections | None:
        """The connections of exchanges; `None` if they go through Horovod."""
        return self._connections

    @property
    def rank(self) -> int:
        """Horovod's rank."""
        return int(self._hvd.rank())

    @property
    def size(self) -> int:
        """Horovod's size."""
        return int(self._hvd.size())

    @property
    def exchanges_on_gpu(self) -> bool:
        """True if Horovod has NCCL."""
        return bool(self._hvd.nccl_built())

    def all_to_all(
        self, tensor: tf.Tensor, splits: tf.Tensor, name: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Communicator.all_to_all`."""
        if self._connections is not None and not self._goes_by_nccl(tensor):
            return self._connections.all_to_all(tensor, splits, name)
        received, received_splits = self._hvd.alltoall(tensor, splits=splits, name=name)
        received.set_shape([None, *tensor.shape[1:]])
        return received, received_splits

    def exchange(
        self, tensor: tf.Tensor, splits: tf.Tensor, gradient_splits: tf.Tensor, name: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Communicator.exchange`."""
        if self._connections is not None and not self._goes_by_nccl(tensor):
            return self._connections.exchange(tensor, splits, gradient_splits, name)
        return super().exchange(tensor, splits, gradient_splits, name)

    def all_gather(self, tensor: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Communicator.all_gather`."""
        if self._connections is not None and not self._goes_by_nccl(tensor):
            return self._connections.all_gather(tensor, name)
        return super().all_gather(tensor, name)

    def _goes_by_nccl(self, tensor: tf.Tensor) -> bool:
        """Returns whether NCCL exchanges a tensor: it lies on a GPU, and Horovod has NCCL."""
        if not self.exchanges_on_gpu:
            return False
        return tf.DeviceSpec.from_string(tensor.device or "").device_type == "GPU"

    def all_reduce(self, tensor: tf.Tensor, name: str, average: bool = False) -> tf.Tensor:
        """See `Communicator.all_reduce`."""
        if self._connections is not None and not self._reduces:
            return self._connections.all_reduce(tensor, name, average)
        op = self._hvd.Average if average else self._hvd.Sum
        reduced = self._hvd.allreduce(_as_carried(tensor), name=name, op=op)
        return _cast(reduced, tensor.dtype)

    def broadcast(self, tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
        """See `Communicator.broadcast`."""
        if self._connections is not None and not self._reduces:
            return self._connections.broadcast(tensor, root_rank, name)
        sent = self._hvd.broadcast(_as_carried(tensor), root_rank=root_rank, name=name)
        return _cast(sent, tensor.dtype)

    def barrier(self) -> None:
        """See `Communicator.barrier`."""
        if self._connections is not None:
            self._connections.barrier()
            return
        # Horovod has a barrier of its own for PyTorch only.
        self._hvd.allreduce(tf.zeros([]), name="sok_embed.barrier", op=self._hvd.Sum)


def _connections(hvd: Any, timeout: float, levels: int) -> Connections:
    """Connects to all workers, if they are not connected. Collective in that case."""
    rank, size = int(hvd.rank()), int(hvd.size())
    mesh = shared_mesh(
        "horovod",
        rank,
        size,
        lambda: host_of(
            os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", ""),
            int(hvd.local_size()) == int(hvd.size()),
        ),
        timeout,
        lambda own: _gather(hvd, own),
        job_secret(),
        ":".join(os.environ.get(name, "") for name in _MEETING),
        levels,
    )
    return Connections(mesh, rank, size)


def _gather(hvd: Any, content: bytes) -> list[bytes]:
    """Returns the contents of all workers, by rank. Collective."""
    padded = np.zeros([1, _ADDRESS_BYTES], np.uint8)
    padded[0, : len(content)] = np.frombuffer(content, np.uint8)
    name = "sok_embed.addresses"
    if tf.compat.v1.executing_eagerly_outside_functions():
        with tf.init_scope():
            gathered = hvd.allgather(tf.constant(padded), name=name).numpy()
    else:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            gathered = session.run(hvd.allgather(tf.constant(padded), name=name))
    return [bytes(row).rstrip(b"\0") for row in gathered]


def _as_carried(tensor: Any) -> Any:
    """Returns a tensor or slices in a type that Horovod can send, which bfloat16 is not."""
    return _cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor


def _cast(tensor: Any, dtype: tf.DType) -> Any:
    if tensor.dtype == dtype:
        return tensor
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(tf.cast(tensor.values, dtype), tensor.indices, tensor.dense_shape)
    return tf.cast(tensor, dtype)
