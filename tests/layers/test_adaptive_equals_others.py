"""Where nothing is promoted it is a static embedding, where all is, a dynamic one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from adaptive_reference import BUCKETS, DIM, make
from keras import optimizers as ko
from keras_reference import SummedGradientEmbedding, mirrored

from sok_embed import DynamicEmbedding

BATCH, LENGTH, STEPS = 8, 10, 12
NEVER = {"promote_after": 65_535, "counter_bits": 16}
# A step moves only rows that a batch contains. Every batch has every bucket; these rules leave rows
# without a gradient alone also in Keras.
OPTIMIZERS = {
    "sgd": lambda: ko.SGD(0.1),
    "adagrad": lambda: ko.Adagrad(0.1),
    "ftrl": lambda: ko.Ftrl(0.1),
    "adam": lambda: ko.Adam(0.05),
}


@pytest.fixture(params=list(OPTIMIZERS))
def optimizer(request):
    return OPTIMIZERS[request.param]


def data(seed=0):
    random = np.random.default_rng(seed)
    keys = random.integers(-30, 30, (BATCH * STEPS, LENGTH))
    return keys, random.normal(size=(len(keys), 1)).astype(np.float32)


def model_of(layer, optimizer):
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int64"),
            layer,
            keras.layers.Flatten(),
            keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(1)),
        ]
    )
    model.compile(optimizer, "mse")
    return model


def fit(model, keys, targets):
    model.fit(keys, targets, batch_size=BATCH, shuffle=False, verbose=0)


@pytest.mark.cover(1)
def test_without_promotions_it_trains_like_a_keras_embedding_of_buckets(optimizer):
    keys, targets = data()
    ours, theirs = make(**NEVER), SummedGradientEmbedding(BUCKETS, DIM)
    buckets = ours.table.buckets(keys)
    assert all(
        len(np.unique(buckets[first : first + BATCH])) == BUCKETS
        for first in range(0, len(keys), BATCH)
    )
    _, one_of_each = np.unique(buckets, return_index=True)
    samples = keys.ravel()[one_of_each]
    start = ours.table.lookup(samples)
    models = [model_of(layer, optimizer()) for layer in (ours, theirs)]
    theirs.set_weights([start])
    for model, inputs in zip(models, (keys, buckets), strict=True):
        fit(model, inputs, targets)
    assert ours.table.size() == 0
    assert np.abs(ours.table.lookup(samples) - start).max() > 1e-2
    # This allows for float32; gradients of a row are summed in another order.
    np.testing.assert_allclose(
        ours.table.lookup(samples), theirs.get_weights()[0], rtol=0, atol=1e-5
    )


@pytest.mark.cover(1)
@pytest.mark.parametrize("slots", ["copy", "zero"])
def test_with_every_key_promoted_it_trains_like_a_dynamic_embedding(optimizer, slots):
    keys, targets = data()
    ours, theirs = make(promote_after=1, slots=slots), DynamicEmbedding(DIM)
    every = np.unique(keys)
    theirs.table.assign(every, ours.table.lookup_static(every))
    static = ours.table.lookup_static(every)
    for layer in (ours, theirs):
        fit(model_of(layer, optimizer()), keys, targets)
    assert ours.table.size() == len(every)
    np.testing.assert_allclose(
        ours.table.lookup(every), theirs.table.lookup(every), rtol=0, atol=1e-6
    )
    np.testing.assert_array_equal(ours.table.lookup_static(every), static)


@pytest.mark.cover(1)
def test_two_replicas_train_like_one(optimizer):
    keys, targets = data()
    tables = []
    for strategy in (None, mirrored()):
        keras.utils.clear_session()
        with strategy.scope() if strategy else tf.init_scope():
            layer = make(promote_after=15, seed=1)
            model = model_of(layer, optimizer())
        fit(model, keys, targets)
        tables.append(layer.table)
    one, two = tables
    assert 0 < one.size() < len(np.unique(keys))
    assert sorted(one.export()[0]) == sorted(two.export()[0])
    every = np.unique(keys)
    for read in ("lookup", "lookup_static"):
        ours, theirs = (getattr(table, read)(every) for table in tables)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert two.stats()["pending_gradients"] == 0
    assert one.stats()["lookups"] == two.stats()["lookups"] == keys.size


@pytest.mark.cover(1)
def test_a_graph_trains_like_eager_execution(optimizer):
    keys, targets = data()
    snapshots = []
    for eager in (False, True):
        keras.utils.clear_session()
        layer = make(promote_after=15, seed=1)
        model = model_of(layer, optimizer())
        model.run_eagerly = eager
        fit(model, keys, targets)
        snapshots.append(layer.table.lookup(np.unique(keys)))
    np.testing.assert_allclose(*snapshots, rtol=0, atol=1e-5)
