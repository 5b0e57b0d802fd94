"""`sok-embed export` writes what `serving.export` writes, and `sok-embed rows` looks into it."""

from __future__ import annotations

import json
import os
import re

import keras
import numpy as np
import pytest
from click.testing import CliRunner
from served_models import answered, assert_same_bits, predicted, trained

import sok_embed as sok
from sok_embed.cli import main
from sok_embed.serving import rows


def run(*arguments: object) -> str:
    ended = CliRunner().invoke(main, [str(each) for each in arguments])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns the path of a file of Keras, its model, and what to ask it."""
    model, fed = trained(sok.DynamicEmbedding(4, "ones", combiner="sum", name="items"), "dense")
    path = tmp_path_factory.mktemp("saved") / "m.keras"
    model.save(path)
    return path, model, fed


def test_a_file_is_exported_as_onnx(saved, tmp_path):
    folder = run("export", saved[0], tmp_path, "--ops", "onnx").strip()
    assert folder == str(tmp_path / "1")
    assert os.path.isfile(f"{folder}/model.onnx")


def test_a_file_is_exported_and_its_rows_are_shown(saved, tmp_path):
    path, model, fed = saved
    folder = run("export", path, tmp_path / "served").strip()
    assert folder == str(tmp_path / "served/1")
    assert_same_bits(answered(folder, fed), predicted(model, fed))
    file = f"{folder}/assets/items.safetensors"
    table = model.layers[1].table
    shown = json.loads(run("rows", file, "--key", 5, "--key", -9, "--verify", "--json"))
    assert shown["rows"] == table.size() and shown["dim"] == 4 and shown["verified"]
    assert shown["dtype"] == "float32" and shown["name"] == "items"
    known, unknown = shown["found"]
    np.testing.assert_array_equal(np.float32(known["embedding"]), table.lookup([5])[0])
    assert known["exists"] and known["key"] == 5
    assert unknown["key"] == -9 and not unknown["exists"]
    assert unknown["embedding"] == [1.0] * 4
    text = run("rows", file)
    assert f"rows        {table.size()}" in text and "verified    False" in text
    assert "-9  not in the file; unknown keys have  1 1 1 1" in run("rows", file, "--key", -9)
    assert "alice  not in the file" in run("rows", file, "--key", "alice", "--string")


def test_options_are_those_of_export(saved, tmp_path):
    path, model, _ = saved
    arguments = ("--dtype", "int8", "--missing", "zeros", "--min-count", 1, "--json")
    told = json.loads(run("export", path, tmp_path, *arguments))
    with rows.open(f"{told['path']}/assets/items.safetensors") as file:
        assert file.dtype == "int8" and len(file) == model.layers[1].table.size()
        np.testing.assert_array_equal(file.lookup(np.array([99])), np.zeros([1, 4]))
    run("export", path, tmp_path, "--ops", "stock", "--missing", "zeros")
    assert not os.listdir(tmp_path / "2/assets")


def test_rows_may_come_from_a_checkpoint(tmp_path):
    model, fed = trained(sok.DynamicEmbedding(4, "ones", name="items"), "dense")
    model.save(tmp_path / "m.keras")
    model.layers[1].table.assign([5], np.full((1, 4), 2.5))
    model.layers[-1].kernel.assign(model.layers[-1].kernel + 1)
    sok.checkpoint.Checkpoint(model).save(tmp_path / "saved")
    source = ("--source", tmp_path / "saved")
    folder = run("export", tmp_path / "m.keras", tmp_path / "served", *source).strip()
    assert_same_bits(answered(folder, fed), predicted(model, fed))


def test_damage_is_an_error(tmp_path):
    path = tmp_path / "items.safetensors"
    rows.write(path, [(np.arange(9), np.ones([9, 2], np.float32))], dim=2)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    ended = CliRunner().invoke(main, ["rows", str(path), "--verify"])
    assert ended.exit_code == 1 and ended.stderr.startswith("error: ")
    told = r"the checksum \d+ of the \d+ bytes at byte \d+, of 'rows'. Received: bytes with \d+"
    assert re.search(told, ended.stderr)


def test_a_class_that_nobody_has_registered_is_an_error_of_one_line(tmp_path):
    class Unknown(keras.layers.Layer):
        def call(self, inputs):
            return inputs

    inputs = keras.Input((2,), dtype="int64", name="ids")
    keras.Model(inputs, Unknown()(sok.DynamicEmbedding(4)(inputs))).save(tmp_path / "m.keras")
    for options, told in ([], "Unknown"), (["--import", "no_such"], "No module named 'no_such'"):
        ended = CliRunner().invoke(
            main, ["export", str(tmp_path / "m.keras"), str(tmp_path / "served"), *options]
        )
        assert ended.exit_code == 1
        (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
        assert told in line


def test_what_an_export_refuses_is_an_error_of_one_line(tmp_path):
    inputs = keras.Input((2,), dtype="int64", name="ids")
    keras.Model(inputs, sok.DynamicEmbedding(4, name="ids_table")(inputs)).save(
        tmp_path / "m.keras"
    )
    arguments = ["export", str(tmp_path / "m.keras"), str(tmp_path / "served"), "--ops", "stock"]
    ended = CliRunner().invoke(main, arguments)
    assert ended.exit_code == 1
    told = ended.stderr.strip().splitlines()[-1]
    assert told.startswith("error: Table 'ids_table': expected an initializer that is constant")
    assert told.endswith("or ops='native'.")
    assert keras.config.is_traceback_filtering_enabled()


def test_a_class_of_the_users_own_is_imported(tmp_path, monkeypatch):
    (tmp_path / "own_layers.py").write_text(
        "import keras\n"
        "@keras.saving.register_keras_serializable(package='own')\n"
        "class Twice(keras.layers.Layer):\n"
        "    def call(self, inputs):\n"
        "        return 2 * inputs\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import own_layers

    inputs = keras.Input((2,), dtype="int64", name="ids")
    layer = sok.DynamicEmbedding(4, "ones")
    keras.Model(inputs, own_layers.Twice()(layer(inputs))).save(tmp_path / "m.keras")
    folder = run("export", tmp_path / "m.keras", tmp_path, "--import", "own_layers").strip()
    (found,) = answered(folder, {"ids": np.array([[1, 2]])})
    np.testing.assert_array_equal(found, np.full([1, 2, 4], 2.0))


def test_a_checkpoint_in_place_of_a_model_is_a_wrong_use(tmp_path):
    (tmp_path / "saved").mkdir()
    ended = CliRunner().invoke(main, ["export", str(tmp_path / "saved"), str(tmp_path / "served")])
    assert ended.exit_code == 2 and "--source CHECKPOINT" in ended.stderr


@pytest.mark.parametrize("arguments", [("export", "no.keras", "served"), ("rows", "no")])
def test_a_path_that_is_not_there_is_a_wrong_use(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, list(arguments)).exit_code == 2
