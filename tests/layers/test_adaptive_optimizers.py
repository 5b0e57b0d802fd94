"""Own rows and static rows under rules with slots, against NumPy in float64."""

import keras
import numpy as np
import pytest
from adaptive_reference import (
    CASES,
    DIM,
    AdaptiveReference,
    make,
    random_batch,
    train_step,
)
from keras import optimizers as ko

STEPS = 12


def train(layer, model, optimizer, steps=STEPS, seed=0, check=True):
    random = np.random.default_rng(seed)
    for _ in range(steps):
        keys, gradients = random_batch(random)
        train_step(layer, optimizer, keys, gradients)
        model.lookup(keys, training=True)
        model.deposit(keys, gradients)
        model.commit()
        if check:
            # Adam divides by the root of squares, so rows of the order of 1 get errors of its 1e-7.
            model.assert_equal(layer, atol=1e-5)


@pytest.mark.cover("values")
@pytest.mark.parametrize("slots", ["copy", "zero"])
@pytest.mark.parametrize("rule", list(CASES))
def test_rows_follow_the_optimizer_of_the_model(rule, slots):
    case = CASES[rule]
    layer = make(promote_after=3, slots=slots)
    model = AdaptiveReference(layer, case.rule(case.rate), 3, copy_slots=slots == "copy")
    train(layer, model, case.optimizer(case.rate))
    assert 0 < len(model.rows) < len(model.counts)


@pytest.mark.cover(2)
@pytest.mark.parametrize("rule", list(CASES))
def test_rows_follow_an_optimizer_of_the_layers_own(rule):
    case = CASES[rule]
    layer = make(promote_after=3, optimizer=case.optimizer(case.rate))
    model = AdaptiveReference(layer, case.rule(case.rate), 3)
    # The layer does not care what the model has.
    train(layer, model, ko.SGD(100.0))


@pytest.mark.parametrize("rule", ["adagrad", "adam", "ftrl"])
def test_copied_slots_are_those_of_the_static_row_bit_for_bit(rule):
    case = CASES[rule]
    layer, optimizer = make(promote_after=2, static_buckets=1), case.optimizer(case.rate)
    random = np.random.default_rng(0)
    for key in range(4):
        train_step(layer, optimizer, np.array([100 + key]), random.normal(size=(1, DIM)))
    layer(np.array([5, 5]), training=True)
    own, static = layer.table.export(slots=True), layer.table.export_static(slots=True)
    assert own.keys.tolist() == [5] and static.keys.tolist() == [0]
    assert own.rule == static.rule == rule.encode()
    np.testing.assert_array_equal(own.embeddings, static.embeddings)
    np.testing.assert_array_equal(own.slots, static.slots)
    assert np.abs(own.slots - own.slot_start).max() > 1e-4


@pytest.mark.parametrize("rule", ["adagrad", "adam", "ftrl"])
def test_zero_slots_are_those_of_a_new_row(rule):
    case = CASES[rule]
    layer = make(promote_after=2, static_buckets=1, slots="zero")
    optimizer = case.optimizer(case.rate)
    for key in range(4):
        train_step(layer, optimizer, np.array([100 + key]), np.ones((1, DIM)))
    layer(np.array([5, 5]), training=True)
    own, static = layer.table.export(slots=True), layer.table.export_static(slots=True)
    np.testing.assert_array_equal(own.embeddings, static.embeddings)
    np.testing.assert_array_equal(own.slots, own.slot_start[None])
    np.testing.assert_array_equal(own.slot_start, np.repeat(case.rule.starts, DIM).astype("f4"))


@pytest.mark.cover(1)
@pytest.mark.parametrize("blend", [0.0, 0.25, 1.0])
def test_a_demoted_row_moves_its_static_row(blend):
    case = CASES["adagrad"]
    layer = make(promote_after=3, demote_blend=blend)
    model = AdaptiveReference(layer, case.rule(case.rate), 3, demote_blend=blend)
    optimizer = case.optimizer(case.rate)
    train(layer, model, optimizer)
    # There is one key a bucket: in which order keys of one bucket blend is not defined.
    keys = np.array(sorted(model.rows))
    _, first = np.unique(layer.table.buckets(keys), return_index=True)
    gone = keys[first]
    assert len(gone) >= 3
    before = layer.table.lookup_static(gone)
    assert layer.table.demote(np.concatenate([gone, gone, [12345]])) == len(gone)
    model.demote(gone)
    model.assert_equal(layer, atol=1e-5)
    np.testing.assert_array_equal(layer.table.lookup(gone), layer.table.lookup_static(gone))
    moved = np.abs(layer.table.lookup_static(gone) - before).max(axis=1)
    assert (moved > 1e-3).all() if blend else (moved == 0).all()
    train(layer, model, optimizer, steps=4, seed=1)


def test_a_learning_rate_that_changes_reaches_both_tables():
    layer = make(promote_after=3)
    optimizer = ko.SGD(0.5)
    for rate in (0.5, 0.0):
        optimizer.learning_rate = rate
        before = layer.table.lookup([1, 2])
        train_step(layer, optimizer, np.array([1, 1, 1, 2]), np.ones((4, DIM), np.float32))
        moved = layer.table.lookup([1, 2]) - before
        np.testing.assert_allclose(moved, [[-3 * rate] * DIM, [-rate] * DIM], rtol=0, atol=1e-6)


def test_a_schedule_of_the_layers_own_counts_its_steps():
    schedule = ko.schedules.PiecewiseConstantDecay([1, 2], [0.5, 0.25, 0.0])
    layer = make(promote_after=2, optimizer=ko.SGD(schedule))
    moves = []
    for key in (1, 2, 2, 3):
        before = layer.table.lookup([key])
        train_step(layer, ko.SGD(1.0), np.array([key]), np.ones((1, DIM), np.float32))
        moves.append(float((before - layer.table.lookup([key]))[0, 0]))
    np.testing.assert_allclose(moves, [0.5, 0.5, 0.25, 0.0], rtol=0, atol=1e-6)


def test_gradient_accumulation_applies_both_tables_in_its_last_call():
    layer = make(promote_after=2)
    optimizer = keras.optimizers.SGD(0.5, gradient_accumulation_steps=2)
    start = layer.table.lookup([1, 2])
    for _ in range(2):
        np.testing.assert_array_equal(layer.table.lookup([1, 2]), start)
        train_step(layer, optimizer, np.array([1, 1, 2]), np.ones((3, DIM), np.float32))
    moved = start - layer.table.lookup([1, 2])
    # The gradients are means over the two calls: key 1 has 4, key 2 has 2.
    np.testing.assert_allclose(moved, [[1.0] * DIM, [0.5] * DIM], rtol=0, atol=1e-6)
