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
from gpu_tables import (
    DIM,
    KEYS,
    OPTIMIZERS,
    TARGETS,
    assert_same,
    contents,
    fit,
    layer,
    model_with,
)
from tensorflow.python.client import device_lib  # noqa: F401, which makes the devices

from sok_embed import tf_ops

guarded_device.let_kernels_touch_memory(os.environ["SOK_CUDA_DRIVER"])

GPU = guarded_device.DEVICE


@pytest.fixture(autouse=True)
def rest_on_the_cpu():
    with tf.device("/device:CPU:0"):
        yield


def test_a_lookup_has_its_keys_and_vectors_on_the_gpu():
    table = layer("gpu").table
    assert table.lookup_device.endswith(GPU)
    found = tf_ops.lookup_on_gpu(
        table.resource_handle, tf.constant(KEYS), DIM, True, table.lookup_device
    )
    assert found.device.endswith(GPU)
    start = layer("cpu").table.lookup(KEYS)
    np.testing.assert_array_equal(found, start)
    assert table.size() == len(np.unique(KEYS))
    missing = tf_ops.lookup_on_gpu(
        table.resource_handle, tf.constant([99]), DIM, False, table.lookup_device
    )
    np.testing.assert_array_equal(missing, table.lookup([99]))
    assert table.size() == len(np.unique(KEYS))


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fit_on_the_gpu_trains_rows_as_on_the_host(name):
    of_host, of_gpu = [
        contents(fit(model_with(layer(device), OPTIMIZERS[name]()), epochs=2).layers[0].table)
        for device in ("cpu", "gpu")
    ]
    assert_same(of_gpu, of_host, 1e-6)


def test_an_eager_loop_trains_and_saves(tmp_path):
    found = []
    for device in ("cpu", "gpu"):
        model = model_with(layer(device), "adam")
        # TensorFlow's own clipping goes where the gradient is, and computes there.
        optimizer = keras.optimizers.Adam(0.01, global_clipnorm=1.0)
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(KEYS, training=True) - TARGETS) ** 2)
            gradients = tape.gradient(loss, model.trainable_weights)
            optimizer.apply(gradients, model.trainable_weights)
        found.append(contents(model.layers[0].table))
        model.save(tmp_path / f"{device}.keras")
    loaded = keras.models.load_model(tmp_path / "gpu.keras")
    assert_same(contents(loaded.layers[0].table), found[1])
    assert_same(found[1], found[0], 1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max"])
def test_bags_are_those_of_the_host(combiner):
    ids = tf.ragged.constant([[3, 5, 3], [], [7]], dtype=tf.int64)
    weights = None if combiner == "max" else ids.with_values([1.0, 0.5, 2.0, 0.25])
    layers = [layer(device, combiner=combiner) for device in ("cpu", "gpu")]
    vectors = [each(ids, weights=weights, training=True) for each in layers]
    np.testing.assert_allclose(*vectors, rtol=1e-6, atol=1e-7)


def test_tables_with_an_eviction_are_looked_up_by_way_of_the_host():
    evicting = layer("gpu", eviction="lru", max_rows=300)
    assert (evicting.table.device, evicting.table.lookup_device) == ("gpu:0", None)
    assert evicting(KEYS, training=True).shape == (*KEYS.shape, DIM)


def test_rows_that_go_between_lookup_and_step_are_made_anew():
    found = []
    for device in ("cpu", "gpu"):
        model = model_with(layer(device), "sgd")
        optimizer = keras.optimizers.SGD(0.1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(KEYS, training=True) ** 2)
        gradients = tape.gradient(loss, model.trainable_weights)
        assert model.layers[0].table.remove([int(KEYS[0, 0])]) == 1
        optimizer.apply(gradients, model.trainable_weights)
        found.append(contents(model.layers[0].table))
    assert_same(found[1], found[0], 1e-6)


class Scorer(tf.Module):
    """Looks keys up in a function that may be saved."""

    def __init__(self):
        super().__init__()
        embedding = layer("gpu")
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
    assert "SokEmbed>LookupPooled" in {operation.type for operation in operations}
    loaded = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded(keys), scorer(keys))


@pytest.mark.parametrize(
    ("variable", "value", "got"),
    [("SOK_STANDIN_GPUS", "0", "memory of the host"), ("SOK_STANDIN_BYTES", "1000", "the host")],
)
def test_a_saved_function_that_finds_no_gpu_copies_and_warns_once(
    variable, value, got, tmp_path, monkeypatch, capfd
):
    scorer = Scorer()
    keys = tf.constant([int(KEYS[0, 0]), 99, int(KEYS[1, 0]), 7], tf.int64)
    expected = scorer(keys)
    tf.saved_model.save(scorer, tmp_path / "saved")
    monkeypatch.setenv(variable, value)
    loaded = tf.saved_model.load(tmp_path / "saved")
    capfd.readouterr()
    for _ in range(3):
        np.testing.assert_array_equal(loaded(keys), expected)
    assert loaded(keys[:0]).shape == (0, DIM)
    said = [line for line in capfd.readouterr().err.splitlines() if "copies its keys" in line]
    assert len(said) == 1
    assert f"expected rows in the memory of /job:localhost/replica:0/task:0{GPU}" in said[0]
    assert got in said[0]


def test_a_table_says_why_a_saved_model_has_it_on_the_host(tmp_path, monkeypatch, capfd):
    tf.saved_model.save(Scorer(), tmp_path / "saved")
    monkeypatch.setenv("SOK_STANDIN_GPUS", "0")
    tf.saved_model.load(tmp_path / "saved")
    said = capfd.readouterr().err
    assert "expected GPU 0" in said
    assert "Expected a GPU. Received: a process that sees none." in said


@pytest.mark.cover("values")
@pytest.mark.parametrize("device", ["cpu", "gpu:1"])
@pytest.mark.parametrize("name", ["adam", "clipnorm"])
@pytest.mark.parametrize("eager", [False, True])
def test_rows_that_lie_elsewhere_than_the_lookup_runs_are_trained(device, name, eager, monkeypatch):
    """The table of a graph that was saved with another number of GPUs is one such."""
    monkeypatch.setenv("SOK_STANDIN_GPUS", "2")
    found = []
    for each in ("cpu", device):
        embedding = layer(each)
        if len(found) == 1:
            embedding.table.lookup_device = GPU
        model = model_with(embedding, OPTIMIZERS[name]())
        model.run_eagerly = eager
        found.append(contents(fit(model).layers[0].table))
        if len(found) == 1:
            expected = model.predict(KEYS, verbose=0)
    assert embedding.table.device == device
    assert_same(found[1], found[0], 0 if device == "cpu" else 1e-6)
    np.testing.assert_allclose(model.predict(KEYS, verbose=0), expected, rtol=1e-5)


def test_a_table_whose_policy_asks_the_host_is_looked_up_by_copies(capfd):
    embedding = layer("gpu", eviction="lru", max_rows=300)
    embedding.table.lookup_device = GPU
    assert embedding(KEYS, training=True).shape == (*KEYS.shape, DIM)
    assert embedding.table.size() == len(np.unique(KEYS))
    assert "got rows in the memory of GPU 0, which only the host looks up" in capfd.readouterr().err


def test_a_full_table_is_an_error_of_the_op():
    full = layer("gpu", max_rows=10)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="at most 10 rows"):
        full(KEYS, training=True)
    assert full.table.size() == 0


def test_a_warning_tells_of_a_tensorflow_that_leaves_no_memory():
    with pytest.warns(UserWarning, match="set_memory_growth"):
        layer("gpu")
