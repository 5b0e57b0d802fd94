"""Layers with an admission: a key gets its row only when it has come often enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko
from storage_models import (
    LENGTH,
    TARGETS,
    all2all,
    dynamic,
    model_of,
)

from sok_embed import kv
from sok_embed.admission import FrequencyAdmission


class Admitted:
    """SGD on rows that a key gets at its `min_count`-th occurrence, in NumPy."""

    def __init__(self, start: Any, min_count: int) -> None:
        self._start = start  # the vector that training of a key starts from
        self._min_count = min_count
        self.seen: dict[int, int] = {}
        self.rows: dict[int, np.ndarray] = {}

    def step(self, keys: np.ndarray, gradient: float) -> None:
        for key in keys.ravel().tolist():
            if key not in self.rows:
                self.seen[key] = self.seen.get(key, 0) + 1
                if self.seen[key] >= self._min_count:
                    self.rows[key] = self._start(key)
        for key in keys.ravel().tolist():
            if key in self.rows:
                self.rows[key] = self.rows[key] - np.float32(gradient)

    def lookup(self, keys: np.ndarray) -> np.ndarray:
        return np.stack([self.rows.get(k, self._start(k)) for k in keys.ravel().tolist()])


@pytest.mark.cover(1)
@pytest.mark.parametrize("place", ["memory", "disk", "disk_reopened"])
@pytest.mark.parametrize("make", [dynamic, all2all])
def test_a_key_gets_its_row_when_it_was_trained_on_often_enough(tmp_path, make, place):
    seed = 21
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    start = dynamic(name="start", embeddings_initializer="uniform").table.lookup
    expected = Admitted(lambda key: start([key])[0], min_count=3)

    def open_layer():
        where = None if place == "memory" else kv.Storage(tmp_path / "rows")
        name = "embeddings_initializer" if make is dynamic else "embedding_initializer"
        return make(
            storage=where,
            admission=FrequencyAdmission(3),
            optimizer=ko.SGD(0.5),
            **{name: "uniform"},
        )

    layer = open_layer()
    every = np.arange(40)
    for step in range(12):
        keys = random.integers(0, 40, (4, LENGTH))
        shaped = keys if make is dynamic else keys[:, None]
        with tf.GradientTape() as tape:
            # There is a gradient of 1 for each number of each occurrence.
            loss = tf.reduce_sum(layer(shaped, training=True))
        tape.gradient(loss, layer.anchor.value)
        layer.anchor.constraint(layer.anchor)
        expected.step(keys, 0.5)
        assert layer.table.size() == len(expected.rows)
        np.testing.assert_array_equal(np.sort(layer.table.export()[0]), sorted(expected.rows))
        # Equal keys are summed before the rate is applied; rows are of the order of 1.
        np.testing.assert_allclose(
            layer.table.lookup(every), expected.lookup(every), rtol=0, atol=1e-6
        )
        layer(shaped, training=False)  # counts for nothing
        if step == 5:
            model_of(layer).evaluate(keys, TARGETS[:4], verbose=0)
            model_of(layer).predict(keys, verbose=0)
        if place == "disk_reopened" and step % 4 == 2:
            layer.storage.close()
            layer = open_layer()
    assert 0 < len(expected.rows) < len(expected.seen)
    if place != "memory":
        layer.storage.close()


@pytest.mark.cover(1)
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_fit_drops_the_gradients_of_keys_that_wait(tmp_path, where):
    storage = kv.Storage(tmp_path / "rows") if where == "disk" else None
    layer = dynamic(storage=storage, admission=FrequencyAdmission(2))
    start = dynamic(name="start").table.lookup([7, 8])
    model = model_of(layer, ko.SGD(0.5))
    model.fit(np.array([[7, 7, 8]]), np.ones((1, 1)), verbose=0)
    assert layer.table.export()[0].tolist() == [7]
    rows = layer.table.lookup([7, 8])
    assert (rows[0] != start[0]).all()
    np.testing.assert_array_equal(rows[1], start[1])
    assert layer.table.stats()["pending_gradients"] == 0
    model.fit(np.array([[8, 9, 9]]), np.ones((1, 1)), verbose=0)
    assert sorted(layer.table.export()[0].tolist()) == [7, 8, 9]
    if storage is not None:
        storage.close()
