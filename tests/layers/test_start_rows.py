"""Layers that start from vectors which were trained somewhere else."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import DynamicEmbedding, kv

KEYS = np.array([7, -3, 2**40])
VECTORS = np.arange(6, dtype=np.float32).reshape(3, 2)


def test_rows_start_from_a_pair_and_others_from_the_initializer():
    layer = DynamicEmbedding(2, "ones", weights=(KEYS, VECTORS))
    np.testing.assert_array_equal(layer(np.array([2**40, 5, 7])), [[4, 5], [1, 1], [0, 1]])
    assert layer.table.size() == 3


def test_rows_start_from_a_file(tmp_path):
    path = tmp_path / "vectors.npz"
    np.savez(path, keys=KEYS, embeddings=VECTORS.astype(np.float64))
    for given in (path, str(path)):
        layer = DynamicEmbedding(2, weights=given)
        np.testing.assert_array_equal(layer(KEYS), VECTORS)


@pytest.mark.parametrize("given", [VECTORS, [VECTORS], tf.constant(VECTORS)])
def test_rows_start_from_the_matrix_of_a_keras_layer(given):
    layer = DynamicEmbedding(2, weights=given)
    np.testing.assert_array_equal(layer(np.arange(3)), VECTORS)
    assert layer.table.size() == 3


def test_a_model_has_them_and_its_file_too(tmp_path):
    inputs = keras.Input((), dtype="int64")
    model = keras.Sequential([inputs, DynamicEmbedding(2, weights=(KEYS, VECTORS))])
    np.testing.assert_array_equal(model.predict(KEYS, verbose=0), VECTORS)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(KEYS, verbose=0), VECTORS)


def test_a_config_has_none_of_them():
    layer = DynamicEmbedding(2, "zeros", weights=(KEYS, VECTORS))
    layer(KEYS)
    again = DynamicEmbedding.from_config(layer.get_config())
    np.testing.assert_array_equal(again(KEYS), np.zeros((3, 2)))


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (VECTORS[0], "a pair (keys, embeddings)"),
        (VECTORS[:, :1], "of shapes [n] and [n, 2]. Received: shapes [3] and [3, 1]"),
        ((KEYS, VECTORS, 1), "Received: a tuple of 3"),
        ((KEYS, VECTORS[:2]), "of shapes [n] and [n, 2]. Received: shapes [3] and [2, 2]"),
        ((KEYS[None], VECTORS), "Received: shapes [1, 3] and [3, 2]"),
        ((KEYS, VECTORS.astype(int)), "the embeddings of weights= to be floats"),
        ((KEYS.astype(float), VECTORS), "The keys of weights=:"),
        (([7, 8, 7], VECTORS), "each key of weights= once. Received: key 7"),
    ],
    ids=["array", "narrow", "three", "rows", "axes", "integers", "floats", "twice"],
)
def test_what_is_no_such_pair_is_refused(weights, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        DynamicEmbedding(2, weights=weights)


def test_a_file_without_the_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", vectors=VECTORS)
    with pytest.raises(ValueError, match="with the arrays: vectors"):
        DynamicEmbedding(2, weights=tmp_path / "other.npz")
    with pytest.raises(FileNotFoundError):
        DynamicEmbedding(2, weights=tmp_path / "missing.npz")


def test_more_rows_than_the_table_takes_are_refused_before_any_is_there():
    with pytest.raises(ValueError, match="at most max_rows=2 keys a worker. Received: 3"):
        DynamicEmbedding(2, max_rows=2, weights=(KEYS, VECTORS))
    layer = DynamicEmbedding(2, max_rows=3, weights=(KEYS, VECTORS))
    np.testing.assert_array_equal(layer(KEYS), VECTORS)


def test_a_storage_that_has_rows_is_left_as_it_is(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        first = DynamicEmbedding(2, storage=storage, weights=(KEYS, VECTORS))
        first(KEYS)
        storage.flush()
    del first
    with kv.Storage(tmp_path / "rows") as storage:
        with pytest.raises(ValueError, match="expected no rows, with weights= to start from"):
            DynamicEmbedding(2, storage=storage, weights=(KEYS, VECTORS + 1))
        again = DynamicEmbedding(2, storage=storage)
        np.testing.assert_array_equal(again(KEYS), VECTORS)


def test_rows_that_a_function_builds_are_there_after_it():
    layer = DynamicEmbedding(2, weights=(KEYS, VECTORS))
    found = tf.function(lambda keys: layer(keys))(tf.constant(KEYS))
    np.testing.assert_array_equal(found, VECTORS)
    assert layer.table.size() == 3
