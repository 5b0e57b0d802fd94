"""Rows of `.keras` files in other forms, bit for bit, without TensorFlow and Keras."""

import os
import random
import re
import shutil
import subprocess
import sys
import zipfile

import h5py
import held_state
import keras
import numpy as np
import pytest
from checkpoint_files import assert_same_rows, bits
from click.testing import CliRunner
from limits import HANG_S
from seeds import seed_of_test

import sok_embed as sok
from sok_embed import tf_ops
from sok_embed.checkpoint import Checkpoint
from sok_embed.checkpoint.files.rows_file import Rows
from sok_embed.checkpoint.tools.conversion import keras_file
from sok_embed.checkpoint.tools.conversion.keras_file import keras_tables
from sok_embed.checkpoint.tools.conversion.tables import joined_rows
from sok_embed.cli import main


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def model_of_every_kind():
    """A model with rows in layers of every kind; the dict of one is in an order of its own."""
    inputs = keras.Input((2,), dtype="int64")
    tables = [sok.TableConfig(name, None, 3, seed=2) for name in ("second", "first", "shared")]
    of_feature = {"z": tables[0], "a": tables[1], "n": tables[2], "m": tables[2]}
    features = {name: sok.FeatureConfig(name, table) for name, table in of_feature.items()}
    fields = sok.DistributedEmbedding(features, output="concat", name="fields")
    vectors = [
        sok.DynamicEmbedding(4, seed=1, name="plain")(inputs),
        sok.All2AllDenseEmbedding(100, 2, 2, 1, name="sok")(keras.ops.expand_dims(inputs, 2)),
        sok.AdaptiveEmbedding(3, 7, promote_after=2, sketch_capacity=50, name="adaptive")(inputs),
    ]
    flat = [keras.layers.Flatten()(each) for each in vectors]
    flat.append(fields({"z": inputs, "a": inputs + 1, "m": inputs, "n": inputs + 2}))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(flat)))
    model.compile("adam", "mse")
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A trained model, its file, and its checkpoint."""
    keras.utils.set_random_seed(0)
    model = model_of_every_kind()
    model.fit(held_state.KEYS, held_state.TARGETS, batch_size=12, epochs=2, verbose=0)
    folder = tmp_path_factory.mktemp("keras")
    sok.save_model(model, folder / "model.keras")
    model.save_weights(folder / "only.weights.h5")
    Checkpoint(model).save(folder / "checkpoint")
    return model, folder


LABELS = ["plain", "sok", "adaptive:own", "adaptive:static", "first", "second", "shared"]


def contents_of(model, label):
    """The rows of a table, as the model has them."""
    name, _, part = label.partition(":")
    tables = held_state.tables_of(model)
    table = next(each for key, each in tables.items() if key.rpartition(".")[2] == name)
    held = held_state.contents_of(table)
    prefix = f"{part}_" if part else ""
    return Rows(*(held[prefix + field] for field in Rows._fields))


def test_a_file_has_the_tables_by_the_names_of_their_layers(saved, tmp_path):
    model, folder = saved
    for name in ("model.keras", "only.weights.h5"):
        tables = {each.head.label: each for each in keras_tables(str(folder / name), str(tmp_path))}
        # Weights alone do not have the names of the tables of one layer.
        expected = (
            LABELS if name == "model.keras" else [*LABELS[:4], *(f"fields:{i}" for i in range(3))]
        )
        assert sorted(tables) == sorted(expected)
    of_file = {
        each.head.label: each for each in keras_tables(str(folder / "model.keras"), str(tmp_path))
    }
    for label in LABELS:
        rows = joined_rows(list(of_file[label].pieces()))
        assert len(rows.keys) == of_file[label].head.rows > 0
        assert_same_rows(rows, contents_of(model, label))
        assert of_file[label].head.rule == "adam"


@pytest.mark.parametrize("form", ["npz", "parquet", "dump", "storage"])
def test_rows_of_a_file_go_where_rows_of_a_checkpoint_go(saved, tmp_path, form):
    _, folder = saved
    for label in ("plain", "first", "adaptive:own"):
        there = tmp_path / f"rows-{label}"
        run("convert", folder / "model.keras", there, "--to", form, "--table", label)
        back = tmp_path / f"back-{label}"
        run("convert", there, back, "--to", "checkpoint", "--base", folder / "checkpoint",
            "--base-table", label)  # fmt: skip
        assert "no difference in rows" in run("diff", folder / "checkpoint", back)


def test_rows_of_a_file_go_into_a_checkpoint_by_their_names(saved, tmp_path):
    model, folder = saved
    previous = folder / "checkpoint"
    other = model_of_every_kind()
    other.fit(held_state.KEYS, held_state.TARGETS, batch_size=12, epochs=1, verbose=0)
    Checkpoint(other).save(tmp_path / "other")
    previous = tmp_path / "other"
    for label in LABELS:
        made = tmp_path / f"with-{label}"
        run("convert", folder / "model.keras", made, "--to", "checkpoint", "--base", previous,
            "--table", label)  # fmt: skip
        previous = made
    Checkpoint(other).restore(previous)
    for label in LABELS:
        for found, expected in zip(
            contents_of(other, label), contents_of(model, label), strict=True
        ):
            np.testing.assert_array_equal(bits(found), bits(expected), err_msg=label)


def test_a_layer_on_disk_takes_up_the_rows_of_a_file(saved, tmp_path):
    model, folder = saved
    run("convert", folder / "model.keras", tmp_path / "rows", "--to", "storage", "--table", "plain")
    with sok.Storage(tmp_path / "rows") as storage:
        layer = sok.DynamicEmbedding(4, storage=storage, group=0)
        expected = model.get_layer("plain").table.lookup(held_state.KEYS)
        np.testing.assert_array_equal(layer(held_state.KEYS), expected)


def test_the_fields_are_those_of_an_export():
    assert set(keras_file._FIELDS) == set(tf_ops.Export._fields)


def test_neither_tensorflow_nor_keras_is_imported(saved, tmp_path):
    _, folder = saved
    program = f"""
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None  # importing one of them is an error
from sok_embed.cli import main
main(["checkpoint", "convert", "{folder / "model.keras"}", "rows.npz", "--table", "plain"])
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr


