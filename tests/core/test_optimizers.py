"""The mapping of Keras optimizers to the rules of the core, and the optimizers that are ours."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from optimizer_cases import CASES

from sok_embed import DynamicEmbedding, optimizers
from sok_embed.binding.rules import TWINS as TWINS_OF_THE_CORE
from sok_embed.binding.rules import rule_of_class
from sok_embed.optimizers import RowRule, RowwiseAdagrad, row_rule

# Keras has these in every optimizer's config, and a rule has not: the learning rate travels with
# each commit, the rest is not part of the formula.
BASE_CONFIG = set(keras.optimizers.Optimizer(learning_rate=0.1).get_config()) - {"weight_decay"}

NAMED = {case.rule: case for case in CASES.values() if case.named is not None}
# Each entry has an optimizer; its rule; the entries of its config that choose the rule, and are no
# parameters of it.
TWINS = [
    *((case.optimizer(), case.rule, case.choosing) for case in CASES.values()),
    *((case.make(**case.named), case.rule, case.choosing) for case in NAMED.values()),
    (keras.optimizers.SGD(nesterov=True), "sgd", {"momentum", "nesterov"}),
    (keras.optimizers.Adagrad(initial_accumulator_value=0.5), "adagrad", set()),
    (keras.optimizers.Adam(beta_1=0.5, weight_decay=0.01), "adam", {"amsgrad"}),
    (keras.optimizers.AdamW(amsgrad=True), "amsgrad", {"amsgrad"}),
    (keras.optimizers.Nadam(beta_1=0.5, weight_decay=0.01), "nadam", set()),
    (keras.optimizers.Ftrl(l1_regularization_strength=0.1, beta=1.0), "ftrl", set()),
]


@pytest.mark.parametrize(
    "twin", TWINS_OF_THE_CORE, ids=lambda twin: f"{twin.rule}-{twin.optimizer}"
)
def test_a_twin_is_found_by_its_options_alone(twin):
    on = dict.fromkeys(twin.options, 0.5)
    assert rule_of_class(twin.optimizer, on.get) == twin.rule
    assert rule_of_class("Lamb", on.get) is None


@pytest.mark.parametrize("optimizer", sorted({twin.optimizer for twin in TWINS_OF_THE_CORE}))
def test_a_class_has_a_rule_whatever_its_options_are(optimizer):
    names = {n for twin in TWINS_OF_THE_CORE if twin.optimizer == optimizer for n in twin.options}
    for chosen in itertools.product([False, True], repeat=len(names)):
        options = dict(zip(names, chosen, strict=True))
        assert rule_of_class(optimizer, options.get) is not None, options


@pytest.mark.parametrize(("optimizer", "name", "structural"), TWINS)
def test_every_parameter_in_keras_config_reaches_the_rule(optimizer, name, structural):
    config = optimizer.get_config()
    expected = {
        key: float(value or 0.0)
        for key, value in config.items()
        if key not in BASE_CONFIG | structural
    }
    assert row_rule(optimizer) == RowRule(name, expected)
    assert all(type(value) is float for value in row_rule(optimizer).hyper.values())


def test_a_rule_cannot_be_changed():
    with pytest.raises(AttributeError):
        row_rule(keras.optimizers.SGD()).name = "adam"


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.Adafactor(),
        keras.optimizers.Lamb(),
        keras.optimizers.Muon(),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
    ],
)
def test_an_optimizer_without_a_twin_is_an_error_that_lists_those_with_one(optimizer):
    with pytest.raises(ValueError) as error:
        row_rule(optimizer)
    message = str(error.value)
    assert type(optimizer).__name__ in message
    for known in ("SGD", "Adagrad", "RowwiseAdagrad", "RMSprop", "Adam", "AdamW", "Ftrl", "Lion"):
        assert known in message
    assert "`optimizer=`" in message
    with pytest.raises(ValueError, match="Expected an optimizer"):
        optimizers.get(optimizer)


def test_a_subclass_that_keeps_the_formula_has_its_parents_twin():
    class Averaging(keras.optimizers.AdamW):
        def apply(self, grads, trainable_variables=None):
            return super().apply(grads, trainable_variables)

    dynamic = type("Dynamic", (Averaging,), {"apply": Averaging.apply})
    assert row_rule(Averaging()) == row_rule(keras.optimizers.AdamW())
    assert row_rule(dynamic(beta_1=0.5)) == row_rule(keras.optimizers.AdamW(beta_1=0.5))


@pytest.mark.filterwarnings("ignore:.*has an update_step of its own:UserWarning")
def test_a_subclass_with_a_formula_of_its_own_keeps_its_slots_in_a_deferred_rule():
    class Reversed(keras.optimizers.Adam):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(-gradient, variable, learning_rate)

    class Later(Reversed):
        pass

    for cls in (Reversed, Later):
        rule = row_rule(cls(weight_decay=0.5))
        assert rule.name == "deferred_2"
        assert rule.hyper == {"initial_0": 0.0, "initial_1": 0.0, "weight_decay": 0.5}
        assert rule.formula is not None


@pytest.mark.parametrize("name", [*NAMED, "Adam"])
def test_get_takes_names(name):
    optimizer = optimizers.get(name)
    case = NAMED[name.lower()]
    expected = case.make(**case.named)
    assert type(optimizer) is type(expected)
    assert {**optimizer.get_config(), "name": ""} == {**expected.get_config(), "name": ""}


def test_get_returns_an_optimizer_as_it_is_and_none_as_none():
    optimizer = keras.optimizers.Lion()
    assert optimizers.get(optimizer) is optimizer
    assert optimizers.get(None) is None
    assert optimizers.serialize(None) is None


@pytest.mark.parametrize(("optimizer", "name", "structural"), TWINS)
def test_get_reads_what_serialize_wrote(optimizer, name, structural):
    config = optimizers.serialize(optimizer)
    before = repr(config)
    restored = optimizers.get(config)
    assert type(restored) is type(optimizer)
    assert restored.get_config() == optimizer.get_config()
    assert row_rule(restored) == row_rule(optimizer)
    assert repr(config) == before


def test_a_schedule_survives_serialization():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    restored = optimizers.get(optimizers.serialize(RowwiseAdagrad(schedule)))
    assert restored.get_config() == {
        **RowwiseAdagrad(schedule).get_config(),
        "name": restored.name,
    }


@pytest.mark.parametrize("identifier", [3, keras.optimizers.Adam, ["adam"], tf.constant(1.0)])
def test_get_says_what_it_expects(identifier):
    with pytest.raises(ValueError, match="Expected an optimizer.*sgd.*lion.*Received"):
        optimizers.get(identifier)


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_a_learning_rate_is_at_least_0_and_finite(rate):
    for make in (
        lambda: optimizers.get(keras.optimizers.SGD(rate)),
        lambda: optimizers.get(keras.optimizers.serialize(keras.optimizers.Adam(rate))),
        lambda: RowwiseAdagrad(rate),
    ):
        with pytest.raises(
            ValueError, match="learning rate of at least 0. Received: learning_rate="
        ):
            make()
    # The rate of a model's optimizer is seen by the step that would take it, before any row has
    # moved.
    layer = DynamicEmbedding(2)
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer])
    model.compile(keras.optimizers.SGD(rate), "mse")
    with pytest.raises(tf.errors.InvalidArgumentError, match="learning_rate to be a"):
        model.fit(np.zeros((4, 1), np.int64), np.ones((4, 1, 2)), verbose=0)


def test_get_lists_the_names_it_knows():
    with pytest.raises(ValueError, match="sgd, momentum.*lion.*Received: 'lamb'") as error:
        optimizers.get("lamb")
    listed = str(error.value).removeprefix("Expected an optimizer's name of ").split(", or a ")[0]
    assert set(listed.split(", ")) == set(NAMED)
    with pytest.raises(ValueError, match="class_name"):
        optimizers.get({"learning_rate": 0.1})
    with pytest.raises(ValueError, match="learning_rat"):
        optimizers.get({"class_name": "Adam", "config": {"learning_rat": 0.1}})
    with pytest.raises(ValueError, match="NoSuchOptimizer"):
        optimizers.get({"class_name": "NoSuchOptimizer", "config": {}})


def reference_rowwise_adagrad(value, gradients, lr, initial, epsilon, weight_decay=0.0):
    """FBGEMM's formula in float64, one row at a time."""
    rows = np.array(value, np.float64).reshape(-1, value.shape[-1] if value.ndim else 1)
    accumulators = np.full(len(rows), initial, np.float64)
    for gradient in gradients:
        for i, g in enumerate(np.array(gradient, np.float64).reshape(rows.shape)):
            rows[i] -= rows[i] * weight_decay * lr
            accumulators[i] += np.mean(g * g)
            rows[i] -= lr * g / (np.sqrt(accumulators[i]) + epsilon)
    return rows.reshape(value.shape), accumulators


