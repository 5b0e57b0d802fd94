"""An export of layers that pool serves what `predict` answers, bit for bit, with any ops."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import served_models as models
from served_models import (
    ASKED,
    DIM,
    FORMS,
    WEIGHTED,
    answered,
    assert_same_bits,
    check,
    predicted,
    trained,
)
from tiers import long

import sok_embed as sok
from sok_embed.serving import export

COMBINERS = ("sum", "mean", "sqrtn", "max")
LAYERS = {"dynamic": models.dynamic, "adaptive": models.adaptive, "collection": models.collection}


def cases():
    for name in LAYERS:
        for combiner in COMBINERS[: 3 if name == "adaptive" else 4]:
            yield name, combiner, ""
            if name in WEIGHTED and combiner != "max":
                yield name, combiner, WEIGHTED[name]


# Each kind of layer in each form; each combiner; weights of each kind of layer that takes them.
FEW = {
    form: list(zip(LAYERS, combiners, weights, strict=True))
    for form, combiners, weights in (
        ("dense", ("sum", "mean", "max"), ("weights", "", "")),
        ("ragged", ("max", "sqrtn", "mean"), ("", "", "weights")),
        ("sparse", ("mean", "sum", "sqrtn"), ("", "", "weights")),
    )
}


def model_of(form, chosen):
    """Returns a model that has a layer for each case, so that it is traced once, and its feed."""
    layers = [LAYERS[name](combiner) for name, combiner, _ in chosen]
    return trained(layers, form, [weights for _, _, weights in chosen])


# A process with TensorFlow alone: no module of this project can be imported in it.
ALONE = """
import json, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "sok_embed":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import numpy as np
import tensorflow as tf
for folder, given, out in json.load(sys.stdin):
    serve = tf.saved_model.load(folder).signatures["serving_default"]
    tensors = {name: tf.constant(values, dtype) for name, (dtype, values) in given.items()}
    outputs = serve(**tensors)
    names = sorted(outputs, key=lambda name: (len(name), name))
    np.savez(out, *[outputs[name].numpy() for name in names])
assert "sok_embed" not in sys.modules
"""


def test_pooled_layers_answer_as_predict_and_in_a_process_with_tensorflow_alone(tmp_path):
    asked, expected = [], {}
    for form in FORMS:
        model, fed = model_of(form, FEW[form])
        expected[form] = predicted(model, fed)
        folders = check(model, fed, expected[form], tmp_path / form)
        given = {name: [part.dtype.name, part.numpy().tolist()]
                 for name, part in models.parts_of(fed).items()}  # fmt: skip
        asked.append([folders["stock"], given, str(tmp_path / f"{form}.npz")])
    command = [sys.executable, "-I", "-c", ALONE]
    subprocess.run(command, input=json.dumps(asked).encode(), check=True)
    for form in FORMS:
        found = np.load(tmp_path / f"{form}.npz")
        assert_same_bits([found[each] for each in found.files], expected[form])


@pytest.mark.parametrize("form", [long(form) for form in FORMS])
def test_all_pooled_layers_answer_as_predict(form, tmp_path):
    model, fed = model_of(form, list(cases()))
    check(model, fed, predicted(model, fed), tmp_path)


MODES = ("sum", "mean", "max")


@pytest.mark.parametrize(
    "chosen", [list(zip(FORMS, MODES, strict=True)), long(list(itertools.product(FORMS, MODES)))]
)
def test_hashed_bags_answer_as_predict(chosen, tmp_path):
    keys = [[abs(key) % 1000 for key in row] for row in ASKED]
    inputs, fed, outputs = {}, {}, []
    for form, mode in chosen:
        layer = sok.HashedEmbeddingBag(
            1000, DIM, 0.02, mode=mode, sign=True, block_size=3, padding_idx=7
        )
        if form not in inputs:
            inputs[form] = models.input_of(form, form, "int64")
            fed[form] = models.of_form(form, keys, np.int64)
        weights = {}
        if mode == "sum":
            name = f"{form}_weights"
            inputs[name] = models.input_of(form, name, "float32")
            fed[name] = models.of_form(form, models.weights_of(keys), np.float32)
            weights = {WEIGHTED["bag"]: inputs[name]}
        outputs.append(layer(inputs[form], **weights))
    model = keras.Model(inputs, outputs)
    check(model, fed, predicted(model, fed), tmp_path, ["stock"])  # there are no rows to find


@pytest.mark.cover("values")
@pytest.mark.parametrize("hash", ["mixed", "original", "modulo"])
@pytest.mark.parametrize("size, block, sign", [(101, 1, False), (37, 5, True), (3, 7, True)])
def test_hashed_embeddings_answer_as_predict(hash, size, block, sign, tmp_path):
    layer = sok.HashedEmbedding(
        2**40, 70, size=size, hash=hash, seed=2**63 - 1, sign=sign, block_size=block
    )
    model = keras.Sequential([keras.Input((3,), dtype="int64", name="ids"), layer])
    ids = np.random.default_rng(0).integers(0, 2**40, (50, 3))
    folder = export(model, tmp_path)
    assert_same_bits(answered(folder, {"ids": ids}), [model.predict(ids, batch_size=50, verbose=0)])
