"""Rows follow the optimizers of tf.compat.v1.train, in graphs and in eager loops."""

import contextlib
import itertools

import numpy as np
import pytest
import tensorflow as tf

from sok_embed import Table, optimizers, tf_ops
from sok_embed.initializers import RowInitializer
from sok_embed.optimizers import RowRule, row_rule, v1_optimizers
from sok_embed.training.commit import Commit

v1 = tf.compat.v1
VOCABULARY = 20
DIM = 3
BATCH = 32
RATES = [0.1, 0.1, 0.05, 0.2, 0.01, 0.15]

# Each function makes an optimizer of a learning rate.
OPTIMIZERS = {
    "gradient_descent": v1.train.GradientDescentOptimizer,
    "momentum": lambda rate: v1.train.MomentumOptimizer(rate, 0.9),
    "nesterov": lambda rate: v1.train.MomentumOptimizer(rate, 0.8, use_nesterov=True),
    "adagrad": v1.train.AdagradOptimizer,
    "adagrad_initial": lambda rate: v1.train.AdagradOptimizer(rate, 0.5),
    "adam": v1.train.AdamOptimizer,
    "adam_betas": lambda rate: v1.train.AdamOptimizer(rate, 0.5, 0.9, 1e-3),
    "adam_beta1_0": lambda rate: v1.train.AdamOptimizer(rate, 0.0, 0.9),
    "rmsprop": v1.train.RMSPropOptimizer,
    "rmsprop_momentum": lambda rate: v1.train.RMSPropOptimizer(rate, 0.8, 0.5, 1e-3),
    "rmsprop_centered": lambda rate: v1.train.RMSPropOptimizer(rate, centered=True),
    "rmsprop_centered_momentum": lambda rate: v1.train.RMSPropOptimizer(
        rate, momentum=0.5, centered=True
    ),
    "ftrl": v1.train.FtrlOptimizer,
    "ftrl_l1_l2": lambda rate: v1.train.FtrlOptimizer(
        rate,
        initial_accumulator_value=0.2,
        l1_regularization_strength=0.05,
        l2_regularization_strength=0.02,
    ),
    "ftrl_power": lambda rate: v1.train.FtrlOptimizer(rate, learning_rate_power=-0.7, beta=0.3),
    "ftrl_shrinkage": lambda rate: v1.train.FtrlOptimizer(
        rate, l2_shrinkage_regularization_strength=0.02
    ),
}
each = pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
_names = itertools.count()


def test_each_rule_of_tf_compat_v1_train_is_compared():
    made = {row_rule(make(0.1)).name for make in OPTIMIZERS.values()}
    # TensorFlow trains dense variables by Ftrl: see test_group_ftrl.py.
    assert made == set(v1_optimizers.SLOTS) - {"group_ftrl"}, "OPTIMIZERS of this file"


class GraphTable:
    """A table by name, as a TF1 graph has it."""

    def __init__(self):
        self.name = f"test_v1_optimizers_{next(_names)}"

    @property
    def resource_handle(self):
        return tf_ops.table_handle(self.name, DIM, initializer="constant", initializer_a=0.0)

    def commit(self, anchor, steps, redemption):
        return tf_ops.commit(self.resource_handle, anchor, steps, redemption)

    def step_count(self):
        return tf_ops.steps(self.resource_handle)


def random_start():
    return np.random.default_rng(3).normal(size=(VOCABULARY, DIM)).astype(np.float32)


def batches(steps, every_key):
    """Yields keys that repeat, and targets. v1's sparse Adam touches all rows of a variable."""
    random = np.random.default_rng(5)
    for _ in range(steps):
        keys = random.integers(0, VOCABULARY, BATCH)
        if every_key:
            keys[:VOCABULARY] = np.arange(VOCABULARY)
        yield keys, random.normal(size=(BATCH, DIM)).astype(np.float32)


