"""A file that is saved is the old one or the new one, also where its process is killed."""

import io
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from killed_files import kill_again_and_again

import sok_embed as sok
from sok_embed.checkpoint.saving import replacing

ROWS, DIM = 200_000, 8

SAVE_AGAIN_AND_AGAIN = f"""
    import itertools, os, sys
    import keras, numpy as np
    import sok_embed as sok

    layer = sok.DynamicEmbedding({DIM}, name="emb")
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Dense(1)])
    for version in itertools.count(int(sys.argv[1])):
        layer.table.assign(np.arange({ROWS}), np.full([{ROWS}, {DIM}], version, np.float32))
        model.layers[-1].set_weights([np.full([{DIM}, 1], version), np.zeros(1)])
        print(version, flush=True)
        sok.save_model(model, "model.keras")
"""


def small_model():
    layer = sok.DynamicEmbedding(2, name="emb")
    model = keras.Sequential(
        [keras.Input((2,), dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return model


def test_a_kill_leaves_the_last_whole_model(tmp_path):
    def found():
        model = keras.models.load_model(tmp_path / "model.keras")
        keys, rows = model.get_layer("emb").table.export()
        version = rows[0, 0]
        assert len(keys) == ROWS and (rows == version).all()
        assert (model.layers[-1].get_weights()[0] == version).all()
        return version

    kill_again_and_again(SAVE_AGAIN_AND_AGAIN, tmp_path, found)
    model = keras.models.load_model(tmp_path / "model.keras")
    sok.save_model(model, tmp_path / "model.keras")
    assert [file.name for file in tmp_path.iterdir()] == ["model.keras"]


def test_leftovers_go_and_the_folder_of_a_save_that_is_going_on_stays(tmp_path):
    path = tmp_path / "model.keras"
    leftover = tmp_path / ".model.keras.abc.saving"
    leftover.mkdir()
    (leftover / "model.keras").write_bytes(b"part")
    others = [tmp_path / ".other.keras.abc.saving", tmp_path / ".model.keras.abc"]
    for other in others:
        other.mkdir()
    with replacing(path) as temporary:
        assert not leftover.exists()
        sok.save_model(small_model(), path)
        with open(temporary, "wb") as file:
            file.write(b"the later one")
    assert path.read_bytes() == b"the later one"
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_a_save_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with pytest.raises(RuntimeError, match="no"), replacing(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(b"new")
        raise RuntimeError("no")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    sok.save_model(small_model(), path)
    assert path.stat().st_mode & 0o777 == 0o640
    assert keras.models.load_model(path).get_layer("emb").table.size() == 0


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link.keras").symlink_to(tmp_path / "there" / "model.keras")
    sok.save_model(small_model(), tmp_path / "link.keras")
    assert (tmp_path / "link.keras").is_symlink()
    assert (tmp_path / "there" / "model.keras").is_file()


class WithAssets(keras.layers.Layer):
    def call(self, inputs):
        return inputs

    def save_assets(self, folder):
        Path(folder, "words.txt").write_text("one\ntwo\n")

    def load_assets(self, folder):
        self.words = Path(folder, "words.txt").read_text()


def test_the_file_has_what_that_of_keras_has(tmp_path):
    inputs = keras.Input((2,), dtype="int64")
    vectors = WithAssets(name="assets")(sok.DynamicEmbedding(2, name="emb")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(vectors))
    model.compile("adam", "mse")
    model.fit(np.arange(8).reshape(4, 2), np.ones([4, 2, 1]), verbose=0)
    model.save(tmp_path / "theirs.keras")
    sok.save_model(model, tmp_path / "ours.keras")
    found = {}
    for name in ("theirs", "ours"):
        with zipfile.ZipFile(tmp_path / f"{name}.keras") as file:
            held = {
                each.filename: (each.compress_type, file.read(each)) for each in file.infolist()
            }
        _, weights = held.pop("model.weights.h5")
        # They say when they were written.
        held["metadata.json"] = held["metadata.json"][0]
        with h5py.File(io.BytesIO(weights)) as stored:
            stored.visititems(
                lambda path, each, held=held: (
                    held.update({path: np.asarray(each).tobytes()})
                    if isinstance(each, h5py.Dataset)
                    else None
                )
            )
        found[name] = held
    assert found["ours"] == found["theirs"]
    assert {"config.json", "assets/layers/with_assets/words.txt"} < found["ours"].keys()
    loaded = keras.models.load_model(
        tmp_path / "ours.keras", custom_objects={"WithAssets": WithAssets}
    )
    assert loaded.get_layer("assets").words == "one\ntwo\n"


@pytest.mark.parametrize("path", ["model.h5", "model", "model.weights.h5"])
def test_other_names_are_refused(tmp_path, path):
    with pytest.raises(ValueError, match=r"Expected a path that ends in \.keras"):
        sok.save_model(small_model(), tmp_path / path)
    assert not list(tmp_path.iterdir())


def test_the_callback_saves_what_that_of_keras_saves(tmp_path):
    keys, targets = np.arange(8).reshape(4, 2), np.ones([4, 1])
    models = {}
    for kind in (keras.callbacks, sok.callbacks):
        keras.utils.set_random_seed(3)
        folder = tmp_path / kind.__name__
        model = small_model()
        arguments = {"monitor": "loss", "save_best_only": True}
        callbacks = [
            kind.ModelCheckpoint(folder / "best.keras", **arguments),
            kind.ModelCheckpoint(
                folder / "{epoch}.weights.h5", save_weights_only=True, save_freq=2
            ),
        ]
        model.fit(keys, targets, batch_size=2, epochs=3, callbacks=callbacks, verbose=0)
        models[kind] = keras.models.load_model(folder / "best.keras")
        assert sorted(file.name for file in folder.iterdir()) == [
            "1.weights.h5",
            "2.weights.h5",
            "3.weights.h5",
            "best.keras",
        ]
        other = small_model()
        other.load_weights(folder / "3.weights.h5")
        np.testing.assert_array_equal(
            other.predict(keys, verbose=0), model.predict(keys, verbose=0)
        )
    theirs, ours = (model.predict(keys, verbose=0) for model in models.values())
    np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="Expected a filepath that ends in"):
        sok.callbacks.ModelCheckpoint("model.h5")
