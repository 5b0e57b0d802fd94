"""The contract of a transport: exchanges of tensors between workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf


class Communicator(ABC):
    """A group of workers, one process each.

    Every method but the properties is collective: each worker must call it, in the same order and
    with the same name, even if it has nothing to send. All of them work eagerly and inside of a
    `tf.function`.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """The number of this worker, in `[0, size)`."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of workers."""

    @property
    def exchanges_on_gpu(self) -> bool:
        """True if `exchange` sends a tensor from the memory of a GPU to the memory of a GPU.

        Otherwise tensors go through the host's memory.
        """
        return False

    @abstractmethod
    def all_to_all(
        self, tensor: tf.Tensor, splits: tf.Tensor, name: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends a part of `tensor` to every worker and receives one from each.

        Differentiable: the gradient goes back the way that the tensor came.

        Args:
            tensor: `[n, ...]`; the first `splits[0]` rows go to worker 0, the next to worker 1, ….
            splits: int32 `[size]`, summing to n. Zeros are fine.
            name: The name that tells this exchange from others that may be under way; the same on
                every worker.

        Returns:
            The rows that were received, rows of worker 0 first, and the number of rows from each
            worker, int32 `[size]`.
        """

    def exchange(
        self, tensor: tf.Tensor, splits: tf.Tensor, gradient_splits: tf.Tensor, name: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Exchanges as `all_to_all` does, with a gradient that may go another way than the tensor.

        Args:
            tensor: The tensor, as for `all_to_all`.
            splits: The splits, as for `all_to_all`.
            gradient_splits: int32 `[size]`, the splits of the gradient of the received rows.
            name: The name, as for `all_to_all`. The exchanges of rows and of gradients have names
                that begin with it.

        Returns:
            The rows that were received, and the number of rows from each, as for `all_to_all`.
        """
        import tensorflow as tf  # the command does not need TensorFlow

        @tf.custom_gradient
        def exchanged(sent: tf.Tensor) -> Any:
            received = self.all_to_all(sent, splits, f"{name}.rows")

            def gradient(upstream: tf.Tensor, _: Any) -> tf.Tensor:
                back, _ = self.all_to_all(upstream, gradient_splits, f"{name}.gradients")
                return back

            return received, gradient

        rows, received_splits = exchanged(tensor)
        return rows, received_splits

    def all_gather(self, tensor: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Gives the tensor of every worker to all, in one exchange. Differentiable.

        Args:
            tensor: `[n, ...]`; n may differ between workers, and may be 0.
            name: The name of the exchange, as for `all_to_all`.

        Returns:
            All tensors one after the other, the tensor of worker 0 first, and how many rows came
            from each worker, int32 `[size]`.
        """
        import tensorflow as tf  # the command does not need TensorFlow

        tensor = tf.convert_to_tensor(tensor)
        copies = tf.tile(tensor, [self.size, *[1] * (tensor.shape.rank - 1)])
        return self.all_to_all(copies, tf.fill([self.size], tf.shape(tensor)[0]), name)

    @abstractmethod
    def all_reduce(self, tensor: tf.Tensor, name: str, average: bool = False) -> tf.Tensor:
        """Sums, or averages, a tensor of one shape over all workers."""

    @abstractmethod
    def broadcast(self, tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
        """Returns the tensor of worker `root_rank`, on every worker."""

    @abstractmethod
    def barrier(self) -> None:
        """Returns once every worker has called it. Eager only."""
