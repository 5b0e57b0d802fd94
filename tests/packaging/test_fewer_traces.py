"""Tests that a `fit` is traced once where traces are spared, twice else, and trains the same."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fewer_traces import spare_traces
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

import sok_embed


@pytest.fixture
def traces(monkeypatch):
    """Returns a function that fits a model, and gives its traces and what it predicts then."""
    monkeypatch.setattr("fewer_traces.ALL_TRACES", False)

    def fit(spared, layer):
        spare_traces(spared)
        keras.utils.set_random_seed(0)
        traced = []

        class Counted(keras.Sequential):
            def train_step(self, data):
                traced.append(data)
                return super().train_step(data)

        model = Counted([keras.Input((2,), dtype="int64"), layer(), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        keys = np.arange(8).reshape(4, 2)
        model.fit(keys, np.ones((4, 2, 1)), batch_size=2, verbose=0)
        return len(traced), model.predict(keys, verbose=0)

    yield fit
    spare_traces(False)


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "layer",
    [
        lambda: sok_embed.DynamicEmbedding(4, embeddings_initializer="zeros"),
        lambda: keras.layers.Embedding(8, 4, embeddings_initializer="zeros"),
    ],
)
def test_it_is_traced_once_and_trains_the_same(traces, layer):
    once, spared = traces(True, layer)
    twice, as_users = traces(False, layer)
    assert (once, twice) == (1, 2)
    np.testing.assert_array_equal(spared, as_users)


@pytest.mark.parametrize("batch_size", [3, 4])
def test_batches_of_arrays_are_the_same(monkeypatch, batch_size):
    monkeypatch.setattr("fewer_traces.ALL_TRACES", False)
    keys = np.arange(24).reshape(8, 3)
    x = {"keys": keys, "words": tf.constant([[each] for each in "abcdefgh"])}

    def dataset(spared):
        spare_traces(spared)
        adapter = ArrayDataAdapter(x, np.ones((8, 1)), np.arange(8.0), batch_size=batch_size)
        return adapter.get_tf_dataset()

    try:
        spared, as_users = dataset(True), dataset(False)
    finally:
        spare_traces(False)
    assert spared.element_spec == as_users.element_spec
    batches = [keras.tree.flatten(list(each.as_numpy_iterator())) for each in (spared, as_users)]
    for found, expected in zip(*batches, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
