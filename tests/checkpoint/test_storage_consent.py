"""A file that is loaded opens no storage that its user has not agreed to, and changes none."""

import json
import os
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import feature_column as fc
from sok_embed import kv

IDS = np.arange(12).reshape(4, 3)
DAY = 86400


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def model_over(storage, **arguments):
    layer = sok.DynamicEmbedding(2, name="emb", storage=storage, **arguments)
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer, keras.layers.Flatten()])
    model.compile("sgd", "mse")
    return model


def saved(path, folder, train=True, **arguments):
    """Makes a model file over a storage; the storage is closed."""
    with kv.Storage(folder, **arguments) as storage:
        model = model_over(storage)
        if train:
            model.fit(IDS, np.ones([4, 6]), verbose=0)
        model.save(path)
        return model.predict(IDS, verbose=0)


def changed(path, /, **changes):
    """Writes the file with other values in the config of the storage."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    for layer in config["config"]["layers"]:
        if layer["config"].get("storage"):
            layer["config"]["storage"].update(changes)
    members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)


def rows_of(folder):
    with kv.Storage(folder, read_only=True) as storage:
        return [(group.number, group.rows, group.steps) for group in storage.groups()], storage.ttl


def test_a_relative_path_in_the_working_directory_is_opened():
    expected = saved("model.keras", "rows")
    loaded = keras.models.load_model("model.keras")
    np.testing.assert_array_equal(loaded.predict(IDS, verbose=0), expected)
    loaded.layers[0].storage.close()


def test_another_path_is_refused_and_the_folder_stays_as_it_was(tmp_path):
    folder = tmp_path / "elsewhere" / "rows"
    saved("model.keras", folder, ttl=90 * DAY)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    (tmp_path / "work" / "link").symlink_to(tmp_path / "elsewhere")
    for path in (str(folder), "../elsewhere/rows", "link/rows", str(tmp_path / "work" / "link")):
        changed("model.keras", path=path)
        with pytest.raises(PermissionError) as caught:
            keras.models.load_model("model.keras")
        assert str(caught.value).startswith("Expected permission to open the storage")
        assert "allow_storages" in str(caught.value)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_the_root_as_working_directory_allows_nothing(tmp_path, monkeypatch):
    saved("model.keras", "rows")
    changed("model.keras", path=str(tmp_path / "work" / "rows").lstrip("/"))
    monkeypatch.chdir("/")
    with pytest.raises(PermissionError, match="permission to open"):
        keras.models.load_model(tmp_path / "work" / "model.keras")


@pytest.mark.cover(1)
@pytest.mark.parametrize("root", ["elsewhere", "elsewhere/rows", "."])
def test_a_root_that_the_user_names_is_leave(tmp_path, root):
    expected = saved("model.keras", tmp_path / "elsewhere" / "rows")
    with kv.allow_storages(tmp_path / "nothing", tmp_path / root):
        loaded = keras.models.load_model("model.keras")
    np.testing.assert_array_equal(loaded.predict(IDS, verbose=0), expected)
    loaded.layers[0].storage.close()
    with pytest.raises(PermissionError):
        keras.models.load_model("model.keras")
    with pytest.raises(PermissionError), kv.allow_storages(tmp_path / "elsewhere" / "row"):
        keras.models.load_model("model.keras")
    with pytest.raises(ValueError, match="Expected the folders"), kv.allow_storages():
        pass


def test_a_storage_that_is_open_is_leave(tmp_path):
    expected = saved("model.keras", tmp_path / "elsewhere" / "rows")
    with kv.Storage(tmp_path / "elsewhere" / "rows", cache_bytes=4 << 20) as storage:
        loaded = keras.models.load_model("model.keras")
        assert loaded.layers[0].storage is storage
        assert storage.cache_bytes == 4 << 20
        np.testing.assert_array_equal(loaded.predict(IDS, verbose=0), expected)


@pytest.mark.cover(1)
@pytest.mark.parametrize("ttl", [DAY, 0, 2**31])
def test_a_config_never_changes_the_ttl(ttl):
    saved("model.keras", "rows", ttl=90 * DAY)
    changed("model.keras", ttl=ttl)  # files of older versions have one
    keras.models.load_model("model.keras").layers[0].storage.close()
    assert rows_of("rows")[1] == 90 * DAY


def test_a_folder_that_is_no_storage_stays_as_it_is(tmp_path):
    saved("model.keras", "rows")
    (tmp_path / "work" / "empty").mkdir()
    for path, text in (("gone", "no such folder"), ("empty", "no storage")):
        changed("model.keras", path=path)
        with pytest.raises(FileNotFoundError, match=f"^Expected a storage in .*{text}"):
            keras.models.load_model("model.keras")
    assert not (tmp_path / "work" / "gone").exists()
    assert not list((tmp_path / "work" / "empty").iterdir())


@pytest.mark.cover(2)
@pytest.mark.parametrize(
    "wrong",
    [
        {"cache_bytes": 2**62},
        {"cache_bytes": -1},
        {"cache_bytes": 1.5e9},
        {"cache_bytes": True},
        {"cache_bytes": 100},
        {"durability": "never"},
        {"durability": None},
        {"read_only": "no"},
        {"path": ""},
        {"path": ["rows"]},
        {"path": "ro\0ws"},
        {"clock": 0},
    ],
    ids=str,
)
def test_a_config_of_wrong_values_is_refused_with_the_reason_first(wrong):
    saved("model.keras", "rows")
    before = rows_of("rows")
    changed("model.keras", **wrong)
    with pytest.raises(ValueError, match=r"(?i)^expected .*(received|got)"):
        keras.models.load_model("model.keras")
    assert rows_of("rows") == before


def test_rows_in_a_file_do_not_take_the_place_of_those_in_a_storage():
    saved("model.keras", "rows")
    before = rows_of("rows")
    memory = model_over(None)
    memory.fit(IDS + 1000, np.ones([4, 6]), epochs=3, verbose=0)
    memory.save("memory.keras")
    with zipfile.ZipFile("memory.keras") as archive:
        weights = archive.read("model.weights.h5")
    with zipfile.ZipFile("model.keras") as archive:
        config = archive.read("config.json")
    with zipfile.ZipFile("model.keras", "w") as archive:
        archive.writestr("config.json", config)
        archive.writestr("metadata.json", "{}")
        archive.writestr("model.weights.h5", weights)
    with pytest.raises(ValueError, match="expected no rows in a file"):
        keras.models.load_model("model.keras")
    kv.Storage.from_config({"path": "rows"}).close()  # the traceback holds it
    assert rows_of("rows") == before
    # Whoever asks for it gets it.
    with kv.Storage("rows") as storage:
        model = model_over(storage)
        model.load_weights("memory.keras")
        assert set(model.layers[0].table.export()[0]) == set((IDS + 1000).ravel())


def test_a_config_does_not_change_where_new_rows_start():
    saved("model.keras", "rows")
    with kv.Storage("rows", reset_initializer=True) as storage:
        model_over(storage, seed=99, embeddings_initializer="ones")
        storage.flush()
    with pytest.raises(ValueError, match="expected the initializer that group 0"):
        keras.models.load_model("model.keras")


def test_columns_of_a_file_open_no_other_folders_either(tmp_path):
    def layer(path):
        option = fc.EmbeddingVariableOption(
            storage_option=fc.StorageOption(fc.StorageType.LEVELDB, str(path))
        )
        item = fc.categorical_column_with_adaptive_embedding("item", 10, tf.int64, ev_option=option)
        return fc.DenseFeatures([fc.embedding_column(item, 2)], name="features")

    def folder_of(made):
        (table,) = made.tables.values()
        folder = table.storage.path
        return table, folder

    for root, consent in (("columns", False), (str(tmp_path / "elsewhere"), True)):
        made = layer(root)
        config = made.get_config()
        table, folder = folder_of(made)
        table.assign([3], np.ones([1, 2], np.float32))
        table.storage.close()
        if consent:
            with pytest.raises(PermissionError, match="^Expected permission"):
                fc.DenseFeatures.from_config(config)
        with kv.allow_storages(root):
            again = fc.DenseFeatures.from_config(config)
        table, same_folder = folder_of(again)
        assert same_folder == folder and table.size() == 1
        table.storage.close()
    config = json.loads(json.dumps(config).replace("elsewhere", "else"))
    with pytest.raises((PermissionError, FileNotFoundError)):
        fc.DenseFeatures.from_config(config)
    assert not (tmp_path / "else").exists()


def test_an_error_of_a_constructor_stands_first():
    config = sok.DynamicEmbedding(2).get_config()
    with pytest.raises(ValueError, match="^Expected output_dim to be a positive integer"):
        sok.DynamicEmbedding.from_config({**config, "output_dim": 0})
    config = sok.AdaptiveEmbedding(2, 5).get_config()
    with pytest.raises(ValueError, match="^Expected static_buckets"):
        sok.AdaptiveEmbedding.from_config({**config, "static_buckets": -1})


def test_a_served_model_changes_no_storage(tmp_path):
    with kv.Storage(tmp_path / "elsewhere" / "rows", ttl=DAY) as storage:
        model = model_over(storage)
        model.fit(IDS, np.ones([4, 6]), verbose=0)
        model.export("served", verbose=False)
    before = {f.name: f.read_bytes() for f in (tmp_path / "elsewhere" / "rows").iterdir()}
    served = tf.saved_model.load("served")
    served.serve(tf.constant(IDS))
    del served
    after = {f.name: f.read_bytes() for f in (tmp_path / "elsewhere" / "rows").iterdir()}
    assert after == before


def test_the_file_itself_is_what_keras_writes():
    """`changed` is how the files of these tests are made: it must not break them."""
    saved("model.keras", "rows")
    changed("model.keras")
    with zipfile.ZipFile("model.keras") as archive, archive.open("model.weights.h5") as member:
        assert "storage_rows" in h5py.File(member)["layers/dynamic_embedding/vars"]
    keras.models.load_model("model.keras").layers[0].storage.close()


def test_a_model_file_does_not_take_another_storage_for_its_own():
    outputs = saved("m.keras", "rows")
    with kv.Storage("rows") as storage:
        storage.dump("dumped")
        id = storage.id
    os.rename("rows", "moved")
    kv.Storage("rows").close()
    with pytest.raises(ValueError, match=f"Expected the storage {id} in .*rows"):
        keras.models.load_model("m.keras")
    with kv.Storage("rows") as storage:
        storage.load("dumped")
        with pytest.warns(UserWarning, match=f"saved with the storage {id}.* is another"):
            model = keras.models.load_model("m.keras")
        np.testing.assert_array_equal(model.predict(IDS, verbose=0), outputs)


def test_a_checkpoint_that_is_restored_over_another_storage_warns():
    with kv.Storage("rows") as storage:
        model = model_over(storage)
        model.fit(IDS, np.ones([4, 6]), verbose=0)
        path = tf.train.Checkpoint(model=model).save("checkpoint/of")
        id = storage.id
        tf.train.Checkpoint(model=model).restore(path).assert_consumed()
    with kv.Storage("others") as storage:
        model = model_over(storage)
        with pytest.warns(UserWarning, match=f"saved with the storage {id}.*others.* is another"):
            tf.train.Checkpoint(model=model).restore(path)
