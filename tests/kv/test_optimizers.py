"""Every optimizer against its published formula, in NumPy's float64, over 100 updates."""

import math

import numpy as np
import pytest
from kv_rows import keys, row

from sok_embed import kv

STEPS = 100
KEYS = 12
TOLERANCE = 1e-5


def sgd(p, rate, t, g, w):
    return (w - rate * (g + p["lambda"] * w),)


def ftrl(p, rate, t, g, w, z, n):
    sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / rate
    z = z + g - sigma * w
    n = n + g * g
    shrunk = np.sign(z) * p["lambda1"] - z
    w = np.where(
        np.abs(z) <= p["lambda1"], 0, shrunk / ((p["beta"] + np.sqrt(n)) / rate + p["lambda2"])
    )
    return w, z, n


def adagrad(p, rate, t, g, w, total):
    g = g + p["lambda"] * w
    total = total + g * g
    w = w - rate / (1 + (t - 1) * p["eta"]) * g / (np.sqrt(total) + p["epsilon"])
    return w, total


def moments(p, t, g, m, v):
    m = p["beta1"] * m + (1 - p["beta1"]) * g
    v = p["beta2"] * v + (1 - p["beta2"]) * g * g
    return m, v, m / (1 - p["beta1"] ** t), v / (1 - p["beta2"] ** t)


def adam(p, rate, t, g, w, m, v):
    m, v, m_hat, v_hat = moments(p, t, g + p["lambda"] * w, m, v)
    return w - rate * m_hat / (np.sqrt(v_hat) + p["epsilon"]), m, v


def amsgrad(p, rate, t, g, w, m, v, highest):
    m, v, m_hat, v_hat = moments(p, t, g + p["lambda"] * w, m, v)
    highest = np.maximum(highest, v_hat)
    return w - rate * m_hat / (np.sqrt(highest) + p["epsilon"]), m, v, highest


def adamw(p, rate, t, g, w, m, v):
    w = w - rate * p["lambda"] * w
    m, v, m_hat, v_hat = moments(p, t, g, m, v)
    return w - rate * m_hat / (np.sqrt(v_hat) + p["epsilon"]), m, v


def lion(p, rate, t, g, w, m):
    direction = np.sign(p["beta1"] * m + (1 - p["beta1"]) * g)
    return w - rate * (direction + p["lambda"] * w), p["beta2"] * m + (1 - p["beta2"]) * g


# An entry has the rule, slots, the parameter that is the learning rate, and the defaults of
# Damo-Embedding.
ADAM = {"gamma": 1e-3, "beta1": 0.9, "beta2": 0.999, "lambda": 0.0, "epsilon": 1e-8}
RULES = {
    "sgd": (sgd, 0, "gamma", {"gamma": 1e-3, "lambda": 0.0}),
    "ftrl": (ftrl, 2, "alpha", {"alpha": 5e-3, "beta": 0.0, "lambda1": 0.0, "lambda2": 0.0}),
    "adagrad": (
        adagrad,
        1,
        "gamma",
        {"gamma": 1e-2, "lambda": 0.0, "eta": 0.0, "epsilon": 1e-10},
    ),
    "adam": (adam, 2, "gamma", ADAM),
    "amsgrad": (amsgrad, 3, "gamma", ADAM),
    "adamw": (adamw, 2, "gamma", {**ADAM, "lambda": 1e-2}),
    "lion": (lion, 1, "eta", {"eta": 3e-4, "beta1": 0.9, "beta2": 0.99, "lambda": 1e-2}),
}
OTHERS = {
    "sgd": {"gamma": 0.05, "lambda": 0.1},
    "ftrl": {"alpha": 0.05, "beta": 1.0, "lambda1": 0.02, "lambda2": 0.01},
    "adagrad": {"gamma": 0.1, "lambda": 0.01, "eta": 0.1, "epsilon": 1e-6},
    "adam": {"gamma": 0.01, "beta1": 0.8, "beta2": 0.99, "lambda": 0.05, "epsilon": 1e-6},
    "amsgrad": {"gamma": 0.01, "beta1": 0.8, "beta2": 0.9, "lambda": 0.05, "epsilon": 1e-6},
    "adamw": {"gamma": 0.01, "beta1": 0.8, "beta2": 0.99, "lambda": 0.2, "epsilon": 1e-6},
    "lion": {"eta": 0.01, "beta1": 0.8, "beta2": 0.9, "lambda": 0.1},
}


