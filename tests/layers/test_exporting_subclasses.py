"""Subclassed models are exported in every way, and serve the rows that they have.

Keras makes float32 signatures for them, which layers over tables see as it exports.
"""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed.feature_column import (
    DenseFeatures,
    SequenceFeatures,
    categorical_column_with_adaptive_embedding,
    embedding_column,
    sequence_categorical_column_with_adaptive_embedding,
)

BIG = 2**60 + 1
IDS = np.array([[3, BIG], [-7, 3], [5, 9]])
SMALL = np.array([[3, 2**24 - 1], [4, 3], [5, 9]])
TARGETS = np.ones((3, 1), np.float32)
SPEC = tf.TensorSpec([None, 2], tf.int64)
LAYERS = {
    "dynamic": lambda: sok.DynamicEmbedding(2, seed=1),
    "all2all": lambda: sok.All2AllDenseEmbedding(
        max_vocabulary_size_per_gpu=64,
        embedding_vec_size=2,
        slot_num=2,
        nnz_per_slot=1,
        use_hashtable=True,
    ),
    "adaptive": lambda: sok.AdaptiveEmbedding(2, static_buckets=4),
    "hashed": lambda: sok.HashedEmbedding(2**26, 2, 1e-5),
    "bag": lambda: sok.HashedEmbeddingBag(2**26, 2, 1e-5),
}


@keras.saving.register_keras_serializable(package="tests")
class Subclassed(keras.Model):
    """A model of its own `call`, of which Keras knows the shapes of inputs alone."""

    def __init__(self, layer, **kwargs):
        super().__init__(**kwargs)
        self.layer = layer
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(1)

    def call(self, ids, training=False):
        if isinstance(self.layer, sok.All2AllDenseEmbedding):
            ids = ids[:, :, None]
        return self.dense(self.flatten(self.layer(ids, training=training)))


def functional_inside():
    """Makes a subclassed model around a functional one, whose `keras.Input` casts its inputs."""
    inputs = keras.Input((2,), dtype="int64", name="ids")
    return Subclassed(keras.Model(inputs, LAYERS["dynamic"]()(inputs)))


MODELS = {name: lambda make=make: Subclassed(make()) for name, make in LAYERS.items()} | {
    "functional inside": functional_inside
}


def trained(name, ids=IDS):
    model = MODELS[name]()
    model.compile("adam", "mse")
    model.fit(ids, TARGETS, epochs=2, verbose=0)
    return model


def serving(model):
    return tf.function(lambda ids: model(ids, training=False), input_signature=[SPEC])


def export_with_tensor_spec(model, path):
    model.export(path, verbose=False, input_signature=[SPEC])


def export_with_input_spec(model, path):
    spec = keras.InputSpec(dtype="int64", shape=(None, 2))
    model.export(path, verbose=False, input_signature=[spec])


def save_with_signature(model, path):
    tf.saved_model.save(model, path, signatures={"serve": serving(model)})


def archive(model, path):
    archived = keras.export.ExportArchive()
    archived.track(model)
    archived.add_endpoint("serve", lambda ids: model(ids, training=False), [SPEC])
    archived.write_out(path, verbose=False)


def save_in_module(model, path):
    module = tf.Module()
    module.model = model
    module.serve = serving(model)
    tf.saved_model.save(module, path, signatures=module.serve)


def functional_around(model, path):
    inputs = keras.Input((2,), dtype="int64")
    keras.Model(inputs, model(inputs)).export(path, verbose=False)


WAYS = [
    export_with_tensor_spec,
    export_with_input_spec,
    save_with_signature,
    archive,
    save_in_module,
    functional_around,
]


def serve(path, ids):
    """Returns what a SavedModel answers to int64 ids by its only endpoint of that dtype."""
    loaded = tf.saved_model.load(path)
    for signature in loaded.signatures.values():
        (spec,) = signature.structured_input_signature[1].values()
        if spec.dtype == tf.int64:
            (served,) = signature(**{spec.name: tf.constant(ids)}).values()
            return served.numpy()
    raise AssertionError(f"no signature of int64 among {dict(loaded.signatures)}")


def cases():
    # All ways of one layer, and one way of all layers: they do not depend on each other.
    ways = itertools.product(["dynamic"], WAYS)
    layers = itertools.product(list(MODELS)[1:], [export_with_tensor_spec, archive])
    return [pytest.param(*case, id=f"{case[0]}-{case[1].__name__}") for case in (*ways, *layers)]


