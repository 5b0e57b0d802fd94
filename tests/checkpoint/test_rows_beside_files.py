"""Rows of a storage that lie beside the file of a model: both are of one moment."""

import os
import shutil
import subprocess
import warnings

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
from killed_files import kill_again_and_again

import sok_embed as sok
from sok_embed import FeatureConfig, TableConfig
from sok_embed import feature_column as fc
from sok_embed.checkpoint.saving import save_whole, write_archive
from sok_embed.tables import storage_copies

KEYS, DIM = np.arange(20).reshape(-1, 1), 4


def model_over(storage, dim=DIM, **arguments):
    layer = sok.DynamicEmbedding(dim, name="emb", storage=storage, **arguments)
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def set_all(model, version):
    layer = model.get_layer("emb")
    layer.table.assign(KEYS, np.full((*KEYS.shape, layer.output_dim), version, np.float32))
    model.layers[-1].set_weights([np.full([layer.output_dim, 1], version), np.zeros(1)])


def versions(model):
    """What rows and dense weights have."""
    rows = model.get_layer("emb").table.lookup(KEYS)
    return {*np.unique(rows).tolist(), *np.unique(model.layers[-1].get_weights()[0]).tolist()}


def keep(model, path, **weights):
    callback = sok.callbacks.ModelCheckpoint(path, **weights)
    callback.set_model(model)
    callback.on_train_begin()
    callback.on_epoch_end(0, {})


@pytest.fixture
def storage(tmp_path):
    with sok.Storage(tmp_path / "rows") as opened:
        yield opened


