"""GroupFtrlOptimizer gives embedding variables the numbers of DeepRec's FtrlOptimizer."""

import numpy as np
import pytest
import tensorflow as tf
from ftrl_model import FtrlModel
from graph_model import GraphModel, start, v1

from sok_embed import feature_column as fc
from sok_embed.optimizers import GroupFtrlOptimizer


class GroupFtrlModel(FtrlModel):
    """Own rows by DeepRec's formula, static ones by TensorFlow's."""

    def train(self, keys, mask, gradients):
        static = mask == 0
        super().train(keys[static], mask[static], gradients[static])
        for key in np.unique(keys[~static]):
            row = self._row(int(key), True)
            gradient = gradients[~static & (keys == key)].sum(0)
            total = row.accumulator + gradient**2
            sigma = (np.sqrt(total) - np.sqrt(row.accumulator)) / self.rate
            row.linear = row.linear + gradient - sigma * row.value
            row.accumulator = total
            norm = np.linalg.norm(row.linear)
            eta = np.sqrt(total) / self.rate + 2 * self.l2
            factor = (self.l1 - norm) / norm if norm > self.l1 else 0.0
            row.value = factor * row.linear / eta


def optimizer(rate=0.1, l1=0.0, l2=0.0, **more):
    return GroupFtrlOptimizer(
        rate, l1_regularization_strength=l1, l2_regularization_strength=l2, **more
    )


def test_the_documented_example_of_deeprec_for_embedding_variables():
    with tf.Graph().as_default(), v1.Session() as session:
        var = fc.get_embedding_variable("var_0", 3, initializer=tf.ones_initializer())
        emb = tf.nn.embedding_lookup(var, tf.cast([0, 1, 2, 5, 6, 7], tf.int64))
        step = optimizer(0.1, 2.0, 0.00001).minimize(tf.reduce_sum(emb * 2.0))
        session.run(v1.global_variables_initializer())
        seen = [session.run((emb, step))[0] for _ in range(4)]
    value, accumulator, linear = np.ones(3), np.full(3, 0.1), np.zeros(3)
    for got in seen:
        np.testing.assert_allclose(got, np.tile(value, (6, 1)), rtol=0, atol=1e-6)
        total = accumulator + 4.0
        linear = linear + 2.0 - (np.sqrt(total) - np.sqrt(accumulator)) / 0.1 * value
        accumulator, norm = total, np.linalg.norm(linear)
        value = (2.0 - norm) / ((np.sqrt(total) / 0.1 + 0.00002) * norm) * linear
    # TensorFlow's formula takes l1 from each element, this one 1 / sqrt(3) of it.
    with tf.Graph().as_default(), v1.Session() as session:
        var = fc.get_embedding_variable("var_0", 3, initializer=tf.ones_initializer())
        emb = tf.nn.embedding_lookup(var, tf.cast([0], tf.int64))
        plain = v1.train.FtrlOptimizer(
            0.1, l1_regularization_strength=2.0, l2_regularization_strength=0.00001
        )
        step = plain.minimize(tf.reduce_sum(emb * 2.0))
        session.run(v1.global_variables_initializer())
        session.run(step)
        assert abs(session.run(emb)[0, 0] - seen[1][0, 0]) > 0.01


@pytest.mark.parametrize("slots", ["copy", "zero"])
def test_own_rows_follow_deeprec_and_static_rows_tensorflow(slots):
    random = np.random.default_rng(5)
    static = start(6, 4)
    ours = GraphModel(
        static, lambda: optimizer(0.1, 0.8, 0.01), combiner="sum", column={"slots": slots}
    )
    model = GroupFtrlModel(static, rate=0.1, l1=0.8, l2=0.01, slots=slots)
    for _ in range(12):
        ids = random.integers(-20, 20, 15)
        mask = random.integers(0, 2, 15).astype(np.int32)
        embeddings = model.lookup(ids, mask)
        got = ours.train([[i] for i in ids], mask)
        np.testing.assert_allclose(got, embeddings, rtol=0, atol=5e-6)
        target = np.sin(np.arange(embeddings.size)).reshape(embeddings.shape)
        model.train(ids, mask, 2 * (embeddings - target))
    for key, row in ours.own_rows().items():
        np.testing.assert_allclose(row, model.rows[key].value, rtol=0, atol=5e-6)
    np.testing.assert_allclose(ours.static_rows(), model.static_rows(), rtol=0, atol=5e-6)


def test_dense_variables_are_trained_by_tensorflows_formula():
    def after(make):
        with tf.Graph().as_default(), v1.Session() as session:
            variable = v1.get_variable("v", initializer=start(4, 3), use_resource=True)
            step = make(0.1, l1_regularization_strength=0.5).minimize(tf.reduce_sum(variable**2))
            session.run(v1.global_variables_initializer())
            for _ in range(4):
                session.run(step)
            return session.run(variable)

    np.testing.assert_array_equal(after(GroupFtrlOptimizer), after(v1.train.FtrlOptimizer))