class Model:
    """A table and a variable of the same rows, in one graph, under one optimizer."""

    def __init__(self, make_optimizer, rate=None, use_resource=True):
        self.keys = v1.placeholder(tf.int64, [BATCH])
        self.targets = v1.placeholder(tf.float32, [BATCH, DIM])
        self.rate = v1.placeholder_with_default(tf.constant(0.1), [])
        self.table = GraphTable()
        self.anchor = v1.get_variable(
            "anchor",
            [],
            initializer=v1.zeros_initializer(),
            constraint=Commit(self.table, None),
            use_resource=use_resource,
        )
        self.variable = v1.get_variable(
            "variable", initializer=random_start(), use_resource=use_resource
        )
        self.embeddings = tf_ops.lookup(
            self.table.resource_handle, self.keys, DIM, True, anchor=self.anchor
        ).embeddings
        loss = self.loss_of(self.embeddings)
        loss += self.loss_of(tf.gather(self.variable, self.keys))
        self.optimizer = make_optimizer(self.rate if rate is None else rate)
        self.train = self.optimizer.minimize(loss)
        self.start = tf_ops.assign(
            self.table.resource_handle, tf.range(VOCABULARY, dtype=tf.int64), random_start()
        )
        self.export = tf_ops.export(self.table.resource_handle, DIM, with_slots=True)
        self.session = v1.Session()
        self.session.run([v1.global_variables_initializer(), self.start])

    def loss_of(self, embeddings):
        return tf.reduce_sum(tf.square(embeddings - self.targets) * 0.3)

    def step(self, keys, targets, rate):
        feed = {self.keys: keys, self.targets: targets, self.rate: rate}
        self.session.run(self.train, feed)

    def rows(self):
        contents = self.session.run(self.export)
        return contents.embeddings[np.argsort(contents.keys)]

    def assert_equal(self, atol=1e-6):
        expected = self.session.run(self.variable)
        np.testing.assert_allclose(self.rows(), expected, rtol=1e-6, atol=atol)
        assert np.abs(expected - random_start()).max() > 1e-2


@contextlib.contextmanager
def model(*arguments, **keywords):
    with tf.Graph().as_default():
        made = Model(*arguments, **keywords)
        with made.session:
            yield made


@pytest.mark.cover(6)
@each
@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
def test_rows_in_a_graph_equal_a_variable_under_the_same_optimizer(make_optimizer, use_resource):
    with model(make_optimizer, use_resource=use_resource) as both:
        every_key = isinstance(both.optimizer, v1.train.AdamOptimizer)
        for batch, rate in zip(batches(len(RATES), every_key), RATES, strict=True):
            both.step(*batch, rate)
        both.assert_equal()
        assert both.session.run(both.export.steps) == len(RATES)
        assert both.session.run(both.anchor) == 0.0


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", ["gradient_descent", "momentum", "adagrad", "adam", "rmsprop"])
def test_a_rate_may_be_a_number_or_a_callable(name):
    for rate in (0.05, lambda: tf.constant(0.05)):
        with model(OPTIMIZERS[name], rate=rate) as both:
            for batch in batches(3, every_key=True):
                both.step(*batch, 9.0)
            both.assert_equal()


def test_a_schedule_of_the_global_step_is_followed():
    with tf.Graph().as_default():
        steps = v1.train.get_or_create_global_step()
        rate = v1.train.exponential_decay(0.2, steps, 1, 0.5)

        def make(rate):
            optimizer = v1.train.MomentumOptimizer(rate, 0.9)
            optimizer.minimize = lambda loss: v1.train.Optimizer.minimize(optimizer, loss, steps)
            return optimizer

        both = Model(make, rate=rate)
        with both.session:
            for batch in batches(4, every_key=False):
                both.step(*batch, 9.0)
            both.assert_equal()
            assert both.session.run(steps) == 4


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda rate: v1.train.MomentumOptimizer(rate, tf.constant(0.7)),
        lambda rate: v1.train.MomentumOptimizer(rate, lambda: 0.7),
        lambda rate: v1.train.RMSPropOptimizer(rate, tf.constant(0.7), momentum=lambda: 0.5),
        lambda rate: v1.train.AdamOptimizer(rate, tf.constant(0.7), 0.9, lambda: 1e-4),
    ],
    ids=["tensor", "callable", "rmsprop", "adam"],
)
def test_hyperparameters_may_be_tensors_and_callables(make_optimizer):
    with model(make_optimizer) as both:
        for batch in batches(4, every_key=True):
            both.step(*batch, 0.1)
        both.assert_equal()


