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


def signature_of(folder):
    """Returns the names of the tensors of a SavedModel's inputs and outputs, by their own names."""
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString(Path(folder, "saved_model.pb").read_bytes())
    signature = saved.meta_graphs[0].signature_def["serving_default"]
    return [
        {name: each.name for name, each in tensors.items()}
        for tensors in (signature.inputs, signature.outputs)
    ]


def line_of(name, values):
    """Returns the line of a request for an input."""
    shape = ",".join(map(str, values.shape))
    words = [each if isinstance(each, str) else repr(each) for each in values.ravel().tolist()]
    return "\t".join([name, shape, *words])


def run(program, library, folder, request):
    arguments = [program, library, folder]
    return subprocess.run(arguments, input=request, capture_output=True, text=True)


def answer_of(program, library, folder, inputs):
    """Returns the outputs of the program by name, for inputs by name."""
    taken, given = signature_of(folder)
    assert set(taken) == set(inputs)
    lines = [line_of(taken[name], values) for name, values in inputs.items()]
    ended = run(program, library, folder, "\n".join([*lines, *given.values()]) + "\n")
    assert ended.returncode == 0, ended.stderr
    found = {}
    for line, (name, tensor) in zip(ended.stdout.splitlines(), given.items(), strict=True):
        of, shape, *values = line.split("\t")
        assert of == tensor
        found[name] = np.array(values, np.float32).reshape([int(each) for each in shape.split(",")])
    return found


EXPORTS = pytest.mark.parametrize(
    "ops, library", [("stock", ""), ("native", str(library_path()))], ids=["stock", "native"]
)


@pytest.fixture(scope="module")
def one_input():
    """Returns a trained model, and keys of which some are unknown."""
    inputs = keras.Input((3,), dtype="int64", name="ids")
    vectors = sok.DynamicEmbedding(4, "ones", combiner="mean")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, activation="sigmoid")(vectors))
    model.compile("adam", "mse")
    keys = np.random.default_rng(0).integers(-(2**63), 2**63, (20, 3))
    model.fit(keys, np.ones((20, 2)), epochs=2, verbose=0)
    keys[0] = [1, 2, 3]  # unknown
    return model, keys


@EXPORTS
def test_the_program_answers_as_predict(ops, library, program, one_input, tmp_path):
    model, keys = one_input
    found = answer_of(program, library, export(model, tmp_path, ops=ops), {"ids": keys})
    (found,) = found.values()
    np.testing.assert_array_equal(found, model.predict(keys, verbose=0))


WORDS = ["red", "light blue", "grün", "a word of more bytes than a string has within itself", ""]


@pytest.fixture(scope="module")
def many_inputs():
    """Returns a trained model of inputs of all kinds, and what it is fed."""
    ids = keras.Input((2,), dtype="int64", name="ids")
    bags = keras.Input((None,), dtype="int64", ragged=True, name="bags")
    words = keras.Input((2,), dtype="string", name="words")
    prices = keras.Input((3,), dtype="float32", name="prices")
    looked_up = keras.layers.StringLookup(vocabulary=WORDS[:4])(words)
    vectors = [
        keras.layers.Flatten()(sok.DynamicEmbedding(3, "ones", name="first")(ids)),
        sok.DynamicEmbedding(4, "zeros", combiner="mean", name="second")(bags),
        keras.layers.Flatten()(sok.DynamicEmbedding(2, "ones", name="third")(looked_up)),
        prices,
    ]
    joined = keras.layers.Concatenate()(vectors)
    heads = {"click": keras.layers.Dense(1)(joined), "vectors": keras.layers.Dense(3)(joined)}
    model = keras.Model([ids, bags, words, prices], heads)
    model.compile("adam", "mse")
    random = np.random.default_rng(1)
    lengths = np.array([2, 0, 5, 1, 0, 3, 1, 0])
    fed = {
        "ids": random.integers(-(2**63), 2**63, [8, 2]),
        "bags": tf.RaggedTensor.from_row_lengths(random.integers(0, 9, lengths.sum()), lengths),
        "words": random.choice(WORDS, [8, 2]).astype(object),
        "prices": random.normal(size=[8, 3]).astype(np.float32),
    }
    given = [tf.convert_to_tensor(v) if k != "bags" else v for k, v in fed.items()]
    targets = {"click": np.ones([8, 1]), "vectors": np.ones([8, 3])}
    for _ in range(2):
        model.train_on_batch(given, targets)
    fed["ids"][0] = [1, 2]  # unknown
    return model, fed


@EXPORTS
def test_several_inputs_ragged_and_text(ops, library, program, many_inputs, tmp_path):
    model, fed = many_inputs
    bags = fed["bags"]
    parts = {
        "ids": fed["ids"],
        "bags_values": bags.values.numpy(),
        "bags_row_lengths": bags.row_lengths().numpy(),
        "words": fed["words"],
        "prices": fed["prices"],
    }
    folder = export(model, tmp_path, ops=ops)
    found = answer_of(program, library, folder, parts)
    given = [tf.convert_to_tensor(v) if k != "bags" else v for k, v in fed.items()]
    expected = {name: each.numpy() for name, each in model(given).items()}
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def test_the_program_says_what_is_wrong(program, one_input, tmp_path):
    model, _ = one_input
    folder = export(model, tmp_path, ops="stock")
    taken, given = signature_of(folder)
    (name,), (output,) = taken.values(), given.values()
    right = f"{name}\t1,3\t1\t2\t3\n{output}\n"
    for library, version, request, said in (
        (str(tmp_path / "no.so"), folder, right, "the library of ops does not load"),
        ("", str(tmp_path / "9"), right, "the model does not load"),
        ("", folder, f"{name}\t1,3\t1\t2\n{output}\n", "expected 3 values of the input"),
        ("", folder, f"{name}\t1,3\t1\t2\t3\t4\n{output}\n", "received 4"),
        ("", folder, f"{name}\t1,x\t1\n{output}\n", "expected a shape such as 2,3"),
        ("", folder, f"{name}\t1,3\t1\t2\t3.5\n{output}\n", "does not take the value '3.5'"),
        ("", folder, f"{name}\t1,3\t1\t2\t{2**63}\n{output}\n", "does not take the value"),
        ("", folder, f"none:0\t1\t1\n{output}\n", "the model has no tensor: none:0"),
        ("", folder, f"{output}\n", "the model does not answer"),
    ):
        ended = run(program, library, version, request)
        assert ended.returncode == 1 and said in ended.stderr
    assert run(program, "", folder, right).returncode == 0
