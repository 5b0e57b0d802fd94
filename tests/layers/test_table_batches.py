"""All rows of a table, some at a time: each once, in bounded memory, while a model trains."""

import keras
import numpy as np
import pytest

import sok_embed as sok
from sok_embed import kv
from sok_embed.initializers import RowInitializer, row_initializer

ZEROS = RowInitializer("constant", 0.0, 0.0, None)
KEYS = np.array([0, 1, 5, -1, 2**62, -(2**63), 2**63 - 1], np.int64)


def filled(table, keys):
    keys = np.asarray(keys, np.int64)
    table.assign(keys, rows_of(keys, table.dim))
    return table


def rows_of(keys, dim):
    """Returns a row for each key that no other key has."""
    return np.stack([(keys % 1021 + 3 * i).astype(np.float32) for i in range(dim)], axis=1)


def all_of(batches, n):
    found = list(batches)
    assert all(0 < len(keys) <= n and vectors.shape[0] == len(keys) for keys, vectors in found)
    assert all(keys.dtype == np.int64 and vectors.dtype == np.float32 for keys, vectors in found)
    if not found:
        return np.zeros(0, np.int64), np.zeros((0, 0), np.float32)
    return tuple(np.concatenate(columns) for columns in zip(*found, strict=True))


def check_all(table, expected_keys, n):
    keys, vectors = all_of(table.batches(n), n)
    assert sorted(keys.tolist()) == sorted(np.asarray(expected_keys).tolist())
    np.testing.assert_array_equal(vectors, rows_of(keys, table.dim))
    return keys


@pytest.mark.parametrize("n", [1, 3, 7, 100])
def test_a_table_in_memory_gives_every_row_once(n):
    check_all(filled(sok.Table(2, ZEROS), KEYS), KEYS, n)


def test_batches_are_full_but_for_the_last():
    table = filled(sok.Table(1, ZEROS), np.arange(10_000))
    assert [len(keys) for keys, _ in table.batches(4096)] == [4096, 4096, 1808]
    assert [keys.tolist() for keys, _ in sok.Table(1, ZEROS).batches(5)] == []


def test_a_direct_table_gives_the_positions_that_have_rows():
    check_all(
        filled(sok.Table(2, ZEROS, max_rows=5000, direct=True), [0, 17, 4999]), [0, 17, 4999], 2
    )


def test_a_table_on_disk_gives_keys_ascending_as_uint64(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        table = filled(sok.Table(2, ZEROS, storage=storage, group=3), KEYS)
        keys = check_all(table, KEYS, 2)
        assert keys.tolist() == sorted(KEYS.tolist(), key=lambda key: key % 2**64)


def test_an_adaptive_table_gives_own_and_static_rows():
    layer = sok.AdaptiveEmbedding(
        2, static_buckets=50, embeddings_initializer="zeros", promote_after=2
    )
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Flatten()])
    model.compile("sgd", "mse")
    ids = np.array([1, 1, 2, 2, 3, 4])[:, None]
    model.fit(ids, np.ones([6, 2]), batch_size=6, verbose=0)
    own, static = layer.table.export(), layer.table.export_static()
    for batches, (keys, vectors) in (
        (layer.table.batches(2), own),
        (layer.table.batches_static(2), static),
    ):
        found, rows = all_of(batches, 2)
        assert len(found) == len(keys) > 1
        order, expected = np.argsort(found), np.argsort(keys)
        np.testing.assert_array_equal(found[order], keys[expected])
        np.testing.assert_array_equal(rows[order], vectors[expected])


def test_the_tables_of_a_collection_give_their_rows(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        users = sok.TableConfig("users", None, 2)
        items = sok.TableConfig("items", 50, 3)
        shops = sok.TableConfig("shops", None, 4, storage=storage, group=1)
        layer = sok.DistributedEmbedding(
            {
                name: sok.FeatureConfig(name, table)
                for name, table in (("user", users), ("item", items), ("shop", shops))
            }
        )
        ids = {
            name: np.arange(i, 40 + i)[:, None] for i, name in enumerate(("user", "item", "shop"))
        }
        layer(ids, training=True)
        for name, dim in (("users", 2), ("items", 3), ("shops", 4)):
            table = layer.tables[name]
            keys, vectors = all_of(table.batches(7), 7)
            assert len(keys) == 40 and vectors.shape == (40, dim)
            np.testing.assert_array_equal(vectors, table.lookup(keys))


@pytest.mark.parametrize("stored", [False, True])
def test_a_model_trains_between_two_batches(tmp_path, stored):
    storage = kv.Storage(tmp_path / "rows", cache_bytes=1 << 20) if stored else None
    layer = sok.DynamicEmbedding(4, "zeros", storage=storage)
    inputs = keras.Input((1,), dtype="int64")
    outputs = keras.layers.Flatten()(layer(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(1.0), "mse")
    old = np.arange(0, 30_000, 2)
    filled(layer.table, old)
    seen, step = [], 0
    for keys, vectors in layer.table.batches(3000):
        np.testing.assert_array_equal(
            vectors[keys % 2 == 0], layer.table.lookup(keys[keys % 2 == 0])
        )
        seen.append(keys)
        # New rows come, and the index grows; old rows change.
        new = np.arange(step * 6000 + 1, step * 6000 + 6001, 2)
        model.train_on_batch(np.concatenate([new, old[:50]])[:, None], np.ones([3050, 4]))
        step += 1
    found = np.concatenate(seen)
    assert len(np.unique(found)) == len(found)
    assert set(old.tolist()) <= set(found.tolist())
    assert len(layer.table) > len(old)
    if storage is not None:
        storage.close()


def test_rows_that_go_meanwhile_are_left_out():
    table = filled(sok.Table(1, ZEROS), np.arange(20_000))
    seen = []
    for keys, _ in table.batches(1000):
        seen.append(keys)
        table.remove(np.arange(10_000, 20_000))
    found = np.concatenate(seen)
    assert set(range(10_000)) <= set(found.tolist())
    assert (np.concatenate(seen[1:]) < 10_000).all()


@pytest.mark.parametrize("n", [0, -1, True, 2.0])
def test_the_size_of_a_batch_is_a_positive_integer(tmp_path, n):
    with kv.Storage(tmp_path / "rows") as storage:
        for table in (sok.Table(1, ZEROS), sok.Table(1, ZEROS, storage=storage)):
            with pytest.raises(ValueError, match="Expected n to be a positive integer"):
                table.batches(n)


def test_a_normal_start_is_as_lookup_says(tmp_path):
    """Rows that were looked up in training and never trained come with their start vectors."""
    layer = sok.DynamicEmbedding(3, "normal", seed=2)
    layer(np.arange(100)[:, None], training=True)
    keys, vectors = all_of(layer.table.batches(9), 9)
    fresh = sok.Table(3, row_initializer("normal", 3), seed=2)
    np.testing.assert_array_equal(vectors, fresh.lookup(keys))