def test_adam_goes_on_when_the_power_of_its_first_beta_is_0():
    with model(lambda rate: v1.train.AdamOptimizer(rate, 0.5, 0.999)) as both:
        for batch in batches(300, every_key=True):
            both.step(*batch, 0.01)
        assert both.session.run(both.optimizer._get_beta_accumulators()[0]) < 1e-37
        both.assert_equal(atol=3e-6)  # this allows for 300 steps of rounding


@pytest.mark.cover(2)
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.99), (0.5, 0.9), (0.99, 0.5), (0.9, 0.0)])
def test_adams_powers_tell_the_step_and_its_size(betas):
    optimizer = v1.train.AdamOptimizer(0.1, *betas)
    optimizer.apply_gradients([(tf.constant(1.0), tf.Variable(1.0))])
    betas = np.float32(betas)
    powers = betas.copy()
    accumulators = optimizer._get_beta_accumulators()
    for number in range(1, 2001):
        if number > 30 and number % 50:
            powers *= betas
            continue
        for accumulator, power in zip(accumulators, powers, strict=True):
            accumulator.assign(power)
        told = int(v1_optimizers.step(optimizer))
        rate = float(v1_optimizers.learning_rate(optimizer))
        if powers[0] > 1e-30:
            assert told == number
        assert told != 1 or number == 1
        # This is the rule's step: Adam (section 2), with the powers of v1.
        exact = np.float64(betas) ** told if told else np.zeros(2)
        expected = 0.1 * np.sqrt(1 - np.float64(powers[1])) / (1 - np.float64(powers[0]))
        np.testing.assert_allclose(
            rate * np.sqrt(1 - exact[1]) / (1 - exact[0]), expected, rtol=1e-7
        )
        powers *= betas


def test_a_second_adam_finds_slots_started_anew():
    with tf.Graph().as_default():
        both = Model(v1.train.AdamOptimizer)
        second = v1.train.AdamOptimizer(0.03)
        # It has slots of its own as well: v1 makes them for each optimizer.
        train = second.minimize(both.loss_of(both.embeddings), var_list=[both.anchor])
        with both.session:
            both.session.run(v1.variables_initializer(second.variables()))
            keys, targets = next(batches(1, every_key=True))
            for _ in range(3):
                both.step(keys, targets, 0.1)
            before = both.rows()
            both.session.run(train, {both.keys: keys, both.targets: targets})
            # Adam's first step is the rate, by the sign of the gradient.
            moved = np.abs(both.rows() - before)
            np.testing.assert_allclose(moved, 0.03, rtol=1e-3)


def test_rows_in_an_eager_loop_and_in_a_function_equal_a_variable():
    for wrap, (name, make) in itertools.product((lambda f: f, tf.function), OPTIMIZERS.items()):
        table = Table(DIM, RowInitializer("constant", 0.0, 0.0, None), name=name)
        table.assign(np.arange(VOCABULARY), random_start())
        anchor = tf.Variable(0.0, constraint=Commit(table, None))
        variable = tf.Variable(random_start())
        optimizer = make(0.05)

        def train(keys, targets, table=table, parts=(anchor, variable), optimizer=optimizer):
            def loss():
                embeddings = tf_ops.lookup(
                    table.resource_handle, keys, DIM, True, anchor=parts[0]
                ).embeddings
                ours = tf.reduce_sum(tf.square(embeddings - targets))
                return ours + tf.reduce_sum(tf.square(tf.gather(parts[1], keys) - targets))

            optimizer.minimize(loss, var_list=list(parts))

        step = wrap(train)
        for keys, targets in batches(3, every_key=True):
            step(tf.constant(keys), tf.constant(targets))
        rows = table.lookup(np.arange(VOCABULARY))
        np.testing.assert_allclose(rows, variable.numpy(), rtol=1e-6, atol=1e-6, err_msg=name)
        assert table.stats()["steps"] == 3


