"""Layers of several columns that differ in whatever columns can differ in."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.models import share
from sharded.registry import Here, scenario
from sok_embed import feature_column as fc

BATCH = 12
# The share of ids of mask 1 in each step. In the third, workers without ids are among others.
MASKED = (0.5, 0.0, 0.5, 1.0, 0.5)
STEP_WITHOUT_IDS = 2
# The columns of the tables that are trained, as layers name them.
DENSE_TABLES = (
    "drawn_embedding",
    "left_right_shared_embedding",
    "shop_weighted_by_weight_embedding",
    "word_embedding",
)
SEQUENCE_TABLES = ("a_b_shared_embedding", "c_embedding")


# A key that one column alone would not let in.
_FILTERED = fc.EmbeddingVariableOption(filter_option=fc.CounterFilter(3))


def _start(seed: int) -> Any:
    """Draws the same static rows on every worker; shared columns take one alone."""

    def draw(shape: Any, dtype: Any = None, **_: Any) -> Any:
        values = np.random.default_rng(seed).uniform(-1, 1, [int(n) for n in shape])
        return tf.constant(values, tf.float32)

    return draw


def _dense_layer(drawn_shared: bool) -> Any:
    """With `drawn_shared`, the columns that share rows train no static ones."""

    def column(name: str, dtype: Any = tf.int64, **options: Any) -> Any:
        return fc.categorical_column_with_adaptive_embedding(name, 7, dtype, **options)

    shared = fc.categorical_column_with_embedding if drawn_shared else column
    weighted = tf.feature_column.weighted_categorical_column(column("shop"), "weight")
    drawn = fc.categorical_column_with_embedding("drawn", tf.int64)
    plain = tf.feature_column.categorical_column_with_identity("plain", 5)
    columns = [
        fc.embedding_column(weighted, 3, "mean", _start(1)),
        fc.embedding_column(column("word", tf.string), 2, "sqrtn", _start(2)),
        fc.embedding_column(drawn, 1, "sum", _start(3)),
        fc.embedding_column(column("frozen"), 3, "sum", _start(4), trainable=False),
        *fc.shared_embedding_columns(
            [shared(name, dtype=tf.int64, ev_option=_FILTERED) for name in ("left", "right")],
            5,
            "sum",
            initializer=_start(5),
        ),
        tf.feature_column.embedding_column(plain, 2, initializer=_start(6)),
        tf.feature_column.numeric_column("price"),
    ]
    return fc.DenseFeatures(columns, name="many")


def _sparse(values: Any, there: Any) -> tf.SparseTensor:
    """The values of a matrix that are there, whatever they are."""
    return tf.SparseTensor(np.argwhere(there), values[there], values.shape)


def _dense_batch(drawn_shared: bool, here: Here, step: int) -> tuple[Any, Any]:
    """This worker's features and masks of a step."""
    rng = np.random.default_rng(step)
    there = {}
    for name in ("shop", "word", "drawn", "frozen", "left", "right", "plain"):
        there[name] = rng.uniform(size=(BATCH, 3)) < 0.7
        if step == STEP_WITHOUT_IDS:
            # All of worker 0, of two as of three.
            there[name][[i for i in range(BATCH) if i % 2 == 0 or i % 3 == 0]] = False
    weights = rng.integers(-1, 3, (BATCH, 3)).astype(np.float32)
    without_masks = {"drawn", "plain", *(("left", "right") if drawn_shared else ())}
    features, masks = {}, {}
    for name, is_there in there.items():
        own = share(is_there, here)
        values = share(rng.integers(0, 5 if name == "plain" else 20, (BATCH, 3)), here)
        if name == "word":
            values = np.char.add("word ", values.astype(str))
        features[name] = _sparse(values, own)
        if name not in without_masks:
            mask = (rng.uniform(size=(BATCH, 3)) < MASKED[step]).astype(np.int32)
            masks[name] = share(mask, here)[own]
    features["weight"] = _sparse(share(weights, here), share(there["shop"], here))
    features["price"] = tf.constant(share(rng.normal(size=(BATCH, 1)), here), tf.float32)
    return features, masks


