"""Puts together what the metrics of workers have counted, for a run of more or fewer of them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from sok_embed.communicators.agreement import Agreement, bits_of, floats_of
from sok_embed.keras_bridge.metric_variables import put_together


def counted_by_all(model: keras.Model, agreement: Agreement) -> list[list[float]]:
    """Returns the values of each variable of metrics, of all workers put together. Collective."""
    variables = model.metrics_variables
    own = [np.ravel(tf.convert_to_tensor(each.value)).tolist() for each in variables]
    flat = [value for values in own for value in values]
    told = [floats_of(each) for each in agreement.gather_lists(bits_of(flat), "metrics")]
    found, at = [], 0
    for variable, values in zip(variables, own, strict=True):
        of_each = np.array([each[at : at + len(values)] for each in told])
        at += len(values)
        found.append(put_together(variable, of_each).tolist())
    return found


def hand_out(model: keras.Model, counted: Sequence[Sequence[float]], rank: int) -> None:
    """Sets variables of metrics so that those of all workers together are what was counted.

    Sums go on at worker 0, and those of the others begin anew. It warns if the counts do not fit,
    and all begin anew.
    """
    variables = model.metrics_variables
    if [int(np.prod(each.shape)) for each in variables] != list(map(len, counted)):
        model.reset_metrics()
        warnings.warn(
            "Expected a checkpoint with what the metrics of this model had counted on all workers. "
            "Received: one of other metrics, or of an earlier version. The number of workers has "
            "changed: metrics of this epoch are those of its remaining batches.",
            stacklevel=2,
        )
        return
    for variable, values in zip(variables, counted, strict=True):
        is_elsewhere = rank > 0 and variable.aggregation == "sum"
        variable.assign(
            np.reshape(np.zeros(len(values)) if is_elsewhere else values, variable.shape)
        )
