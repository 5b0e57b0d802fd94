"""Rows that the first step after a restore makes copy the slots of the checkpoint."""

import keras
import numpy as np
import pytest
from graph_model import GraphModel, start
from test_dense_features import IDS, fit, make_layer, make_model

STATIC = start(5, 3)
ROWS = [[7], [8], [-9], [2**40], [7], [11]]


@pytest.mark.cover(2)
@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "momentum", "ftrl"])
def test_in_a_graph(optimizer, tmp_path):
    model = GraphModel(STATIC, optimizer)
    for _ in range(3):
        model.train(ROWS, 0)
    path = model.save(tmp_path / "model")
    other = GraphModel(STATIC, optimizer)
    other.restore(path)
    for mask in (1, 1, 0):
        np.testing.assert_array_equal(other.train(ROWS, mask), model.train(ROWS, mask))
    assert set(other.own_rows()) == {7, 8, -9, 2**40, 11}
    for key, row in model.own_rows().items():
        np.testing.assert_array_equal(other.own_rows()[key], row)


@pytest.mark.cover(1)
@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "momentum", "ftrl"])
def test_in_a_loaded_model(optimizer, tmp_path):
    model = make_model(make_layer(), optimizer)
    fit(model, 0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        fit(each, 1, epochs=1)
    (table,), (other,) = ((*m.get_layer("features").tables.values(),) for m in (model, loaded))
    rows, others = table.export(slots=True), other.export(slots=True)
    order, other_order = np.argsort(rows.keys), np.argsort(others.keys)
    np.testing.assert_array_equal(rows.keys[order], np.unique(IDS))
    np.testing.assert_array_equal(others.embeddings[other_order], rows.embeddings[order])
    np.testing.assert_array_equal(others.slots[other_order], rows.slots[order])
