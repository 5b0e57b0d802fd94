"""Averages dense gradients over workers inside of a Keras optimizer."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators

__all__ = ["DistributedOptimizer", "average_gradients", "averages_gradients"]


def DistributedOptimizer(optimizer: Any) -> keras.optimizers.Optimizer:  # noqa: N802
    """Makes a Keras optimizer that averages gradients over the workers before it applies them.

    Gradients of table rows do not pass through it: they have travelled to the rows' owners, which
    sum them and divide by the number of workers. So n workers with batches of b train like one
    worker with a batch of n * b.

    With one worker it changes nothing. A model that is saved with it loads as one with the plain
    optimizer.

    Example:
    >>> optimizer = DistributedOptimizer(keras.optimizers.Adam(1e-3))
    >>> optimizer.name
    'adam'

    Args:
        optimizer: A Keras optimizer that has not been used yet, or its name.

    Returns:
        An optimizer of the same class, configuration and name.

    Raises:
        ValueError: If the optimizer has been built already: its state would be lost.
    """
    optimizer = keras.optimizers.get(optimizer)
    if optimizer.built:
        raise ValueError(
            "Expected an optimizer that no model has used yet. Received: one with variables, "
            f"{optimizer.name}. Wrap it before `model.compile`."
        )
    base = type(optimizer)
    if issubclass(base, _AveragesGradients):
        return optimizer
    # Keras serializes what `__class__` says: a saved model names the plain optimizer, by the name
    # that it is registered under.
    averaging: Any = type(
        base.__name__,
        (_AveragesGradients, base),
        {"__module__": base.__module__, "__class__": property(lambda self: base)},
    )
    made = averaging.from_config(_config(optimizer))
    # What `exclude_from_weight_decay` has set is in no config.
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(optimizer, name):
            setattr(made, name, getattr(optimizer, name))
    return made


def _config(optimizer: Any) -> dict[str, Any]:
    """The config, with a learning rate that is a function as it is: it has no config."""
    rate = optimizer._learning_rate
    schedules = keras.optimizers.schedules
    if not callable(rate) or isinstance(rate, schedules.LearningRateSchedule):
        return dict(optimizer.get_config())
    optimizer._learning_rate = None
    try:
        return {**optimizer.get_config(), "learning_rate": rate}
    finally:
        optimizer._learning_rate = rate


class _AveragesGradients:
    """Comes before an optimizer class and averages what is applied."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply(average_gradients(grads), trainable_variables)  # type: ignore[misc]


def averages_gradients(optimizer: Any) -> bool:
    """Whether `DistributedOptimizer` made the optimizer."""
    return issubclass(type(optimizer), _AveragesGradients)


def average_gradients(gradients: Any) -> list[Any]:
    """Averages gradients over all workers. Collective.

    Args:
        gradients: Tensors, `tf.IndexedSlices` or `None`, the same on every worker but for their
            values and, in slices, their number.

    Returns:
        The averages, in the same order and of the same kinds. With more than one worker the indices
        of slices are distinct: rules that square a gradient must square the sum.
    """
    communicator = communicators.current()
    if communicator.size == 1:
        return list(gradients)
    averages = []
    for i, gradient in enumerate(gradients):
        if gradient is not None:
            gradient = communicator.all_reduce(gradient, f"sok_embed.gradient.{i}", average=True)
        is_slices = isinstance(gradient, tf.IndexedSlices)
        averages.append(_sum_equal(gradient) if is_slices else gradient)
    return averages


def _sum_equal(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same gradient with distinct indices."""
    indices, positions = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)