def _sequence_layer() -> Any:
    def column(name: str, **options: Any) -> Any:
        make = fc.sequence_categorical_column_with_adaptive_embedding
        return make(name, 7, tf.int64, **options)

    shared = [column(name, ev_option=_FILTERED) for name in "ab"]
    columns = [
        *fc.shared_embedding_columns(shared, 4, initializer=_start(1)),
        fc.embedding_column(column("c"), 3, initializer=_start(2)),
    ]
    return fc.SequenceFeatures(columns, name="many")


def _sequence_batch(here: Here, step: int) -> tuple[Any, Any]:
    """Sequences of up to four ids, as long in all columns."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(0, 5, BATCH)
    if step == STEP_WITHOUT_IDS:
        lengths[[i for i in range(BATCH) if i % 2 == 0 or i % 3 == 0]] = 0
    there = share(np.arange(4) < lengths[:, np.newaxis], here)
    features, masks = {}, {}
    for name in "abc":
        features[name] = _sparse(share(rng.integers(0, 20, (BATCH, 4)), here), there)
        mask = (rng.uniform(size=(BATCH, 4)) < MASKED[step]).astype(np.int32)
        masks[name] = share(mask, here)[there]
    return features, masks


def _trained(here: Here, layer: Any, batch: Any, optimizer: Any, width: int) -> dict[str, Any]:
    """Trains with a loss that each column has its own part in; returns what came of it."""
    optimizer = sok_embed.DistributedOptimizer(optimizer)
    kernel = tf.constant(np.random.default_rng(9).normal(size=(width, 1)), tf.float32)

    def outputs(features: Any, masks: Any, training: bool) -> tf.Tensor:
        rows = layer(features, masks, training=training)
        if isinstance(rows, tuple):
            rows = tf.reduce_sum(rows[0], 1)
        return rows

    @tf.function(reduce_retracing=True)
    def train(features: Any, masks: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((outputs(features, masks, True) @ kernel - 1.0) ** 2)
        variables = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    for step in range(len(MASKED)):
        train(*batch(here, step))
    saved: dict[str, Any] = {}
    for name, table in layer.tables.items():
        keys, rows = table.export()
        saved |= {f"{name}.keys": keys, f"{name}.rows": rows}
        saved[f"{name}.untrained"] = np.zeros_like(rows)
        saved[f"weight.{name}"] = layer.static_rows(name).numpy()
    for step in range(len(MASKED)):
        saved[f"outputs.{step}"] = outputs(*batch(here, step), False).numpy()
    return saved


def _trained_columns(here: Here, optimizer: Any, drawn_shared: bool) -> dict[str, Any]:
    batch = functools.partial(_dense_batch, drawn_shared)
    return _trained(here, _dense_layer(drawn_shared), batch, optimizer, 22)


@scenario
def many_columns_sgd(here: Here) -> dict[str, Any]:
    return _trained_columns(here, keras.optimizers.SGD(0.1), drawn_shared=True)


@scenario
def many_columns_adam(here: Here) -> dict[str, Any]:
    return _trained_columns(here, keras.optimizers.Adam(0.02, epsilon=1e-3), drawn_shared=False)


@scenario
def many_sequences(here: Here) -> dict[str, Any]:
    return _trained(here, _sequence_layer(), _sequence_batch, keras.optimizers.SGD(0.1), 11)


@scenario
def a_layer_of_no_adaptive_columns(here: Here) -> dict[str, Any]:
    """It is called on one worker alone: nothing travels."""
    layer = fc.DenseFeatures([tf.feature_column.numeric_column("price")])
    return {"outputs": layer({"price": tf.ones((2, 1))})} if here.rank == 0 else {}
