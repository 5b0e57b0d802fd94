"""One worker, which owns everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sok_embed.communicators.base import Communicator

if TYPE_CHECKING:
    import tensorflow as tf


class LocalCommunicator(Communicator):
    """The communicator of a single process. Nothing is sent."""

    rank = 0
    size = 1

    def all_to_all(
        self, tensor: tf.Tensor, splits: tf.Tensor, name: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns its arguments."""
        return tensor, splits

    def all_reduce(self, tensor: tf.Tensor, name: str, average: bool = False) -> tf.Tensor:
        """Returns the tensor."""
        return tensor

    def broadcast(self, tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
        """Returns the tensor."""
        return tensor

    def barrier(self) -> None:
        """Returns at once."""