def test_a_file_whose_rows_lie_in_a_storage_has_none(tmp_path):
    with sok.Storage(tmp_path / "storage") as storage:
        model = keras.Sequential([
            keras.Input((1,), dtype="int64"), sok.DynamicEmbedding(2, storage=storage)
        ])  # fmt: skip
        model.save(tmp_path / "model.keras")
    output = run("convert", tmp_path / "model.keras", tmp_path / "rows.npz", code=1)
    assert "whose rows are in the storage of the model" in output


def rewritten(path, change):
    """Changes the weights of a file."""
    folder = path.with_suffix(".parts")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    with h5py.File(folder / "model.weights.h5", "r+") as weights:
        change(weights["layers/dynamic_embedding/vars"])
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("config.json", "metadata.json", "model.weights.h5"):
            archive.write(folder / name, name)
    shutil.rmtree(folder)


def endless(entries):
    del entries["table_keys"], entries["table_embeddings"]
    entries.create_dataset("table_keys", (2**40,), "<i8")  # it takes no bytes in the file
    entries.create_dataset("table_embeddings", (2**40, 4), "<f4")


def lacking(entries):
    del entries["table_update_nums"]


def of_another_length(entries):
    keys = entries["table_keys"][:-1]
    del entries["table_keys"]
    entries["table_keys"] = keys


def of_another_type(entries):
    keys = entries["table_keys"][:].astype(np.float64)
    del entries["table_keys"]
    entries["table_keys"] = keys


def elsewhere(entries):
    del entries["table_keys"]
    entries.create_dataset("table_keys", (5,), "<i8", external=[("/etc/passwd", 0, 40)])


def linked(entries):
    del entries["table_keys"]
    entries["table_keys"] = h5py.ExternalLink("/etc/passwd", "keys")


@pytest.mark.parametrize(
    "change", [endless, lacking, of_another_length, of_another_type, elsewhere, linked]
)
def test_weights_that_no_save_has_written_are_refused(saved, tmp_path, change):
    path = tmp_path / "model.keras"
    shutil.copy(saved[1] / "model.keras", path)
    rewritten(path, change)
    output = run("convert", path, tmp_path / "rows.npz", "--table", "plain", code=1)
    assert output.startswith("error: Expected") and str(path) in output
    assert os.listdir(tmp_path) == ["model.keras"]


def test_a_damaged_file_is_refused_or_reads_as_before(saved, tmp_path):
    model, folder = saved
    seed = seed_of_test()
    chance = random.Random(seed)
    whole = (folder / "model.keras").read_bytes()
    path, target = tmp_path / "model.keras", tmp_path / "rows.npz"
    for _ in range(60):
        at = chance.randrange(len(whole))
        changed = whole[:at]
        if chance.random() < 0.8:
            changed += bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :]
        path.write_bytes(changed)
        result = CliRunner().invoke(
            main, ["checkpoint", "convert", str(path), str(target), "--table", "plain"]
        )
        if result.exit_code == 0:
            with np.load(target) as arrays:
                expected = contents_of(model, "plain")
                order = np.argsort(arrays["key"])
                np.testing.assert_array_equal(
                    bits(arrays["embedding"][order]), bits(expected.embeddings)
                )
            target.unlink()
        else:
            assert result.exit_code == 1 and result.output.startswith("error: "), result.output
        assert os.listdir(tmp_path) == ["model.keras"]


def test_tables_whose_rows_are_in_a_storage_are_not_left_out(tmp_path):
    ids = keras.Input((1,), dtype="int64")
    with sok.Storage(tmp_path / "rows") as storage:
        vectors = [
            sok.DynamicEmbedding(4, name="memory")(ids),
            sok.DynamicEmbedding(4, storage=storage, group=2, name="disk")(ids),
        ]
        both = keras.layers.Flatten()(keras.layers.Concatenate()(vectors))
        model = keras.Model(ids, keras.layers.Dense(1)(both))
        model.compile("adam", "mse")
        keep = sok.callbacks.ModelCheckpoint(tmp_path / "best.keras")
        model.fit(np.arange(50)[:, None], np.ones([50, 1]), verbose=0, callbacks=[keep])
        model.save(tmp_path / "plain.keras")
    for name, place in (("best", r"group 2 of the storage '(.*)'"), ("plain", "the storage of")):
        path = tmp_path / f"{name}.keras"
        for chosen in ((), ("--table", "disk")):
            output = run("convert", path, tmp_path / "all", "--to", "dump", *chosen, code=1)
            found = re.search(f"Received: 'disk', whose rows are in {place}.*: 'memory'", output)
            assert found, output
            assert not (tmp_path / "all").exists()
        run("convert", path, tmp_path / name, "--to", "dump", "--table", "memory")
        if name == "best":
            copy = found[1]
    assert run("convert", copy, tmp_path / "disk", "--to", "dump", "--table", "2").startswith("50 ")


def test_a_file_is_not_taken_for_the_folder_of_a_checkpoint(saved):
    output = run("show", saved[1] / "model.keras", code=1)
    assert re.fullmatch(r"error: Expected a checkpoint, .* which is a file\. .*\n", output)
