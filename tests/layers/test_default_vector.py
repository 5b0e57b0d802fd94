"""Keys without a row read a default where nothing trains, as a static model's unknown words do."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import kv
from sok_embed.admission import FrequencyAdmission

KNOWN = np.array([1, 2**40, -7])
UNKNOWN = np.array([5, 2**62])
VECTORS = np.arange(6, dtype=np.float32).reshape(3, 2) + 1


def layer_with_rows(default, **arguments):
    layer = sok.DynamicEmbedding(2, default_vector=default, seed=1, **arguments)
    layer.table.assign(KNOWN, VECTORS)
    return layer


@pytest.mark.parametrize("default, expected", [("zeros", [0, 0]), (2**40, [3, 4]), (-7, [5, 6])])
@pytest.mark.parametrize("graph", [False, True])
def test_keys_without_a_row_read_the_default(default, expected, graph):
    layer = layer_with_rows(default)
    call = tf.function(layer) if graph else layer
    found = call(tf.constant([[1, 5], [2**62, -7]], tf.int64))
    np.testing.assert_array_equal(found, [[[1, 2], expected], [expected, [5, 6]]])
    assert layer.table.size() == 3


def test_a_uint64_key_is_the_int64_of_its_bits():
    layer = layer_with_rows(2**64 - 7)
    np.testing.assert_array_equal(layer(UNKNOWN), [[5, 6], [5, 6]])


def test_training_starts_from_the_start_vector():
    layer, plain = layer_with_rows("zeros"), layer_with_rows(None)
    np.testing.assert_array_equal(layer(UNKNOWN, training=True), plain(UNKNOWN))
    np.testing.assert_array_equal(layer(UNKNOWN), plain(UNKNOWN))  # they have rows now


def test_a_key_that_waits_for_admission_reads_the_default_in_evaluation():
    layer = layer_with_rows("zeros", admission=FrequencyAdmission(2))
    layer(UNKNOWN, training=True)
    np.testing.assert_array_equal(layer(UNKNOWN), np.zeros((2, 2)))
    layer(UNKNOWN, training=True)
    assert np.all(np.asarray(layer(UNKNOWN)) != 0)


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_bags_pool_the_default(combiner):
    layer = layer_with_rows(1, combiner=combiner)
    found = layer(tf.ragged.constant([[2**40, 5], [9], []], tf.int64))
    sums = np.array([[4, 6], [1, 2], [0, 0]])
    divisors = np.array([[2], [1], [1]]) if combiner == "mean" else 1
    np.testing.assert_array_equal(found, sums / divisors)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_the_default_has_the_compute_dtype(dtype):
    found = layer_with_rows("zeros", dtype=dtype)(np.array([1, 5]))
    assert found.dtype.name == dtype.removeprefix("mixed_")
    np.testing.assert_array_equal(tf.cast(found, tf.float32), [[1, 2], [0, 0]])


def test_rows_on_disk_have_it_too(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        layer = layer_with_rows(1, storage=storage)
        np.testing.assert_array_equal(layer(np.array([-7, 5])), [[5, 6], [1, 2]])


def test_files_and_exports_keep_it(tmp_path):
    inputs = keras.Input((), dtype="int64", name="ids")
    layer = layer_with_rows(2**40)
    model = keras.Model(inputs, layer(inputs))
    keys = np.concatenate([KNOWN, UNKNOWN])
    expected = model.predict(keys, verbose=0)
    np.testing.assert_array_equal(expected[3:], [[3, 4], [3, 4]])
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again.predict(keys, verbose=0), expected)
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_array_equal(served.serve(tf.constant(keys)), expected)


@pytest.mark.parametrize("wrong", ["mean", 1.5, True, 2**64, -(2**63) - 1, [0.0, 0.0]])
def test_other_defaults_are_refused(wrong):
    with pytest.raises(ValueError, match="Expected default_vector to be .*Received: "):
        sok.DynamicEmbedding(2, default_vector=wrong)


def test_the_vector_of_a_key_needs_one_worker(first_of_two):
    with pytest.raises(ValueError, match="'zeros' or None with several workers.*on 2 workers"):
        sok.DynamicEmbedding(2, default_vector=5)
    sok.DynamicEmbedding(2, default_vector="zeros")