def test_file_and_rows_may_be_moved_together_and_not_apart(tmp_path, storage):
    model = model_over(storage)
    set_all(model, 1.0)
    keep(model, tmp_path / "best.keras")
    set_all(model, 2.0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(tmp_path / "best.keras", elsewhere / "served.keras")
    with pytest.raises(FileNotFoundError, match=r"served\.keras' beside it.*no such folder"):
        keras.saving.load_model(elsewhere / "served.keras")
    shutil.copytree(tmp_path / "best.keras.rows", elsewhere / "served.keras.rows")
    loaded = keras.saving.load_model(elsewhere / "served.keras")
    assert versions(loaded) == {1.0}
    assert versions(model) == {2.0}


def test_another_process_reads_them_while_this_one_trains(tmp_path, storage):
    model = model_over(storage)
    set_all(model, 3.0)
    keep(model, tmp_path / "best.keras")
    set_all(model, 4.0)
    program = """
        import sys
        import keras, sok_embed
        model = keras.saving.load_model(sys.argv[1])
        print(model.get_layer("emb").table.lookup([7])[0].tolist())
    """
    command = forked.program(program, tmp_path / "best.keras")
    # In another working directory than that of the files.
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    assert found.stdout.strip() == str([3.0] * DIM)


def test_a_loaded_model_does_not_train_and_says_how_to_go_on(tmp_path, storage):
    model = model_over(storage)
    set_all(model, 1.0)
    keep(model, tmp_path / "best.keras")
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    with pytest.raises(ValueError, match=r"read-only.*by its class.*load_weights"):
        loaded.fit(KEYS, np.ones(len(KEYS)), verbose=0)
    assert versions(loaded) == {1.0}
    loaded.get_layer("emb").trainable = False
    loaded.compile("sgd", "mse")
    loaded.fit(KEYS, np.ones(len(KEYS)), verbose=0)


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", ["best.keras", "best.weights.h5"])
def test_weights_go_into_the_storage_of_a_model_or_into_memory(tmp_path, storage, name):
    model = model_over(storage)
    model.fit(KEYS, np.ones(len(KEYS)), verbose=0)
    kept = model.get_layer("emb").table.export(slots=True)
    predicted = model.predict(KEYS, verbose=0)
    keep(model, tmp_path / name, save_weights_only=name.endswith("h5"))
    set_all(model, 2.0)
    model.get_layer("emb").table.assign([999], np.ones([1, DIM], np.float32))
    others = [model, model_over(storage, group=7), model_over(None)]
    for other in others:
        other.load_weights(tmp_path / name)
        table = other.get_layer("emb").table
        np.testing.assert_array_equal(other.predict(KEYS, verbose=0), predicted)
        found = table.export(slots=True)
        order, theirs = np.argsort(found.keys), np.argsort(kept.keys)
        for field in ("keys", "embeddings", "slots", "update_nums", "update_times"):
            expected = getattr(kept, field)[theirs]
            np.testing.assert_array_equal(getattr(found, field)[order], expected, err_msg=field)
        assert found.steps == kept.steps == 1
    assert not list(tmp_path.glob(".sok-embed-rows-*"))


def test_a_loaded_model_takes_its_rows_along_when_it_is_saved(tmp_path, storage):
    model = model_over(storage)
    set_all(model, 1.0)
    keep(model, tmp_path / "best.keras")
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    with pytest.raises(ValueError, match=r"sok_embed\.save_model"):
        loaded.save(tmp_path / "theirs.keras")
    sok.save_model(loaded, tmp_path / "final.keras")
    del loaded
    shutil.rmtree(tmp_path / "best.keras.rows")
    assert versions(keras.saving.load_model(tmp_path / "final.keras")) == {1.0}


def test_a_checkpoint_of_tensorflow_tells_of_rows_of_later_steps(tmp_path, storage):
    model = model_over(storage)
    model.fit(KEYS, np.ones(len(KEYS)), verbose=0)
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tf.train.Checkpoint(model=model).read(path)
    model.fit(KEYS, np.ones(len(KEYS)), verbose=0)
    with pytest.warns(UserWarning, match=r"after 1 steps of training.*rows after 2 steps"):
        tf.train.Checkpoint(model=model).read(path)


def test_rows_that_do_not_fit_leave_the_table(tmp_path, storage):
    model = model_over(storage)
    set_all(model, 1.0)
    keep(model, tmp_path / "best.weights.h5", save_weights_only=True)
    for other, text in (
        (model_over(None, dim=3), "rows of 3 numbers"),
        (model_over(None, max_rows=5), "at most max_rows=5 rows"),
    ):
        with pytest.raises(ValueError, match=text):
            other.load_weights(tmp_path / "best.weights.h5")
        assert other.get_layer("emb").table.size() == 0
    path = storage.path
    storage.close()
    with sok.Storage(path, read_only=True) as reader:
        with pytest.raises(ValueError, match="may be written"):
            model_over(reader).load_weights(tmp_path / "best.weights.h5")


def test_copies_of_replaced_files_go_unless_somebody_reads_them(tmp_path, storage):
    model = model_over(storage)
    folder = tmp_path / "best.keras.rows"
    set_all(model, 1.0)
    keep(model, tmp_path / "best.keras")
    first = os.listdir(folder)
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    again = keras.saving.load_model(tmp_path / "best.keras")
    assert again.get_layer("emb").storage is loaded.get_layer("emb").storage
    set_all(model, 2.0)
    keep(model, tmp_path / "best.keras")
    assert len(os.listdir(folder)) == 2
    assert versions(loaded) == versions(again) == {1.0}
    lock = storage_copies._shared_lock(str(folder / first[0]))  # as another process has it
    del loaded, again
    keep(model, tmp_path / "best.keras")
    assert first[0] in os.listdir(folder)
    lock.close()
    for each in (folder / "notes.txt", folder / "0123456789abcdef"):
        each.mkdir()
    keras.backend.clear_session()
    keep(model, tmp_path / "best.keras")
    assert versions(keras.saving.load_model(tmp_path / "best.keras")) == {2.0}
    assert "notes.txt" in os.listdir(folder)
    assert "0123456789abcdef" not in os.listdir(folder)  # of a save that was killed
    sok.save_model(model, tmp_path / "best.keras")  # which leaves its rows in the storage
    assert "notes.txt" in os.listdir(folder)


def test_a_save_that_fails_leaves_the_pair_of_before(tmp_path, storage):
    model = model_over(storage)
    set_all(model, 1.0)
    path = tmp_path / "best.keras"
    keep(model, path)
    there = os.listdir(tmp_path / "best.keras.rows")
    set_all(model, 2.0)

    def fail(temporary):
        write_archive(model, temporary)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        save_whole(model, path, ".keras", fail, copy_storages=True)
    assert os.listdir(tmp_path / "best.keras.rows") == there
    assert versions(keras.saving.load_model(path)) == {1.0}
    assert "copy" not in model.get_layer("emb").get_config()["storage"]


def test_an_interrupt_after_the_file_was_replaced_keeps_its_rows(tmp_path, storage, monkeypatch):
    model = model_over(storage)
    path = tmp_path / "best.keras"
    set_all(model, 1.0)
    keep(model, path)
    set_all(model, 2.0)
    replace = os.replace

    def interrupted(*paths):
        replace(*paths)
        if paths[1] == str(path):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        keep(model, path)
    monkeypatch.undo()
    assert versions(keras.saving.load_model(path)) == {2.0}


def test_a_frozen_table_of_a_collection_may_be_read_only(tmp_path):
    with sok.Storage(tmp_path / "fixed") as storage:
        set_all(model_over(storage), 1.0)
    with sok.Storage(tmp_path / "fixed", read_only=True) as reader:
        tables = [
            TableConfig("fixed", None, DIM, storage=reader, trainable=False),
            TableConfig("free", None, DIM),
        ]
        features = [FeatureConfig(table.name, table) for table in tables]
        layer = sok.DistributedEmbedding(features, output="concat", name="emb")
        inputs = keras.Input((1,), dtype="int64")
        model = keras.Model(inputs, keras.layers.Dense(1)(layer([inputs, inputs])))
        model.compile("sgd", "mse")
        callback = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras")
        model.fit(KEYS, np.ones(len(KEYS)), verbose=0, callbacks=[callback])
        assert layer.tables["free"].size() == len(KEYS)


SAVE_AGAIN_AND_AGAIN = f"""
    import itertools, sys
    import keras, numpy as np
    import sok_embed as sok

    KEYS = np.arange(20_000).reshape(-1, 1)
    storage = sok.Storage("rows")
    layer = sok.DynamicEmbedding({DIM}, name="emb", storage=storage)
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Dense(1)])
    callback = sok.callbacks.ModelCheckpoint("best.keras")
    callback.set_model(model)
    for version in itertools.count(int(sys.argv[1])):
        layer.table.assign(KEYS, np.full([len(KEYS), 1, {DIM}], version, np.float32))
        model.layers[-1].set_weights([np.full([{DIM}, 1], version), np.zeros(1)])
        print(version, flush=True)
        callback.on_epoch_end(0, {{}})
"""


@pytest.mark.long
def test_a_kill_leaves_file_and_rows_of_one_moment(tmp_path):
    def found():
        (version,) = versions(keras.saving.load_model(tmp_path / "best.keras"))
        return version

    kill_again_and_again(SAVE_AGAIN_AND_AGAIN, tmp_path, found)
    model = model_over(sok.Storage(tmp_path / "rows"))
    keep(model, tmp_path / "best.keras")
    assert sorted(os.listdir(tmp_path)) == ["best.keras", "best.keras.rows", "rows"]


def test_a_config_names_no_folder_of_its_choice(tmp_path, storage):
    model_over(storage)
    config = {**storage.get_config(), "copy": "../../rows", "id": ".."}
    with pytest.raises(ValueError, match="to be loaded by its path"):
        storage_copies.storage_of(config)


def test_a_plain_file_is_not_opened_over_a_copy(tmp_path, storage):
    model = model_over(storage)
    set_all(model, 1.0)
    model.save(tmp_path / "plain.keras")
    keep(model, tmp_path / "best.keras")
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    storage.close()
    shutil.rmtree(storage.path)
    with pytest.raises((FileNotFoundError, PermissionError)):
        keras.saving.load_model(tmp_path / "plain.keras")
    assert versions(loaded) == {1.0}


def test_columns_over_a_storage_are_refused_before_the_first_step(tmp_path):
    option = fc.EmbeddingVariableOption(
        storage_option=fc.StorageOption(fc.StorageType.SSDHASH, str(tmp_path / "columns"))
    )
    item = fc.categorical_column_with_embedding("item", tf.int64, ev_option=option)
    layer = fc.DenseFeatures([fc.embedding_column(item, 4)], name="emb")
    inputs = {"item": keras.Input((1,), dtype="int64")}
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile("sgd", "mse")
    callback = sok.callbacks.ModelCheckpoint(tmp_path / "best.keras")
    with pytest.raises(ValueError, match=r"columns with rows in.*EarlyStopping"):
        model.fit({"item": KEYS}, np.ones(len(KEYS)), verbose=0, callbacks=[callback])
    assert int(model.optimizer.iterations) == 0
