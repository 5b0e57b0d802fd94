"""An adaptive embedding in NumPy, with exact counts: what tests of the layer compare with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed

DIM = 3
BUCKETS = 7
KEYS = np.arange(-20, 20)


@dataclass
class Row:
    embedding: np.ndarray
    slots: list[np.ndarray]

    def copy(self) -> Row:
        return Row(self.embedding.copy(), [slot.copy() for slot in self.slots])


class Sgd:
    """The rule of SGD without momentum."""

    starts: tuple[float, ...] = ()

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def update(self, row: Row, gradient: np.ndarray, step: int) -> None:
        row.embedding -= self._rate * gradient


class Adagrad(Sgd):
    starts = (0.1,)

    def update(self, row: Row, gradient: np.ndarray, step: int) -> None:
        row.slots[0] += gradient**2
        row.embedding -= self._rate * gradient / np.sqrt(row.slots[0] + 1e-7)


class Adam(Sgd):
    starts = (0.0, 0.0)

    def update(self, row: Row, gradient: np.ndarray, step: int) -> None:
        mean, square = row.slots
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient**2 - square)
        rate = self._rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        row.embedding -= rate * mean / (np.sqrt(square) + 1e-7)


class Ftrl(Sgd):
    """McMahan et al. 2013, "Ad Click Prediction", algorithm 1, with an l1 of 0.01."""

    starts = (0.1, 0.0)
    l1 = 0.01

    def update(self, row: Row, gradient: np.ndarray, step: int) -> None:
        total, linear = row.slots
        before = np.sqrt(total)
        total += gradient**2
        linear += gradient - (np.sqrt(total) - before) / self._rate * row.embedding
        shrunk = np.clip(linear, -self.l1, self.l1) - linear
        row.embedding[:] = shrunk * self._rate / np.sqrt(total)


@dataclass(frozen=True)
class Case:
    """A rule, and the Keras optimizer that it is."""

    rule: Callable[[float], Sgd]
    optimizer: Callable[[float], keras.optimizers.Optimizer]
    rate: float


CASES = {
    "sgd": Case(Sgd, keras.optimizers.SGD, 0.1),
    "adagrad": Case(Adagrad, keras.optimizers.Adagrad, 0.1),
    "adam": Case(Adam, keras.optimizers.Adam, 0.05),
    "ftrl": Case(
        Ftrl, lambda rate: keras.optimizers.Ftrl(rate, l1_regularization_strength=Ftrl.l1), 0.1
    ),
}


class AdaptiveReference:
    """Rows in float64. Starts where the static rows of an untrained layer are.

    Args:
        layer: Not trained yet.
        rule: Of the rows.
        promote_after: How often a key is seen before it gets a row.
        copy_slots: Whether the row copies the slots of its static row.
        demote_blend: What part of its difference goes back to the static row.
    """

    def __init__(
        self,
        layer: sok_embed.AdaptiveEmbedding,
        rule: Sgd,
        promote_after: int,
        copy_slots: bool = True,
        demote_blend: float = 0.0,
    ) -> None:
        self._rule = rule
        self._promote_after = promote_after
        self._copy_slots = copy_slots
        self._demote_blend = demote_blend
        self._bucket_of = layer.table.buckets
        self._static_of = layer.table.lookup_static
        self._static: dict[int, Row] = {}
        self.rows: dict[int, Row] = {}
        self.counts: Counter[int] = Counter()
        self._deposits: list[tuple[int, int, np.ndarray]] = []
        self._steps = 0
        for key in KEYS.tolist():
            self.static_row(key)

    def static_row(self, key: int) -> Row:
        bucket = int(self._bucket_of([key])[0])
        if bucket not in self._static:
            self._static[bucket] = self._new(self._static_of([key])[0])
        return self._static[bucket]

    def _new(self, embedding: np.ndarray) -> Row:
        slots = [np.full(embedding.shape, start) for start in self._rule.starts]
        return Row(embedding.astype(np.float64), slots)

    def promote(self, key: int) -> None:
        static = self.static_row(key)
        self.rows[key] = static.copy() if self._copy_slots else self._new(static.embedding)

    def lookup(self, keys: Any, mask: Any = -1, training: bool = False) -> np.ndarray:
        keys = np.asarray(keys)
        routes = np.broadcast_to(mask, keys.shape).ravel().tolist()
        if training:
            self._learn(list(zip(keys.ravel().tolist(), routes, strict=True)))
        rows = [
            self._row(key, route).embedding
            for key, route in zip(keys.ravel().tolist(), routes, strict=True)
        ]
        return np.reshape(rows, (*keys.shape, DIM))

    def _learn(self, batch: list[tuple[int, int]]) -> None:
        waiting = [(key, route) for key, route in batch if key not in self.rows and route != 0]
        self.counts.update(key for key, _ in waiting)
        for key, route in waiting:
            if key not in self.rows and (route == 1 or self.counts[key] >= self._promote_after):
                self.promote(key)

    def _row(self, key: int, route: int) -> Row:
        return self.rows[key] if route != 0 and key in self.rows else self.static_row(key)

    def deposit(self, keys: Any, gradients: np.ndarray, mask: Any = -1) -> None:
        keys = np.asarray(keys)
        routes = np.broadcast_to(mask, keys.shape).ravel().tolist()
        flat = gradients.reshape(-1, DIM).astype(np.float64)
        self._deposits += zip(keys.ravel().tolist(), routes, flat, strict=True)

    def commit(self) -> None:
        """One step: the gradients of a row are summed."""
        self._steps += 1
        sums: dict[int, tuple[Row, np.ndarray]] = {}
        for key, route, gradient in self._deposits:
            row = self._row(key, route)
            sums[id(row)] = (row, sums.get(id(row), (row, 0.0))[1] + gradient)
        for row, gradient in sums.values():
            self._rule.update(row, gradient, self._steps)
        self._deposits = []

    def demote(self, keys: Any) -> None:
        """One after another: of keys that share a static row, each blends into what is there."""
        for key in np.asarray(keys).tolist():
            row, static = self.rows.pop(key), self.static_row(key)
            static.embedding += self._demote_blend * (row.embedding - static.embedding)

    def assert_equal(self, layer: sok_embed.AdaptiveEmbedding, atol: float = 1e-6) -> None:
        """1e-6: float32 rows of the order of 1, a few steps of the order of 0.1."""
        own_keys, _ = layer.table.export()
        np.testing.assert_array_equal(np.sort(own_keys), sorted(self.rows))
        ours = layer.table.lookup(KEYS)
        np.testing.assert_allclose(ours, self.lookup(KEYS), rtol=0, atol=atol)
        ours = layer.table.lookup_static(KEYS)
        np.testing.assert_allclose(ours, self.lookup(KEYS, 0), rtol=0, atol=atol)
        assert layer.table.stats()["pending_gradients"] == 0


def make(**arguments: Any) -> sok_embed.AdaptiveEmbedding:
    """Makes a layer of few buckets, so that keys share them, and whose counts are exact."""
    given = {"output_dim": DIM, "static_buckets": BUCKETS, "name": "emb"}
    return sok_embed.AdaptiveEmbedding(**{**given, "sketch_capacity": 1000, **arguments})


def train_step(
    layer: sok_embed.AdaptiveEmbedding,
    optimizer: keras.optimizers.Optimizer,
    keys: Any,
    gradients: np.ndarray,
    mask: Any = None,
) -> np.ndarray:
    """One step with given gradients of the embeddings; returns the embeddings."""
    with tf.GradientTape() as tape:
        embeddings = layer(keys, training=True, mask=mask)
        loss = tf.reduce_sum(embeddings * gradients)
    optimizer.apply([tape.gradient(loss, layer.anchor.value)], [layer.anchor])
    return embeddings.numpy()


def random_batch(random: np.random.Generator, shape: Any = (4, 5)) -> tuple[Any, Any]:
    """Draws keys, some of them often, and gradients of the order of 1."""
    keys = np.clip(np.rint(random.normal(scale=6, size=shape)), KEYS[0], KEYS[-1]).astype(np.int64)
    return keys, random.normal(size=(*shape, DIM)).astype(np.float32)
