"""Configs, clones and served models of layers whose rows live in a storage."""

from __future__ import annotations

import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko
from storage_models import (
    DIM,
    KEYS,
    UNSEEN,
    all2all,
    assert_same,
    contents_of,
    dynamic,
    model_of,
    run,
    train,
)

from sok_embed import DynamicEmbedding, kv
from sok_embed.admission import FrequencyAdmission


@pytest.mark.parametrize("make", [dynamic, all2all])
def test_the_config_leads_back_to_the_same_rows(storage, make):
    layer = make(storage=storage, group=9, admission=FrequencyAdmission(2))
    config = json.loads(json.dumps(layer.get_config()))
    assert config["storage"] == storage.get_config()
    assert config["group"] == 9
    assert config["admission"] == {"kind": "frequency", "min_count": 2}
    again = type(layer).from_config(config)
    assert again.storage is storage
    assert again.admission == layer.admission
    assert again.get_config() == layer.get_config()
    layer.table.assign([5], np.full((1, DIM), 7, np.float32))
    np.testing.assert_array_equal(again.table.lookup([5]), np.full((1, DIM), 7))


def test_a_clone_shares_the_rows(storage):
    model = model_of(dynamic(storage=storage))
    train(model)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(clone.predict(KEYS, verbose=0), model.predict(KEYS, verbose=0))
    clone.compile(ko.Adam(0.01), "mse")
    train(clone)
    assert_same(contents_of(clone), contents_of(model))


def test_a_group_that_is_there_gives_a_new_layer_its_seed(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        layer = DynamicEmbedding(DIM, storage=storage, name="one", seed=11)
        expected = layer.table.lookup(UNSEEN)
        layer(KEYS, training=True)
    keras.utils.set_random_seed(99)
    with kv.Storage(tmp_path / "rows") as storage:
        layer = DynamicEmbedding(DIM, storage=storage, name="two")
        assert layer.seed == 11
        np.testing.assert_array_equal(layer.table.lookup(UNSEEN), expected)


SERVE = """
    import sys
    import numpy as np
    import tensorflow as tf
    import sok_embed

    loaded = tf.saved_model.load(sys.argv[1])
    (outputs,) = loaded.signatures["serving_default"](tf.constant(np.load(sys.argv[2]))).values()
    np.save(sys.argv[3], outputs)
"""


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "save",
    [lambda model, path: tf.saved_model.save(model, path), lambda model, path: model.export(path)],
    ids=["saved_model", "export"],
)
def test_a_served_model_opens_the_storage_only_to_read(tmp_path, save):
    keys = np.concatenate([KEYS, UNSEEN])
    np.save(tmp_path / "keys.npy", keys)
    paths = [tmp_path / name for name in ("model", "keys.npy", "outputs.npy")]
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage))
        train(model)
        expected = model.predict(keys, verbose=0)
        save(model, str(tmp_path / "model"))
    # Where one server reads, others may.
    before = {file.name: file.read_bytes() for file in (tmp_path / "rows").iterdir()}
    with kv.Storage(tmp_path / "rows", read_only=True):
        done = run(SERVE, *paths)
    assert done.returncode == 0, done.stderr[-2000:]
    # This allows for float32; the dense layer may be fused otherwise in a signature.
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), expected, rtol=1e-5, atol=1e-6)
    after = {file.name: file.read_bytes() for file in (tmp_path / "rows").iterdir()}
    assert after == before


def test_a_model_cannot_be_served_beside_the_process_that_trains_it(tmp_path, storage):
    model = model_of(dynamic(storage=storage))
    tf.saved_model.save(model, str(tmp_path / "model"))
    done = run(SERVE, tmp_path / "model", "none", "none")
    assert done.returncode != 0
    assert "UnavailableError" in done.stderr
    assert f"'{storage.path}'" in done.stderr and f"process {os.getpid()}" in done.stderr


# --- a folder that is not the one of the time -----------------------------------------------------


def saved_with_rows(tmp_path):
    """Makes a model file and the folder of its rows; says how many there are."""
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage))
        train(model)
        model.save(tmp_path / "model.keras")
        rows = model.get_layer("emb").table.size()
    return tmp_path / "model.keras", tmp_path / "rows", rows


def test_a_model_whose_folder_is_gone_is_refused_and_no_folder_is_made(tmp_path):
    path, folder, _ = saved_with_rows(tmp_path)
    folder.rename(tmp_path / "moved")
    with pytest.raises(Exception, match="no such folder. Move it there"):
        with kv.allow_storages(tmp_path):
            keras.models.load_model(path)
    assert not folder.exists()


def test_a_model_whose_folder_is_empty_says_how_many_rows_are_missing(tmp_path):
    path, folder, rows = saved_with_rows(tmp_path)
    folder.rename(tmp_path / "moved")
    with kv.Storage(folder):
        with pytest.warns(UserWarning, match=f"expected {rows} rows in .* Received: no rows"):
            keras.models.load_model(path)


def test_rows_that_a_layer_has_trained_are_read_without_keras(tmp_path):
    path, folder, _ = saved_with_rows(tmp_path)
    with kv.Storage(folder, read_only=True) as storage:
        embedding = kv.Embedding(storage, kv.Optimizer("sgd"), kv.Initializer("zeros"), DIM)
        found = embedding.lookup(np.unique(KEYS))
    with kv.allow_storages(tmp_path):
        model = keras.models.load_model(path)
    expected = model.get_layer("emb").table.lookup(np.unique(KEYS))
    np.testing.assert_array_equal(found, expected)
    with kv.Storage.from_config({"path": str(folder)}) as storage:
        with pytest.raises(ValueError, match="'keras.adam', got 'sgd'"):
            kv.Embedding(storage, kv.Optimizer("sgd"), kv.Initializer("zeros"), DIM)


def test_a_saved_model_is_not_served_with_the_rows_of_another_storage(tmp_path):
    np.save(tmp_path / "keys.npy", KEYS)
    folder = tmp_path / "rows"
    with kv.Storage(folder) as storage:
        model = model_of(dynamic(storage=storage))
        train(model)
        expected = model.predict(KEYS, verbose=0)
        tf.saved_model.save(model, str(tmp_path / "model"))
        storage.dump(tmp_path / "dump")
        storage.checkpoint(tmp_path / "checkpoint")
    folder.rename(tmp_path / "moved")
    with kv.Storage(folder) as another:
        another.load(tmp_path / "dump")
    paths = [tmp_path / name for name in ("model", "keys.npy", "outputs.npy")]
    done = run(SERVE, *paths)
    assert done.returncode != 0
    assert f"expected the storage {storage.id} in '{folder}'" in done.stderr
    # Whoever opens it before means it: the rows come from a dump, as here.
    opened = (
        f"    import sok_embed\n    storage = sok_embed.Storage({str(folder)!r}, read_only=True)\n"
    )
    done = run(opened + SERVE, *paths)
    assert done.returncode == 0, done.stderr[-2000:]
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), expected, rtol=1e-5, atol=1e-6)
    # A checkpoint has the id of its storage.
    folder.rename(tmp_path / "moved too")
    (tmp_path / "checkpoint").rename(folder)
    done = run(SERVE, *paths)
    assert done.returncode == 0, done.stderr[-2000:]
