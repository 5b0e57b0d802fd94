"""A padding value is left out of bags, in what is pooled, trained and counted.

The reference of a layer over padded bags is the same layer over ragged ones without padding.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import feature_column as fc
from sok_embed.admission import FrequencyAdmission

BAGS = [[5, 7], [], [2**40, 5, 7], [8]]
WEIGHTS = [[0.5, 2.0], [], [1.0, -3.0, 4.0], [0.25]]
TARGETS = np.arange(4, dtype=np.float32)[:, None]
POOLING = ("sum", "mean", "sqrtn", "max")
PADDINGS = [0, -1, 2**62, 2**64 - 2]


def dynamic(combiner, **padding):
    return sok.DynamicEmbedding(3, combiner=combiner, seed=1, name="rows", **padding)


def adaptive(combiner, **padding):
    return sok.AdaptiveEmbedding(
        3, static_buckets=5, promote_after=2, combiner=combiner, seed=1, name="rows", **padding
    )


def collection(combiner, **padding):
    table = sok.TableConfig("t", None, 3, combiner=combiner, seed=1)
    return sok.DistributedEmbedding(sok.FeatureConfig("rows", table, **padding), name="rows")


LAYERS = {"dynamic": dynamic, "adaptive": adaptive, "collection": collection}
CASES = [
    pytest.param(make, combiner, id=f"{name}-{combiner}")
    for name, make in LAYERS.items()
    for combiner in POOLING
    if not (name == "adaptive" and combiner == "max")
]


def padded(values, padding, dtype):
    """Makes an array [4, 4] with padding before, between and behind what a bag has."""
    array = np.full((4, 4), padding, dtype)
    for row, places in enumerate(([0, 2], [], [1, 2, 3], [0])):
        array[row, places] = values[row]
    return array


def forms(padding, dtype=np.int64):
    """Returns padded bags in each form, and the weights beside them."""
    ids = padded(BAGS, np.array([padding]).astype(np.uint64).astype(dtype)[0], dtype)
    weights = padded(WEIGHTS, 100.0, np.float32)
    ragged = tf.RaggedTensor.from_tensor(ids)
    return {
        "dense": (ids, weights),
        "ragged": (ragged, ragged.with_values(weights.ravel())),
        "sparse": (ragged.to_sparse(), weights.ravel()),
    }


CLEAN = tf.ragged.constant(BAGS, tf.int64)
CLEAN_WEIGHTS = tf.ragged.constant(WEIGHTS, tf.float32)


@pytest.mark.cover("pairs")
@pytest.mark.parametrize("make, combiner", CASES)
@pytest.mark.parametrize("form", ["dense", "ragged", "sparse"])
@pytest.mark.parametrize("padding", PADDINGS)
def test_padding_is_left_out_of_bags(make, combiner, form, padding):
    padding = padding if padding < 2**63 else padding - 2**64
    layer, reference = make(combiner, padding_value=padding), make(combiner)
    ids, weights = forms(padding)[form]
    np.testing.assert_array_equal(layer(ids), reference(CLEAN))
    if make is not adaptive and combiner != "max":
        found, expected = layer(ids, weights), reference(CLEAN, CLEAN_WEIGHTS)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.cover("values")
@pytest.mark.parametrize("make, combiner", CASES)
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_padding_is_neither_trained_nor_counted(make, combiner, form):
    def trained(layer, ids):
        # Dense rows take gradients that depend on the output alone.
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((layer(ids, training=True) - TARGETS) ** 2)
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)

    layer, reference = make(combiner, mask_zero=True), make(combiner)
    for each, ids in ((layer, forms(0)[form][0]), (reference, CLEAN)):
        each.build(None)
        optimizer = keras.optimizers.Adagrad(0.1)
        for _ in range(3):
            trained(each, ids)
    tables = [each.tables["t"] if make is collection else each.table for each in (layer, reference)]
    exports = [table.export(slots=True) for table in tables]
    found, expected = ({key: rows for key, *rows in zip(*e[:3], strict=True)} for e in exports)
    assert set(found) == set(expected) == {5, 7, 8, 2**40}
    for key in found:
        np.testing.assert_allclose(found[key][0], expected[key][0], rtol=1e-6)
        np.testing.assert_allclose(found[key][1], expected[key][1], rtol=1e-6)
    if make is adaptive:  # static rows and counts too
        snapshots = [table.snapshot() for table in tables]
        assert set(snapshots[0].static.keys) == set(snapshots[1].static.keys)
        np.testing.assert_array_equal(snapshots[0].cells, snapshots[1].cells)


@pytest.mark.parametrize("where", ["layer", "collection"])
def test_an_admission_does_not_count_padding(where):
    admission = FrequencyAdmission(3)
    if where == "layer":
        layer = sok.DynamicEmbedding(2, combiner="mean", padding_value=0, admission=admission)
        table = layer.table
    else:
        config = sok.TableConfig("t", None, 2, admission=admission)
        layer = sok.DistributedEmbedding(sok.FeatureConfig("a", config, padding_value=0))
        table = layer.tables["t"]
    for _ in range(4):
        layer(np.array([[4, 0, 0, 0]]), training=True)
    assert list(table.export()[0]) == [4]


@pytest.mark.parametrize("make", [dynamic, collection])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
def test_every_type_of_keys_has_the_same_padding(make, dtype):
    padding = 2**64 - 2 if dtype == "uint64" else -2
    bags = padded([[5, 7], [], [3, 5, 7], [8]], np.array(padding, dtype), dtype)
    clean = tf.ragged.constant([[5, 7], [], [3, 5, 7], [8]], tf.int64)
    for given in (-2, 2**64 - 2):
        found = make("mean", padding_value=given)(bags)
        np.testing.assert_array_equal(found, make("mean")(clean))


@pytest.mark.parametrize("make", [dynamic, adaptive])
def test_bags_of_higher_rank_keep_their_shape(make):
    layer, reference = make("mean", padding_value=9), make("mean")
    bags = np.array([[[1, 9], [9, 9]], [[2, 3], [9, 4]]])
    clean = tf.ragged.constant([[1], [], [2, 3], [4]], tf.int64)
    found = layer(bags)
    assert found.shape == (2, 2, 3)
    np.testing.assert_array_equal(tf.reshape(found, [4, 3]), reference(clean))


def test_a_route_of_padding_means_nothing():
    layer, reference = adaptive("sum", padding_value=0), adaptive("sum")
    route = padded([[1, 0], [], [-1, 1, 1], [0]], 1, np.int32)
    clean = tf.ragged.constant([[1, 0], [], [-1, 1, 1], [0]], tf.int32)
    found = layer(forms(0)["dense"][0], training=True, mask=route)
    np.testing.assert_array_equal(found, reference(CLEAN, training=True, mask=clean))
    assert set(layer.table.export()[0]) == set(reference.table.export()[0])


@pytest.mark.parametrize("make", [dynamic, adaptive, collection])
@pytest.mark.parametrize("padding", [{"padding_value": 9}, {"mask_zero": True}])
def test_without_a_combiner_later_layers_mask_it(make, padding):
    layer = make(None, **padding)
    value = padding.get("padding_value", 0)
    found = layer(np.array([[5, value], [value, 7]]))
    np.testing.assert_array_equal(found._keras_mask, [[True, False], [False, True]])
    pooled = keras.layers.GlobalAveragePooling1D()(found)
    np.testing.assert_allclose(pooled[0], make(None)(np.array([[5]]))[0, 0], rtol=1e-6)
    assert getattr(layer(tf.ragged.constant([[5, value]], tf.int64)), "_keras_mask", None) is None


@pytest.mark.cover(1)
@pytest.mark.parametrize("make", [dynamic, adaptive, collection])
def test_a_model_of_padded_arrays_trains_as_one_of_ragged_bags(make, tmp_path):
    def model_of(layer, ragged):
        inputs = keras.Input((None,), dtype="int64", ragged=ragged)
        vectors = layer(inputs)
        return keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(vectors))

    dense = model_of(make("mean", padding_value=-7), False)
    ragged = model_of(make("mean"), True)
    for model, ids in ((dense, forms(-7)["dense"][0]), (ragged, CLEAN)):
        model.compile(keras.optimizers.Adam(0.1), "mse")
        model.fit(ids, TARGETS, batch_size=4, epochs=3, verbose=0)
    found = dense.predict(forms(-7)["dense"][0], verbose=0)
    np.testing.assert_allclose(found, ragged.predict(CLEAN, verbose=0), rtol=1e-5)
    dense.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again.predict(forms(-7)["dense"][0], verbose=0), found)


@pytest.mark.parametrize("make", [dynamic, adaptive, collection])
@pytest.mark.parametrize("padding", [{}, {"padding_value": 2**63 + 1}, {"mask_zero": True}])
def test_the_config_has_the_padding(make, padding):
    layer = make("mean", **padding)
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    ids = np.array([[0, 2**63 + 1, 4]], np.uint64)
    np.testing.assert_array_equal(again(ids), layer(ids))


@pytest.mark.parametrize("make", [dynamic, adaptive, collection])
def test_what_is_not_a_key_cannot_be_padding(make):
    for wrong in (0.0, ["0"], True, 2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match="padding_value.*Received: "):
            make("mean", padding_value=wrong)
    with pytest.raises(ValueError, match="one padding value. Received: mask_zero=True.*=3"):
        make("mean", padding_value=3, mask_zero=True)
    make("mean", padding_value=0, mask_zero=True)


@pytest.mark.cover(3)
@pytest.mark.parametrize("form", ["dense", "ragged", "sparse"])
@pytest.mark.parametrize("dtype, padding", [("int64", 0), ("string", "-")])
def test_columns_leave_padding_out(form, dtype, padding):
    def run(padding_value, ids, mask):
        keras.utils.set_random_seed(1)
        own = fc.categorical_column_with_embedding("a", dtype, padding_value=padding_value)
        shared = fc.categorical_column_with_adaptive_embedding(
            "b", 7, dtype, padding_value=padding_value
        )
        start = tf.compat.v1.random_uniform_initializer(seed=1)
        columns = [fc.embedding_column(each, 2, "mean", start) for each in (own, shared)]
        layer = fc.DenseFeatures(columns)
        layer = type(layer).from_config(layer.get_config())
        outputs = layer({"a": ids, "b": ids}, {"b": mask}, training=True)
        return outputs, {name: set(table.export()[0]) for name, table in layer.tables.items()}

    bags = [[5, 7, padding], [padding] * 3, [9, padding, padding]]
    clean = [[5, 7], [], [9]]
    if dtype == "string":
        bags, clean = ([[str(id) for id in bag] for bag in each] for each in (bags, clean))
    ids = tf.ragged.constant(bags, dtype)
    given = {"dense": tf.constant(bags, dtype), "ragged": ids, "sparse": ids.to_sparse()}[form]
    mask = tf.constant([[1, 0, 1], [1, 1, 1], [1, 0, 0]])
    flat = mask if form == "dense" else tf.reshape(mask, [-1])
    found = run(padding, given, flat)
    expected = run(None, tf.ragged.constant(clean, dtype, 1), tf.constant([1, 0, 1]))
    np.testing.assert_array_equal(found[0], expected[0])
    assert found[1] == expected[1]
