"""GroupFtrl: DeepRec's rule for rows, in float64 of its formula, and Keras' Ftrl for the rest."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko

import sok_embed
from sok_embed.optimizers import GroupFtrl, get, row_rule, serialize

VOCABULARY, DIM, BATCH, STEPS = 12, 5, 20, 30
DEFAULTS = {
    "learning_rate": 0.1,
    "learning_rate_power": -0.5,
    "initial_accumulator_value": 0.1,
    "l1_regularization_strength": 0.0,
    "l2_regularization_strength": 0.0,
    "l2_shrinkage_regularization_strength": 0.0,
    "beta": 0.0,
}
CASES = {
    "defaults": {},
    "l1": {"l1_regularization_strength": 4.0},
    "l1_l2": {"l1_regularization_strength": 1.0, "l2_regularization_strength": 0.5},
    "shrinkage": {"l2_shrinkage_regularization_strength": 0.1, "l1_regularization_strength": 1.0},
    "power": {"learning_rate_power": -0.7, "beta": 0.3, "l1_regularization_strength": 0.5},
}


def step(row, accumulator, linear, gradient, h):
    """DeepRec's COMPUTE_FTRL of tensorflow/core/kernels/training_ali_ops.cc, in float64."""
    rate, power = h["learning_rate"], -h["learning_rate_power"]
    shrunk = gradient + 2 * h["l2_shrinkage_regularization_strength"] * row
    total = accumulator + shrunk**2
    linear = linear + shrunk - (total**power - accumulator**power) / rate * row
    norm = np.sqrt((linear**2).sum())
    # beta is TensorFlow's, which DeepRec's rule has not.
    l2 = h["l2_regularization_strength"] + h["beta"] / (2 * rate)
    eta = total**power / rate + 2 * l2
    l1 = h["l1_regularization_strength"]
    row = (l1 - norm) / (eta * norm) * linear if norm > l1 else np.zeros_like(row)
    return row, accumulator + gradient**2, linear


def trained(layer, optimizer, batches):
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile(optimizer, lambda y, embedding: BATCH * keras.ops.sum(y * embedding, -1))
    for keys, coefficients in batches:
        model.train_on_batch(keys, coefficients)
    return layer.table.lookup(np.arange(VOCABULARY))


def batches():
    random = np.random.default_rng(11)
    for _ in range(STEPS):
        keys = random.integers(0, VOCABULARY - 2, BATCH)  # two rows are never trained
        scale = 0.1 + keys[:, None] / VOCABULARY  # some become zero, others do not
        yield keys, (random.normal(size=(BATCH, DIM)) * scale).astype(np.float32)


@pytest.mark.cover(2)
@pytest.mark.parametrize("case", CASES)
def test_rows_follow_the_formula_in_float64(case):
    h = {**DEFAULTS, **CASES[case]}
    layer = sok_embed.DynamicEmbedding(DIM)
    start = layer.table.lookup(np.arange(VOCABULARY)).astype(np.float64)
    rows = [(row, np.full(DIM, 0.1), np.zeros(DIM)) for row in start]
    for keys, coefficients in batches():
        for key in np.unique(keys):
            gradient = coefficients[keys == key].astype(np.float64).sum(0)
            rows[key] = step(*rows[key], gradient, h)
    expected = np.stack([row for row, _, _ in rows])
    got = trained(layer, GroupFtrl(**h), batches())
    # This allows for 30 steps in float32.
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.all(got == 0, 1), np.all(expected == 0, 1))
    np.testing.assert_array_equal(got[-2:], start[-2:])
    if case == "l1":
        zeros = np.sum(got == 0, 1)
        assert set(zeros) == {0, DIM}  # rows are zero as a whole, and some of them


def test_ftrl_zeroes_elements_where_group_ftrl_zeroes_rows():
    h = {**DEFAULTS, **CASES["l1"]}
    got = trained(sok_embed.DynamicEmbedding(DIM), ko.Ftrl(**h), batches())
    assert set(np.sum(got == 0, 1)) - {0, DIM}


def test_dense_variables_are_trained_by_keras_formula():
    h = {**DEFAULTS, **CASES["l1_l2"]}
    variables = [keras.Variable(np.linspace(-1, 1, 12).reshape(3, 4)) for _ in range(2)]
    for optimizer, variable in zip((GroupFtrl(**h), ko.Ftrl(**h)), variables, strict=True):
        for seed in range(4):
            gradient = np.random.default_rng(seed).normal(size=(3, 4)).astype(np.float32)
            optimizer.apply([tf.constant(gradient)], [variable])
    np.testing.assert_array_equal(variables[0], variables[1])


def test_it_goes_by_name_and_config():
    optimizer = GroupFtrl(0.3, l1_regularization_strength=2.0, weight_decay=0.1)
    again = get(serialize(optimizer))
    assert type(again) is GroupFtrl
    assert again.get_config() == optimizer.get_config()
    assert row_rule(again) == row_rule(optimizer)
    assert row_rule(again).name == "group_ftrl"
    assert row_rule(again).hyper["weight_decay"] == 0.1
    assert type(get("Group_Ftrl")) is GroupFtrl


def test_a_layer_of_its_own_keeps_it_in_a_keras_file(tmp_path):
    layer = sok_embed.DynamicEmbedding(
        DIM, optimizer=GroupFtrl(0.1, l1_regularization_strength=1.0)
    )
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile("sgd", "mse")
    keys, coefficients = next(batches())
    model.train_on_batch(keys, coefficients)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, again):
        each.train_on_batch(keys, coefficients)
    everything = np.arange(VOCABULARY)
    np.testing.assert_array_equal(
        again.layers[0].table.lookup(everything), layer.table.lookup(everything)
    )
