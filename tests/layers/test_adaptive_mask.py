"""A mask says for each key: 1, a row of its own; 0, its static row; -1, as counts say."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from adaptive_reference import DIM, AdaptiveReference, Sgd, make, random_batch, train_step
from keras import optimizers as ko

ERROR = (tf.errors.InvalidArgumentError, ValueError)


def test_rows_are_those_of_the_reference_under_random_masks():
    random = np.random.default_rng(4)
    layer, optimizer = make(promote_after=4), ko.SGD(0.1)
    model = AdaptiveReference(layer, Sgd(0.1), 4)
    for _ in range(10):
        keys, gradients = random_batch(random)
        mask = random.choice([-1, -1, 0, 1], keys.shape)
        ours = train_step(layer, optimizer, keys, gradients, mask)
        theirs = model.lookup(keys, mask, training=True)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
        model.deposit(keys, gradients, mask)
        model.commit()
        model.assert_equal(layer)
        evaluated = layer(keys, mask=mask)
        np.testing.assert_allclose(evaluated, model.lookup(keys, mask), rtol=0, atol=1e-6)


def test_a_key_that_is_flipped_starts_as_its_static_row_bit_for_bit():
    layer, optimizer = make(), ko.Adagrad(0.1)
    keys = np.array([3, 4, 5])
    for _ in range(3):
        gradients = np.random.default_rng(0).normal(size=(3, DIM))
        train_step(layer, optimizer, keys, gradients, mask=0)
    assert layer.table.size() == 0
    static = layer.table.lookup_static(keys)
    own = layer(keys, training=True, mask=np.array([1, 0, 1]))
    np.testing.assert_array_equal(own, static)
    assert sorted(layer.table.export()[0]) == [3, 5]
    np.testing.assert_array_equal(layer.table.lookup(keys), static)


def test_static_keys_are_not_counted():
    layer = make(promote_after=2)
    for _ in range(5):
        layer(np.array([7, 7]), training=True, mask=0)
    layer(np.array([7]), training=True)
    assert layer.table.size() == 0
    layer(np.array([7]), training=True)
    assert layer.table.size() == 1


def test_a_static_call_leaves_own_rows_alone():
    layer = make(promote_after=1)
    train_step(layer, ko.SGD(1.0), np.array([7]), np.ones((1, DIM)))
    own, static = layer.table.lookup([7]), layer.table.lookup_static([7])
    np.testing.assert_array_equal(layer(np.array([7]), mask=0), static)
    train_step(layer, ko.SGD(1.0), np.array([7]), np.ones((1, DIM)), mask=0)
    np.testing.assert_array_equal(layer.table.lookup([7]), own)
    np.testing.assert_array_equal(layer.table.lookup_static([7]), static - 1)


def test_a_key_of_both_kinds_has_two_rows_in_one_call():
    layer = make()
    start = layer.table.lookup([7])[0]
    gradients = np.array([[1.0], [2], [4]]) * np.ones(DIM)
    train_step(layer, ko.SGD(1.0), np.array([7, 7, 7]), gradients, mask=np.array([0, 1, -1]))
    # The third occurrence has the row that the second asked for.
    np.testing.assert_allclose(layer.table.lookup([7])[0], start - 6, rtol=0, atol=1e-6)
    np.testing.assert_allclose(layer.table.lookup_static([7])[0], start - 1, rtol=0, atol=1e-6)


def test_without_training_a_mask_makes_no_rows():
    layer = make()
    outputs = layer(np.array([7, 8]), mask=1)
    assert layer.table.size() == 0
    np.testing.assert_array_equal(outputs, layer.table.lookup_static([7, 8]))


@pytest.mark.parametrize(
    "mask",
    [
        [[1, 0]],
        np.array([[1, 0]]),
        np.array([[1, 0]], np.int8),
        tf.constant([[1, 0]]),
        tf.constant([[1, 0]], tf.int64),
    ],
    ids=["list", "int64_array", "int8_array", "int32_tensor", "int64_tensor"],
)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
def test_a_mask_of_any_integers_works(mask, compiled):
    layer = make()
    layer.build()

    def call(keys, mask):
        return layer(keys, training=True, mask=mask)

    if compiled:
        mask = tf.constant(mask)
        call = tf.function(call)
    call(tf.constant([[7, 8]]), mask)
    assert layer.table.export()[0].tolist() == [7]


@pytest.mark.parametrize(("mask", "keys"), [(1, [7, 8]), (0, []), (-1, [7])])
def test_one_number_routes_all_keys(mask, keys):
    for layer, arguments in (
        (make(), {"mask": mask}),
        (make(), {"mask": np.array(mask)}),
        (make(), {"mask": tf.constant(mask)}),
        (make(), {"mask": tf.constant(mask, tf.int64)}),
        (make(mask=mask), {}),
    ):
        layer(np.array([7, 7, 8]), training=True, **arguments)
        assert sorted(layer.table.export()[0]) == keys


@pytest.mark.parametrize("form", ["dense", "ragged", "sparse"])
def test_a_number_that_a_function_is_given_routes_all_keys(form):
    layer = make(combiner="sum")
    keys = tf.constant([[7, 8]])
    if form == "ragged":
        keys = tf.RaggedTensor.from_tensor(keys)
    elif form == "sparse":
        keys = tf.sparse.from_dense(keys)
    layer(keys)  # builds it

    @tf.function
    def call(keys, mask):
        return layer(keys, training=True, mask=mask)

    call(keys, tf.constant(0))
    assert layer.table.size() == 0
    call(keys, tf.constant(1))
    assert sorted(layer.table.export()[0]) == [7, 8]


def test_the_mask_of_a_call_wins_over_that_of_the_layer():
    layer = make(mask=1)
    layer(np.array([7, 8]), training=True, mask=np.array([0, -1]))
    assert layer.table.size() == 0


def test_a_functional_model_takes_a_mask_as_an_input():
    keys, mask = keras.Input((2,), dtype="int64"), keras.Input((2,), dtype="int32")
    layer = make()
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(layer(keys, mask=mask)))
    model = keras.Model([keys, mask], outputs)
    model.compile("sgd", "mse")
    inputs = [np.array([[7, 8], [9, 7]]), np.array([[1, 0], [0, 0]], np.int32)]
    model.fit(inputs, np.ones((2, 1)), verbose=0)
    assert layer.table.export()[0].tolist() == [7]
    again = keras.Model.from_config(model.get_config())
    again.compile("sgd", "mse")
    again.fit(inputs, np.ones((2, 1)), verbose=0)
    assert again.get_layer("emb").table.export()[0].tolist() == [7]


def test_a_number_in_a_functional_model_survives_its_config():
    keys = keras.Input((2,), dtype="int64")
    model = keras.Model(keys, make()(keys, mask=1))
    again = keras.Model.from_config(model.get_config())
    again(np.array([[7, 8]]), training=True)
    assert again.get_layer("emb").table.size() == 2


@pytest.mark.parametrize("mask", [2, -2, 7])
def test_another_number_is_an_error_that_changes_nothing(mask):
    layer = make()
    with pytest.raises(ERROR, match=r"-1"):
        layer(np.array([7, 8]), training=True, mask=np.array([1, mask]))
    assert layer.table.size() == 0
    with pytest.raises(ValueError, match=f"'emb'.*mask to be -1, 0 or 1.*{mask}"):
        layer(np.array([7, 8]), training=True, mask=mask)


@pytest.mark.parametrize("mask", [np.array([True, False]), np.array([1.0, 0.0]), True])
def test_a_mask_that_is_no_integer_is_an_error(mask):
    with pytest.raises(ValueError, match="'emb': expected a mask of int32.*Received: (bool|float)"):
        make()(np.array([7, 8]), training=True, mask=mask)


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 1), (1, 2)])
def test_a_mask_of_another_shape_is_an_error(shape):
    with pytest.raises(
        ValueError, match=r"'emb': expected a mask as the input, dense of shape \[2"
    ):
        make()(np.array([7, 8]), training=True, mask=np.ones(shape, np.int32))


def test_symbolic_calls_check_masks():
    keys = keras.Input((2,), dtype="int64")
    with pytest.raises(ValueError, match="'emb': expected a mask of int32.*float32"):
        make()(keys, mask=keras.Input((2,)))
    with pytest.raises(ValueError, match=r"a mask as the input, dense of shape \[None, 2\]"):
        make()(keys, mask=keras.Input((3,), dtype="int32"))


class Padded(keras.layers.Layer):
    """Ids of which 0 is padding."""

    def call(self, inputs):
        return inputs + 0

    def compute_mask(self, inputs, mask=None):
        return keras.ops.not_equal(inputs, 0)


def test_padding_of_keras_is_no_route_and_goes_on_to_the_next_layer():
    layer, keys = make(promote_after=1), np.array([[3, 0, 5], [2, 0, 1]])
    inputs = keras.Input((3,), dtype="int64")
    embeddings = layer(Padded()(inputs))
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(embeddings))
    pooled = model(keys)
    kept = layer(keys).numpy()[keys != 0].reshape(2, 2, DIM)
    # This allows for float32, with the same operations.
    np.testing.assert_allclose(pooled, kept.mean(1), rtol=1e-6)


def test_padding_of_keras_is_an_error_with_a_combiner():
    inputs = Padded()(keras.Input((3,), dtype="int64"))
    with pytest.raises(ValueError, match="'emb': expected inputs without a Keras mask.*ragged"):
        make(combiner="sum")(inputs)
