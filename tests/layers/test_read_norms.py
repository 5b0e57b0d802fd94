"""Whoever reads the norm of gradients finds the rows in it."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_steps import IN_FUNCTION, check_equal, train
from dense_twin import Model, WeightOfRows, loss_of, table_layer


class FollowsNorm(keras.optimizers.SGD):
    """Keeps the norm of what it was given."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.norm = self.add_variable((), name="norm")

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        self.norm.assign(tf.linalg.global_norm(grads))
        super().apply([g / (1.0 + self.norm) for g in grads], trainable_variables)


@pytest.mark.cover(3)
@IN_FUNCTION
@pytest.mark.parametrize("by", ["learning_rate", "own_variable", "numpy", "variable"])
def test_whoever_reads_a_norm_gets_that_of_the_rows_too(by, in_function):
    read: dict[str, list[float]] = {}
    found = []
    for name, layer in {"table": table_layer(), "weight": WeightOfRows()}.items():
        kept = tf.Variable(0.0)
        norms = read.setdefault(name, [])

        def step(model, optimizer, keys, targets, number, kept=kept, norms=norms):
            with tf.GradientTape() as tape:
                loss = loss_of(model, keys, targets)
            taken = tape.gradient(loss, model.trainable_variables)
            norm = tf.linalg.global_norm(taken)
            if by == "learning_rate":
                optimizer.learning_rate.assign(0.1 / norm)
            elif by == "variable":
                kept.assign_add(norm)
            elif by == "numpy":
                tf.numpy_function(lambda n: norms.append(float(n)) or n, [norm], tf.float32)
            optimizer.apply(taken, model.trainable_variables)

        optimizer = FollowsNorm(0.02) if by == "own_variable" else keras.optimizers.SGD(0.02)
        found.append(train(Model(layer), optimizer, step, in_function))
        norms.append(float(kept))
        norms.append(float(optimizer.norm) if by == "own_variable" else 0.0)
    check_equal(*found)
    np.testing.assert_allclose(read["table"], read["weight"], rtol=1e-5)


@IN_FUNCTION
def test_a_check_of_numbers_sees_those_of_rows(in_function):
    def step(model, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            vectors = model.layer(keys, training=True)
        taken = tape.gradient(vectors, [model.layer.anchor.value], vectors * np.nan)
        tf.debugging.check_numerics(taken[0], "of the rows")
        optimizer.apply(taken, [model.layer.anchor])

    with pytest.raises(tf.errors.InvalidArgumentError, match="of the rows"):
        train(Model(table_layer()), keras.optimizers.SGD(0.02), step, in_function)
