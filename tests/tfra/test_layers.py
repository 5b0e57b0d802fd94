"""Keras layers of TFRA's names."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed
from sok_embed import tfra

layers = tfra.dynamic_embedding.keras.layers
IDS = tf.constant([[23, 12, 0], [9, 13, 10]], tf.int64)


@keras.saving.register_keras_serializable(package="tests")
def field_of(ids):
    return tf.math.mod(ids, 3)


def filled(layer):
    """Gives keys 0 to 99 rows of their own number, and its negative."""
    keys = tf.range(100, dtype=tf.int64)
    numbers = tf.cast(keys, tf.float32)
    layer.params.upsert(keys, tf.stack([numbers, -numbers], 1))
    return layer


def test_each_key_has_a_vector():
    layer = filled(layers.Embedding(2, name="plain"))
    assert layers.BasicEmbedding is layers.Embedding
    assert layer(IDS).numpy()[..., 0].tolist() == IDS.numpy().tolist()


@pytest.mark.parametrize("combiner", ["sum", "mean", "max", "std"])
def test_the_keys_of_an_example_become_one_vector(combiner):
    layer = filled(layers.SquashedEmbedding(2, combiner=combiner, name="squashed"))
    reduce = getattr(np, combiner)
    np.testing.assert_allclose(layer(IDS)[:, 0], reduce(IDS.numpy(), 1), rtol=1e-6)
    np.testing.assert_allclose(layer(IDS[0])[0], reduce(IDS.numpy()[0]), rtol=1e-6)
    deep = tf.reshape(IDS, [1, 2, 3])
    expected = reduce(reduce(IDS.numpy(), 0), 0)
    np.testing.assert_allclose(layer(deep)[0, 0], expected, rtol=1e-6)


def test_the_keys_of_a_field_become_one_vector():
    layer = filled(layers.FieldWiseEmbedding(2, 3, field_of, name="fields"))
    assert layer(IDS)[..., 0].numpy().tolist() == [[12, 0, 23], [9, 23, 0]]
    mean = filled(layers.FieldWiseEmbedding(2, 3, field_of, combiner="mean", name="means"))
    assert mean(IDS)[..., 0].numpy().tolist() == [[6, 0, 23], [9, 11.5, 0]]


def test_workers_are_counted():
    layer = layers.HvdAllToAllEmbedding(True, True, 1, None, 2, name="spread")
    assert layer(IDS).shape == (2, 3, 2)
    with pytest.raises(ValueError, match=r"sok_embed\.init"):
        layers.HvdAllToAllEmbedding(mpi_size=2, embedding_size=2)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="sqrt_n"):
        layers.FieldWiseEmbedding(2, 3, field_of, combiner="max")
    with pytest.raises(ValueError, match="slot_map_fn"):
        layers.FieldWiseEmbedding(2, 3)
    with pytest.raises(ValueError, match="std"):
        layers.SquashedEmbedding(2, combiner="nothing")


def test_ids_are_not_rounded_on_their_way():
    ids = np.array([[2**40 + 1], [1]])
    sequential = keras.Sequential([layers.Embedding(2, name="first"), keras.layers.Flatten()])
    sequential(ids)
    assert sequential.inputs[0].dtype == "int64"
    narrow = keras.Input((1,), dtype="int32")
    model = keras.Model(narrow, layers.SquashedEmbedding(2, name="cast")(narrow))
    with pytest.raises(ValueError, match="int32"):
        model(ids)
    with pytest.raises(ValueError, match="dtype='int64'"):
        layers.Embedding(2, name="floats")(keras.Input((1,)))


def test_a_model_trains_and_comes_back_from_a_file(tmp_path):
    keys = keras.Input((3,), dtype="int64")
    squashed = layers.SquashedEmbedding(4, name="squashed", max_norm=2.0)(keys)
    fields = layers.FieldWiseEmbedding(4, 3, field_of, name="fields")(keys)
    joined = keras.layers.Concatenate()([squashed, keras.layers.Flatten()(fields)])
    model = keras.Model(keys, keras.layers.Dense(1)(joined))
    assert model.output_shape == (None, 1)
    optimizer = tfra.dynamic_embedding.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05))
    model.compile(optimizer, "mse")
    targets = np.array([1.0, -1.0])
    losses = model.fit(IDS.numpy(), targets, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < 0.1 * losses[0]
    assert int(model.get_layer("fields").params.size()) == 6
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(IDS), model(IDS), rtol=1e-6)


class Model(keras.Model):
    """A model after TFRA's demo, whose layers may be called in either order."""

    def __init__(self, rows, dense_first=False):
        super().__init__()
        self.rows, self.on_rows = rows, keras.layers.Dense(1)
        self.dense = keras.layers.Dense(4) if dense_first else None

    def compute(self, ids):
        if self.dense is not None:
            return self.on_rows(self.dense(tf.cast(ids, tf.float32)) * self.rows(ids))
        return self.on_rows(self.rows(ids))

    call = compute


class Traced(Model):
    call = tf.function(Model.compute)


def rows_of(kind):
    if kind == "tfra":
        return layers.SquashedEmbedding(4, name="rows")
    if kind == "table":
        layer = sok_embed.DynamicEmbedding(4, combiner="sum", name="rows")
        layer.build((None, 3))  # otherwise it has no variable, and Keras finds no gradients
        return layer
    table = sok_embed.TableConfig("rows", None, 4, combiner="sum")
    layer = sok_embed.DistributedEmbedding(sok_embed.FeatureConfig("rows", table), name="rows")
    layer(IDS)
    return layer


@pytest.mark.cover("values")
@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("dense_first", [False, True])
@pytest.mark.parametrize("kind", ["tfra", "table", "collection"])
def test_a_call_that_is_a_function_is_refused_until_the_model_is_built(
    kind, dense_first, run_eagerly
):
    model = Traced(rows_of(kind), dense_first)
    model.compile("adam", "mse", run_eagerly=run_eagerly)
    with pytest.raises(ValueError, match="Take @tf.function off"):
        model.fit(IDS, np.ones([2, 1]), verbose=0)
    with pytest.raises(ValueError, match="Take @tf.function off"):
        model(IDS)


@pytest.mark.parametrize("kind", ["tfra", "table"])
def test_other_functions_and_built_models_train_dense_weights(kind):
    traced = Traced(rows_of(kind))
    traced.on_rows.build((None, 4))
    inner = Model(rows_of(kind))
    inner.rows = tf.function(inner.rows)
    for model in (traced, inner, Model(rows_of(kind))):
        model.compile("sgd", "mse")
        model.fit(IDS, np.ones([2, 1]), verbose=0)
        before = model.on_rows.kernel.numpy().copy()
        model.fit(IDS, np.ones([2, 1]), verbose=0)
        assert np.abs(model.on_rows.kernel.numpy() - before).max() > 0
