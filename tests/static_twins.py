"""Layers with rows beside a static Keras layer, trained on batches that have every row."""

import inspect

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok

ROWS, DIM, STEPS = 12, 4, 50
START = np.random.default_rng(5).normal(size=(ROWS, DIM)).astype(np.float32)
# Every batch has every row, some of them twice, since Keras regularizes and constrains all rows of
# the matrix.
IDS = np.stack(
    [np.random.default_rng(n).permutation(np.tile(np.arange(ROWS), 2)) for n in range(STEPS)]
).reshape(STEPS, 8, 3)
LABELS = np.random.default_rng(6).normal(size=(STEPS, 8, 1)).astype(np.float32)


def _of_layer(given):
    """Returns the arguments of a table, as a layer has them."""
    return {f"embeddings_{name}": value for name, value in given.items()}


def _pooled(vectors):
    return tf.reduce_mean(vectors, 1)


class _Function:
    def __init__(self, function):
        self.function = function

    def __call__(self, rows):
        return self.function(rows)


class _Regularizer(_Function, keras.regularizers.Regularizer):
    pass


class _Constraint(_Function, keras.constraints.Constraint):
    pass


def _of_matrix(given):
    """Returns the arguments of a table for a matrix of Keras; before 3.15 it takes no functions."""
    classes = {"regularizer": _Regularizer, "constraint": _Constraint}
    return {
        name: classes[name](value) if inspect.isfunction(value) else value
        for name, value in given.items()
    }


class Static(keras.layers.Layer):
    def __init__(self, **given):
        super().__init__()
        start = keras.initializers.Constant(START)
        self.rows = keras.layers.Embedding(ROWS, DIM, start, **_of_layer(_of_matrix(given)))

    def call(self, ids):
        return _pooled(self.rows(ids))

    def trained(self):
        return self.rows.embeddings.numpy()


class _Table(keras.layers.Layer):
    """Pools the vectors of a layer with rows, where the layer does not."""

    def __init__(self, layer, table, given=lambda ids: ids, taken=lambda vectors: vectors):
        super().__init__()
        self.layer, self.table, self.given, self.taken = layer, table, given, taken
        table.assign(np.arange(ROWS), START)

    def call(self, ids, training=None):
        return self.taken(self.layer(self.given(ids), training=training))

    def trained(self):
        return self.table.lookup(np.arange(ROWS))


def dynamic(combiner, **given):
    layer = sok.DynamicEmbedding(DIM, combiner=combiner, **_of_layer(given))
    return _Table(layer, layer.table, taken=_pooled if combiner is None else lambda it: it)


def _all2all(**given):
    layer = sok.All2AllDenseEmbedding(20, DIM, 3, 1, **_of_layer(given))
    return _Table(
        layer, layer.table, lambda ids: ids[..., tf.newaxis], lambda it: _pooled(it[:, :, 0])
    )


def _collection(combiner, form="structure", **given):
    table = sok.TableConfig("t", None, DIM, combiner=combiner, **given)
    features = {"a": sok.FeatureConfig("a", table), "b": sok.FeatureConfig("b", table)}
    layer = sok.DistributedEmbedding(features, output=form)

    def taken(vectors):
        if form == "concat":
            one, two = vectors[:, :DIM], vectors[:, DIM:]
        else:
            one, two = vectors["a"], vectors["b"]
            if combiner is None:
                two = _pooled(two)
        return (one + 2 * two) / 3

    return _Table(layer, layer.tables["t"], lambda ids: {"a": ids[:, 0], "b": ids[:, 1:]}, taken)


LAYERS = {
    "dynamic": lambda **given: dynamic(None, **given),
    "pooled": lambda **given: dynamic("mean", **given),
    "all2all": _all2all,
    "collection": lambda **given: _collection("mean", **given),
    "collection of keys": lambda **given: _collection(None, **given),
    "concat": lambda **given: _collection("mean", "concat", **given),
}


def train(embedding, run_eagerly=False, steps=STEPS):
    inputs = keras.Input((3,), dtype="int64")
    dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    model = keras.Model(inputs, dense(embedding(inputs)))
    model.compile(keras.optimizers.Adam(0.05), "mse", run_eagerly=run_eagerly)
    losses = [
        model.train_on_batch(ids, labels) for ids, labels in zip(IDS[:steps], LABELS, strict=False)
    ]
    return np.array(losses), model
