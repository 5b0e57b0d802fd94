"""Exports of models with ragged and sparse inputs serve what the model answers, or are refused."""

from __future__ import annotations

import re
import warnings

import keras
import numpy as np
import pytest
import served_models as models
import tensorflow as tf
from served_models import (
    WEIGHTED,
    adaptive,
    answered_parts,
    called,
    fed_of,
    fit,
    of_form,
    parts_of,
)

import sok_embed as sok
from sok_embed import feature_column as fc

IDS = [[5, 2**40], [], [7], [0, 5, 5]]
WEIGHTS = [[0.5, 2.0], [], [3.0], [1.0, -1.0, 4.0]]


def dynamic(combiner="mean", **padding):
    return models.dynamic(combiner, "uniform", seed=1, **padding)


def collection(combiner="mean", **padding):
    return models.collection(combiner, "uniform", **padding)


def bag(combiner="mean", **padding):
    return sok.HashedEmbeddingBag(2**41, 3, 1e-11, mode=combiner, **padding)


LAYERS = {"dynamic": dynamic, "adaptive": adaptive, "collection": collection, "bag": bag}


def cases():
    for name in LAYERS:
        for form in ("dense", "ragged", "sparse"):
            for weighted in (False, True) if name in WEIGHTED else (False,):
                ending = "-weighted" if weighted else ""
                yield pytest.param(name, form, weighted, id=f"{name}-{form}{ending}")


def model_of(name, form, weighted):
    """Makes a trained functional model, what it is fed, and its inputs by name."""
    layer = LAYERS[name]("sum" if weighted and name == "bag" else "mean")
    inputs, (vectors,) = called([layer], form, [WEIGHTED[name] if weighted else ""])
    model = keras.Model(inputs, keras.layers.Dense(1)(vectors))
    fed = fed_of(form, IDS, WEIGHTS if weighted else None)
    fit(model, fed)
    return model, fed


def served(path, parts):
    (outputs,) = answered_parts(path, parts)
    return outputs


REFUSED = "expected (ragged|sparse) ids, as the model was called with. Received: a dense signature"


@pytest.mark.cover(3)
@pytest.mark.parametrize("name, form, weighted", list(cases()))
def test_what_is_served_is_what_the_model_answers_or_the_export_is_refused(
    name, form, weighted, tmp_path
):
    model, fed = model_of(name, form, weighted)
    expected = model(fed).numpy()
    sok.export_model(model, tmp_path / "parts")
    np.testing.assert_allclose(served(str(tmp_path / "parts"), parts_of(fed)), expected, rtol=1e-5)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again(fed), expected)
    for save in (
        lambda model, path: model.export(path, verbose=False),
        lambda model, path: tf.saved_model.save(model, path),
    ):
        for each in (model, again):
            if form != "dense":
                with pytest.raises(ValueError, match=REFUSED):
                    save(each, str(tmp_path / "refused"))
                continue
            save(each, str(tmp_path / "dense"))
            found = served(str(tmp_path / "dense"), parts_of(fed))
            np.testing.assert_allclose(found, expected, rtol=1e-5)


