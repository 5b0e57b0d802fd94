"""What layers over a storage refuse, and how they say so; reading only."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from storage_models import (
    DIM,
    KEYS,
    LENGTH,
    TARGETS,
    UNSEEN,
    all2all,
    assert_same,
    contents_of,
    dynamic,
    model_of,
    train,
)

from sok_embed import All2AllDenseEmbedding, DynamicEmbedding, kv, tf_ops


def test_two_layers_on_one_group_are_refused(storage):
    one = dynamic(name="one", storage=storage, group=2)
    with pytest.raises(ValueError, match="'two'.*group=2, which layer 'one' has.*another group="):
        dynamic(name="two", storage=storage, group=2)
    assert dynamic(name="two", storage=storage, group=one.group + 1).group == 3


def test_a_layer_that_could_not_be_made_leaves_its_group_to_others(storage):
    with pytest.raises(ValueError):
        all2all(name="one", storage=storage, use_hashtable=False)
    dynamic(name="two", storage=storage)


def test_a_model_over_a_storage_without_a_name_is_made_again(tmp_path):
    """A cell of a notebook that opens the storage within the layer runs three times."""

    def cell() -> keras.Model:
        rows = DynamicEmbedding(DIM, seed=1, storage=kv.Storage(tmp_path / "rows"))
        model = keras.Sequential([rows, keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        train(model)
        return model

    model = cell()
    rows = model.layers[0].table.size()
    with pytest.raises(kv.StorageLockedError, match=r"model\.layers\[0\]\.storage\.close\(\)"):
        cell()
    model.layers[0].storage.close()
    model = cell()
    assert model.layers[0].table.size() == rows
    del model
    assert cell().layers[0].table.size() == rows


def test_a_layer_that_is_gone_leaves_its_group_to_others(storage):
    """A cell of a notebook that is run again does this; the second layer gets another name."""
    layer = DynamicEmbedding(DIM, storage=storage, seed=1)
    layer(KEYS, training=True)
    del layer
    layer = DynamicEmbedding(DIM, storage=storage, seed=1)
    assert layer.table.size() == np.unique(KEYS).size


@pytest.mark.parametrize("make", [dynamic, all2all])
def test_a_group_without_a_storage_is_refused(make):
    with pytest.raises(ValueError, match="'emb'.*a storage with group=3. Received: storage=None"):
        make(group=3)


@pytest.mark.parametrize("group", [-1, 256, 2**40, True, 1.0, "1"])
def test_a_group_that_no_storage_has_is_refused(storage, group):
    with pytest.raises(ValueError, match=r"group.*(\[0, 256\)|an integer)"):
        dynamic(storage=storage, group=group)


@pytest.mark.parametrize("wrong", ["rows", 3, object()], ids=["path", "number", "object"])
def test_what_is_no_storage_is_refused(wrong):
    with pytest.raises(ValueError, match="'emb'.*storage to be a sok_embed.kv.Storage. Received"):
        dynamic(storage=wrong)


@pytest.mark.parametrize("wrong", [3, "frequency", object()])
def test_what_is_no_admission_is_refused(wrong):
    with pytest.raises(ValueError, match="admission"):
        dynamic(admission=wrong)


@pytest.mark.parametrize("reopened", [False, True])
def test_another_dimension_is_refused_and_both_are_named(tmp_path, reopened):
    storage = kv.Storage(tmp_path / "rows")
    layer = dynamic(storage=storage)
    layer(KEYS, training=True)
    if reopened:
        storage.close()
        storage = kv.Storage(tmp_path / "rows")
    with pytest.raises(ValueError, match=f"group 0 .*dimension {DIM}, got {DIM + 5}"):
        DynamicEmbedding(DIM + 5, name="emb", storage=storage)
    storage.close()


def test_a_table_without_a_hash_is_refused(storage):
    with pytest.raises(ValueError, match="use_hashtable"):
        all2all(storage=storage, use_hashtable=False)


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_storage_that_is_closed_under_a_layer_is_named(tmp_path, eagerly):
    storage = kv.Storage(tmp_path / "rows")
    model = model_of(dynamic(storage=storage))
    train(model)
    storage.close()
    model.compile("sgd", "mse", run_eagerly=eagerly)
    text = f"storage '{tmp_path / 'rows'}' is closed, and its tables with it; open it again"
    # A graph, and a lookup in an eager model, raise TensorFlow's error; the table raises Python's.
    closed = (tf.errors.FailedPreconditionError, RuntimeError)
    for use in (
        lambda: model.fit(KEYS, TARGETS, verbose=0),
        lambda: model.predict(KEYS, verbose=0),
        lambda: model.save(tmp_path / "model.keras"),
    ):
        with pytest.raises(closed, match=text):
            use()
    table = model.get_layer("emb").table
    for use in (
        lambda: table.lookup([1]),
        lambda: table.assign([1], np.zeros((1, DIM), np.float32)),
        lambda: table.remove([1]),
        lambda: table.export(slots=True),
    ):
        with pytest.raises(closed, match=text):
            use()
    with pytest.raises((ValueError, RuntimeError), match="closed"):
        dynamic(name="late", storage=storage, group=1)


def test_weights_of_a_storage_say_where_the_rows_are_and_the_advice_brings_them(tmp_path, storage):
    stored = model_of(dynamic(storage=storage))
    train(stored)
    stored.save_weights(tmp_path / "model.weights.h5")
    model = model_of(dynamic())
    with pytest.raises(ValueError, match="'emb'.*rows lie in a storage.*storage= and group="):
        model.load_weights(tmp_path / "model.weights.h5")
    model.get_layer("emb").table.restore(stored.get_layer("emb").table.export(slots=True))
    assert_same(contents_of(model), contents_of(stored))


@pytest.mark.parametrize("make", [dynamic, all2all])
def test_a_full_table_is_left_as_it_was(storage, make):
    if make is dynamic:
        layer = dynamic(storage=storage, max_rows=5)
    else:
        layer = All2AllDenseEmbedding(5, DIM, 1, LENGTH, name="emb", storage=storage)
    model = model_of(layer)
    few = KEYS[:16] % 4
    train(model, keys=few)
    before = contents_of(model)
    assert len(before[0]) == 4
    many = np.concatenate([np.arange(100, 106).reshape(2, 3), few[:6]])
    with pytest.raises(tf.errors.ResourceExhaustedError, match="4 of at most 5 rows.*6 new keys"):
        train(model, keys=many)
    assert_same(contents_of(model), before)
    train(model, keys=np.where(few == 0, 100, few))
    assert layer.table.size() == 5


@pytest.mark.cover("values")
@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("keys", [KEYS[:8], KEYS[:8] + 5000], ids=["old_keys", "new_keys"])
def test_a_storage_that_is_read_only_predicts_and_does_not_train(tmp_path, keys, eagerly):
    every = np.concatenate([KEYS, UNSEEN])
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage))
        train(model)
        expected = model.predict(every, verbose=0)
        weights = model.get_weights()
        contents = contents_of(model)
    before = {file.name: file.read_bytes() for file in (tmp_path / "rows").iterdir()}
    with kv.Storage(tmp_path / "rows", read_only=True) as storage:
        model = model_of(dynamic(storage=storage))
        model.set_weights(weights)
        np.testing.assert_array_equal(model.predict(every, verbose=0), expected)
        model.evaluate(KEYS, TARGETS, verbose=0)
        model.compile("adam", "mse", run_eagerly=eagerly)
        # Before the first step, which would change the dense weights alone.
        with pytest.raises(ValueError, match="a storage that may be written.*rows', read-only"):
            model.fit(keys, TARGETS[:8], verbose=0)
        for weight, kept in zip(model.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(weight, kept)
        table = model.get_layer("emb").table
        for write in (
            lambda: table.assign([1], np.zeros((1, DIM), np.float32)),
            lambda: table.remove([1]),
            lambda: table.restore(tf_ops.Export(*table.export(slots=True))),
        ):
            with pytest.raises(PermissionError, match="read-only"):
                write()
        assert_same(contents_of(model), contents)
    assert {f.name: f.read_bytes() for f in (tmp_path / "rows").iterdir()} == before
