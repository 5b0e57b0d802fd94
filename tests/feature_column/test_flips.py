"""A mask that goes from 0 to 1 after training gives the id a row: its static row, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf
from graph_model import OPTIMIZERS, GraphModel, bucket_of, start

from sok_embed import feature_column as fc

STATIC = start(5, 3)
ROWS = [[7], [8], [-9], [2**40], [7], [11]]
IDS = np.array([7, 8, -9, 2**40, 7, 11])
COLUMNS = {
    "plain": {},
    "partitioned": {"partition_num": 8},
    "zero": {"slots": "zero"},
    "counted": {"ev_option": fc.EmbeddingVariableOption(filter_option=fc.CounterFilter(3))},
    "bloom": {
        "ev_option": fc.EmbeddingVariableOption(filter_option=fc.CBFFilter(3, 1000, 0.01)),
        "partition_num": 4,
    },
}
each_column = pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)


def static_rows_of(model, ids=IDS):
    return model.static_rows()[[bucket_of(i, len(STATIC)) for i in ids]]


@pytest.mark.cover("values")
@each_column
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_first_own_row_is_the_static_row(column, optimizer):
    model = GraphModel(STATIC, optimizer, column=column)
    for _ in range(3):
        model.train(ROWS, 0)
    assert np.abs(model.static_rows() - STATIC).max() > 0.01
    flipped = np.array([1, 1, 0, 1, 1, 0], np.int32)
    before = static_rows_of(model)
    got = model.train(ROWS, flipped)
    np.testing.assert_array_equal(got, before)
    if "filter" not in str(column):
        assert set(model.own_rows()) == {7, 8, 2**40}
        return
    # Ids that are held back read and train their static rows until they have been seen often
    # enough.
    while set(model.own_rows()) != {7, 8, 2**40}:
        without = sorted({7, 8, 2**40} - set(model.own_rows()))
        before = dict(zip(without, static_rows_of(model, without), strict=True))
        got = dict(zip(IDS, model.train(ROWS, flipped), strict=True))
        for key in without:
            np.testing.assert_array_equal(got[key], before[key])


@pytest.mark.cover(2)
@each_column
def test_the_first_own_row_is_the_static_row_in_a_new_session_of_a_new_graph(column, tmp_path):
    model = GraphModel(STATIC, "adagrad", column=column)
    for _ in range(3):
        model.train(ROWS, [0, 0, 1, 0, 0, 0])
    path = model.save(tmp_path / "model")
    other = GraphModel(start(5, 3, seed=9), "adagrad", column=column)
    other.restore(path)
    np.testing.assert_array_equal(other.static_rows(), model.static_rows())
    assert set(other.own_rows()) == set(model.own_rows())
    for key, row in model.own_rows().items():
        np.testing.assert_array_equal(other.own_rows()[key], row)
    flipped = np.array([1, 1, 0, 1, 1, 0], np.int32)
    np.testing.assert_array_equal(other.embed(ROWS, flipped), static_rows_of(other))


def test_a_filter_holds_ids_back_which_train_their_static_rows():
    option = fc.EmbeddingVariableOption(filter_option=fc.CounterFilter(3))
    model = GraphModel(STATIC, "sgd", column={"ev_option": option})
    twin = GraphModel(STATIC, "sgd")
    rows = [[1], [2]]
    for _ in range(2):
        np.testing.assert_array_equal(model.train(rows, 1), twin.train(rows, 0))
        assert model.own_rows() == {}
    np.testing.assert_array_equal(model.static_rows(), twin.static_rows())
    before = static_rows_of(model, [1, 2])
    np.testing.assert_array_equal(model.train(rows, 1), before)
    assert set(model.own_rows()) == {1, 2}


def test_the_gradient_of_the_step_goes_to_the_new_row_only():
    model = GraphModel(STATIC, "sgd")
    model.train(ROWS, 0)
    static = model.static_rows()
    twin = GraphModel(static, "sgd")
    model.train(ROWS, 1)
    np.testing.assert_array_equal(model.static_rows(), static)
    twin.train(ROWS, 1)
    for key, row in twin.own_rows().items():
        np.testing.assert_array_equal(model.own_rows()[key], row)
        assert np.abs(row - static[bucket_of(key, 5)]).max() > 1e-3


def test_a_graph_that_is_not_trained_makes_no_rows_and_reads_those_of_a_checkpoint(tmp_path):
    model = GraphModel(STATIC, "sgd")
    for _ in range(2):
        model.train(ROWS, [1, 0, 0, 0, 1, 0])
    path = model.save(tmp_path / "model")
    frozen = GraphModel(np.zeros_like(STATIC), trainable=False)
    frozen.restore(path)
    np.testing.assert_array_equal(frozen.embed(ROWS, 1)[0], model.own_rows()[7])
    np.testing.assert_array_equal(frozen.embed(ROWS, 1)[1:4], static_rows_of(model)[1:4])
    assert set(frozen.own_rows()) == {7}


def test_training_goes_on_after_a_restore_as_if_nothing_had_been(tmp_path):
    model = GraphModel(STATIC, "ftrl")
    mask = [1, 0, 0, 1, 1, 0]
    for _ in range(3):
        model.train(ROWS, mask)
    path = model.save(tmp_path / "model")
    other = GraphModel(STATIC, "ftrl")
    other.train([[3]], 1)  # goes
    other.restore(path)
    for _ in range(3):
        np.testing.assert_array_equal(other.train(ROWS, mask), model.train(ROWS, mask))
    assert set(other.own_rows()) == {7, 2**40}


def test_strings_flip():
    model = GraphModel(STATIC, "adam", dtype=tf.string)
    words = [["a"], ["b"], ["c d"]]
    for _ in range(3):
        model.train(words, 0)
    before = static_rows_of(model, ["a", "b", "c d"])
    np.testing.assert_array_equal(model.train(words, 1), before)
    assert len(model.own_rows()) == 3
