"""Gives all workers the same dense weights before training."""

from __future__ import annotations

from typing import Any

import keras

from sok_embed import communicators
from sok_embed.training.same_model import check_same_rate, take_same_start


class BroadcastVariables(keras.callbacks.Callback):
    """Gives every worker the dense weights and optimizer state of one of them, before training.

    Rows of tables need no broadcast: the start of a row is a function of its key.

    Workers give each other variables in their order, so their models must be the same. At the
    beginning of each epoch the learning rates of all workers are compared, since a callback of one
    worker may have changed its own.

    Example:
    >>> callback = BroadcastVariables(root_rank=0)

    Args:
        root_rank: The worker whose values all other workers take.

    Raises:
        ValueError: For a rank that no worker has; from `fit`, on all workers, if their models have
            other variables, layers or options, or their optimizers other learning rates.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        size = communicators.size()
        if not 0 <= root_rank < size:
            raise ValueError(
                f"Expected root_rank to be the rank of one of {size} workers, in [0, {size}). "
                f"Received: root_rank={root_rank}."
            )
        self.root_rank = root_rank

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts the weights. Keras has built the model and its optimizer by now."""
        take_same_start(self.model, self.root_rank, self.model.variables)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Compares the learning rates of the workers."""
        if communicators.size() > 1 and self.model.optimizer is not None:
            check_same_rate(self.model.optimizer)
