"""An optimizer's slots of a variable are found in the order in which rows have them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_reference import OPTIMIZERS as KERAS_OPTIMIZERS
from keras_reference import mirrored

from sok_embed import Table, tf_ops
from sok_embed.binding import _core
from sok_embed.initializers import RowInitializer
from sok_embed.keras_bridge.anchors import watched
from sok_embed.optimizers import GroupFtrl, GroupFtrlOptimizer, row_rule, v1_optimizers
from sok_embed.optimizers.slot_variables import slot_variables
from sok_embed.training.commit import Commit
from sok_embed.training.distributed_optimizer import DistributedOptimizer

v1 = tf.compat.v1.train
ROWS = 4
DIM = 3

V1_OPTIMIZERS = {
    "v1_gradient_descent": lambda: v1.GradientDescentOptimizer(0.1),
    "v1_momentum": lambda: v1.MomentumOptimizer(0.1, 0.9),
    "v1_adagrad": lambda: v1.AdagradOptimizer(0.1),
    "v1_adam": lambda: v1.AdamOptimizer(0.01),
    "v1_rmsprop": lambda: v1.RMSPropOptimizer(0.01, momentum=0.5),
    "v1_rmsprop_centered": lambda: v1.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
    "v1_ftrl": lambda: v1.FtrlOptimizer(0.1),
    # With l1 = 0 rows and dense variables have the same formula.
    "v1_group_ftrl": lambda: GroupFtrlOptimizer(0.1),
    "group_ftrl": lambda: GroupFtrl(0.1),
}
ALL = {**KERAS_OPTIMIZERS, **V1_OPTIMIZERS}


def test_each_rule_of_tf_compat_v1_train_is_in_the_table_with_all_its_slots():
    made = {row_rule(make()).name for name, make in V1_OPTIMIZERS.items() if name != "group_ftrl"}
    assert made == set(v1_optimizers.SLOTS), "V1_OPTIMIZERS of this file lacks a rule, or has more"
    for rule, names in v1_optimizers.SLOTS.items():
        assert len(names) == len(_core.rule_slots(rule)), rule


class Recorder:
    """Stands for a table and keeps what it is asked to commit."""

    name = "recorder"

    def commit(self, anchor, steps, redemption):
        (self.step,) = steps
        return tf.zeros_like(anchor)

    def step_count(self):
        return tf.constant(7, tf.int64)


def make_variable(optimizer, value, constraint=None):
    if isinstance(optimizer, v1.Optimizer):
        return tf.Variable(value, constraint=constraint)
    variable = keras.Variable(value)
    variable.constraint = constraint
    return variable


def make_anchor(optimizer, commit):
    anchor = make_variable(optimizer, np.float32(0.0), commit)
    if isinstance(anchor, keras.Variable):
        watched(anchor)
    return anchor


def random_rows(seed=1):
    return np.random.default_rng(seed).normal(size=(ROWS, DIM)).astype(np.float32)


@pytest.mark.parametrize("make_optimizer", ALL.values(), ids=ALL)
def test_slots_of_a_variable_are_those_of_rows_that_are_trained_alike(make_optimizer):
    optimizer = make_optimizer()
    variable = make_variable(optimizer, random_rows())
    table = Table(DIM, RowInitializer("constant", 0.0, 0.0, None))
    table.assign(range(ROWS), random_rows())
    anchor = make_anchor(optimizer, Commit(table, None, static=variable))
    # The variable has another one beside it, so that its index counts.
    other = make_variable(optimizer, np.ones([2, 2], np.float32))
    for step in range(4):
        gradient = tf.constant(random_rows(10 + step))
        with tf.GradientTape() as tape:
            keys = tf.range(ROWS, dtype=tf.int64)
            value = tf.convert_to_tensor(anchor)
            tape.watch(value)
            rows = tf_ops.lookup(table.resource_handle, keys, DIM, True, anchor=value).embeddings
        (zero,) = tape.gradient(rows, [value], output_gradients=[gradient])
        optimizer.apply_gradients([(tf.ones([2, 2]), other), (gradient, variable), (zero, anchor)])
    contents = table.export(slots=True)
    in_order = np.argsort(contents.keys)
    slots = slot_variables(optimizer, variable)
    joined = np.concatenate([slot.numpy() for slot in slots] or [np.zeros([ROWS, 0])], axis=1)
    np.testing.assert_allclose(contents.slots[in_order], joined, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        contents.embeddings[in_order], np.asarray(variable), rtol=1e-5, atol=1e-5
    )
    assert len({slot.handle.ref() for slot in slots}) == len(slots)


def test_a_subclass_that_keeps_the_formula_has_its_slots():
    optimizer = DistributedOptimizer(keras.optimizers.Adam())
    variable = keras.Variable(random_rows())
    optimizer.build([variable])
    slots = slot_variables(optimizer, variable)
    assert [slot.name for slot in slots] == [v.value.name for v in optimizer.variables[2:]]


@pytest.mark.parametrize("name", ["adam", "v1_adam"])
def test_there_are_none_before_the_first_step_nor_of_another_variable(name):
    optimizer = ALL[name]()
    variable = make_variable(optimizer, random_rows())
    assert slot_variables(optimizer, variable) is None
    optimizer.apply_gradients([(tf.ones([ROWS, DIM]), variable)])
    assert len(slot_variables(optimizer, variable)) == 2
    assert slot_variables(optimizer, make_variable(optimizer, random_rows())) is None


@pytest.mark.parametrize("optimizer", [keras.optimizers.Lamb(), v1.AdadeltaOptimizer()])
def test_there_are_none_of_an_optimizer_that_rows_cannot_follow(optimizer):
    variable = make_variable(optimizer, random_rows())
    optimizer.apply_gradients([(tf.ones([ROWS, DIM]), variable)])
    assert slot_variables(optimizer, variable) is None


def test_there_are_none_of_a_variable_that_is_no_resource():
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable(
            "variable", initializer=random_rows(), use_resource=False
        )
        optimizer = v1.AdagradOptimizer(0.1)
        optimizer.minimize(tf.reduce_sum(variable))
        assert optimizer.get_slot(variable, "accumulator") is not None
        assert slot_variables(optimizer, variable) is None


def committed(optimizer, own=None, make_static=lambda variable: variable):
    """Returns the slots of a variable, and what a step of its optimizer commits."""
    recorder = Recorder()
    variable = make_variable(optimizer, random_rows())
    anchor = make_anchor(optimizer, Commit(recorder, own, make_static(variable)))
    optimizer.apply_gradients([(tf.ones([ROWS, DIM]), variable), (tf.constant(0.0), anchor)])
    return slot_variables(optimizer, variable), recorder.step


@pytest.mark.parametrize("name", ["adagrad", "adam", "rowwise_adagrad", "v1_adam", "v1_ftrl"])
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: lambda: v], ids=["variable", "callable"])
def test_a_commit_names_the_slots_of_the_static_variable(name, wrap):
    slots, step = committed(ALL[name](), make_static=wrap)
    assert [source.ref() for source in step.slot_sources] == [slot.handle.ref() for slot in slots]
    assert slots


@pytest.mark.parametrize("name", ["sgd", "v1_gradient_descent"])
def test_a_commit_of_a_rule_without_slots_names_none(name):
    slots, step = committed(ALL[name]())
    assert slots == []
    assert not step.slot_sources


def test_a_commit_without_a_static_variable_names_no_slots():
    assert not committed(ALL["adam"](), make_static=lambda variable: None)[1].slot_sources


def test_slots_of_the_models_optimizer_are_not_those_of_the_layers_own():
    own = keras.optimizers.Adam()
    assert not committed(ALL["adam"](), own=own)[1].slot_sources


def test_one_replica_of_a_mirrored_strategy_commits_and_names_its_slots():
    strategy = mirrored()
    named = []

    class Named(Recorder):
        def commit(self, anchor, steps, redemption):
            named.append({source.ref() for source in steps[0].slot_sources})
            return super().commit(anchor, steps, redemption)

    with strategy.scope():
        optimizer = keras.optimizers.Adam()
        variable = keras.Variable(random_rows())
        anchor = make_anchor(optimizer, Commit(Named(), None, variable))
        optimizer.build([variable, anchor])
    gradients = [tf.ones([ROWS, DIM]), tf.constant(0.0)]
    strategy.run(lambda: optimizer.apply(gradients, [variable, anchor]))
    slots = slot_variables(optimizer, variable)
    assert named == [{slot.values[0].handle.ref() for slot in slots}]
