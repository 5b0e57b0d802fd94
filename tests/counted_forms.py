"""Layers of every form with an admission, a stream of keys, and what is admitted, in NumPy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

import sok_embed
from sok_embed import feature_column as fc
from sok_embed.admission import FrequencyAdmission

MIN_COUNT = 4
LENGTH = 6  # keys of an example
SHARDS = 12  # examples of a batch: those of 1, 2, 3 or 4 workers are equally many
STEPS = 5

Keys = npt.NDArray[np.int64]
Form = Callable[[], "Counted"]


class Counted:
    """A layer whose table has an admission.

    Args:
        layer: The layer.
        call: Takes keys `[examples, LENGTH]` and `training`; returns vectors.
        table: Returns the layer's table, once it is built.
    """

    def __init__(
        self,
        layer: Any,
        call: Callable[[Any, tf.Tensor, bool], Any],
        table: Callable[[Any], Any] = lambda layer: layer.table,
    ) -> None:
        self.layer, self._call, self._table = layer, call, table

    def loss(self, keys: Keys, training: bool) -> tf.Tensor:
        """Sums all numbers of the vectors."""
        found = tf.nest.flatten(self._call(self.layer, tf.convert_to_tensor(keys), training))
        return tf.add_n([tf.reduce_sum(vectors) for vectors in found])

    def admitted(self) -> list[int]:
        """Returns the keys of this worker's rows, in order."""
        return sorted(self._table(self.layer).export()[0].tolist())


def stream(seed: int) -> Keys:
    """Returns keys `[STEPS, SHARDS, LENGTH]`: some in one batch only, some in one example only."""
    random = np.random.default_rng(seed)
    keys = (200 * random.random((STEPS, SHARDS, LENGTH)) ** 2).astype(np.int64) + 1
    keys[0, 0] = 1001  # more often than MIN_COUNT in one example
    keys[1, 1, :MIN_COUNT] = 1002  # as often
    keys[2, 2, 1:MIN_COUNT] = 1003  # once too few
    keys[3, :MIN_COUNT, 0] = 1004  # in several examples, which lie on several workers
    keys[:MIN_COUNT, 5, 5] = 1005  # once a batch
    return keys


def admitted_of(keys: Keys) -> list[int]:
    """Returns the keys that come MIN_COUNT times or more."""
    return sorted(key for key, seen in Counter(keys.ravel().tolist()).items() if seen >= MIN_COUNT)


def _dynamic(call: Callable[..., Any], **arguments: Any) -> Form:
    def make() -> Counted:
        layer = sok_embed.DynamicEmbedding(
            2, admission=FrequencyAdmission(MIN_COUNT), name="counted", **arguments
        )
        return Counted(layer, call)

    return make


def _weights(keys: tf.Tensor) -> tf.Tensor:
    """Returns weights of which every third is 0."""
    return tf.cast(tf.math.floormod(keys, 3), tf.float32)


def _all2all() -> Counted:
    layer = sok_embed.All2AllDenseEmbedding(
        10_000, 2, 1, LENGTH, admission=FrequencyAdmission(MIN_COUNT), name="counted"
    )
    return Counted(layer, lambda layer, keys, training: layer(keys[:, None], training=training))


def _collection(weighted: bool = False, **placed: Any) -> Form:
    """Makes two features of one table: bags of the first keys, and a vector for each other."""

    def make() -> Counted:
        table = sok_embed.TableConfig(
            "t", None, 2, seed=3, admission=FrequencyAdmission(MIN_COUNT), **placed
        )
        features = {
            "bag": sok_embed.FeatureConfig("bag", table, combiner="sum"),
            "ragged": sok_embed.FeatureConfig("ragged", table, combiner="mean"),
            "single": sok_embed.FeatureConfig("single", table, combiner=None),
        }

        def call(layer: Any, keys: tf.Tensor, training: bool) -> Any:
            parts = {
                "bag": keys[:, :2],
                "ragged": tf.RaggedTensor.from_tensor(keys[:, 2:-1]),
                "single": keys[:, -1:],
            }
            weights = {"bag": _weights(parts["bag"])} if weighted else None
            return dict(layer(parts, weights, training=training))

        layer = sok_embed.DistributedEmbedding(features, name="counted")
        return Counted(layer, call, lambda layer: layer.tables["t"])

    return make


def _adaptive(call: Callable[..., Any], **arguments: Any) -> Form:
    def make() -> Counted:
        layer = sok_embed.AdaptiveEmbedding(
            2, static_buckets=7, promote_after=MIN_COUNT, name="counted", **arguments
        )
        return Counted(layer, call)

    return make


def _columns() -> Counted:
    option = fc.EmbeddingVariableOption(filter_option=fc.CounterFilter(MIN_COUNT))
    item = fc.categorical_column_with_adaptive_embedding("item", 7, tf.int64, ev_option=option)
    start = tf.compat.v1.constant_initializer(0.5)
    layer = fc.DenseFeatures([fc.embedding_column(item, 2, initializer=start)], name="counted")

    def call(layer: Any, keys: tf.Tensor, training: bool) -> Any:
        mask = {"item": tf.ones_like(keys, tf.int32)}
        return layer({"item": keys}, mask, training=training)

    return Counted(layer, call, lambda layer: layer.tables["item_embedding"])


def _plain(layer: Any, keys: tf.Tensor, training: bool) -> Any:
    return layer(keys, training=training)


def _in_ragged(layer: Any, keys: tf.Tensor, training: bool) -> Any:
    return layer(tf.RaggedTensor.from_tensor(keys), training=training)


def _in_sparse(layer: Any, keys: tf.Tensor, training: bool) -> Any:
    return layer(tf.sparse.from_dense(keys), training=training)


def _twice(layer: Any, keys: tf.Tensor, training: bool) -> Any:
    return [layer(part, training=training) for part in (keys[:, :2], keys[:, 2:])]


def _with_weights(layer: Any, keys: tf.Tensor, training: bool) -> Any:
    return layer(keys, _weights(keys), training=training)


def _with_padding(layer: Any, keys: tf.Tensor, training: bool) -> Any:
    zeros = tf.zeros_like(keys[:, :1])
    return layer(tf.concat([zeros, keys, zeros, zeros], 1), training=training)


FORMS: Mapping[str, Form] = {
    "dense": _dynamic(_plain),
    "ragged": _dynamic(_in_ragged),
    "twice": _dynamic(_twice),
    "pooled": _dynamic(_plain, combiner="sum"),
    "pooled_weights": _dynamic(_with_weights, combiner="sum"),
    "pooled_ragged": _dynamic(_in_ragged, combiner="mean"),
    "pooled_sparse": _dynamic(_in_sparse, combiner="max"),
    "pooled_padded": _dynamic(_with_padding, combiner="sqrtn", mask_zero=True),
    "all2all": _all2all,
    "collection": _collection(),
    "collection_weights": _collection(weighted=True),
    "collection_replicated": _collection(placement="replicated"),
    "collection_worker": _collection(placement="worker", worker=0),
    "adaptive": _adaptive(_plain),
    "adaptive_pooled": _adaptive(_in_ragged, combiner="sum"),
    "columns": _columns,
}
