"""Which rows have gone can be asked of every kind of table, and counted in the logs of `fit`."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed
from sok_embed import (
    AdaptiveEmbedding,
    DistributedEmbedding,
    DynamicEmbedding,
    FeatureConfig,
    TableConfig,
    kv,
)
from sok_embed.callbacks import EvictionMetrics
from sok_embed.initializers import RowInitializer

ZEROS = RowInitializer("constant", 0.0, 0.0, None)


def taken(table, *limit):
    """Returns the keys in order; `None` where they are not complete."""
    removed = table.removed_keys(*limit)
    assert removed.complete or removed.keys.size == 0
    return sorted(removed.keys.tolist()) if removed.complete else None


def tables(tmp_path):
    """Returns a table in memory, one in a storage, and one of a collection, each of two rows."""
    arguments = {"max_rows": 2, "eviction": sok_embed.eviction.LeastRecentlyUsed()}
    storage = kv.Storage(tmp_path / "rows")
    config = TableConfig("t", None, 1, "zeros", max_rows=2, eviction="lru")
    layer = DistributedEmbedding({"f": FeatureConfig("f", config)})
    return {
        "memory": sok_embed.Table(1, ZEROS, **arguments),
        "storage": sok_embed.Table(1, ZEROS, storage=storage, **arguments),
        "collection": layer.tables["t"],
    }


@pytest.mark.parametrize("where", ["memory", "storage", "collection"])
def test_a_table_tells_which_keys_were_evicted_and_removed(tmp_path, where):
    table = tables(tmp_path)[where]
    table.assign([-5, 7], np.zeros([2, 1], np.float32))
    assert taken(table) is None  # nothing was noted before
    table.assign([8], np.zeros([1, 1], np.float32))
    table.assign([9], np.zeros([1, 1], np.float32))
    assert taken(table) == [7, 8]  # of rows of one time the least keys go, as unsigned numbers
    table.remove([9, 1000])
    table.assign([7], np.zeros([1, 1], np.float32))
    assert taken(table) == [9]
    table.remove([-5, 7])
    table.assign([7, 8], np.zeros([2, 1], np.float32))
    assert taken(table, 1) == [-5]  # 7 has a row again
    table.remove([8, 7])
    assert taken(table) is None
    assert taken(table) == []
    assert table.removed_keys().keys.dtype == np.int64


def test_a_restore_leaves_keys_that_nobody_knows():
    table = sok_embed.Table(1, ZEROS)
    table.assign([1, 2], np.zeros([2, 1], np.float32))
    contents = table.export(slots=True)
    taken(table)
    table.remove([1])
    table.restore(contents)
    assert taken(table) is None
    assert taken(table) == []


def test_an_adaptive_table_tells_which_keys_have_lost_their_rows():
    layer = AdaptiveEmbedding(1, static_buckets=4, promote_after=1, max_rows=2)
    layer(tf.constant([1, 2]), training=True)
    assert taken(layer.table) is None
    layer(tf.constant([3, 3]), training=True)
    layer.table.demote([3])
    gone = taken(layer.table)
    assert 3 in gone and len(gone) == 2
    assert set(gone) | set(layer.table.export()[0].tolist()) == {1, 2, 3}


def test_an_embedding_of_a_storage_tells_of_rows_that_have_expired(tmp_path):
    now = 1000
    with kv.Storage(tmp_path / "rows", ttl=50, clock=lambda: now) as storage:
        arguments = (kv.Optimizer("sgd"), kv.Initializer("zeros"), 1)
        embedding, other = (kv.Embedding(storage, *arguments, group=group) for group in (0, 1))
        keys = np.array([7, 8, 2**64 - 1], np.uint64)
        for one in (embedding, other):
            one.assign(keys, np.zeros([3, 1], np.float32))
            assert taken(one) is None
        storage.flush()
        now = 1049
        embedding.apply_gradients(keys[:1], np.ones([1, 1], np.float32))
        now = 1060
        embedding.lookup(keys[1:2], train=False)
        assert taken(embedding) == [8]
        storage.compact()
        removed = embedding.removed_keys()
        assert removed.keys.tolist() == [2**64 - 1] and removed.keys.dtype == np.uint64
        assert sorted(other.removed_keys().keys.tolist()) == keys.tolist()
        with pytest.raises(ValueError, match="limit to be an integer"):
            embedding.removed_keys(-1)


def test_a_dump_that_replaces_rows_leaves_keys_that_nobody_knows(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        embedding = kv.Embedding(storage, kv.Optimizer("sgd"), kv.Initializer("zeros"), 1)
        embedding.assign(np.array([7], np.uint64), np.zeros([1, 1], np.float32))
        storage.dump(tmp_path / "dump")
        embedding.removed_keys()
        storage.load(tmp_path / "dump")
        assert taken(embedding) is None
        assert taken(embedding) == []


def model_of(*layers):
    inputs = keras.Input((2,), dtype="int64")
    outputs = [layer(inputs) for layer in layers]
    flat = [keras.layers.Flatten()(vectors) for vectors in tf.nest.flatten(outputs)]
    joined = flat[0] if len(flat) == 1 else keras.layers.Concatenate()(flat)
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def test_the_logs_of_fit_count_rows_that_went_in_each_epoch():
    rows = DynamicEmbedding(1, max_rows=4, eviction="lru", name="rows")
    adaptive = AdaptiveEmbedding(1, 4, promote_after=1, max_rows=4, name="adaptive")
    model = model_of(rows, adaptive)
    keys = np.array([[1, 2], [3, 4], [5, 6], [7, 8]])
    history = model.fit(
        keys,
        np.ones([4, 1]),
        batch_size=1,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[EvictionMetrics()],
    ).history
    assert history["rows/rows"] == [4, 4]
    assert history["rows/evicted"] == [4, 8]
    assert history["rows/left_out"] == [0, 0]
    assert history["adaptive/rows"] == [4, 4]
    assert sum(history["adaptive/evicted"]) == adaptive.stats()["demoted"] > 0


def test_the_logs_name_each_table_of_a_collection():
    tables = [TableConfig(name, None, 1, max_rows=2, eviction="lru") for name in ("a", "b")]
    features = [FeatureConfig(table.name, table, combiner="sum") for table in tables]
    layer = DistributedEmbedding(features, name="fields")
    inputs = [keras.Input((1,), dtype="int64", name=feature.name) for feature in features]
    outputs = keras.layers.Concatenate()(layer(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    keys = [np.arange(4)[:, None], np.zeros([4, 1], np.int64)]
    history = model.fit(
        keys, np.ones([4, 1]), batch_size=1, verbose=0, callbacks=[EvictionMetrics()]
    ).history
    assert history["fields/a/evicted"] == [2] and history["fields/a/rows"] == [2]
    assert history["fields/b/evicted"] == [0] and history["fields/b/rows"] == [1]


@pytest.mark.parametrize("built", [True, False])
def test_metrics_of_a_model_without_tables_are_refused(built):
    model = keras.Sequential([*([keras.Input((1,))] if built else []), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="expected layers with tables.*EvictionMetrics"):
        model.fit(np.ones([2, 1]), np.ones([2, 1]), verbose=0, callbacks=[EvictionMetrics()])
