"""Adaptive feature columns: static rows on every worker, own rows spread over them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.fitting import fit
from sharded.models import SAMPLES, dense, share
from sharded.registry import Here, scenario
from sok_embed import feature_column as fc

BUCKETS = 7
START = np.random.default_rng(8).uniform(-1, 1, (BUCKETS, 4)).astype(np.float32)


def _model(optimizer: Any, dtype: tf.DType = tf.int64, **column: Any) -> Any:
    item = fc.categorical_column_with_adaptive_embedding("item", BUCKETS, dtype, **column)
    start = tf.compat.v1.constant_initializer(START)
    layer = fc.DenseFeatures([fc.embedding_column(item, 4, "sum", start)], name="columns")
    inputs = {
        "item": keras.Input((3,), dtype=dtype.name, name="item"),
        "mask": keras.Input((3,), dtype="int32", name="mask"),
    }
    embedded = layer({"item": inputs["item"]}, {"item": inputs["mask"]})
    model = keras.Model(inputs, dense()(embedded))
    model.compile(sok_embed.DistributedOptimizer(optimizer), "mse")
    return model


def _inputs() -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(1)
    items = rng.integers(0, 40, (SAMPLES, 3))
    mask = (items % 3 != 0).astype(np.int32)
    return {"item": items, "mask": mask}, rng.normal(size=(SAMPLES, 1)).astype(np.float32)


def _contents(model: Any) -> dict[str, Any]:
    layer = model.get_layer("columns")
    keys, rows = layer.tables["item_embedding"].export()
    return {
        "columns.keys": keys,
        "columns.rows": rows,
        "columns.untrained": np.zeros_like(rows),
        "weight.static": layer.static_rows("item_embedding").numpy(),
        "weight.kernel": model.get_layer("dense").get_weights()[0],
    }


def _trained(here: Here, optimizer: Any, **column: Any) -> dict[str, Any]:
    model = _model(optimizer, **column)
    fit(model, *_inputs(), here)
    return _contents(model)


@scenario
def columns_sgd(here: Here) -> dict[str, Any]:
    return _trained(here, keras.optimizers.SGD(0.05))


@scenario
def columns_adagrad(here: Here) -> dict[str, Any]:
    return _trained(here, keras.optimizers.Adagrad(0.1), slots="zero")


@scenario
def columns_adam(here: Here) -> dict[str, Any]:
    """Rows copy the slots that their static rows have had since the first step."""
    return _trained(here, keras.optimizers.Adam(0.01))


@scenario
def columns_evicted(here: Here) -> dict[str, Any]:
    """Rows that go on one worker move the static rows of all."""
    option = fc.EmbeddingVariableOption(evict_option=fc.GlobalStepEvict(1))
    return _trained(here, keras.optimizers.SGD(0.05), ev_option=option, demote_blend=0.5)


@scenario
def columns_of_strings(here: Here) -> dict[str, Any]:
    model = _model(keras.optimizers.SGD(0.05), tf.string)
    inputs, targets = _inputs()
    inputs["item"] = np.char.add("item ", inputs["item"].astype(str))
    data = ({name: share(array, here) for name, array in inputs.items()}, share(targets, here))
    batches = tf.data.Dataset.from_tensor_slices(data).batch(12 // here.size)
    model.fit(batches, verbose=0)
    return _contents(model)


def _flipped(here: Here, **column: Any) -> dict[str, Any]:
    """Trains static rows, then asks for own rows in steps that move nothing."""
    model = _model(keras.optimizers.Adam(0.05), **column)
    inputs, targets = _inputs()
    fit(model, {**inputs, "mask": np.zeros_like(inputs["mask"])}, targets, here)
    model.optimizer.learning_rate = 0.0
    static = model.get_layer("columns").static_rows("item_embedding").numpy()
    before = model.predict({**inputs, "mask": np.zeros_like(inputs["mask"])}, verbose=0)
    fit(model, inputs, targets, here, epochs=3)
    after = model.predict(inputs, verbose=0)
    contents = _contents(model)
    buckets = tf.strings.to_hash_bucket_fast(tf.as_string(contents["columns.keys"]), BUCKETS)
    return {**contents, "before": before, "after": after, "static": static, "buckets": buckets}


@scenario
def columns_flipped(here: Here) -> dict[str, Any]:
    return _flipped(here, partition_num=4)


@scenario
def columns_flipped_with_a_filter(here: Here) -> dict[str, Any]:
    option = fc.EmbeddingVariableOption(filter_option=fc.CounterFilter(3))
    return _flipped(here, ev_option=option)


@scenario
def columns_of_no_ids(here: Here) -> dict[str, Any]:
    """One worker has none, and one has none of mask 1."""
    item = fc.categorical_column_with_adaptive_embedding("item", BUCKETS, tf.int64)
    start = tf.compat.v1.constant_initializer(START)
    layer = fc.DenseFeatures([fc.embedding_column(item, 4, initializer=start)])
    items = np.array([[5, 6], [7, -1]] if here.rank else [[-1, -1], [-1, -1]])
    mask = np.array([[1, 0], [1, 0]], np.int32)
    outputs = [layer({"item": items}, {"item": m}, training=True) for m in (mask, 0 * mask)]
    return {"outputs": np.stack(outputs), "keys": layer.tables["item_embedding"].export()[0]}
