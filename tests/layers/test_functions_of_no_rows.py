"""Formulas and constraints of a user's own are not called where a step changes no rows.

A table has none to change where a batch has no keys for it, and an adaptive table in each step
whose keys all have rows of their own, or none. Operations of Keras choose by the shape of their
arguments, so that an addition of `[0, 3]` fails.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok

pytestmark = pytest.mark.filterwarnings("ignore:.*has an update_step of its own:UserWarning")


def _need_rows(rows):
    checks = tf.debugging.assert_positive(tf.shape(rows)[0], "called for no rows")
    with tf.control_dependencies([] if checks is None else [checks]):
        return tf.identity(rows)


class Summing(keras.optimizers.Optimizer):
    """Subtracts the sums of gradients, by operations of Keras."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self._sums = self.add_optimizer_variables(variables, "sum")

    def update_step(self, gradient, variable, learning_rate):
        total = self._sums[self._get_variable_index(variable)]
        gradient = keras.ops.convert_to_tensor(gradient)
        _need_rows(gradient)
        self.assign(total, keras.ops.add(_need_rows(gradient), total))
        change = keras.ops.multiply(total, keras.ops.cast(learning_rate, total.dtype))
        self.assign(variable, keras.ops.subtract(variable, change))


def _at_most_half(rows):
    return keras.ops.minimum(keras.ops.add(_need_rows(rows), rows) / 2, 0.5)


def _dynamic(**options):
    return sok.DynamicEmbedding(3, "ones", **options)


def _adaptive(**options):
    return sok.AdaptiveEmbedding(
        3, 4, promote_after=1, embeddings_initializer="ones", mask=1, **options
    )


def _collection(**options):
    renamed = {name.removeprefix("embeddings_"): value for name, value in options.items()}
    table = sok.TableConfig("t", None, 3, "ones", combiner=None, **renamed)
    return sok.DistributedEmbedding(sok.FeatureConfig("f", table))


@pytest.mark.cover("values")
@pytest.mark.parametrize("make", [_dynamic, _adaptive, _collection])
@pytest.mark.parametrize("in_function", [True, False], ids=["function", "eager"])
@pytest.mark.parametrize("given", ["formula", "constraint"])
def test_they_are_called_for_rows_alone(make, in_function, given):
    """Each step has a gradient of ones: rows are 1 - rate * (1 + 2 + …), by rate 0.125."""
    layer = make(**({} if given == "formula" else {"embeddings_constraint": _at_most_half}))
    layer.build(None)
    optimizer = Summing(0.125) if given == "formula" else keras.optimizers.SGD(0.125)

    def step(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(keys, training=True))
        weights = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    if in_function:
        step = tf.function(step, input_signature=[tf.TensorSpec([None], tf.int64)])
    for keys in ([], [5], [], [5, 6], []):
        step(tf.constant(keys, tf.int64))
    table = layer.tables["t"] if make is _collection else layer.table
    expected = [[0.625], [0.875]] if given == "formula" else [[0.375], [0.5]]
    np.testing.assert_array_equal(table.lookup([5, 6]), np.broadcast_to(expected, (2, 3)))
