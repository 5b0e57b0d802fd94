"""A SavedModel has the vectors of rows, and a checkpoint all that tables hold."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import feature_column as fc

KEYS = np.arange(200).reshape(100, 2) * 7919 - 5
TARGETS = np.ones((100, 1), np.float32)
DIM = 16


def of_layer(layer):
    inputs = keras.Input((2,), dtype="int64", name="ids")
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))


def collection():
    tables = [sok.TableConfig(name, None, DIM, combiner="sum") for name in ("a", "b")]
    layer = sok.DistributedEmbedding(
        [sok.FeatureConfig(f"of {table.name}", table) for table in tables], output="concat"
    )
    inputs = keras.Input((2,), dtype="int64", name="ids")
    return keras.Model(inputs, keras.layers.Dense(1)(layer([inputs, inputs])))


def columns():
    item = fc.categorical_column_with_embedding("item", tf.int64)
    layer = fc.DenseFeatures([fc.embedding_column(item, DIM)])
    inputs = keras.Input((2,), dtype="int64", name="ids")
    return keras.Model(inputs, keras.layers.Dense(1)(layer({"item": inputs})))


MODELS = {
    "dynamic": lambda: of_layer(sok.DynamicEmbedding(DIM)),
    "admission": lambda: of_layer(
        sok.DynamicEmbedding(DIM, admission=sok.admission.FrequencyAdmission(2))
    ),
    "types of rows": lambda: of_layer(
        sok.DynamicEmbedding(DIM, row_dtype="int8", slot_dtype="bfloat16")
    ),
    "eviction": lambda: of_layer(sok.DynamicEmbedding(DIM, max_rows=200, eviction="lru")),
    "adaptive": lambda: of_layer(sok.AdaptiveEmbedding(DIM, 10, promote_after=2)),
    "collection": collection,
    "columns": columns,
}


def trained(name):
    model = MODELS[name]()
    model.compile("adam", "mse")
    keys = np.abs(KEYS) if name == "columns" else KEYS  # -1 is missing there
    for part in (keys, keys[:50]):
        model.fit(part, TARGETS[: len(part)], epochs=2, verbose=0)
    return model, np.concatenate([keys, [[11, 13]]])


def saved_names(folder):
    return [name for name, _ in tf.train.list_variables(str(folder / "variables" / "variables"))]


WAYS = {
    "export": lambda model, path: model.export(path, verbose=False),
    "save": lambda model, path: tf.saved_model.save(model, path),
    "export_model": sok.export_model,
}


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("way", list(WAYS))
def test_a_saved_model_has_vectors_alone_and_serves_the_same(name, way, tmp_path):
    model, keys = trained(name)
    expected = model.predict(keys, verbose=0)
    WAYS[way](model, str(tmp_path / "saved"))
    of_rows = [each for each in saved_names(tmp_path / "saved") if "slots" in each]
    assert of_rows == []
    ends = ("rule", "update_nums", "update_times", "admission", "cells", "counters")
    assert not [each for each in saved_names(tmp_path / "saved") if each.endswith(ends)]
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    (found,) = loaded.signatures["serving_default"](tf.constant(keys)).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", ["dynamic", "adaptive"])
def test_an_export_is_hardly_larger_than_its_vectors(name, tmp_path):
    keys = np.arange(40_000).reshape(-1, 2)
    layer = (
        sok.DynamicEmbedding(DIM)
        if name == "dynamic"
        else sok.AdaptiveEmbedding(DIM, 10, promote_after=1)
    )
    model = of_layer(layer)
    model.compile("adam", "mse")
    model.fit(keys, np.ones((len(keys), 1)), batch_size=len(keys), verbose=0)
    model.export(str(tmp_path / "saved"), verbose=False)
    size = sum(file.stat().st_size for file in (tmp_path / "saved" / "variables").iterdir())
    # Beside a vector lies its key; graph and dense weights are in other files, or small.
    assert size < 40_000 * (4 * DIM + 8) + 20_000


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", ["dynamic", "adaptive", "collection"])
def test_checkpoints_and_files_of_keras_have_everything(name, tmp_path):
    model, keys = trained(name)
    tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
    names = [each for each, _ in tf.train.list_variables(str(tmp_path / "checkpoint"))]
    assert any("slots" in each for each in names)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    for each in (model, again):
        each.fit(keys[:100], TARGETS, epochs=1, shuffle=False, verbose=0)
    np.testing.assert_array_equal(again.predict(keys, verbose=0), model.predict(keys, verbose=0))


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", ["dynamic", "adaptive"])
def test_a_whole_saved_model_has_slots_too(name, tmp_path):
    model, _ = trained(name)
    with sok.whole_saved_models():
        tf.saved_model.save(model, str(tmp_path / "saved"))
        model.export(str(tmp_path / "exported"), verbose=False)
    for folder in ("saved", "exported"):
        names = saved_names(tmp_path / folder)
        assert any(each.endswith("slots") for each in names)
        assert any(each.endswith("rule") for each in names)


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", ["dynamic", "adaptive", "collection"])
def test_a_training_step_in_a_whole_saved_model_trains_the_rows(name, tmp_path):
    model, keys = trained(name)
    batch = tf.constant(keys[:8]), tf.constant(TARGETS[:8])

    @tf.function(input_signature=[tf.TensorSpec(each.shape, each.dtype) for each in batch])
    def step(given, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(given, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    module = tf.Module()
    module.model, module.optimizer, module.step = model, model.optimizer, step
    with sok.whole_saved_models():
        tf.saved_model.save(module, str(tmp_path / "saved"))
    again = tf.saved_model.load(str(tmp_path / "saved"))
    losses = [float(again.step(*batch)) for _ in range(5)]
    np.testing.assert_allclose(losses, [float(step(*batch)) for _ in range(5)], rtol=1e-6)
    assert losses[-1] < losses[0]
