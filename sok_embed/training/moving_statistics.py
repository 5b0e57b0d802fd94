"""Averages the moving statistics of batch normalization over workers, as they train."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from sok_embed.keras_bridge.batch_normalization import examples_of, layers_with_statistics


class MovingStatistics:
    """The moving statistics of the batch normalizations that a step trains.

    Each worker has moved them by its own batch. The average over workers, weighted by the examples
    of their batches, is what one worker with all examples would have, but for the variance: it is
    that of the examples of a worker, by which the worker normalizes.

    Args:
        variables: The variables that the step trains. Statistics are found by their gamma or beta.
    """

    def __init__(self, variables: Iterable[Any]) -> None:
        self._parts: list[tuple[list[Any], tf.Tensor]] = []
        # Replicas of a strategy average by themselves.
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            self._parts = [
                (layer.non_trainable_variables, examples_of(layer))
                for layer in layers_with_statistics(variables)
            ]

    @property
    def tensors(self) -> list[tf.Tensor]:
        """The tensors of this worker that are to be averaged over all workers."""
        tensors = []
        for variables, examples in self._parts:
            # One tensor a layer keeps the number of operations in a step small.
            values = [tf.cast(tf.reshape(each.value, [-1]), tf.float32) for each in variables]
            tensors.append(tf.concat([examples[tf.newaxis], *(examples * v for v in values)], 0))
        return tensors

    def assign(self, averages: Iterable[tf.Tensor]) -> None:
        """Sets the statistics by the averages of `tensors`, unless no worker had an example."""
        for (variables, _), average in zip(self._parts, averages, strict=True):
            lengths = [tf.size(each.value) for each in variables]
            parts = tf.split(average[1:], lengths, num=len(variables))
            for variable, part in zip(variables, parts, strict=True):
                own = variable.value
                value = tf.cast(tf.reshape(part / average[0], tf.shape(own)), own.dtype)
                variable.assign(tf.where(average[0] > 0, value, own))
