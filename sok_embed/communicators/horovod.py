"""Workers under Horovod: gloo, MPI or NCCL, as Horovod was built."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sok_embed.communicators.base import Communicator


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
    """The workers that `horovodrun` has started. Initialises Horovod if nobody has."""

    def __init__(self) -> None:
        self._hvd = _import_horovod()
        self._hvd.init()

    @property
    def rank(self) -> int:
        """Horovod's rank."""
        return int(self._hvd.rank())

    @property
    def size(self) -> int:
        """Horovod's size."""
        return int(self._hvd.size())

    def all_to_all(
        self, tensor: tf.Tensor, splits: tf.Tensor, name: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Communicator.all_to_all`."""
        received, received_splits = self._hvd.alltoall(tensor, splits=splits, name=name)
        received.set_shape([None, *tensor.shape[1:]])
        return received, received_splits

    def all_reduce(self, tensor: tf.Tensor, name: str, average: bool = False) -> tf.Tensor:
        """See `Communicator.all_reduce`."""
        op = self._hvd.Average if average else self._hvd.Sum
        reduced = self._hvd.allreduce(_as_carried(tensor), name=name, op=op)
        return _cast(reduced, tensor.dtype)

    def broadcast(self, tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
        """See `Communicator.broadcast`."""
        sent = self._hvd.broadcast(_as_carried(tensor), root_rank=root_rank, name=name)
        return _cast(sent, tensor.dtype)

    def barrier(self) -> None:
        """See `Communicator.barrier`."""
        # Horovod has a barrier of its own for PyTorch only.
        self._hvd.allreduce(tf.zeros([]), name="sok_embed.barrier", op=self._hvd.Sum)


def _as_carried(tensor: Any) -> Any:
    """Returns a tensor or slices in a type that Horovod carries; bfloat16 is none."""
    return _cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor


def _cast(tensor: Any, dtype: tf.DType) -> Any:
    if tensor.dtype == dtype:
        return tensor
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(tf.cast(tensor.values, dtype), tensor.indices, tensor.dense_shape)
    return tf.cast(tensor, dtype)
