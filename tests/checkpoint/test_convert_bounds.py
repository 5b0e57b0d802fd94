"""Nobody writes or allocates more than a file may hold, whatever numbers the file says."""

import os
import shutil
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf
from checkpoint_files import Table, rows_of, write_by_hand
from click.testing import CliRunner

from sok_embed.checkpoint.tools.conversion import keras_file
from sok_embed.checkpoint.tools.conversion.tfra_checkpoint import unpacked_checkpoint
from sok_embed.cli import main
from sok_embed.kv import CorruptionError

ZEROS = 64 << 20  # bytes, which deflate makes 64 kB of


def convert(*arguments):
    return CliRunner().invoke(main, ["checkpoint", "convert", *map(str, arguments)])


@pytest.fixture
def weights(tmp_path):
    """Weights with one table, as Keras has them."""
    path = tmp_path / "made.weights.h5"
    with h5py.File(path, "w") as file:
        entries = file.create_group("layers/embedding/vars")
        for field, (dtype, dimensions) in keras_file._FIELDS.items():
            shape = {0: (), 1: (100,), 2: (100, 4)}[dimensions]
            if field in ("slots", "slot_start", "rule", "admission"):
                shape = (100, 0) if field == "slots" else (0,)
            entries[f"table_{field}"] = np.zeros(shape, dtype)
    assert len(keras_file.keras_tables(str(path), "")) == 1
    return path


def packed(path, weights, how=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", weights)
    return path


def test_weights_that_are_packed_small_are_not_unpacked(weights, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    whole = packed(tmp_path / "whole.keras", weights.read_bytes())
    assert len(keras_file.keras_tables(str(whole), str(work))) == 1
    os.remove(work / "model.weights.h5")
    bomb = packed(tmp_path / "bomb.keras", bytes(ZEROS), zipfile.ZIP_DEFLATED)
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(ValueError, match="as they are.*a compressed 'model.weights.h5'. Unpack"):
        keras_file.keras_tables(str(bomb), str(work))
    assert os.listdir(work) == []
    result = convert(bomb, tmp_path / "rows.npz")
    assert result.exit_code == 1 and "a compressed 'model.weights.h5'" in result.output


def test_tables_in_the_same_bytes_are_refused(weights):
    with h5py.File(weights, "r+") as file:
        entries = file["layers/embedding/vars"]
        for number in range(50):
            group = file.create_group(f"layers/other{number}/vars")
            for name in entries:
                group[name] = entries[name]  # the same array by another name
    with pytest.raises(CorruptionError, match="tables that lie in [0-9]+ bytes"):
        keras_file.keras_tables(str(weights), "")


def test_weights_that_end_before_their_arrays_are_refused(weights):
    length = weights.stat().st_size
    for cut in range(64, length, 777):
        shutil.copy(weights, cutoff := weights.with_name("cut.weights.h5"))
        os.truncate(cutoff, length - cut)
        with pytest.raises(CorruptionError):
            keras_file.keras_tables(str(cutoff), "")


def test_columns_that_are_packed_small_are_refused(tmp_path):
    saved = write_by_hand(tmp_path / "saved", [Table("x", rows_of([1, 2, 3], 3, 0), rule="")])
    rows = tmp_path / "rows.npz"
    assert convert(saved, rows).exit_code == 0
    with zipfile.ZipFile(rows) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    bomb = tmp_path / "bomb.npz"
    for packed_member in members:
        with zipfile.ZipFile(bomb, "w") as archive:
            for name, data in members.items():
                how = zipfile.ZIP_DEFLATED if name == packed_member else zipfile.ZIP_STORED
                archive.writestr(name, data, how)
        result = convert(bomb, tmp_path / "made", "--to", "dump")
        assert result.exit_code == 1 and f"a compressed '{packed_member}'" in result.output


def test_a_tensor_longer_than_its_files_is_not_read(tmp_path):
    prefix = str(tmp_path / "ckpt")
    name = "tables_of_items/0/.ATTRIBUTES/table-keys"
    values = [tf.range(1000, dtype=tf.int64), tf.zeros([1000, 4])]
    names = [name, name.replace("keys", "values")]
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=["", ""], tensors=values)
    (tmp_path / "work").mkdir()
    assert unpacked_checkpoint(prefix, str(tmp_path / "work"), [])[0] == str(tmp_path / "work")
    os.truncate(f"{prefix}.data-00000-of-00001", 100)
    with pytest.raises(CorruptionError, match="to fit into 100 bytes"):
        unpacked_checkpoint(prefix, str(tmp_path / "work"), [])
    assert len(os.listdir(tmp_path / "work")) == 2


def test_an_error_of_the_file_system_is_not_called_damage(weights, monkeypatch):
    with pytest.raises(FileNotFoundError):
        keras_file.keras_tables(str(weights.with_name("none.weights.h5")), "")

    def failing(*_):
        raise OSError(
            "Can't synchronously read data (file read failed: time = now, filename = "
            "'x', file descriptor = 5, errno = 5, error message = 'Input/output error')"
        )

    monkeypatch.setattr(keras_file, "_head", failing)
    with pytest.raises(OSError, match="Input/output error") as raised:
        keras_file.keras_tables(str(weights), "")
    assert raised.value.errno == 5 and not isinstance(raised.value, CorruptionError)
