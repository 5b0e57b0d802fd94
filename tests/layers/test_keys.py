"""Every 64-bit integer is a key, and any number of them a batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko
from tiers import rounds

from sok_embed import All2AllDenseEmbedding, DynamicEmbedding, Table, tf_ops
from sok_embed.initializers import RowInitializer

DIM = 4
LEAST, GREATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
SPECIAL = np.array([0, -1, 1, LEAST, GREATEST, LEAST + 1, GREATEST - 1, 2**32, -(2**32)])


def all2all(**keywords):
    return All2AllDenseEmbedding(100, DIM, 1, 1, dynamic_input=True, **keywords)


def train(layer, keys, gradients):
    """One step of w -= gradient, the gradients being of each position."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(keys, training=True) * gradients)
    optimizer = ko.SGD(1.0)
    weights = layer.trainable_variables
    optimizer.apply(tape.gradient(loss, weights), weights)


@pytest.mark.cover(5)
@pytest.mark.parametrize("key", SPECIAL.tolist())
def test_any_integer_is_a_key_that_gets_a_row_and_is_trained(key):
    layer = DynamicEmbedding(DIM, "zeros")
    train(layer, np.array([key, 5]), np.array([[1.0], [2.0]], np.float32))
    assert layer.table.size() == 2
    np.testing.assert_array_equal(layer.table.lookup([key, 5]), [[-1.0] * DIM, [-2.0] * DIM])
    assert layer.table.remove([key]) == 1
    assert layer.table.size() == 1


def test_special_keys_are_told_apart():
    layer = DynamicEmbedding(DIM)
    outputs = layer(SPECIAL, training=True).numpy()
    assert layer.table.size() == len(SPECIAL)
    assert len(np.unique(outputs, axis=0)) == len(SPECIAL)
    keys, _ = layer.table.export()
    np.testing.assert_array_equal(np.sort(keys), np.sort(SPECIAL))


@pytest.mark.parametrize(
    "make", [lambda: DynamicEmbedding(DIM), lambda: all2all(key_dtype="uint64")]
)
def test_unsigned_keys_above_the_signed_range_are_the_same_bits(make):
    layer = make()
    unsigned = np.array([2**63, 2**63 + 1, 2**64 - 1, 7], np.uint64)
    outputs = layer(unsigned, training=True)
    assert layer.table.size() == 4
    np.testing.assert_array_equal(layer.table.lookup(unsigned), outputs)
    np.testing.assert_array_equal(layer.table.lookup(unsigned.view(np.int64)), outputs)
    keys, _ = layer.table.export()
    np.testing.assert_array_equal(np.sort(keys), np.sort(unsigned.view(np.int64)))


def test_python_integers_above_the_signed_range_are_unsigned_keys():
    layer = DynamicEmbedding(DIM)
    np.testing.assert_array_equal(layer([2**64 - 1]), layer([-1]))


@pytest.mark.parametrize(
    "make", [lambda: DynamicEmbedding(DIM), lambda: all2all(key_dtype="int32")]
)
def test_int32_keys_keep_their_sign(make):
    layer = make()
    narrow = np.array([-1, 5, np.iinfo(np.int32).min], np.int32)
    outputs = layer(narrow, training=True)
    np.testing.assert_array_equal(layer.table.lookup(narrow.astype(np.int64)), outputs)
    assert layer.table.size() == 3


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint8, np.uint16, np.uint32])
def test_a_dynamic_embedding_takes_integers_of_any_width(dtype):
    layer = DynamicEmbedding(DIM)
    keys = np.array([0, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    np.testing.assert_array_equal(layer(keys), layer(keys.astype(np.int64)))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
@pytest.mark.parametrize("training", [False, True])
def test_no_keys_give_no_vectors(shape, training):
    layer = DynamicEmbedding(DIM)
    assert layer(np.zeros(shape, np.int64), training=training).shape == (*shape, DIM)
    assert layer.table.size() == 0


def test_an_empty_list_is_a_batch_without_keys():
    assert DynamicEmbedding(DIM)([]).shape == (0, DIM)


def test_a_step_without_keys_changes_no_row():
    layer = DynamicEmbedding(DIM)
    train(layer, np.array([1, 2]), np.ones((2, 1), np.float32))
    before = layer.table.lookup([1, 2])
    train(layer, np.zeros(0, np.int64), np.ones((0, 1), np.float32))
    np.testing.assert_array_equal(layer.table.lookup([1, 2]), before)
    assert layer.table.size() == 2
    assert layer.table.stats()["pending_gradients"] == 0


def test_fit_goes_through_empty_batches():
    layer = DynamicEmbedding(DIM, "zeros")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    # The loss is the sum, as the mean over no samples is 0 / 0 in Keras.
    model.compile(ko.SGD(1.0), keras.losses.MeanAbsoluteError(reduction="sum"))

    def batches():
        for size in (2, 0, 3):
            yield np.arange(size), np.ones((size, DIM), np.float32)

    signature = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, DIM], tf.float32))
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    model.fit(data, verbose=0)
    # Each sample has a gradient of -1 / DIM, which is exact in binary.
    expected = np.array([[2.0], [2.0], [1.0]]) / DIM * np.ones(DIM)
    np.testing.assert_array_equal(layer.table.lookup([0, 1, 2]), expected)


