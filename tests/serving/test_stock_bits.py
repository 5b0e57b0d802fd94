"""TensorFlow computes what an export with its own ops pools apart from the layers that follow."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import served_models as models
import tensorflow as tf
from tiers import long

import sok_embed as sok
from sok_embed.serving import export

# A power of two as the divisor of a mean would hide a wrong order.
LENGTHS = [3, 11, None]
LAYERS = {
    "dynamic": lambda mode: models.dynamic(mode),
    "collection": lambda mode: models.collection(mode),
    "adaptive": lambda mode: models.adaptive(mode),
    "hashed": lambda mode: sok.HashedEmbeddingBag(1000, 8, 0.05, seed=1, mode=mode),
}
FOLLOWING = {
    "normalized": lambda each: keras.layers.BatchNormalization()(each),
    "scaled": lambda each: keras.layers.Rescaling(0.3, 0.7)(each),
    "divided": lambda each: keras.layers.Lambda(lambda x: x / 3.7)(each),
    "by column": lambda each: keras.layers.Lambda(
        lambda x: x * np.arange(1, x.shape[-1] + 1, dtype=np.float32) / 7 + 0.1
    )(each),
}


IN_EACH_RUN = [
    (3, "mean", "dynamic", "normalized"),
    (11, "sqrtn", "collection", "scaled"),
    (3, "sqrtn", "dynamic", "divided"),
    (None, "mean", "hashed", "by column"),
]
OTHERS = itertools.product(LENGTHS, ["mean", "sum", "sqrtn"], LAYERS, FOLLOWING)


@pytest.mark.parametrize(
    "length, mode, layer, following", [*IN_EACH_RUN, *(long(*each) for each in OTHERS)]
)
def test_layers_that_follow_do_not_change_the_bits(length, mode, layer, following, tmp_path):
    if layer in ("adaptive", "hashed") and mode == "sqrtn":
        # The first divides by ops of the model, which TensorFlow may replace by a product.
        mode = "mean"
    random = np.random.default_rng(1)
    ids = keras.Input((length,), dtype="int64", name="ids", ragged=length is None)
    vectors = LAYERS[layer](mode)(ids)
    if isinstance(vectors, dict):
        (vectors,) = vectors.values()
    model = keras.Model(ids, FOLLOWING[following](vectors))
    if length is None:
        bags = [random.integers(0, 50, random.integers(1, 6)).tolist() for _ in range(60)]
        fed = {"ids": tf.ragged.constant(bags, tf.int64)}
    else:
        fed = {"ids": tf.constant(random.integers(0, 50, [60, length]))}
    model.compile(keras.optimizers.SGD(5.0), "mse")
    targets = random.normal(size=[60, *model.output.shape[1:]]).astype(np.float32)
    model.fit(tf.data.Dataset.from_tensors((fed, targets)), epochs=3, verbose=0)
    folder = export(model, tmp_path, ops="stock")
    models.assert_same_bits(models.answered(folder, fed), models.predicted(model, fed))
