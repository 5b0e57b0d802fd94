"""Layers, tables and columns over a group leave what its new rows start from as it is."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import damo, kv
from sok_embed.initializers import RowInitializer

ONES = RowInitializer("constant", 1.0, 0.0, None)


def trained_layer(path, **more):
    """A saved model whose layer has trained rows 0 to 9 of group 0."""
    with kv.Storage("rows") as storage:
        inputs = keras.Input((1,), dtype="int64")
        layer = sok.DynamicEmbedding(4, "uniform", storage=storage, name="items", **more)
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
        model.compile("adam", "mse")
        model.fit(np.arange(10)[:, None], np.ones([10, 1]), verbose=0)
        model.save(path / "model.keras")


def description(path):
    with kv.Storage(path / "rows", read_only=True) as storage:
        return json.loads(dict(storage.ready().groups())[0])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained_layer(tmp_path)
    return tmp_path


def by_table(storage):
    sok.Table(4, ONES, storage=storage, group=0)


def by_seed(storage):
    sok.Table(4, RowInitializer("uniform", -0.05, 0.05, None), storage=storage, seed=1)


def by_layer(storage):
    sok.DynamicEmbedding(4, "ones", storage=storage)


def by_all2all(storage):
    sok.All2AllDenseEmbedding(100, 4, 1, 1, embedding_initializer="ones", storage=storage)


def by_collection(storage):
    table = sok.TableConfig("items", 100, 4, initializer="ones", storage=storage, group=0)
    sok.DistributedEmbedding({"item": sok.FeatureConfig("item", table)})


def by_embedding(storage):
    kv.Embedding(storage, kv.Optimizer("adam"), kv.Initializer("ones"), 4, reset_slots=True)


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "opens", [by_table, by_seed, by_layer, by_all2all, by_collection, by_embedding]
)
def test_another_initializer_is_refused_and_the_model_still_loads(folder, opens):
    before = description(folder)
    with kv.Storage("rows") as storage:
        with pytest.raises(ValueError, match=r"has.* uniform \(.*(got|Received).*storage.table\(0"):
            opens(storage)
    assert description(folder) == before
    model = keras.models.load_model("model.keras")
    assert len(model.get_layer("items").table) == 10


def test_a_row_is_removed_with_nothing_said_and_the_model_loads(folder):
    before = description(folder)
    with kv.Storage("rows") as storage:
        assert storage.remove(0, [7]) == 1
    assert description(folder) == {**before, "rows": 9}
    model = keras.models.load_model("model.keras")
    model.fit(np.arange(6)[:, None], np.ones([6, 1]), verbose=0)
    assert len(model.get_layer("items").table) == 9


def test_a_table_without_a_seed_takes_that_of_the_group(folder):
    with kv.Storage("rows") as storage:
        seed = storage.groups()[0].initializer["seed"]
        start = RowInitializer("uniform", -0.05, 0.05, None)
        table = sok.Table(4, start, storage=storage)
        np.testing.assert_array_equal(table.lookup([99]), storage.table(0).lookup(np.array([99])))
        assert storage.groups()[0].initializer["seed"] == seed != 0


def test_a_layer_over_a_group_of_kv_rounds_its_numbers_and_leaves_them(tmp_path):
    path, seed = tmp_path / "rows", 2**63 + 5
    start = kv.Initializer("uniform", min=-0.1, max=0.1, seed=seed)
    with kv.Storage(path) as storage:
        kv.Embedding(storage, kv.Optimizer("sgd"), start, 4)
    before = description(tmp_path)
    with kv.Storage(path) as storage:
        layer = sok.DynamicEmbedding(
            4, keras.initializers.RandomUniform(-0.1, 0.1), storage=storage
        )
        expected = start.draw(99, dimension=4, group=0)
        np.testing.assert_array_equal(layer.table.lookup([99])[0], expected)
    assert description(tmp_path) == before


def test_with_leave_a_layer_and_a_saved_model_start_new_rows_otherwise(folder):
    with kv.Storage("rows") as storage:
        storage.reset_initializer = True
        layer = sok.DynamicEmbedding(4, "ones", storage=storage, name="items")
        np.testing.assert_array_equal(layer.table.lookup([99]), [[1, 1, 1, 1]])
    with kv.Storage("rows") as storage:
        with pytest.raises(ValueError, match=r"constant \(1\).*Received: uniform"):
            keras.models.load_model("model.keras")
        storage.reset_initializer = True
        model = keras.models.load_model("model.keras")
        assert abs(model.get_layer("items").table.lookup([99])).max() < 0.05


def test_a_read_only_storage_serves_whatever_its_rows_start_from(folder):
    before = description(folder)
    with kv.Storage("rows", read_only=True) as storage:
        table = sok.Table(4, ONES, storage=storage)
        np.testing.assert_array_equal(table.lookup([99]), [[1, 1, 1, 1]])
    assert description(folder) == before


def test_damo_keeps_what_a_group_starts_from(tmp_path):
    def opened(storage, name):
        params = damo.Parameters()
        params.insert("name", name)
        damo.PyEmbedding(storage, damo.PyOptimizer(), damo.PyInitializer(params), 4, 0)

    path = str(tmp_path / "rows")
    storage = damo.PyStorage(path, 0)
    opened(storage, "zeros")
    storage.storage.close()
    storage = damo.PyStorage(path, 0)
    with pytest.raises(ValueError, match=r"has the initializer constant \(0\).*storage.table"):
        opened(storage, "ones")
    storage.storage.reset_initializer = True
    opened(storage, "ones")
    storage.storage.close()


def test_a_saved_function_over_another_start_is_refused_beside_a_trainer(folder, tmp_path):
    """A SavedModel opens the group of a storage that the process has open for training."""
    with kv.Storage("rows") as storage:
        holder = tf.Module()
        holder.table = sok.Table(4, RowInitializer("uniform", -0.05, 0.05, None), storage=storage)
        handle = holder.table.resource_handle
        holder.find = tf.function(
            lambda ids: sok.tf_ops.lookup(handle, ids, 4, make_rows=False).embeddings,
            input_signature=[tf.TensorSpec([None], tf.int64)],
        )
        tf.saved_model.save(holder, str(tmp_path / "served"))
    with kv.Storage("rows", reset_initializer=True) as storage:
        kv.Embedding(storage, kv.Optimizer("adam"), kv.Initializer("ones"), 4, reset_slots=True)
    with kv.Storage("rows") as storage:
        with pytest.raises(Exception, match="has the initializer constant"):
            tf.saved_model.load(str(tmp_path / "served"))
