"""What a saver of TF1 keeps of embedding variables beside rows: ages in steps, and counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from graph_model import v1

from sok_embed import feature_column as fc


class Graph:
    """One embedding variable in a graph of its own, and a step of SGD on ids."""

    def __init__(self, **arguments: Any) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.table = fc.get_embedding_variable(
                "t", 2, initializer=tf.ones_initializer(), **arguments
            )
            self.ids = v1.placeholder(tf.int64, [None])
            output = tf.nn.embedding_lookup(self.table, self.ids)
            self.step = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(output))
            self.keys = self.table.export().keys
            self.saver = v1.train.Saver()
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def train(self, *ids: int) -> list[int]:
        """Steps on one id each. Returns the keys that have a row then."""
        for each in ids:
            self.session.run(self.step, {self.ids: [each]})
        return sorted(self.session.run(self.keys).tolist())

    def save(self, folder: Any) -> str:
        with self.graph.as_default():
            return self.saver.save(self.session, str(folder / "model"))

    def restore(self, path: str) -> None:
        with self.graph.as_default():
            self.saver.restore(self.session, path)


@pytest.mark.parametrize("steps_before", [0, 30])
def test_rows_go_as_many_steps_after_their_update_as_without_a_save(tmp_path, steps_before):
    saved, loaded = Graph(steps_to_live=4), Graph(steps_to_live=4)
    assert saved.train(8, 9, 9, 9) == [8, 9]
    loaded.train(*[7] * steps_before)
    loaded.restore(saved.save(tmp_path))
    assert loaded.train() == [8, 9]
    assert loaded.train(9) == saved.train(9) == [9]


def test_rows_without_ages_in_steps_are_as_old_as_now_where_steps_count(tmp_path):
    saved, loaded = Graph(), Graph(steps_to_live=4)
    saved.train(8, 9)
    loaded.restore(saved.save(tmp_path))
    assert loaded.train(9, 9, 9) == [8, 9]
    assert loaded.train(9) == [9]


def test_an_id_seen_once_before_a_save_has_its_row_when_seen_once_after_it(tmp_path):
    option = fc.EmbeddingVariableOption(filter_option=fc.CounterFilter(2))
    saved, loaded = Graph(ev_option=option), Graph(ev_option=option)
    assert saved.train(1, 2, 2) == [2]
    loaded.train(3)  # which the restore has it forget
    loaded.restore(saved.save(tmp_path))
    assert loaded.train(1, 3) == [1, 2]


def test_a_layer_keeps_the_counts_of_its_columns_in_a_keras_file(tmp_path):
    option = fc.EmbeddingVariableOption(filter_option=fc.CounterFilter(2))
    column = fc.embedding_column(
        fc.categorical_column_with_embedding("c", tf.int64, ev_option=option), 2
    )

    def make() -> tf.keras.Model:
        inputs = {"c": tf.keras.Input((1,), dtype="int64", name="c")}
        outputs = fc.DenseFeatures([column], name="columns")(inputs)
        model = tf.keras.Model(inputs, outputs)
        model.compile("sgd", "mse")
        return model

    def see(model: Any, key: int) -> None:
        model.fit({"c": np.array([[key]])}, np.zeros((1, 2)), verbose=0)

    def keys(model: Any) -> list[int]:
        (table,) = model.get_layer("columns").tables.values()
        return sorted(table.export()[0].tolist())

    saved, loaded = make(), make()
    for key in (1, 2, 2):
        see(saved, key)
    assert keys(saved) == [2]
    saved.save_weights(tmp_path / "m.weights.h5")
    loaded.load_weights(tmp_path / "m.weights.h5")
    see(loaded, 1)
    assert keys(loaded) == [1, 2]