def test_a_first_step_without_keys_makes_no_rows():
    layer = DynamicEmbedding(DIM)
    train(layer, np.zeros(0, np.int64), np.ones((0, 1), np.float32))
    assert layer.table.size() == 0


def test_millions_of_keys_get_rows_that_start_where_they_were_promised_to():
    count, dim = rounds(2_000_000, 10_000_000), 2
    table = Table(dim, RowInitializer("uniform", -1.0, 1.0, None), seed=3)
    # An odd multiplier keeps keys distinct, and spreads them over 64 bits.
    keys = np.arange(count, dtype=np.int64) * np.int64(0x1E3779B97F4A7C15)
    sample = keys[np.random.default_rng(0).integers(0, count, 100_000)]
    before = table.lookup(sample)
    for part in np.array_split(keys, 10):
        tf_ops.lookup(table.resource_handle, part, dim, make_rows=True)
    assert table.size() == count
    np.testing.assert_array_equal(table.lookup(sample), before)
    # A row takes 16 bytes, and its key and place in the index more, with room to grow.
    assert table.stats()["bytes"] < 100 * count
    # Rows are where their keys say: a change of one key shows in no other.
    table.assign(sample[:1], np.full((1, dim), 9.0, np.float32))
    changed = (table.lookup(sample) != before).any(axis=1)
    np.testing.assert_array_equal(changed, sample == sample[0])


FLAGS = [[True], [1, True], [[2], [False]], np.array([True]), (3, np.True_)]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_flags_are_not_keys_of_a_table(flags):
    table = Table(DIM, RowInitializer("constant", 0.0, 0.0, None))
    for call in (table.lookup, table.contains, table.remove):
        with pytest.raises(
            ValueError, match="Expected integer keys.*Received: .*(bool|True|False)"
        ):
            call(flags)
    assert table.size() == 0


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("use", ["fit", "predict", "call"])
def test_flags_are_not_keys_of_a_model(use, eagerly):
    """Keras would cast them to 0 and 1 before the layer sees them."""
    layer = DynamicEmbedding(DIM)
    inputs = keras.Input((2,), dtype="int64", name="ids")
    model = keras.Model(inputs, keras.layers.Flatten()(layer(inputs)))
    model.compile("sgd", "mse", run_eagerly=eagerly)
    flags = np.array([[True, False]])
    calls = {
        "fit": lambda: model.fit(flags, np.ones([1, 2 * DIM]), verbose=0),
        "predict": lambda: model.predict(flags, verbose=0),
        "call": lambda: model(flags, training=True),
    }
    with pytest.raises(ValueError, match="input 'ids'.*Received: bool, .*Pass integers"):
        calls[use]()
    assert layer.table.size() == 0


def test_flags_are_not_keys_of_a_layer_alone():
    for layer in (DynamicEmbedding(DIM), all2all()):
        with pytest.raises(ValueError, match="Received: dtype bool"):
            layer(np.array([True]))
