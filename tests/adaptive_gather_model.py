"""What tests of the adaptive gather share: tables, variables, and the model in NumPy."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import tensorflow as tf
from adaptive_reference import Adagrad, Ftrl, Row, Sgd

from sok_embed import tf_ops

DIM = 5
BUCKETS = 7
RATE = 0.25
RULES = {
    "sgd": (Sgd(RATE), {"learning_rate": RATE}),
    "adagrad": (Adagrad(RATE), {"learning_rate": RATE}),
    "ftrl": (Ftrl(RATE), {"learning_rate": RATE, "l1_regularization_strength": Ftrl.l1}),
}


def new_table(**attributes: Any) -> tf.Tensor:
    """Makes a table; rows that begin by its own initializer would show: they begin as 7."""
    given = {"initializer": "constant", "initializer_a": 7.0, **attributes}
    return tf_ops.anonymous_table("gather", DIM, **given)


def new_static(buckets: int = BUCKETS, seed: int = 3) -> tf.Variable:
    values = np.random.default_rng(seed).normal(size=(buckets, DIM)).astype(np.float32)
    return tf.Variable(values, name="static")


def gather(
    table: Any, static: Any, keys: Any, mask: Any, buckets: Any = None, **options: Any
) -> Any:
    """Buckets are keys modulo their number, if not given."""
    keys = tf.convert_to_tensor(keys, tf.int64)
    if buckets is None:
        buckets = tf.math.floormod(keys, BUCKETS)
    options = {"dim": DIM, "make_rows": True, **options}
    mask = tf.convert_to_tensor(mask, tf.int32)
    return tf_ops.adaptive_mask_gather(
        table, static, keys, tf.convert_to_tensor(buckets, tf.int64), mask, **options
    ).embeddings


def commit(table: tf.Tensor, gradient: Any, rule: str, **options: Any) -> tf.Tensor:
    _, hyper = RULES[rule]
    return tf_ops.commit(table, gradient, [tf_ops.RuleStep(rule, hyper, **options)])


def rows_of(table: tf.Tensor) -> dict[int, np.ndarray]:
    contents = tf_ops.export(table, DIM, with_slots=False)
    return dict(zip(contents.keys.numpy().tolist(), contents.embeddings.numpy(), strict=True))


def slots_of(table: tf.Tensor) -> dict[int, np.ndarray]:
    contents = tf_ops.export(table, DIM, with_slots=True)
    return dict(zip(contents.keys.numpy().tolist(), contents.slots.numpy(), strict=True))


def pending(table: tf.Tensor) -> int:
    names, values = tf_ops.stats(table)
    return dict(zip(names.numpy(), values.numpy(), strict=True))[b"pending_gradients"]


class Gather:
    """Own rows and static rows, with exact counts of keys.

    Args:
        static: `[buckets, dim]`.
        rule: Of both kinds of rows.
        min_count: In which occurrence a key is admitted.
    """

    def __init__(self, static: np.ndarray, rule: Sgd, min_count: int = 1) -> None:
        self.static = [
            Row(row.astype(np.float64), [np.full(DIM, start) for start in rule.starts])
            for row in static
        ]
        self.own: dict[int, Row] = {}
        self._rule, self._min_count = rule, min_count
        self._seen: Counter[int] = Counter()

    def step(
        self, keys: np.ndarray, buckets: np.ndarray, mask: np.ndarray, gradients: np.ndarray
    ) -> np.ndarray:
        """Makes rows, returns what is read, then takes one step of the rule."""
        places = list(zip(keys.ravel().tolist(), buckets.ravel().tolist(), strict=True))
        routes = mask.ravel().tolist()
        for (key, bucket), route in zip(places, routes, strict=True):
            if route == 1 and key not in self.own:
                self._seen[key] += 1
                if self._seen[key] >= self._min_count:
                    self.own[key] = self.static[bucket].copy()
        read = [
            self.own[key] if route == 1 and key in self.own else self.static[bucket]
            for (key, bucket), route in zip(places, routes, strict=True)
        ]
        result = np.array([row.embedding for row in read])
        sums: dict[int, tuple[Row, Any]] = {}
        for row, gradient in zip(read, gradients.reshape(-1, DIM).astype(np.float64), strict=True):
            sums[id(row)] = (row, sums.get(id(row), (row, 0.0))[1] + gradient)
        for row, total in sums.values():
            self._rule.update(row, total, 0)
        return result.reshape(*keys.shape, DIM)