class Subclassed(keras.Model):
    """A model of which Keras knows shapes alone."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, ids):
        return self.layer(ids)


SPECS = {
    "ragged": tf.RaggedTensorSpec([None, None], tf.int64),
    "sparse": tf.SparseTensorSpec([None, None], tf.int64),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", list(LAYERS))
@pytest.mark.parametrize("form", ["ragged", "sparse"])
def test_a_subclassed_model_is_exported_with_a_signature_of_its_forms(name, form, tmp_path):
    model = Subclassed(LAYERS[name]())
    ids = of_form(form, IDS, np.int64)
    expected = model(ids, training=True)
    with pytest.raises(ValueError, match=f"{REFUSED}|has never called"):
        model.export(str(tmp_path / "refused"), verbose=False)
    try:
        tf.saved_model.save(model, str(tmp_path / "saved"))
    except ValueError as error:
        assert re.search(REFUSED, str(error))
    else:  # of some layers Keras knows no shapes, and makes no signature up
        assert not tf.saved_model.load(str(tmp_path / "saved")).signatures
    with pytest.raises(ValueError, match="input_signature for a subclassed model, or"):
        sok.export_model(model, tmp_path / "no")
    sok.export_model(model, tmp_path / "parts", [SPECS[form]])
    found = served(str(tmp_path / "parts"), parts_of({"inputs": ids}))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_signature_that_keras_adds_to_others_fails_when_it_is_served(tmp_path):
    model, _ = model_of("dynamic", "ragged", False)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)])
    def serve(values, lengths):
        return {"y": model({"ids": tf.RaggedTensor.from_row_lengths(values, lengths)})}

    path = str(tmp_path / "both")
    tf.saved_model.save(model, path, signatures={"serve": serve})
    loaded = tf.saved_model.load(path)
    loaded.signatures["serve"](
        values=tf.constant([5, 7], tf.int64), lengths=tf.constant([2], tf.int64)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected ragged ids"):
        loaded._default_save_signature({"ids": tf.constant([[5, 7]], tf.int64)})


@pytest.mark.cover(1)
@pytest.mark.parametrize("make, padding", [
    (dynamic, {"padding_value": -1}),
    (adaptive, {"padding_value": -1}),
    (collection, {"padding_value": -1}),
    (bag, {"padding_idx": -1}),
])  # fmt: skip
def test_a_layer_that_knows_padding_is_served_padded(make, padding, tmp_path):
    layer = make(**padding)
    value = 2**41 - 1 if make is bag else -1
    inputs = keras.Input((None,), dtype="int64", ragged=True, name="ids")
    model = keras.Model(inputs, layer(inputs))
    ids = of_form("ragged", IDS, np.int64)
    expected = model(ids, training=True)
    model.export(tmp_path / "padded", verbose=False)
    found = served(str(tmp_path / "padded"), {"ids": ids.to_tensor(value)})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_ragged_outputs_and_several_ragged_dimensions(tmp_path):
    ids = tf.ragged.constant([[[5], [7, 8]], [], [[9, 9, 9]]], dtype=tf.int64)
    spec = tf.RaggedTensorSpec([None, None, None], tf.int64, 2)
    model = Subclassed(dynamic())
    expected = model(ids)
    sok.export_model(model, tmp_path / "deep", [spec])
    serve = tf.saved_model.load(str(tmp_path / "deep")).signatures["serving_default"]
    outer, inner = ids.nested_row_lengths()
    parts = {"inputs_values": ids.flat_values}
    found = serve(inputs_row_lengths_0=outer, inputs_row_lengths_1=inner, **parts)
    np.testing.assert_array_equal(found["output_values"], expected.values)
    np.testing.assert_array_equal(found["output_row_lengths"], expected.row_lengths())


@pytest.mark.cover(2)
@pytest.mark.parametrize("form", ["ragged", "sparse"])
@pytest.mark.parametrize("name", LAYERS)
def test_dense_arrays_are_warned_of_once_where_the_input_is_not_dense(name, form):
    model, _ = model_of(name, form, False)
    padded = {"ids": np.array([[5, 2**40, 0], [0, 0, 0], [7, 0, 0], [0, 5, 5]])}
    with pytest.warns(UserWarning, match=f"expected {form} ids.*Received: a dense array"):
        model.predict(padded, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(padded)
        model.predict(padded, verbose=0)


def test_a_dense_signature_of_ones_own_is_taken_without_a_word(tmp_path):
    model, _ = model_of("dynamic", "ragged", False)
    dense = np.array([[5, 2**40], [7, 9]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.export(
            tmp_path / "served", input_signature=[{"ids": tf.TensorSpec((None, 2), tf.int64)}],
            verbose=False,
        )  # fmt: skip
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    served = loaded.serve({"ids": dense})
    expected = model({"ids": tf.RaggedTensor.from_tensor(dense)})
    np.testing.assert_allclose(served, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_knows_padding_takes_padded_arrays_for_ragged_inputs(name):
    padding = {"padding_idx": 0} if name == "bag" else {"padding_value": 0}
    inputs = keras.Input((None,), dtype="int64", ragged=True)
    model = keras.Model(inputs, LAYERS[name](**padding)(inputs))
    padded = np.array([[5, 2**40, 0], [7, 0, 0], [9, 5, 5]])
    ragged = tf.RaggedTensor.from_tensor(padded, padding=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(model(tf.constant(padded)), model(ragged))


@pytest.mark.parametrize("lengths", [[1, 1], [5, 5], [4, -1], []])
def test_lengths_that_do_not_fit_the_values_are_an_error(lengths, tmp_path):
    ids = keras.Input((None,), dtype="int64", name="ids", ragged=True)
    sok.export_model(keras.Model(ids, dynamic()(ids)), tmp_path)
    parts = {"ids_values": tf.constant([5, 7, 9], tf.int64)}
    parts["ids_row_lengths"] = tf.constant(lengths, tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="ids: expected lengths that fit"):
        served(tmp_path, parts)


def test_inputs_of_one_name_are_refused(tmp_path):
    ragged = tf.RaggedTensorSpec([None, None], tf.int64)
    for specs in (
        [tf.TensorSpec([None], tf.int64, "a"), tf.TensorSpec([None], tf.int64, "a")],
        {"a": ragged, "a_values": tf.TensorSpec([None], tf.int64)},
    ):
        with pytest.raises(ValueError, match="different names. Received: a"):
            sok.export_model(Subclassed(dynamic()), tmp_path / "m", [specs])
    for signature in (ragged, [], [ragged, ragged]):
        with pytest.raises(ValueError, match="a list of one argument.*Received: [R02]"):
            sok.export_model(Subclassed(dynamic()), tmp_path / "m", signature)


@pytest.mark.cover(1)
@pytest.mark.parametrize("make", [dynamic, adaptive, collection])
def test_ragged_vectors_of_single_keys_are_exported_by_parts_alone(make, tmp_path):
    """A mask would tell of padding, but a sum over ragged vectors does not look for one."""
    inputs = keras.Input((None,), dtype="int64", ragged=True, name="ids")
    vectors = make(None, padding_value=-1)(inputs)
    model = keras.Model(inputs, keras.layers.Lambda(lambda x: tf.reduce_sum(x, 1))(vectors))
    ids = of_form("ragged", IDS, np.int64)
    with pytest.raises(ValueError, match=REFUSED):
        model.export(str(tmp_path / "refused"), verbose=False)
    sok.export_model(model, tmp_path / "parts")
    found = served(str(tmp_path / "parts"), parts_of({"ids": ids}))
    np.testing.assert_allclose(found, model(ids), rtol=1e-6)


@pytest.mark.cover(1)
@pytest.mark.parametrize("padding", [None, -3])
@pytest.mark.parametrize("form", ["ragged", "sparse"])
def test_feature_columns_are_exported_by_parts_or_padded(padding, form, tmp_path):
    column = fc.categorical_column_with_embedding("ids", tf.int64, padding_value=padding)
    layer = fc.DenseFeatures([fc.embedding_column(column, 3)])
    flags = {"ragged": form == "ragged", "sparse": form == "sparse"}
    inputs = {"ids": keras.Input((None,), dtype="int64", name="ids", **flags)}
    model = keras.Model(inputs, layer(inputs))
    fed = {"ids": of_form(form, IDS, np.int64)}
    expected = model(fed, training=True)
    sok.export_model(model, tmp_path / "parts")
    np.testing.assert_allclose(served(str(tmp_path / "parts"), parts_of(fed)), expected, rtol=1e-6)
    if padding is None:
        with pytest.raises(ValueError, match=REFUSED):
            model.export(str(tmp_path / "refused"), verbose=False)
    else:
        model.export(str(tmp_path / "padded"), verbose=False)
        ids = of_form("ragged", IDS, np.int64).to_tensor(padding)
        found = served(str(tmp_path / "padded"), {"ids": ids})
        np.testing.assert_allclose(found, expected, rtol=1e-6)
