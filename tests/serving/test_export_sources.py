"""An export takes rows from a file of Keras, a checkpoint, or a storage on disk."""

from __future__ import annotations

import os
import time

import keras
import numpy as np
import pytest
from served_models import (
    DIM,
    adaptive,
    answered,
    assert_same_bits,
    dynamic,
    predicted,
    trained,
)

import sok_embed as sok
from sok_embed.serving import export
from sok_embed.serving import rows as rows_files


def test_a_keras_file_is_exported(tmp_path):
    model, fed = trained(dynamic("mean"), "ragged")
    model.save(tmp_path / "m.keras")
    folder = export(str(tmp_path / "m.keras"), tmp_path / "served")
    assert_same_bits(answered(folder, fed), predicted(model, fed))


def test_rows_on_disk_are_served_from_the_export_alone(tmp_path):
    with sok.kv.Storage(tmp_path / "rows") as storage:
        model, fed = trained(dynamic("mean", storage=storage), "dense")
        expected = predicted(model, fed)
        folders = [export(model, tmp_path / ops, ops=ops) for ops in ("native", "stock")]
    for folder in folders:
        assert_same_bits(answered(folder, fed), expected)


def test_rows_that_have_expired_are_left_out(tmp_path):
    with sok.kv.Storage(tmp_path / "rows", ttl=100) as storage:
        layer = dynamic(None, storage=storage)
        inputs = keras.Input((1,), dtype="int64", name="ids")
        model = keras.Model(inputs, layer(inputs))
        layer.table.assign([5], np.full((1, DIM), 2.5))
        storage.flush()
        storage.ready().set_now(int(time.time()) + 200)
        layer.table.assign([6], np.full((1, DIM), 3.5))
        folders = [export(model, tmp_path / ops, ops=ops) for ops in ("native", "stock")]
    (file,) = os.listdir(f"{folders[0]}/assets")
    with rows_files.open(f"{folders[0]}/assets/{file}") as opened:
        assert opened.keys().tolist() == [6]
    for folder in folders:
        (found,) = answered(folder, {"ids": np.array([[5], [6]])})
        np.testing.assert_array_equal(found[:, 0], [[1.0] * DIM, [3.5] * DIM])


def test_keys_of_a_checkpoint_beyond_the_models_are_refused(tmp_path):
    def make(size):
        keras.utils.clear_session()
        layer = sok.All2AllDenseEmbedding(size, DIM, 1, 1, use_hashtable=False, name="all")
        model = keras.Sequential([keras.Input((1, 1), dtype="int64", name="ids"), layer])
        model.compile("sgd", "mse")
        return model

    model = make(10)
    model.fit(np.array([[[9]]]), np.ones([1, 1, 1, DIM]), verbose=0)
    sok.checkpoint.Checkpoint(model).save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"keys in \[0, 5\).*Received: key 9"):
        export(make(5), tmp_path / "served", source=tmp_path / "saved")
    assert os.listdir(tmp_path / "served") == []


def test_a_checkpoint_is_exported_and_the_model_is_left_as_it_was(tmp_path):
    def make():
        keras.utils.clear_session()
        table = sok.TableConfig("small", 20, DIM)  # of positions
        inputs = keras.Input((3,), dtype="int64", name="ids")
        layers = [
            dynamic("sum", name="dynamic"),
            adaptive("mean", name="adaptive"),
            sok.DistributedEmbedding(sok.FeatureConfig("a", table), name="direct"),
        ]
        vectors = keras.layers.Concatenate()([layer(inputs) for layer in layers])
        model = keras.Model(inputs, keras.layers.Dense(2)(vectors))
        model.compile("adam", "mse")
        return model

    keys = np.random.default_rng(0).integers(0, 20, (16, 3))
    model = make()
    model.fit(keys, np.ones((16, 2)), epochs=2, verbose=0)
    sok.checkpoint.Checkpoint(model).save(tmp_path / "saved")
    expected = model.predict(keys, verbose=0)
    other = make()
    other.fit(keys, np.zeros((16, 2)), epochs=1, verbose=0)
    before = other.predict(keys, verbose=0)
    for ops in ("native", "stock"):
        folder = export(other, tmp_path / ops, ops=ops, source=tmp_path / "saved")
        assert_same_bits(answered(folder, {"ids": keys}), [expected])
        assert_same_bits([other.predict(keys, verbose=0)], [before])
    with pytest.raises(FileNotFoundError):
        export(other, tmp_path / "stock", source=tmp_path / "no")
    assert os.listdir(tmp_path / "stock") == ["1"]
