"""A program in C serves what `predict` answers: `examples/serve_c/serve.c`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import sok_embed as sok
from sok_embed.serving import export
from sok_embed.serving.served_table import library_path

SOURCE = Path(__file__).resolve().parents[2] / "examples/serve_c/serve.c"
COMPILER = shutil.which(os.environ.get("CC", "cc"))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Returns the path of the program, linked against the TensorFlow that is installed."""
    assert COMPILER is not None, "Expected a C compiler, which building this project needs too."
    built = tmp_path_factory.mktemp("c") / "serve"
    library = Path(tf.sysconfig.get_lib())
    # The usual linker reads all symbols of TensorFlow, which takes ten seconds.
    fast = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
    subprocess.run(
        [COMPILER, *fast, "-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-isystem",
         tf.sysconfig.get_include(), SOURCE, library / "libtensorflow_cc.so.2",
         library / "libtensorflow_framework.so.2", f"-Wl,-rpath,{library}", "-o", built],
        check=True,
    )  # fmt: skip
    return built


def tensors_of(folder: str) -> tuple[str, str]:
    """Returns the names of the one input and the one output of a SavedModel."""
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString(Path(folder, "saved_model.pb").read_bytes())
    signature = saved.meta_graphs[0].signature_def["serving_default"]
    (taken,), (given,) = signature.inputs.values(), signature.outputs.values()
    return taken.name, given.name


def run(program, library, folder, keys, names=None):
    taken, given = names or tensors_of(folder)
    arguments = [program, library, folder, taken, given, str(keys.shape[1])]
    return subprocess.run(arguments, input=keys.tobytes(), capture_output=True)


@pytest.fixture(scope="module")
def model_and_keys():
    """Returns a trained model, and keys of which some are unknown."""
    inputs = keras.Input((3,), dtype="int64", name="ids")
    vectors = sok.DynamicEmbedding(4, "ones", combiner="mean")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, activation="sigmoid")(vectors))
    model.compile("adam", "mse")
    keys = np.random.default_rng(0).integers(-(2**63), 2**63, (20, 3))
    model.fit(keys, np.ones((20, 2)), epochs=2, verbose=0)
    keys[0] = [1, 2, 3]  # unknown
    return model, keys


@pytest.mark.parametrize("ops, library", [("stock", ""), ("native", str(library_path()))])
def test_the_program_answers_as_predict(ops, library, program, model_and_keys, tmp_path):
    model, keys = model_and_keys
    ended = run(program, library, export(model, tmp_path, ops=ops), keys)
    assert ended.returncode == 0, ended.stderr.decode()
    found = np.frombuffer(ended.stdout, np.float32).reshape(20, 2)
    np.testing.assert_array_equal(found, model.predict(keys, verbose=0))


def test_the_program_says_what_is_wrong(program, model_and_keys, tmp_path):
    model, keys = model_and_keys
    folder = export(model, tmp_path, ops="stock")
    names = tensors_of(folder)
    for library, version, said in (
        (str(tmp_path / "no.so"), folder, "the library of ops does not load"),
        ("", str(tmp_path / "9"), "the model does not load"),
    ):
        ended = run(program, library, version, keys, names)
        assert ended.returncode == 1 and said in ended.stderr.decode()
