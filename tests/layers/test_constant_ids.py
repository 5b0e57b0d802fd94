"""Ids that are a constant of the model, such as all candidates of a retrieval, in every form.

Each occurrence of an id in the constant gets a gradient of the mean of the inputs, so that a row of
ones is 1 - rate * steps * count * mean after some steps.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import feature_column as fc

IDS = np.array([[1, 2, 2], [3, 1, 2]])
DIM, STEPS, RATE = 2, 2, 0.25
INPUTS = np.array([[1.0], [2.0], [3.0], [6.0]], np.float32)


def _collection(combiner):
    table = sok.TableConfig("t", None, DIM, "ones", combiner=combiner)
    return sok.DistributedEmbedding({"a": sok.FeatureConfig("f", table)})


def _columns():
    column = fc.categorical_column_with_embedding("a", tf.int64)
    ones = tf.compat.v1.ones_initializer()
    return fc.DenseFeatures([fc.embedding_column(column, DIM, "sum", ones)])


ONES = keras.initializers.Ones()
LAYERS = {
    "dynamic": lambda: sok.DynamicEmbedding(DIM, "ones"),
    "pooled": lambda: sok.DynamicEmbedding(DIM, "ones", combiner="sum"),
    "adaptive": lambda: sok.AdaptiveEmbedding(
        DIM, 5, promote_after=1, embeddings_initializer="ones"
    ),
    "adaptive_pooled": lambda: sok.AdaptiveEmbedding(
        DIM, 5, promote_after=1, combiner="sum", embeddings_initializer="ones"
    ),
    "collection": lambda: _collection(None),
    "collection_pooled": lambda: _collection("sum"),
    "all2all": lambda: sok.All2AllDenseEmbedding(9, DIM, 2, 3, embedding_initializer="ones"),
    "hashed": lambda: sok.HashedEmbedding(10, DIM, 1.0, weight=ONES),
    "hashed_bag": lambda: sok.HashedEmbeddingBag(10, DIM, 1.0, mode="sum", weight=ONES),
    "columns": _columns,
}
FORMS = {
    "array": lambda: IDS,
    "tensor": lambda: tf.constant(IDS),
    "variable": lambda: tf.Variable(IDS, trainable=False),
    "ragged": lambda: tf.RaggedTensor.from_tensor(IDS),
    "sparse": lambda: tf.sparse.from_dense(IDS),
}
PLACES = {
    "model": lambda look_up: look_up(),
    "function": lambda look_up: tf.function(look_up)(),
    "branch": lambda look_up: tf.cond(tf.constant(True), look_up, lambda: 0.0),
    "loop": lambda look_up: tf.while_loop(
        lambda turn, _: turn < 1,
        lambda turn, total: (turn + 1, total + look_up()),
        (0, 0.0),
        maximum_iterations=1,
    )[1],
}


class Candidates(keras.Model):
    """Multiplies its inputs by the sum of the vectors of all candidates."""

    def __init__(self, kind, form, place):
        super().__init__()
        self.embedding = LAYERS[kind]()
        self.kind, self.ids, self.place = kind, FORMS[form](), PLACES[place]

    def look_up(self, training):
        ids = self.ids
        if self.kind == "all2all":
            ids = tf.reshape(ids, [1, 2, 3])
        if self.kind in ("collection", "collection_pooled", "columns"):
            ids = {"a": ids}
        # HashedEmbedding has no such argument.
        options = {} if self.kind.startswith("hashed") else {"training": training}
        vectors = self.embedding(ids, **options)
        vectors = vectors["a"] if isinstance(vectors, dict) else vectors
        return tf.reduce_sum(
            vectors.flat_values if isinstance(vectors, tf.RaggedTensor) else vectors
        )

    def call(self, inputs, training=None):
        return inputs * self.place(lambda: self.look_up(training))

    def rows(self):
        """Returns the rows of keys 1, 2 and 3."""
        embedding = self.embedding
        if self.kind in ("collection", "collection_pooled", "columns"):
            return next(iter(embedding.tables.values())).lookup([1, 2, 3])
        return embedding.table.lookup([1, 2, 3])


def _fits(kind, form):
    takes_sparse = kind in ("pooled", "adaptive_pooled", "collection_pooled", "columns")
    if kind == "all2all":
        return form in ("array", "tensor", "variable")
    return form != "sparse" or takes_sparse or kind == "hashed_bag"


CASES = [(kind, form) for form in FORMS for kind in LAYERS if _fits(kind, form)]


@pytest.mark.cover("values")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_they_train_and_predict(case, place):
    kind, form = case
    model = Candidates(kind, form, place)
    model.compile(keras.optimizers.SGD(RATE), lambda _, outputs: keras.ops.mean(outputs))
    np.testing.assert_allclose(model.predict(INPUTS, verbose=0), IDS.size * DIM * INPUTS)
    model.fit(INPUTS, INPUTS, batch_size=len(INPUTS), epochs=STEPS, verbose=0)
    moved = STEPS * RATE * INPUTS.mean()
    if kind.startswith("hashed"):
        # Ids share slots of the weight, in which each element of each occurrence moves one.
        change = model.embedding.weight.numpy() - 1.0
        np.testing.assert_allclose(change.sum(), -moved * IDS.size * DIM, rtol=1e-6)
        return
    counts = np.bincount(IDS.ravel())[1:]
    expected = np.repeat(1.0 - moved * counts[:, np.newaxis], DIM, 1)
    np.testing.assert_allclose(model.rows(), expected, rtol=1e-6)
    predicted = INPUTS * (expected * counts[:, np.newaxis]).sum()
    np.testing.assert_allclose(model.predict(INPUTS, verbose=0), predicted, rtol=1e-6)