@pytest.mark.parametrize("shape", [(), (5,), (7, 16), (2, 3, 4)])
@pytest.mark.parametrize("weight_decay", [None, 0.1])
def test_rowwise_adagrad_follows_its_formula(shape, weight_decay):
    random = np.random.default_rng(0)
    value = random.normal(size=shape).astype(np.float32)
    gradients = [random.normal(size=shape).astype(np.float32) for _ in range(10)]
    optimizer = RowwiseAdagrad(0.1, 0.2, 1e-3, weight_decay=weight_decay)
    variable = keras.Variable(value)
    for gradient in gradients:
        optimizer.apply([tf.constant(gradient)], [variable])
    expected, accumulators = reference_rowwise_adagrad(
        value, gradients, 0.1, 0.2, 1e-3, weight_decay or 0.0
    )
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5, atol=1e-6)
    (accumulator,) = [v for v in optimizer.variables if v.name.endswith("_accumulator")]
    assert tuple(accumulator.shape) == ((*shape[:-1], 1) if shape else ())
    np.testing.assert_allclose(accumulator.numpy().ravel(), accumulators, rtol=1e-5)


def test_rowwise_adagrad_sums_the_gradients_of_a_row_that_occurs_twice():
    value = np.ones((4, 2), np.float32)
    slices = tf.IndexedSlices(
        tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), tf.constant([2, 0, 2]), (4, 2)
    )
    dense = np.array([[3, 4], [0, 0], [6, 8], [0, 0]])
    variable = keras.Variable(value)
    RowwiseAdagrad(0.1).apply([slices], [variable])
    expected, _ = reference_rowwise_adagrad(value, [dense], 0.1, 0.0, 1e-8)
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6)


