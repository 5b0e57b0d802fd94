"""A subclassed model comes back from a `.keras` file whole, or loading it raises.

Keras builds such a model again from the shapes of its inputs alone, with float32 placeholders.
"""

import os
import subprocess

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import feature_column as fc

RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(0, 50, (32, 3))
TARGETS = RANDOM.normal(size=(32, 1)).astype(np.float32)
PACKAGE = "test_subclassed_models"


@keras.saving.register_keras_serializable(package=PACKAGE)
class OneInput(keras.Model):
    """Ids [batch, 3] through an embedding and two dense layers, one in a list."""

    def __init__(self, embedding, **kwargs):
        super().__init__(**kwargs)
        self.embedding = embedding
        self.hidden = [keras.layers.Flatten(), keras.layers.Dense(5, activation="relu")]
        self.head = keras.layers.Dense(1)

    def call(self, inputs):
        outputs = self.embedding(inputs)
        for layer in self.hidden:
            outputs = layer(outputs)
        return self.head(outputs)

    def get_config(self):
        embedding = keras.saving.serialize_keras_object(self.embedding)
        return {**super().get_config(), "embedding": embedding}

    @classmethod
    def from_config(cls, config):
        embedding = keras.saving.deserialize_keras_object(config.pop("embedding"))
        return cls(embedding, **config)


@keras.saving.register_keras_serializable(package=PACKAGE)
class Columns(OneInput):
    """A dict of features and masks."""

    def call(self, inputs):
        outputs = self.embedding(inputs["features"], inputs["masks"])
        if isinstance(outputs, tuple):  # rows of sequences, and their lengths
            outputs = tf.reduce_sum(outputs[0], 1)
        return super_call(self, outputs)


@keras.saving.register_keras_serializable(package=PACKAGE)
class Routed(OneInput):
    """Ids and their routes, as two arguments."""

    def call(self, inputs, routes=None):
        return super_call(self, self.embedding(inputs["ids"], mask=inputs["routes"]))


@keras.saving.register_keras_serializable(package=PACKAGE)
class Bags(OneInput):
    """Weighted bags."""

    def call(self, inputs):
        return super_call(self, self.embedding(inputs["ids"], per_sample_weights=inputs["weights"]))


@keras.saving.register_keras_serializable(package=PACKAGE)
class WithStrings(OneInput):
    """Strings are no floats, so Keras' placeholders fail behind the table."""

    def __init__(self, embedding, **kwargs):
        super().__init__(embedding, **kwargs)
        self.words = keras.layers.StringLookup(vocabulary=["a", "b"])

    def call(self, inputs):
        outputs = self.embedding(inputs["ids"])
        words = tf.cast(self.words(tf.strings.lower(inputs["words"])), tf.float32)
        return super_call(self, tf.reshape(outputs, [-1, 12]) + words)


def super_call(model, outputs):
    for layer in model.hidden:
        outputs = layer(outputs)
    return model.head(outputs)


def column(sequence=False):
    make = (
        fc.sequence_categorical_column_with_adaptive_embedding
        if sequence
        else fc.categorical_column_with_adaptive_embedding
    )
    return fc.embedding_column(make("item", 10, tf.int64), 4)


FEATURES = {"features": {"item": IDS}, "masks": {"item": (IDS % 2).astype(np.int32)}}
MODELS = {
    "dynamic": lambda: (OneInput(sok.DynamicEmbedding(4, mask_zero=True)), IDS),
    "all2all": lambda: (
        OneInput(sok.All2AllDenseEmbedding(100, 4, 1, 3, key_dtype=tf.int32)),
        IDS[:, None].astype(np.int32),
    ),
    "adaptive": lambda: (OneInput(sok.AdaptiveEmbedding(4, 10)), IDS),
    "routed": lambda: (
        Routed(sok.AdaptiveEmbedding(4, 10)),
        {"ids": IDS, "routes": FEATURES["masks"]["item"]},
    ),
    "hashed": lambda: (OneInput(sok.HashedEmbedding(50, 4, mask_zero=True)), IDS),
    "bag": lambda: (
        Bags(sok.HashedEmbeddingBag(50, 4)),
        {"ids": IDS, "weights": np.ones(IDS.shape, np.float32)},
    ),
    "dense_features": lambda: (Columns(fc.DenseFeatures([column()])), FEATURES),
    "sequence_features": lambda: (Columns(fc.SequenceFeatures([column(sequence=True)])), FEATURES),
}


