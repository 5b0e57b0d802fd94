"""Trains a table and a static Keras layer in the same way, for tests that compare the two."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from optimizer_cases import CASES

import sok_embed

VOCABULARY = 50
DIM = 4
BATCH = 8
LENGTH = 10
STEPS = 50

compile_looks_at_layers = pytest.mark.skipif(
    tuple(map(int, keras.__version__.split(".")[:2])) < (3, 15),
    reason="compile of Keras before 3.15 does not look at layers: the first step refuses",
)

OPTIMIZERS = {name: case.optimizer for name, case in CASES.items() if case.has_dense_twin}
# One of these is without slots, one with slots and a step count.
TWO = ("sgd", "adam")
# These are one of each rule that has no variant among them.
EIGHT = ("sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw", "ftrl", "lion")


def each(names: tuple[str, ...] = tuple(OPTIMIZERS)) -> pytest.MarkDecorator:
    """Runs a test with `make_optimizer` of each of the names."""
    return pytest.mark.parametrize("make_optimizer", [OPTIMIZERS[n] for n in names], ids=names)


class SummedGradientEmbedding(keras.layers.Embedding):
    """`keras.layers.Embedding` whose gradient is the dense sum over equal keys.

    That of the plain layer is a tf.IndexedSlices in which a key that occurs twice has two entries.
    Keras' optimizers square each by itself, where the rule asks for the square of the sum.
    """

    def call(self, inputs):
        return keras.ops.take(self.embeddings * 1.0, inputs, axis=0)


@dataclass
class Batches:
    """What both layers are trained on, and what they start from.

    Every batch repeats keys. `absent` keys occur in no batch; all others occur in each.
    """

    steps: int = STEPS
    absent: tuple[int, ...] = ()
    seed: int = 1

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        present = np.setdiff1d(np.arange(VOCABULARY), self.absent)
        batches = []
        for _ in range(self.steps):
            repeated = random.choice(present, BATCH * LENGTH - len(present))
            batch = random.permutation(np.concatenate([present, repeated]))
            batches.append(batch.reshape(BATCH, LENGTH))
        self.keys = np.concatenate(batches)
        self.targets = random.normal(size=(len(self.keys), 1)).astype(np.float32)
        self.start = random.uniform(-0.05, 0.05, (VOCABULARY, DIM)).astype(np.float32)
        self.kernel = random.normal(size=(LENGTH * DIM, 1)).astype(np.float32)


@dataclass
class Trained:
    """Embeddings `[VOCABULARY, DIM]` and Dense kernels after training, ours and Keras'."""

    start: np.ndarray
    ours: np.ndarray
    keras: np.ndarray
    our_kernel: np.ndarray
    keras_kernel: np.ndarray
    table: sok_embed.Table

    def assert_equal(self, atol: float = 1e-5) -> None:
        """The tables are equal, have moved, and no gradient is left over.

        1e-5: both compute in float32, but sum the gradients of a key in another order. Over 50
        steps of at most 0.1 the difference was never seen above 2e-7.
        """
        np.testing.assert_allclose(self.ours, self.keras, rtol=0, atol=atol)
        np.testing.assert_allclose(self.our_kernel, self.keras_kernel, rtol=0, atol=10 * atol)
        # A table that has not been trained could be equal as well.
        assert np.abs(self.keras - self.start).max() > 100 * atol
        assert self.table.stats()["pending_gradients"] == 0


@functools.cache
def mirrored() -> tf.distribute.MirroredStrategy:
    """Two replicas on the CPU. One for all tests: strategies of one process share collective keys.

    Two strategies of the same devices, one used after the other, can fail with "Shape mismatch in
    the collective instance".
    """
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def fit(model: keras.Model, keys: np.ndarray, targets: np.ndarray, **arguments: Any) -> None:
    """One pass over the batches, in their order."""
    model.fit(keys, targets, batch_size=BATCH, shuffle=False, verbose=0, **arguments)


def fit_eagerly(model: keras.Model, keys: np.ndarray, targets: np.ndarray) -> None:
    """Does what `fit` does without a graph, which is faster where there are few batches."""
    model.run_eagerly = True
    fit(model, keys, targets)


def make_model(embedding: keras.layers.Layer, calls: int = 1) -> keras.Model:
    """Makes a linear model of the embeddings of LENGTH keys, looked up `calls` times."""
    inputs = keras.Input((LENGTH,), dtype="int64")
    embedded = embedding(inputs)
    if calls == 2:
        # The second call reads the same keys in another order, so that their gradients differ.
        embedded = embedded + embedding(inputs[:, ::-1])
    outputs = keras.layers.Dense(1, name="dense")(keras.layers.Flatten()(embedded))
    return keras.Model(inputs, outputs)


def train_both(
    make_optimizer: Callable[[], keras.optimizers.Optimizer],
    *,
    batches: Batches | None = None,
    train: Callable[[keras.Model, np.ndarray, np.ndarray], None] = fit,
    calls: int = 1,
    prepare: Callable[[keras.optimizers.Optimizer, keras.Variable], None] | None = None,
    own_optimizer: Any = None,
    make_strategy: Callable[[], Any] = contextlib.nullcontext,
    reference: type[keras.layers.Embedding] = SummedGradientEmbedding,
    reference_dtype: str | None = None,
) -> Trained:
    """Trains two models that differ in their embedding layer only.

    Args:
        make_optimizer: Called once for each model.
        batches: `Batches()` unless given.
        train: Takes a compiled model, all keys and all targets.
        calls: How often a model calls its embedding layer, 1 or 2.
        prepare: Takes the optimizer and the trainable weight of the embedding layer, before the
            model is compiled.
        own_optimizer: Makes the optimizer of our layer's own. Both kernels are frozen then, and
            our model is compiled with SGD, so that `make_optimizer` matters to the static layer.
        make_strategy: Makes a tf.distribute strategy.
        reference: The class of the static layer.
        reference_dtype: The policy of the static layer.
    """
    batches = batches or Batches()
    embeddings, kernels = [], []
    for ours in (True, False):
        strategy = make_strategy()
        with strategy.scope() if hasattr(strategy, "scope") else strategy:
            if ours:
                layer = sok_embed.DynamicEmbedding(
                    DIM, optimizer=own_optimizer() if own_optimizer else None
                )
            else:
                layer = reference(VOCABULARY, DIM, dtype=reference_dtype)
            model = make_model(layer, calls)
            dense = model.get_layer("dense")
            dense.trainable = own_optimizer is None
            if ours and own_optimizer is not None:
                optimizer = keras.optimizers.SGD(0.5)
            else:
                optimizer = make_optimizer()
            if prepare is not None:
                prepare(optimizer, layer.trainable_weights[0])
            model.compile(optimizer, "mse")
        dense.set_weights([batches.kernel, np.zeros(1, np.float32)])
        if ours:
            table = layer.table
            table.assign(np.arange(VOCABULARY), batches.start)
        else:
            layer.set_weights([batches.start])
        train(model, batches.keys, batches.targets)
        embeddings.append(table.lookup(np.arange(VOCABULARY)) if ours else layer.get_weights()[0])
        kernels.append(dense.get_weights()[0])
    return Trained(batches.start, *embeddings, *kernels, table)
