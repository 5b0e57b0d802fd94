"""An export has what serves and nothing else, in a numbered folder, and says what it cannot do."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from served_models import DIM, dynamic, trained

from sok_embed.serving import export, load
from sok_embed.serving import rows as rows_files


def test_nothing_of_training_is_written(tmp_path):
    model, _ = trained(dynamic("sum"), "dense")
    rows, dense = model.layers[1].table.size(), 2 * DIM + 1
    folder = export(model, tmp_path, ops="stock")
    variables = dict(tf.train.list_variables(f"{folder}/variables/variables"))
    numbers = sum(int(np.prod(shape)) for shape in variables.values() if shape)
    # Rows, their keys with some beyond the end, where buckets begin, and dense weights.
    assert rows * (DIM + 1) + dense < numbers <= rows * (DIM + 2) + 16 + dense
    folder = export(model, tmp_path)
    variables = dict(tf.train.list_variables(f"{folder}/variables/variables"))
    assert sum(int(np.prod(shape)) for shape in variables.values() if shape) == DIM + 1
    assert sorted(os.listdir(folder)) == ["assets", "fingerprint.pb", "saved_model.pb", "variables"]
    with pytest.raises(FileNotFoundError, match=rf"which is one of them. Pass '{tmp_path}'"):
        load(folder)
    (name,) = os.listdir(f"{folder}/assets")
    with rows_files.open(f"{folder}/assets/{name}") as file:
        file.verify()
        keys, vectors = model.layers[1].table.export()
        assert len(file) == rows
        np.testing.assert_array_equal(file.lookup(keys), vectors)


def test_a_second_export_gets_the_next_number(tmp_path):
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), dynamic("sum")])
    (tmp_path / "7").mkdir()
    (tmp_path / "notes").mkdir()
    assert export(model, tmp_path) == str(tmp_path / "8")
    assert export(model, tmp_path) == str(tmp_path / "9")
    assert sorted(os.listdir(tmp_path)) == ["7", "8", "9", "notes"]


def test_an_export_that_fails_leaves_nothing(tmp_path, monkeypatch):
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), dynamic("sum")])
    save = tf.saved_model.save

    def fail(*args, **kwargs):
        save(*args, **kwargs)
        raise OSError("No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(OSError, match="No space"):
        export(model, tmp_path)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_export_has_left_goes_with_the_next_one(tmp_path):
    program = """
import os, signal, sys
import keras, tensorflow as tf
import sok_embed as sok
from sok_embed.serving import export

def kill(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

tf.saved_model.save = kill
ids = keras.Input((2,), dtype="int64", name="ids")
export(keras.Model(ids, sok.DynamicEmbedding(2, "ones", combiner="sum")(ids)), sys.argv[1])
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert len(os.listdir(tmp_path)) == 1
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), dynamic("sum")])
    folder = export(model, tmp_path)
    assert os.listdir(tmp_path) == ["1"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o777 & ~mask


def test_other_arguments_are_refused(tmp_path):
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), dynamic("sum")])
    for arguments, message in (
        ({"dtype": "float64"}, "dtype to be one of"),
        ({"dtype": np.float16}, r"Received: .*float16.*Pass the name, as in dtype='float16'"),
        ({"missing": "nan"}, "missing to be one of"),
        ({"ops": "tfra"}, "ops to be one of"),
        ({"min_count": -1}, "min_count"),
    ):
        with pytest.raises(ValueError, match=message):
            export(model, tmp_path, **arguments)
    with pytest.raises(ValueError, match="or the path of a .keras file"):
        export(7, tmp_path)
    with pytest.raises(ValueError, match=r"or one that is not built.*Begin a Sequential"):
        export(keras.Sequential([dynamic("sum")]), tmp_path)
    for path, message in (
        ("https://host/served", "Expected an object store"),
        (__file__, "is a file. Pass the path of a folder"),
    ):
        with pytest.raises(ValueError, match=message):
            export(model, path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    model = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), dynamic("sum")])
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"Received: '.*/file/served' \(Not a directory\)"):
        export(model, tmp_path / "file/served")

    def refuse(path, *args, **kwargs):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "mkdir", refuse)
    message = r"Received: '.*/served' \(Permission denied\).*the right to write"
    with pytest.raises(PermissionError, match=message):
        export(model, tmp_path / "served")