@pytest.mark.cover(1)
@pytest.mark.parametrize("name, way", cases())
def test_an_export_serves_what_the_model_answers(name, way, tmp_path):
    ids = SMALL if name in ("hashed", "bag") else IDS
    model = trained(name, ids)
    ids = np.concatenate([ids, [[1, 2]]])
    expected = model(ids, training=False).numpy()
    path = str(tmp_path / "exported")
    way(model, path)
    np.testing.assert_array_equal(serve(path, ids), expected)


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("save", ["export", "save"])
def test_a_signature_that_keras_made_up_serves_what_floats_hold(name, save, tmp_path):
    model = trained(name, SMALL)
    expected = model(SMALL, training=False).numpy()
    path = str(tmp_path / "exported")
    if save == "export":
        model.export(path, verbose=False)
    else:
        tf.saved_model.save(model, path)
    signature = tf.saved_model.load(path).signatures["serving_default"]
    (spec,) = signature.structured_input_signature[1].values()
    assert spec.dtype == tf.float32

    def served(ids):
        (outputs,) = signature(**{spec.name: tf.constant(ids, tf.float32)}).values()
        return outputs.numpy()

    np.testing.assert_allclose(served(SMALL), expected, rtol=1e-6)
    for wrong in (2.0**24, -(2.0**24), 1.5, np.nan, np.inf):
        with pytest.raises(tf.errors.InvalidArgumentError, match="whole numbers within.*16777216"):
            served([[wrong, 1.0]])


@pytest.mark.cover(1)
@pytest.mark.parametrize("policy, limit", [("mixed_bfloat16", 2**8), ("float32", 2**24)])
def test_the_bound_is_that_of_the_dtype_keras_took(policy, limit, tmp_path):
    model = Subclassed(LAYERS["dynamic"](), dtype=policy)
    model(IDS)
    path = str(tmp_path / "exported")
    model.export(path, verbose=False)
    loaded = tf.saved_model.load(path)
    dtype = tf.bfloat16 if policy == "mixed_bfloat16" else tf.float32
    loaded.serve(tf.constant([[limit - 1, 1]], dtype))
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"within ±{limit}"):
        loaded.serve(tf.constant([[limit, 1]], dtype))


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", list(MODELS))
def test_a_signature_of_floats_that_the_user_gives_is_refused(name, tmp_path):
    model = trained(name, SMALL)
    floats = tf.TensorSpec([None, 2], tf.float32)
    with pytest.raises(ValueError, match=r"float32 holds ids up to 2\*\*24"):
        model.export(str(tmp_path / "a"), verbose=False, input_signature=[floats])
    archived = keras.export.ExportArchive()
    archived.track(model)
    with pytest.raises(ValueError, match=r"float32 holds ids up to 2\*\*24"):
        archived.add_endpoint("serve", lambda ids: model(ids), [floats])
        archived.write_out(str(tmp_path / "b"), verbose=False)
    with pytest.raises(ValueError, match=r"float32 holds ids up to 2\*\*24"):
        model(SMALL.astype(np.float32))


@keras.saving.register_keras_serializable(package="tests")
class OfColumns(keras.Model):
    """A model over feature columns, which floats cannot be made to fit."""

    def __init__(self, layer, **kwargs):
        super().__init__(**kwargs)
        self.layer = layer
        self.dense = keras.layers.Dense(1)

    def call(self, features, training=False):
        masks = {"item": tf.ones_like(features["item"], tf.int32)}
        rows = self.layer(features, masks, training=training)
        return self.dense(tf.reduce_sum(rows[0], 1) if isinstance(rows, tuple) else rows)


@pytest.mark.cover(1)
@pytest.mark.parametrize("sequence", [False, True])
def test_feature_columns_are_exported_and_refuse_only_what_keras_made_up(sequence, tmp_path):
    if sequence:
        item = sequence_categorical_column_with_adaptive_embedding("item", 8, tf.int64)
        layer = SequenceFeatures([embedding_column(item, 2)])
    else:
        item = categorical_column_with_adaptive_embedding("item", 8, tf.int64)
        layer = DenseFeatures([embedding_column(item, 2)])
    model = OfColumns(layer)
    features = {"item": tf.constant(IDS)}
    model(features, training=True)
    expected = model(features).numpy()
    path = str(tmp_path / "exported")
    model.export(path, verbose=False, input_signature=[{"item": SPEC}])
    loaded = tf.saved_model.load(path)
    np.testing.assert_allclose(loaded.serve(features), expected, rtol=1e-6)
    path = str(tmp_path / "made_up")
    model.export(path, verbose=False)
    loaded = tf.saved_model.load(path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="signature that Keras made"):
        loaded.serve({"item": tf.constant(IDS, tf.float32)})
