"""Training that is interrupted anywhere in a step goes on as that of a dense weight does."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_twin import DIM, KEYS, Model, WeightOfRows, adaptive_layer, contents, table_layer
from tiers import few_or_many

STEPS = 4


class Interrupted(Model):
    """Raises KeyboardInterrupt, as Ctrl-C does, at a given point of a step, once."""

    point: str | None = None

    def _reach(self, point: str) -> None:
        if self.point == point:
            self.point = None
            raise KeyboardInterrupt

    def call(self, keys: Any, training: Any = None) -> Any:
        vectors = self.layer(keys, training=training)
        self._reach("after the lookup")
        return self.dense(vectors)

    def train_step(self, data: Any) -> dict[str, Any]:
        keys, targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(keys, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self._reach("after the gradient")
        self.optimizer.apply(gradients, self.trainable_variables)
        self._reach("after the step")
        return {"loss": loss}


POINTS = ["after the lookup", "after the gradient", "after the step"]


def train(layer: Any, rule: Any, interruptions: int) -> list[np.ndarray]:
    random = np.random.default_rng(17)
    model = Interrupted(layer)
    model.build()
    model.compile(rule(), run_eagerly=True)
    for _ in range(interruptions):
        keys = random.integers(0, KEYS, (8 * STEPS, 2))
        targets = random.normal(size=(8 * STEPS, 2, DIM)).astype(np.float32)
        model.point = None
        at, point = random.integers(STEPS), POINTS[random.integers(len(POINTS))]

        def arm(batch: int, logs: Any = None, at: int = at, point: str = point) -> None:
            model.point = point if batch == at else None

        with pytest.raises(KeyboardInterrupt):
            model.fit(
                keys,
                targets,
                batch_size=8,
                shuffle=False,
                verbose=0,
                callbacks=[keras.callbacks.LambdaCallback(on_train_batch_begin=arm)],
            )
    model.point = None
    # What was taken and never applied goes after 16 commits.
    window = model.optimizer.gradient_accumulation_steps or 1
    for _ in range(16 * window // STEPS):
        model.fit(keys, targets, batch_size=8, shuffle=False, verbose=0)
    if not isinstance(layer, WeightOfRows):
        of_a_window = 2 * 8 * (window - 1)
        assert model.layer.table.stats()["pending_gradients"] <= of_a_window
    return contents(model)


RULES = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "clipped": lambda: keras.optimizers.Adagrad(0.05, global_clipnorm=0.05),
    "accumulated": lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=3),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("interruptions", few_or_many(5, 50))
@pytest.mark.parametrize(
    ("make", "rule"),
    [*((table_layer, name) for name in RULES), (lambda: adaptive_layer(1), "adagrad")],
    ids=[*RULES, "own_rows"],
)
def test_interrupted_fits_leave_nothing_behind(make, rule, interruptions):
    found, expected = (
        train(layer, RULES[rule], interruptions) for layer in (make(), WeightOfRows())
    )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)
