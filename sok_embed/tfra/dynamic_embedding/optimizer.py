"""Defines `DynamicEmbeddingOptimizer`; any Keras optimizer trains rows without it, too."""

from __future__ import annotations

from typing import Any

import keras

from sok_embed.arguments import shown
from sok_embed.training.distributed_optimizer import DistributedOptimizer

__all__ = ["DynamicEmbeddingOptimizer"]


def DynamicEmbeddingOptimizer(  # noqa: N802  (it is TFRA's name)
    self: Any, bp_v2: bool = False, synchronous: bool = False, **kwargs: Any
) -> Any:
    """Returns the optimizer, which trains the rows of variables without help.

    `apply_gradients` leaves out weights that it is given twice: scripts add the weights of lookups
    to the weights of the model, which has them already.

    Args:
        self: A Keras optimizer.
        bp_v2: Not used: an owner adds the gradients of all workers up.
        synchronous: True for a `sok_embed.DistributedOptimizer`, which averages the gradients of
            dense weights over workers.
        **kwargs: Not used: other arguments of TFRA.

    Raises:
        TypeError: For an optimizer that is not one of Keras 3.
    """
    optimizer = self
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"Expected an optimizer of Keras 3. Received: {shown(optimizer)}. Use "
            "keras.optimizers.Adam, say; for TF1 graphs there is sok_embed.feature_column."
        )
    if synchronous:
        optimizer = DistributedOptimizer(optimizer)
    apply_all = optimizer.apply_gradients

    def apply_gradients(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        distinct = {id(variable): (gradient, variable) for gradient, variable in grads_and_vars}
        return apply_all(list(distinct.values()), *args, **kwargs)

    optimizer.apply_gradients = apply_gradients
    return optimizer
