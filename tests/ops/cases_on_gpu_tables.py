"""Layers on a GPU of TensorFlow's; `test_guarded_device.py` runs this on a device of its own.

The device has memory that only kernels of the stand-in for a GPU may touch, so keys, vectors and
gradients that an op takes for ones of the host end the process. It computes nothing else, and all
other ops are on the CPU.
"""

import os

import guarded_device
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.client import device_lib  # noqa: F401, which makes the devices

from sok_embed import DynamicEmbedding, tf_ops

guarded_device.let_kernels_touch_memory(os.environ["SOK_CUDA_DRIVER"])

DIM = 4
GPU = guarded_device.DEVICE
KEYS = np.random.default_rng(5).integers(-40, 40, [96, 3])
TARGETS = np.random.default_rng(6).normal(size=[96, 1]).astype(np.float32)
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "accumulated": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.05),
    "clipvalue": lambda: keras.optimizers.Adagrad(0.1, clipvalue=0.01),
}


@pytest.fixture(autouse=True)
def rest_on_the_cpu():
    with tf.device("/device:CPU:0"):
        yield


def model_on(device, optimizer, **arguments):
    keras.utils.set_random_seed(1)
    embedding = DynamicEmbedding(DIM, seed=3, device=device, name="rows", **arguments)
    model = keras.Sequential(
        [keras.Input((3,), dtype="int64"), embedding, keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile(optimizer, "mse")
    return model


def fit(model):
    model.fit(KEYS, TARGETS, batch_size=32, epochs=2, shuffle=False, verbose=0)
    return model


def rows_of(model):
    found = model.layers[0].table.export(slots=True)
    order = np.argsort(found.keys)
    return [
        found.keys[order],
        found.embeddings[order],
        found.slots[order],
        found.update_nums[order],
    ]


def test_a_lookup_has_its_keys_and_vectors_on_the_gpu():
    layer = DynamicEmbedding(DIM, seed=3, device="gpu")
    layer.build()
    assert layer.table.lookup_device.endswith(GPU)
    table = layer.table
    found = tf_ops.lookup(
        table.resource_handle, tf.constant(KEYS), DIM, True, device=table.lookup_device
    )
    assert found.embeddings.device.endswith(GPU)
    start = DynamicEmbedding(DIM, seed=3).table.lookup(KEYS)
    np.testing.assert_array_equal(found.embeddings, start)
    assert table.size() == len(np.unique(KEYS))
    missing = tf_ops.lookup(
        table.resource_handle, tf.constant([99]), DIM, False, device=table.lookup_device
    )
    np.testing.assert_array_equal(missing.embeddings, layer.table.lookup([99]))
    assert table.size() == len(np.unique(KEYS))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fit_on_the_gpu_trains_rows_as_on_the_host(name):
    of_host, of_gpu = [
        rows_of(fit(model_on(device, OPTIMIZERS[name]()))) for device in ("cpu", "gpu")
    ]
    for found, expected in zip(of_gpu, of_host, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_an_eager_loop_trains_and_saves(tmp_path):
    found = []
    for device in ("cpu", "gpu"):
        model = model_on(device, "adam")
        # TensorFlow's own clipping goes where the gradient is, and computes there.
        optimizer = keras.optimizers.Adam(0.01, global_clipnorm=1.0)
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(KEYS, training=True) - TARGETS) ** 2)
            gradients = tape.gradient(loss, model.trainable_weights)
            optimizer.apply(gradients, model.trainable_weights)
        found.append(rows_of(model))
        model.save(tmp_path / f"{device}.keras")
    loaded = keras.models.load_model(tmp_path / "gpu.keras")
    np.testing.assert_array_equal(rows_of(loaded)[1], found[1][1])
    for of_gpu, of_host in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(of_gpu, of_host, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max"])
def test_bags_are_those_of_the_host(combiner):
    ids = tf.ragged.constant([[3, 5, 3], [], [7]], dtype=tf.int64)
    weights = None if combiner == "max" else ids.with_values([1.0, 0.5, 2.0, 0.25])
    layers = [
        DynamicEmbedding(DIM, seed=3, device=device, combiner=combiner) for device in ("cpu", "gpu")
    ]
    vectors = [layer(ids, weights=weights, training=True) for layer in layers]
    np.testing.assert_allclose(*vectors, rtol=1e-6, atol=1e-7)


def test_tables_with_an_eviction_are_looked_up_by_way_of_the_host():
    evicting = DynamicEmbedding(DIM, device="gpu", eviction="lru", max_rows=300)
    assert (evicting.table.device, evicting.table.lookup_device) == ("gpu:0", None)
    assert evicting(KEYS, training=True).shape == (*KEYS.shape, DIM)


def test_rows_that_go_between_lookup_and_step_are_made_anew():
    found = []
    for device in ("cpu", "gpu"):
        model = model_on(device, "sgd")
        optimizer = keras.optimizers.SGD(0.1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(KEYS, training=True) ** 2)
        gradients = tape.gradient(loss, model.trainable_weights)
        assert model.layers[0].table.remove([int(KEYS[0, 0])]) == 1
        optimizer.apply(gradients, model.trainable_weights)
        found.append(rows_of(model))
    for of_gpu, of_host in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(of_gpu, of_host, rtol=1e-6, atol=1e-6)


class Scorer(tf.Module):
    """Looks keys up in a function that may be saved."""

    def __init__(self):
        super().__init__()
        embedding = DynamicEmbedding(DIM, seed=3, device="gpu", name="rows")
        embedding(KEYS, training=True)
        embedding.trainable = False
        self.table = embedding.table
        self._look_up = lambda keys: embedding(keys)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def __call__(self, keys):
        return self._look_up(keys)


def test_a_saved_function_looks_up_on_the_gpu_where_it_is_loaded(tmp_path):
    scorer = Scorer()
    keys = tf.constant([int(KEYS[0, 0]), 99], tf.int64)
    tf.saved_model.save(scorer, tmp_path / "saved")
    operations = scorer.__call__.get_concrete_function().graph.get_operations()
    assert "SokEmbed>LookupOnGpu" in {operation.type for operation in operations}
    loaded = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded(keys), scorer(keys))


def test_a_full_table_is_an_error_of_the_op():
    layer = DynamicEmbedding(DIM, device="gpu", max_rows=10)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="at most 10 rows"):
        layer(KEYS, training=True)
    assert layer.table.size() == 0


def test_a_warning_tells_of_a_tensorflow_that_leaves_no_memory():
    with pytest.warns(UserWarning, match="set_memory_growth"):
        DynamicEmbedding(DIM, device="gpu")