def trained(model, inputs, epochs=2):
    model.compile("adam", "mse")
    model.fit(inputs, TARGETS, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return model


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", MODELS)
def test_a_subclassed_model_comes_back_whole(tmp_path, kind):
    model, inputs = MODELS[kind]()
    trained(model, inputs)
    model.save(tmp_path / "model.keras")
    expected = model.predict(inputs, verbose=0)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(inputs, verbose=0), expected)
    for each in (model, loaded):
        each.fit(inputs, TARGETS, batch_size=8, shuffle=False, verbose=0)
    np.testing.assert_array_equal(
        loaded.predict(inputs, verbose=0), model.predict(inputs, verbose=0)
    )


def test_real_float_keys_are_refused_by_a_loaded_model(tmp_path):
    model, inputs = MODELS["dynamic"]()
    trained(model, inputs).save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="expected integer keys|Expected integer keys"):
        loaded.predict(IDS.astype(np.float32), verbose=0)
    with pytest.raises(ValueError, match="[Ee]xpected integer keys"):
        loaded(IDS.astype(np.float32))


@pytest.mark.parametrize("kind", ["dynamic", "adaptive", "hashed"])
def test_a_symbolic_float_input_is_refused_where_no_file_is_loaded(kind):
    model, _ = MODELS[kind]()
    with pytest.raises(ValueError, match="integer keys|ids of int32 or int64"):
        model(keras.Input((3,)))


def test_dense_weights_that_cannot_come_back_are_an_error(tmp_path):
    def make():
        return WithStrings(sok.DynamicEmbedding(4, name="emb"), name="model")

    inputs = {"ids": IDS, "words": np.full((32, 1), "A")}
    data = tf.data.Dataset.from_tensor_slices((inputs, TARGETS)).batch(8)
    model = make()
    model.compile("adam", "mse")
    model.fit(data, verbose=0)
    model.save(tmp_path / "model.keras")
    text = r"(?s)expected every layer .* built.*dense.*call the model.*load_weights"
    with pytest.raises(ValueError, match=text):
        keras.models.load_model(tmp_path / "model.keras")
    # The message tells to do this.
    again = make()
    again(next(iter(data))[0])
    again.load_weights(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(data, verbose=0), model.predict(data, verbose=0))


def test_a_layer_that_nothing_calls_is_no_error(tmp_path):
    model, inputs = MODELS["dynamic"]()
    model.unused = keras.layers.Dense(3)
    trained(model, inputs).save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.unused = keras.layers.Dense(3)
    loaded.load_weights(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        loaded.predict(inputs, verbose=0), model.predict(inputs, verbose=0)
    )


def test_weights_alone_and_unzipped_folders_come_back_too(tmp_path):
    model, inputs = MODELS["dynamic"]()
    trained(model, inputs)
    expected = model.predict(inputs, verbose=0)
    model.save(str(tmp_path / "folder"), zipped=False)
    folder = keras.models.load_model(str(tmp_path / "folder"))
    np.testing.assert_array_equal(folder.predict(inputs, verbose=0), expected)
    model.save_weights(tmp_path / "model.weights.h5")
    other = OneInput(sok.DynamicEmbedding(4, mask_zero=True))
    other(inputs)
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other.predict(inputs, verbose=0), expected)


def test_another_process_loads_it(tmp_path):
    model, inputs = MODELS["dynamic"]()
    trained(model, inputs).save(tmp_path / "model.keras")
    np.save(tmp_path / "expected.npy", model.predict(inputs, verbose=0))
    np.save(tmp_path / "ids.npy", inputs)
    script = f"""
        import sys
        sys.path[:0] = {[os.path.dirname(each) for each in (__file__, forked.__file__)]}
        import keras, numpy as np
        import test_subclassed_models
        model = keras.models.load_model("model.keras")
        found = model.predict(np.load("ids.npy"), verbose=0)
        np.testing.assert_array_equal(found, np.load("expected.npy"))
    """
    command = forked.program(script)
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