def test_rowwise_adagrad_leaves_a_row_without_gradient_alone_if_epsilon_is_0():
    variable = keras.Variable(np.ones((2, 2), np.float32))
    RowwiseAdagrad(0.1, epsilon=0.0).apply([tf.constant([[0.0, 0.0], [1.0, 1.0]])], [variable])
    np.testing.assert_allclose(variable.numpy(), [[1.0, 1.0], [0.9, 0.9]], rtol=1e-6)


@pytest.mark.parametrize("argument", ["initial_accumulator_value", "epsilon"])
def test_rowwise_adagrad_checks_its_arguments(argument):
    with pytest.raises(ValueError, match=f"{argument} >= 0.*-1"):
        RowwiseAdagrad(**{argument: -1.0})


def test_rowwise_adagrad_trains_and_saves_with_a_model(tmp_path):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Embedding(10, 4), keras.layers.Dense(1)])
    model.compile(RowwiseAdagrad(0.1), "mse")
    x, y = np.arange(10)[:, None], np.linspace(-1, 1, 10)[:, None, None]
    losses = model.fit(x, y, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < 0.2 * losses[0]
    model.save(tmp_path / "model.keras")
    restored = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(restored.optimizer, RowwiseAdagrad)
    for ours, theirs in zip(restored.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
