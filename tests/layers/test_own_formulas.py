"""Optimizers with an `update_step` of their own train rows as they train a matrix."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_steps import check_equal, overflowing, train
from dense_twin import Model, WeightOfRows, table_layer
from keras_reference import (
    BATCH,
    Batches,
    compile_looks_at_layers,
    fit,
    fit_eagerly,
    mirrored,
    train_both,
)
from static_twins import IDS, LABELS, LAYERS, ROWS, STEPS, Static
from strange_optimizer import RootMomentum

import sok_embed as sok
from sok_embed.optimizers import row_rule

pytestmark = pytest.mark.filterwarnings("ignore:.*has an update_step of its own:UserWarning")

FEW = Batches(steps=6)
TOLERANCE = 1e-6


def _model(embedding, optimizer, run_eagerly=False):
    inputs = keras.Input((3,), dtype="int64")
    dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    model = keras.Model(inputs, dense(embedding(inputs)))
    model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    return model


def _train(model, steps):
    for step in steps:
        model.train_on_batch(IDS[step], LABELS[step])


def _static():
    # A loss of the whole matrix makes Keras sum the gradients of equal ids.
    return Static(regularizer=lambda rows: 0.0 * tf.reduce_sum(rows))


@functools.cache
def _expected():
    """Returns the matrix and its slots after all steps, `[3, ROWS, dim]`."""
    embedding, optimizer = _static(), RootMomentum(0.05, beta=0.8)
    model = _model(embedding, optimizer)
    _train(model, range(STEPS))
    index = [each is embedding.rows.embeddings for each in model.trainable_variables].index(True)
    slots = [optimizer._momentums[index].numpy(), optimizer._squares[index].numpy()]
    return np.stack([embedding.trained(), *slots])


def _found(table):
    """Returns the rows and slots of a table, as `_expected` does."""
    contents = table.export(slots=True)
    assert contents.rule in (b"deferred_2", "deferred_2")
    rows = np.concatenate([contents.embeddings, contents.slots], axis=1)[np.argsort(contents.keys)]
    dim = contents.embeddings.shape[1]
    return np.stack([rows[:, at * dim : (at + 1) * dim] for at in range(3)])


@pytest.mark.parametrize("kind", ["dynamic", "all2all", "collection", "concat"])
@pytest.mark.cover(2)
def test_rows_and_slots_are_those_of_a_matrix_after_50_steps(kind):
    embedding = LAYERS[kind]()
    _train(_model(embedding, RootMomentum(0.05, beta=0.8)), range(STEPS))
    np.testing.assert_allclose(_found(embedding.table)[:, :ROWS], _expected(), rtol=0, atol=1e-6)


def test_an_optimizer_of_a_table_of_a_collection_counts_the_steps_of_the_table():
    embedding = LAYERS["collection"](optimizer=RootMomentum(0.05, beta=0.8))
    _train(_model(embedding, RootMomentum(0.05, beta=0.8)), range(STEPS))
    np.testing.assert_allclose(_found(embedding.table), _expected(), rtol=0, atol=1e-6)


def test_a_checkpoint_brings_rows_and_slots_to_another_model(tmp_path):
    """The second half is trained by a new model, table and optimizer, which read the first."""
    for steps in (range(STEPS // 2), range(STEPS // 2, STEPS)):
        embedding = LAYERS["dynamic"]()
        model = _model(embedding, RootMomentum(0.05, beta=0.8))
        checkpoint = sok.checkpoint.Checkpoint(model)
        if steps.start:
            checkpoint.restore(tmp_path / "saved")
        _train(model, steps)
        checkpoint.save(tmp_path / "saved")
    np.testing.assert_allclose(_found(embedding.table), _expected(), rtol=0, atol=1e-6)


OPTIONS = {
    "decay": {"weight_decay": 0.1},
    "clipnorm": {"clipnorm": 0.01},
    "clipvalue": {"clipvalue": 0.001},
    "global_clipnorm": {"global_clipnorm": 0.02},
    "accumulated": {"gradient_accumulation_steps": 2},
    "callable": {"learning_rate": lambda: 0.05},
    "schedule": {"learning_rate": keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)},
}


@pytest.mark.cover(1)
@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_the_optimizer_reach_rows(option):
    make = functools.partial(RootMomentum, **{"learning_rate": 0.05, **OPTIONS[option]})
    trained = train_both(make, batches=FEW, train=fit_eagerly)
    trained.assert_equal(TOLERANCE)


@pytest.mark.long
def test_replicas_of_a_mirrored_strategy_train_one_table():
    make = functools.partial(RootMomentum, 0.05)
    train_both(make, batches=FEW, make_strategy=mirrored).assert_equal(TOLERANCE)


def test_scaled_losses_and_skipped_steps():
    """Without a momentum rows of a matrix rest, too, if a batch has none of their keys."""
    found, expected = (
        train(
            Model(layer),
            keras.optimizers.LossScaleOptimizer(
                RootMomentum(0.1, beta=0.0), initial_scale=256, dynamic_growth_steps=2
            ),
            overflowing([2, 5]),
            steps=10,
        )
        for layer in (table_layer(), WeightOfRows())
    )
    check_equal(found, expected)


def test_an_optimizer_of_the_layers_own_counts_the_steps_of_the_table():
    make = functools.partial(RootMomentum, 0.05)
    train_both(make, own_optimizer=make, batches=FEW, train=fit).assert_equal(TOLERANCE)


def test_numbers_that_change_between_steps_reach_rows():
    def train_model(model, keys, targets):
        model.run_eagerly = True
        batches = zip(np.split(keys, 6), np.split(targets, 6), strict=True)
        for number, (ids, labels) in enumerate(batches):
            model.train_on_batch(ids, labels)
            if isinstance(model.optimizer, RootMomentum):
                model.optimizer.beta = 0.5 + 0.05 * number
                model.optimizer.learning_rate = 0.1 / (number + 1)

    make = functools.partial(RootMomentum, 0.05)
    train_both(make, batches=FEW, train=train_model).assert_equal(TOLERANCE)


def test_another_optimizer_later_finds_slots_started_anew():
    def train_model(model, keys, targets):
        for make in (RootMomentum, keras.optimizers.Adam, RootMomentum):
            model.compile(make(0.05), "mse", run_eagerly=True)
            fit(model, keys, targets)

    train_both(RootMomentum, batches=Batches(steps=3), train=train_model).assert_equal(TOLERANCE)


def test_two_layers_of_different_lengths_and_one_without_keys_in_a_step():
    """Keys of the second layer come in every other step; the first learns as if it were alone."""
    layers = [sok.DynamicEmbedding(dim, "ones", name=f"of_{dim}") for dim in (2, 3)]
    optimizer = RootMomentum(0.1)
    alone, lonely = sok.DynamicEmbedding(2, "ones"), RootMomentum(0.1)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(keys):
        for of_step, by in ((layers, optimizer), ([alone], lonely)):
            variables = [each for layer in of_step for each in layer.trainable_variables]
            with tf.GradientTape() as tape:
                sums = [
                    tf.reduce_sum(layer(given, training=True) ** 2)
                    for layer, given in zip(of_step, ([1, 2], keys), strict=False)
                ]
                loss = tf.add_n(sums)
            by.apply(tape.gradient(loss, variables), variables)

    for layer in (*layers, alone):
        layer.build((None,))
    for keys in ([5], [], [5, 6], []):
        step(np.array(keys, np.int64))
    np.testing.assert_array_equal(layers[0].table.lookup([1, 2]), alone.table.lookup([1, 2]))
    assert np.all(layers[1].table.lookup([5, 6]) < 1)
    assert layers[1].table.lookup([7]).tolist() == [[1, 1, 1]]


def test_rows_of_a_storage_keep_what_the_formula_made_of_them(tmp_path):
    rows = []
    for _ in range(2):
        with sok.Storage(tmp_path / "rows", durability="update") as storage:
            layer = sok.DynamicEmbedding(2, "ones", storage=storage, name="rows")
            if rows:
                np.testing.assert_array_equal(layer.table.lookup([1, 2]), rows[-1])
            model = keras.Sequential([keras.Input((), dtype="int64"), layer])
            model.compile(RootMomentum(0.1), "mse", run_eagerly=True)
            model.train_on_batch(np.array([1, 2]), np.zeros((2, 2)))
            rows.append(layer.table.lookup([1, 2]))
    assert np.all(rows[0] < 1) and np.all(rows[1] < rows[0])


def test_own_and_static_rows_of_an_adaptive_embedding():
    layer = sok.AdaptiveEmbedding(2, 3, embeddings_initializer="ones", promote_after=2)
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile(RootMomentum(0.1), "mse", run_eagerly=True)
    before = []
    for keys in ([1, 2], [1, 3], [1, 4]):
        before.append(layer.table.lookup([1]))
        model.train_on_batch(np.array(keys), np.zeros((2, 2)))
    found = layer.table.snapshot()
    assert found.own.keys.tolist() == [1]
    assert np.all(np.diff(before, axis=0) < 0)
    assert np.all(found.own.embeddings < before[-1])


def test_constraints_follow_the_formula():
    layer = sok.DynamicEmbedding(2, "ones", embeddings_constraint=lambda rows: rows - 1)
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile(RootMomentum(0.0), "mse", run_eagerly=True)
    model.train_on_batch(np.array([1]), np.zeros((1, 2)))
    assert layer.table.lookup([1]).tolist() == [[0, 0]]


def test_it_is_said_once_that_this_is_slower():
    optimizer = RootMomentum()
    with pytest.warns(UserWarning, match="RootMomentum .* slower"):
        row_rule(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row_rule(optimizer)


def test_a_subclass_changes_the_formula_of_keras():
    class Reversed(keras.optimizers.Adam):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(-gradient, variable, learning_rate)

    train_both(lambda: Reversed(0.05), batches=FEW, train=fit_eagerly).assert_equal(TOLERANCE)


class Whole(RootMomentum):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient / keras.ops.norm(gradient), variable, learning_rate)


class Scalar(RootMomentum):
    def build(self, variables):
        super().build(variables)
        self._sum = self.add_variable((), name="sum")


class RandomStart(RootMomentum):
    def build(self, variables):
        super().build(variables)
        self._slow = [
            self.add_variable_from_reference(each, "slow", "random_normal") for each in variables
        ]


class Untracked(RootMomentum):
    def build(self, variables):
        super().build(variables)
        self._momentums = [tf.Variable(tf.zeros(each.shape)) for each in variables]


class Wrapping(RootMomentum):
    def __init__(self, learning_rate=0.1):
        super().__init__(learning_rate)
        self.inner = keras.optimizers.SGD()

    def get_config(self):
        return {"learning_rate": 0.1}


class NoConfig(RootMomentum):
    def __init__(self, rate_of_decay=0.3):
        super().__init__(0.1)

    get_config = keras.optimizers.Optimizer.get_config


class Counting(RootMomentum):
    """Counts updates in a variable that is not a slot."""

    variable = functools.partial(tf.Variable, 0.0, trainable=False)

    def __init__(self, learning_rate=0.1):
        super().__init__(learning_rate)
        self.count = self.variable()

    def get_config(self):
        return {"learning_rate": 0.1}

    def update_step(self, gradient, variable, learning_rate):
        self.count.assign_add(1.0)
        super().update_step(gradient, variable, learning_rate)


class CountingByKeras(Counting):
    variable = functools.partial(keras.Variable, 0.0, trainable=False)


class EverySecond(RootMomentum):
    """Updates in a branch."""

    def update_step(self, gradient, variable, learning_rate):
        update = functools.partial(super().update_step, gradient, variable, learning_rate)
        tf.cond(tf.equal(self.iterations % 2, 1), lambda: (update(), 0)[1], lambda: 0)


class CountingInPython(RootMomentum):
    def __init__(self, learning_rate=0.1):
        super().__init__(learning_rate)
        self.counts = {"updates": [0]}

    def get_config(self):
        return {"learning_rate": 0.1}

    def update_step(self, gradient, variable, learning_rate):
        self.counts["updates"][0] += 1
        super().update_step(gradient, variable, learning_rate)


class ClippedAbove(RootMomentum):
    """Divides by a norm of all rows if that is large."""

    def update_step(self, gradient, variable, learning_rate):
        norm = keras.ops.norm(gradient) / 100.0
        super().update_step(gradient / keras.ops.maximum(1.0, norm), variable, learning_rate)


class Twice(RootMomentum):
    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, 0.1 * learning_rate * variable)
        super().update_step(gradient, variable, learning_rate)


class OwnDecay(keras.optimizers.SGD):
    def _apply_weight_decay(self, variables):
        for variable in variables:
            variable.assign(0.9 * variable)


class NoDecayOfBiases(RootMomentum):
    def _use_weight_decay(self, variable):
        return len(variable.shape) == 2


class OnlyApply(keras.optimizers.Optimizer):
    def apply(self, grads, trainable_variables=None):
        pass


REFUSED = [
    (Whole, "depend on other rows"),
    (Scalar, r"slot 'sum' is float32 of shape \(\) for a matrix"),
    (RandomStart, "starts from different numbers"),
    (Untracked, "fails on a part of the rows"),
    (Wrapping, "holds another optimizer"),
    (NoConfig, "get_config lacks rate_of_decay"),
    (Counting, "changes count, which is not a slot"),
    (CountingByKeras, r"slot 'variable' is float32 of shape \(\)"),
    (CountingInPython, "changes counts, which is not a slot"),
    (ClippedAbove, "depend on other rows"),
    (Twice, "assigns the variable more than once"),
    (OwnDecay, "has a _apply_weight_decay of its own"),
    (NoDecayOfBiases, "has a _use_weight_decay of its own"),
    (EverySecond, "updates the variable within tf.cond"),
    (functools.partial(OnlyApply, 0.1), "SGD, Adagrad.*OnlyApply"),
    (functools.partial(RootMomentum, use_ema=True), "without use_ema"),
]


@pytest.mark.cover(8)
@pytest.mark.parametrize(("optimizer", "text"), REFUSED)
def test_what_cannot_run_on_rows_is_refused_with_the_reason(optimizer, text):
    with pytest.raises(ValueError, match=f"^Expected an optimizer.*{text}"):
        row_rule(optimizer())


@pytest.mark.cover(4)
@compile_looks_at_layers
@pytest.mark.parametrize(("optimizer", "text"), REFUSED)
def test_compile_refuses_what_cannot_run_on_rows(optimizer, text):
    model = keras.Sequential([keras.Input((), dtype="int64"), sok.DynamicEmbedding(2)])
    with pytest.raises(ValueError, match=text):
        model.compile(optimizer(), "mse")


def test_a_refused_optimizer_is_as_it_was():
    optimizer = Counting()
    with pytest.raises(ValueError, match="not a slot"):
        row_rule(optimizer)
    assert optimizer.count.numpy() == 0.0


class Warming(RootMomentum):
    """Has a factor in a variable, and others in a dict and a list, which a caller changes."""

    def __init__(self, learning_rate=0.1):
        super().__init__(learning_rate)
        self.factor = tf.Variable(0.5, trainable=False)
        self.others = {"each": [1.0, (2.0, "two")]}
        self.more = [1.0, 0.5]

    def get_config(self):
        return {"learning_rate": 0.1}

    def update_step(self, gradient, variable, learning_rate):
        factor = self.factor * self.others["each"][0] * self.more[1]
        super().update_step(gradient, variable, learning_rate * factor)


def test_a_variable_that_changes_between_steps_reaches_rows():
    def train(model, keys, targets):
        model.run_eagerly = True
        for step, begin in enumerate(range(0, len(keys), BATCH)):
            model.optimizer.factor.assign(1.0 / (step + 1))
            model.optimizer.others["each"][0] = 1.0 + step
            model.optimizer.more[1] = 0.5 + step
            model.train_on_batch(keys[begin : begin + BATCH], targets[begin : begin + BATCH])

    train_both(Warming, batches=FEW, train=train).assert_equal(TOLERANCE)


class Shrinking(keras.optimizers.Adam):
    """Changes variables once more, after their updates."""

    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)
        for variable in trainable_variables or self._trainable_variables:
            variable.assign(0.9 * variable)


@pytest.mark.parametrize("run_eagerly", [True, False])
def test_changes_by_apply_that_rows_would_not_follow_are_an_error(run_eagerly):
    model = _model(sok.DynamicEmbedding(2), Shrinking(0.1), run_eagerly=run_eagerly)
    with pytest.raises(ValueError, match="Received: a second change by its `apply`"):
        _train(model, range(1))


class Resting(RootMomentum):
    """Leaves steps out once it is told to."""

    rests = False

    def update_step(self, gradient, variable, learning_rate):
        if not type(self).rests:
            super().update_step(gradient, variable, learning_rate)


def test_a_step_without_an_update_is_an_error(monkeypatch):
    model = _model(sok.DynamicEmbedding(2), Resting(0.1), run_eagerly=True)
    _train(model, range(1))
    monkeypatch.setattr(Resting, "rests", True)
    with pytest.raises(RuntimeError, match="to update its variable at every step"):
        _train(model, range(1, 2))