def test_the_rules_have_their_numbers_in_float32():
    def single(value):
        return float(np.float32(value))

    assert row_rule(v1.train.GradientDescentOptimizer(0.1)) == RowRule("sgd", {})
    assert row_rule(v1.train.MomentumOptimizer(0.1, 0.7, use_nesterov=True)) == RowRule(
        "v1_momentum", {"momentum": single(0.7), "nesterov": 1.0}
    )
    assert row_rule(v1.train.AdagradOptimizer(0.1)) == RowRule(
        "adagrad", {"initial_accumulator_value": 0.1, "epsilon": 0.0}
    )
    assert row_rule(v1.train.AdamOptimizer()) == RowRule(
        "adam", {"beta_1": single(0.9), "beta_2": single(0.999), "epsilon": single(1e-8)}
    )
    rmsprop = {
        "rho": single(0.9),
        "momentum": 0.0,
        "epsilon": single(1e-10),
        "initial_velocity": 1.0,
    }
    assert row_rule(v1.train.RMSPropOptimizer(0.1)) == RowRule("rmsprop_momentum", rmsprop)
    assert row_rule(v1.train.RMSPropOptimizer(0.1, centered=True)) == RowRule(
        "rmsprop_centered_momentum", rmsprop
    )
    assert row_rule(v1.train.FtrlOptimizer(0.1, beta=2.0)) == RowRule(
        "ftrl",
        {
            "learning_rate_power": -0.5,
            "initial_accumulator_value": single(0.1),
            "l1_regularization_strength": 0.0,
            "l2_regularization_strength": 0.0,
            "l2_shrinkage_regularization_strength": 0.0,
            "beta": 2.0,
        },
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        v1.train.AdadeltaOptimizer(),
        v1.train.ProximalAdagradOptimizer(0.1),
        v1.train.ProximalGradientDescentOptimizer(0.1),
        v1.train.AdagradDAOptimizer(0.1, global_step=0),
    ],
    ids=lambda optimizer: optimizer.get_name(),
)
def test_an_optimizer_without_a_twin_is_an_error_that_lists_those_with_one(optimizer):
    with pytest.raises(ValueError) as error:
        row_rule(optimizer)
    assert type(optimizer).__name__ in str(error.value)
    for name in ("GradientDescent", "Momentum", "Adagrad", "Adam", "RMSProp", "Ftrl"):
        assert f"{name}Optimizer" in str(error.value)


def test_a_graph_with_an_optimizer_without_a_twin_is_not_made():
    with (
        tf.Graph().as_default(),
        pytest.raises(ValueError, match="GradientDescentOptimizer.*Received.*AdadeltaOptimizer"),
    ):
        Model(v1.train.AdadeltaOptimizer)


def test_a_subclass_with_a_formula_of_its_own_is_an_error():
    class Renamed(v1.train.AdamOptimizer):
        def get_name(self):
            return "renamed"

    class Reversed(v1.train.AdamOptimizer):
        def _resource_apply_sparse(self, grad, var, indices):
            return super()._resource_apply_sparse(-grad, var, indices)

    assert row_rule(Renamed()) == row_rule(v1.train.AdamOptimizer())
    with pytest.raises(ValueError, match="Reversed.*`_resource_apply_sparse`.*AdamOptimizer"):
        row_rule(Reversed())


def test_a_layer_takes_no_v1_optimizer_of_its_own():
    with pytest.raises(ValueError, match="Expected an optimizer.*AdamOptimizer"):
        optimizers.get(v1.train.AdamOptimizer())
