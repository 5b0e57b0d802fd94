"""A `Sequential` without a `keras.Input` makes one of int64, so that ids stay what they are."""

import keras
import numpy as np
import pytest

import sok_embed as sok
from sok_embed import FeatureConfig, TableConfig

LARGE = 2**53 + 1  # neither float32 nor float64 has it
IDS = np.array([[LARGE, 3], [LARGE + 1, 2**24 + 1]])
TARGETS = np.ones([2, 1])


def collection():
    table = TableConfig("items", None, 4, seed=1, combiner="mean")
    return sok.DistributedEmbedding(FeatureConfig("item", table))


LAYERS = {
    "dynamic": lambda: sok.DynamicEmbedding(4, seed=1),
    "pooled": lambda: sok.DynamicEmbedding(4, seed=1, combiner="mean"),
    "adaptive": lambda: sok.AdaptiveEmbedding(4, 10, promote_after=1, seed=1),
    "collection": collection,
}


def table_of(layer):
    return layer.tables["items"] if isinstance(layer, sok.DistributedEmbedding) else layer.table


def stack(layer):
    return [layer, keras.layers.Flatten(), keras.layers.Dense(1, kernel_initializer="ones")]


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("begin", ["fit", "build", "call"])
def test_it_trains_as_one_with_an_input(kind, begin, tmp_path):
    plain = keras.Sequential(stack(LAYERS[kind]()))
    given = keras.Sequential([keras.Input((2,), dtype="int64"), *stack(LAYERS[kind]())])
    if begin == "build":
        plain.build((None, 2))
    elif begin == "call":
        plain(IDS)
    for model in (plain, given):
        model.compile("sgd", "mse")
        model.fit(IDS, TARGETS, verbose=0)
    assert sorted(table_of(plain.layers[0]).export()[0].tolist()) == sorted(IDS.ravel().tolist())
    expected = given.predict(IDS, verbose=0)
    np.testing.assert_array_equal(plain.predict(IDS, verbose=0), expected)
    plain.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(IDS, verbose=0), expected)


def test_layers_with_a_shape_and_hashed_weights_do_too():
    layer = sok.All2AllDenseEmbedding(100, 4, 2, 1, seed=1)
    model = keras.Sequential(stack(layer))
    model.compile("sgd", "mse")
    model.fit(IDS[:, :, None], TARGETS, verbose=0)
    assert layer.table.size() == 4
    hashed = keras.Sequential(stack(sok.HashedEmbedding(2**60, 4, size=50)))
    hashed.compile("sgd", "mse")
    hashed.fit(IDS, TARGETS, verbose=0)
    direct = hashed.layers[0](IDS)
    np.testing.assert_array_equal(
        hashed.predict(IDS, verbose=0)[:, 0],
        np.asarray(hashed.layers[-1](keras.ops.reshape(direct, (2, -1))))[:, 0],
    )


def test_floats_are_refused_as_ever():
    model = keras.Sequential(stack(LAYERS["dynamic"]()))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="expected integer"):
        model.fit(IDS.astype(np.float32), TARGETS, verbose=0)


def test_the_compute_dtype_itself_is_that_of_vectors():
    layer = sok.DynamicEmbedding(4, dtype="mixed_bfloat16")
    keras.Sequential(stack(layer)).build((None, 2))
    assert layer.compute_dtype == "bfloat16"
    assert layer(IDS).dtype == "bfloat16"
