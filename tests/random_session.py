"""Trains a table and a dense weight in a graph and a session of TF1, for `random_training`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tensorflow as tf
from dense_twin import DIM, KEYS, START

from sok_embed import tf_ops
from sok_embed.training.commit import Commit

v1 = tf.compat.v1
_numbers = itertools.count()


class GraphModel:
    """A table, or a weight in its place, and a dense weight, in a graph of TF1."""

    def __init__(self, is_weight: bool) -> None:
        self.name = f"random_session_{next(_numbers)}"
        self.is_weight = is_weight
        if is_weight:
            start = v1.constant_initializer(START)
            self.rows = v1.get_variable("rows", [KEYS, DIM], initializer=start, use_resource=True)
        else:
            self.rows = v1.get_variable(
                "anchor",
                [tf_ops.ANCHOR_SIZE],
                initializer=v1.zeros_initializer(),
                constraint=Commit(self, None),
                use_resource=True,
            )
        start = v1.constant_initializer(0.3)
        self.kernel = v1.get_variable("kernel", [DIM, DIM], initializer=start, use_resource=True)
        self.trainable_variables = [self.rows, self.kernel]

    @property
    def handle(self) -> tf.Tensor:
        return tf_ops.table_handle(
            self.name, DIM, initializer="constant", initializer_a=START, initializer_b=START
        )

    def commit(
        self, anchor: tf.Tensor, steps: tf_ops.RuleSteps, redemption: tf_ops.Redemption
    ) -> tf.Tensor:
        return tf_ops.commit(self.handle, anchor, steps, redemption)

    def step_count(self) -> tf.Tensor:
        return tf_ops.steps(self.handle)

    def vectors(self, keys: Any, training: bool) -> tf.Tensor:
        if self.is_weight:
            return tf.one_hot(keys, KEYS) @ self.rows
        anchor = self.rows if training else None
        return tf_ops.lookup(self.handle, keys, DIM, training, anchor=anchor).embeddings

    def __call__(self, keys: Any, training: bool) -> tf.Tensor:
        return tf.tensordot(self.vectors(keys, training), self.kernel, 1)


class Given:
    """Stands for an optimizer, and keeps the gradients that it is given."""

    def __init__(self) -> None:
        self.gradients: list[Any] = []

    def scale_loss(self, loss: Any) -> Any:
        return loss

    def apply(self, gradients: Any, variables: Any) -> None:
        self.gradients.append(gradients)


def train(
    is_weight: bool, case: Any, keys: list[np.ndarray], targets: list[np.ndarray]
) -> list[np.ndarray]:
    """Runs the program of a `random_training.Case`. Returns the rows and the dense weight."""
    with tf.Graph().as_default():
        model = GraphModel(is_weight)
        given_keys = v1.placeholder(tf.int64, keys[0].shape)
        given_targets = v1.placeholder(tf.float32, targets[0].shape)
        given = Given()
        case.step(model, given, given_keys, given_targets, None)
        optimizer = case.optimizer().optimizer
        # A graph says nothing of the order of updates, and these are to be one after another, all
        # by gradients of the variables as they were before.
        order = [gradient for gradients in given.gradients for gradient in gradients]
        for gradients in given.gradients:
            pairs = list(zip(gradients, model.trainable_variables, strict=True))
            with tf.control_dependencies(order):
                order.append(optimizer.apply_gradients(pairs))
        rows = model.vectors(tf.range(KEYS, dtype=tf.int64), False)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for of_keys, of_targets in zip(keys, targets, strict=True):
                session.run(order[-1], {given_keys: of_keys, given_targets: of_targets})
            return session.run([rows, model.kernel])
