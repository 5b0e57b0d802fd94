"""Ops of TensorFlow around our layers give the same bits as ONNX, or are refused."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from onnx_answers import check, refused, runtime_answers

import sok_embed
from sok_embed.serving import onnx_files

OPS = {
    "float16": lambda ids: tf.cast(ids, tf.float16),
    "rounded": lambda ids: tf.cast(tf.cast(ids, tf.bfloat16), tf.float32),
    "sum": lambda ids: tf.reduce_sum(ids, 1),
    "product": lambda ids: tf.reduce_prod(ids[:, :2], 1),
    "product of int32": lambda ids: tf.reduce_prod(tf.cast(ids, tf.int32), 1),
    "sum of int32": lambda ids: tf.reduce_sum(tf.cast(ids, tf.int32), 1),
    "divided by others": lambda ids: ids // ids[:, ::-1],
    "divided by -1": lambda ids: ids // -1,
    "one hot in front": lambda ids: keras.ops.one_hot(ids, 9, axis=1),
    "sorted": lambda ids: tf.sort(ids, 1),
    "random": lambda ids: tf.random.uniform(tf.shape(ids)),
    "old select": lambda ids: tf.raw_ops.Select(condition=ids >= 0, x=ids, y=-ids),
    "spread convolution": lambda ids: _spread(ids),
    "asserted": lambda ids: _asserted(ids),
}


def _asserted(ids):
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(ids <= 5), [ids])]):
        return tf.identity(ids)


def _spread(ids):
    images = tf.cast(tf.reshape(ids, [-1, 3, 1, 1]), tf.float32)
    return tf.nn.conv2d(images, tf.ones([2, 1, 1, 1]), 1, "SAME", dilations=2)


@pytest.mark.parametrize("kind", OPS)
def test_ops_that_would_answer_otherwise_are_refused(kind, tmp_path):
    ids = keras.Input((3,), dtype="int64", name="ids")
    model = keras.Model(ids, keras.layers.Lambda(OPS[kind], name="other")(ids))
    refused(model, tmp_path, "the same in ONNX. Received: .*other")


# Around the numbers that float32 and float64 do not have.
NUMBERS = [-(2**63), -(2**53) - 1, -7, -1, 0, 6, 2**24 + 1, 2**53 + 1, 2**63 - 1]
LIMITS = [-(2**63), -(2**53) - 1, 0, 2**24, 2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1]
SEGMENTS = [-5, 0, 1, -1, 1, 3, 3, -(2**40), 0]  # those of negative numbers are left out


def of_segments(reduce, dtype):
    return lambda ids: reduce(tf.cast(tf.reshape(ids, [-1]), dtype), tf.constant(SEGMENTS), 5)


COMPARED = {
    "less": lambda ids: tf.stack([ids < limit for limit in LIMITS]),
    "greater": lambda ids: tf.stack([ids > limit for limit in LIMITS]),
    "less or equal": lambda ids: tf.stack([ids <= limit for limit in LIMITS]),
    "greater or equal": lambda ids: tf.stack([ids >= limit for limit in LIMITS]),
    "less of unsigned": lambda ids: tf.bitcast(ids, "uint64") < tf.constant(2**63, "uint64"),
    "divided": lambda ids: tf.stack([ids // by for by in (3, -7, 1, 2**53 + 1, -(2**63))]),
    "divided unsigned": lambda ids: tf.bitcast(tf.bitcast(ids, "uint64") // 3, "int64"),
    "divided int32": lambda ids: tf.cast(ids, tf.int32) // -7,
    "remainder": lambda ids: ids % 20,
    "remainder of a negative": lambda ids: ids % -7,
    "choice": lambda ids: tf.where(ids >= 2**24 + 1, np.inf, 1.0),
    "multiplied": lambda ids: ids * 2654435761 + 5,
    "larger": lambda ids: tf.maximum(ids, 2**53),
    "largest": lambda ids: tf.reduce_max(ids, 1),
    "smallest": lambda ids: tf.reduce_min(ids, 1),
    "cumulated": lambda ids: tf.cumsum(ids, axis=1),
    "one hot": lambda ids: tf.one_hot(ids, 7, 5.0, -1.0),
    "one hot of integers": lambda ids: keras.ops.one_hot(ids, 7, dtype="int32"),
    "float32 and back": lambda ids: tf.cast(tf.cast(ids, tf.float32), tf.int64),
    "float64 and back": lambda ids: tf.cast(tf.cast(ids, tf.float64) / 3, tf.int64),
    "int32 and bool": lambda ids: tf.cast(tf.cast(ids + 2**32 - 6, tf.int32), tf.bool),
    "sum of segments": of_segments(tf.math.unsorted_segment_sum, tf.int64),
    "sum of segments of floats": of_segments(tf.math.unsorted_segment_sum, tf.float32),
    "largest of segments": of_segments(tf.math.unsorted_segment_max, tf.int64),
    "largest of segments of floats": of_segments(tf.math.unsorted_segment_max, tf.float32),
}


def compare(function, values, path, shape=None):
    """Raises unless onnxruntime gives what TensorFlow does; `shape`: the one that is declared."""
    values = tf.constant(values)

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec(shape or values.shape, values.dtype, "ids")])
        def serve(self, ids):
            return function(ids)

    model = Model(name="compared")
    onnx_files.write_onnx(model, [], str(path))
    (found,) = runtime_answers(path, {"ids": values})
    expected = model.serve(values).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", COMPARED)
def test_integers_keep_all_their_bits(kind, tmp_path):
    compare(COMPARED[kind], np.reshape(NUMBERS, [3, 3]), tmp_path)


DTYPES = "uint8 uint16 uint32 uint64 int8 int16 int32 int64 float32 float64".split()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", [tf.math.unsorted_segment_sum, tf.math.unsorted_segment_max])
def test_segments_of_all_types_are_reduced(reduce, dtype, tmp_path):
    limits = np.iinfo(dtype) if "int" in dtype else np.finfo(dtype)
    values = np.array([3, limits.max, 5, limits.min, 7, limits.max, 9, limits.min, 0], dtype)
    compare(lambda values: reduce(values, tf.constant(SEGMENTS), 5), values, tmp_path)


MEANS = {
    "one axis": lambda values: tf.reduce_mean(values, 1),
    "kept": lambda values: tf.reduce_mean(values, -1, keepdims=True),
    "two axes": lambda values: tf.reduce_mean(values, [0, 2]),
    "all": tf.reduce_mean,
    "none": lambda values: tf.raw_ops.Mean(input=values, axis=tf.zeros([0], tf.int32)),
}


@pytest.mark.parametrize("kind", MEANS)
@pytest.mark.parametrize("shape", [[2, 0, 4], [0, 2, 4], [2, 8, 0], [2, 8, 4]])
@pytest.mark.parametrize("known", [True, False])
def test_means_over_nothing_are_those_of_tensorflow(known, shape, kind, tmp_path):
    values = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    compare(MEANS[kind], values, tmp_path, None if known else [None, None, None])


@pytest.mark.parametrize("length", [0, None])
def test_bags_and_rows_of_no_ids_keep_their_shape(length, tmp_path):
    ids = keras.Input((length,), dtype="int64", name="ids")
    rows = sok_embed.DynamicEmbedding(4, name="items")(ids)
    bags = sok_embed.DynamicEmbedding(4, combiner="mean", name="bags")(ids)
    outputs = [rows, bags, keras.layers.GlobalAveragePooling1D()(rows)]
    model = keras.Model(ids, outputs)
    model(np.array([[1, 2]] if length is None else np.zeros([2, 0], "int64")))
    asked = {"ids": tf.zeros([2, 0], tf.int64)}
    expected = [each.numpy() for each in model(asked)]
    assert expected[0].shape == (2, 0, 4) and np.isnan(expected[2]).all()
    check(model, asked, expected, tmp_path, missing="zeros")


LOOKUPS = {
    "unknown to one": {},
    "unknown to several": {"num_oov_indices": 3},
    "inverted": {"invert": True},
}


@pytest.mark.parametrize("kind", LOOKUPS)
def test_lookups_of_integers_answer_as_predict(kind, tmp_path):
    ids = keras.Input((3,), dtype="int64", name="ids")
    known = keras.layers.IntegerLookup(vocabulary=[5, 2**53 + 1, 6, -7], **LOOKUPS[kind])
    asked = np.reshape(NUMBERS if kind != "inverted" else [0, 1, 2, 3, 4, 2], [-1, 3])
    model = keras.Model(ids, known(ids))
    check(model, {"ids": tf.constant(asked)}, [model.predict(asked, verbose=0)], tmp_path)