class Reference:
    """Rows in float64, each with the number of its updates."""

    def __init__(self, name, parameters, start, schedule=None):
        rule, slots, rate, defaults = RULES[name]
        self.rule, self.p = rule, {**defaults, **parameters}
        self.rate = lambda t: self.p[rate] if schedule is None else schedule(self.p[rate], t - 1)
        self.rows = [
            (w.astype(np.float64), *(np.zeros(w.size) for _ in range(slots))) for w in start
        ]
        self.counts = [0] * len(self.rows)

    def update(self, index, gradient):
        self.counts[index] += 1
        t = self.counts[index]
        self.rows[index] = self.rule(self.p, self.rate(t), t, gradient, *self.rows[index])

    def apply(self, indices, gradients, duplicates):
        if duplicates == "sequential":
            for index, gradient in zip(indices, gradients, strict=True):
                self.update(index, gradient)
            return
        for index in np.unique(indices):
            self.update(index, gradients[indices == index].sum(axis=0))


def train(storage, name, parameters, dimension, duplicates, schedule=None, expected_schedule=None):
    embedding = kv.Embedding(
        storage,
        kv.Optimizer(name, schedule, parameters),
        kv.Initializer("uniform", seed=5),
        dimension,
        duplicates=duplicates,
    )
    pool = keys(*range(1, KEYS + 1))
    reference = Reference(name, parameters, embedding.lookup(pool), expected_schedule)
    random = np.random.default_rng(17)
    for _ in range(STEPS):
        indices = random.integers(0, KEYS, 8)  # some come twice, most not
        gradients = random.normal(size=(8, dimension)).astype(np.float32)
        reference.apply(indices, gradients.astype(np.float64), duplicates)
        embedding.apply_gradients(pool[indices], gradients)
    return embedding, reference


@pytest.mark.parametrize("duplicates", ["sum", "sequential"])
@pytest.mark.parametrize("dimension", [1, 7, 32])
@pytest.mark.parametrize("given", ["defaults", "others"])
@pytest.mark.parametrize("name", RULES)
def test_a_rule_computes_its_formula(storage, name, given, dimension, duplicates):
    parameters = {} if given == "defaults" else OTHERS[name]
    embedding, reference = train(storage, name, parameters, dimension, duplicates)
    expected = np.array([row[0] for row in reference.rows])
    found = embedding.lookup(keys(*range(1, KEYS + 1)))
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    for index, count in enumerate(reference.counts):
        assert row(storage, index + 1)["update_num"] == count


@pytest.mark.parametrize("name", RULES)
def test_a_rule_keeps_the_slots_of_its_formula(storage, name):
    _, reference = train(storage, name, OTHERS[name], 3, "sum")
    for index, expected in enumerate(reference.rows):
        floats = row(storage, index + 1)["floats"]
        assert floats.size == 3 * len(expected)
        np.testing.assert_allclose(floats, np.concatenate(expected), rtol=1e-4, atol=TOLERANCE)


@pytest.mark.parametrize("name", RULES)
def test_a_schedule_changes_the_rate_with_the_updates_of_the_row(storage, name):
    embedding, reference = train(
        storage,
        name,
        OTHERS[name],
        4,
        "sum",
        kv.Schedule("exponential_decay", decay_steps=10, decay_rate=0.9),
        lambda initial, step: initial * 0.9 ** (step / 10),
    )
    expected = np.array([row[0] for row in reference.rows])
    found = embedding.lookup(keys(*range(1, KEYS + 1)))
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", RULES)
def test_a_single_row_is_updated_in_place(name):
    _, slots, _, _ = RULES[name]
    optimizer = kv.Optimizer(name, parameters=OTHERS[name])
    assert optimizer.slot_floats(5) == slots * 5
    random = np.random.default_rng(3)
    start = random.normal(size=5).astype(np.float32)
    found = np.concatenate([start, np.zeros(slots * 5, np.float32)])
    reference = Reference(name, OTHERS[name], [start])
    for number in range(1, STEPS + 1):
        gradient = random.normal(size=5).astype(np.float32)
        optimizer.apply(found, gradient, number)
        reference.update(0, gradient.astype(np.float64))
    np.testing.assert_allclose(found[:5], reference.rows[0][0], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", RULES)
def test_defaults_are_those_of_damo(name):
    assert kv.Optimizer(name).parameters == pytest.approx(RULES[name][3])


def test_lambda_can_be_given_in_three_ways():
    for optimizer in (
        kv.Optimizer("sgd", lambda_=0.5),
        kv.Optimizer("sgd", **{"lambda": 0.5}),
        kv.Optimizer("sgd", parameters={"lambda": 0.5}),
    ):
        assert optimizer.parameters == {"gamma": 1e-3, "lambda": 0.5}
        assert repr(optimizer) == "Optimizer('sgd', gamma=0.001, lambda=0.5)"


def test_a_row_of_zero_gradients_keeps_its_start(storage):
    for group, name in enumerate(RULES):
        parameters = {"lambda": 0} if "lambda" in RULES[name][3] else {}
        embedding = kv.Embedding(
            storage, kv.Optimizer(name, **parameters), kv.Initializer("ones"), 2, group
        )
        embedding.apply_gradients(keys(1), np.zeros(2, np.float32))
        assert all(math.isclose(number, 1) for number in embedding.lookup(keys(1))[0]), name
