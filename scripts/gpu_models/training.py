"""Cases of this folder: ways to train, to save, and to use several devices and workers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from common import (
    BATCH,
    DIM,
    KEYS,
    Arrays,
    case,
    contents,
    device,
    examples,
    fitted,
    ids,
    loss_step,
    model_of,
    on_gpu,
    rows,
)

import sok_embed as sok


@case(0.0)
def sees_gpu() -> Arrays:
    """Multiplies on the GPU; whole numbers, so that it is exact."""
    with tf.device(device()):
        product = tf.constant(np.arange(64.0).reshape(8, 8)) @ tf.eye(8, dtype=tf.float64)
    assert product.device.endswith(device()), product.device
    return {"product": product.numpy()}


@case()
def fit_sgd() -> Arrays:
    return fitted(model_of(rows()), keras.optimizers.SGD(0.05, momentum=0.9))


@case(1e-3)
def fit_adam() -> Arrays:
    return fitted(model_of(rows()), "adam")


@case(1e-3)
def fit_adam_without_xla() -> Arrays:
    return fitted(model_of(rows()), "adam", jit_compile=False)


@case()
def fit_eagerly() -> Arrays:
    return fitted(model_of(rows()), "adagrad", examples(3), run_eagerly=True)


@case()
def placed_on_the_gpu() -> Arrays:
    """Leaves TensorFlow no choice, but for `fit`, whose datasets have ops for the CPU alone."""
    tf.config.set_soft_device_placement(False)
    with tf.device(device()):
        model = model_of(rows())
    return fitted(model, keras.optimizers.SGD(0.05))


@case()
def loop_placed_on_the_gpu() -> Arrays:
    """Trains in a function under a device, without a choice for TensorFlow."""
    tf.config.set_soft_device_placement(False)
    keys, targets = examples()
    with tf.device(device()):
        model, optimizer = model_of(rows()), keras.optimizers.Adagrad(0.05)
        step = tf.function(loss_step)
        losses = [
            float(step(model, optimizer, tf.constant(keys[i : i + BATCH]), targets[i : i + BATCH]))
            for i in range(0, len(keys), BATCH)
        ]
    return {"losses": losses, **contents(model)}


@case()
def accumulated_and_clipped() -> Arrays:
    found = {}
    for name, clip in {"norm": {"clipnorm": 0.01}, "all": {"global_clipnorm": 0.01}}.items():
        sgd = keras.optimizers.SGD(1.0, gradient_accumulation_steps=3, **clip)
        trained = fitted(model_of(rows()), sgd)
        found |= {f"{name}.{part}": value for part, value in trained.items()}
    return found


@case(5e-2)
def mixed_float16() -> Arrays:
    """Scales the loss; activations have 11 bits."""
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    model = model_of(rows())
    trained = fitted(model, keras.optimizers.SGD(0.05))
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    return trained


@case(0.0)
def zeros_of_variants() -> Arrays:
    """Makes zeros and sums of what lookups put out, as a tape does, where TensorFlow likes."""
    layer = sok.DynamicEmbedding(DIM, combiner="mean", name="rows", seed=3)
    keys = tf.constant(examples(1)[0])
    layer(keys)
    with tf.GradientTape(persistent=True) as tape:
        first, second = layer(keys, training=True), layer(keys + 1, training=True)
        losses = [tf.reduce_sum(first), tf.reduce_sum(first * second)]
    weights = layer.trainable_variables
    optimizer = keras.optimizers.SGD(0.5)
    for loss in losses:
        optimizer.apply(tape.gradient(loss, weights, unconnected_gradients="zero"), weights)
    return {"rows": layer.table.lookup(np.arange(-100, 100))}


@case(1e-3)
def saved_and_loaded() -> Arrays:
    """Goes on from a `.keras` file, from a checkpoint and in a SavedModel."""
    keys, targets = examples()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(rows())
        found |= fitted(model, "adam")
        predicted = model.predict(keys, BATCH, verbose=0)
        manager = sok.checkpoint.CheckpointManager(
            sok.checkpoint.Checkpoint(model=model, optimizer=model.optimizer), f"{folder}/points"
        )
        manager.save()
        sok.save_model(model, f"{folder}/model.keras")
        loaded = keras.saving.load_model(f"{folder}/model.keras")
        np.testing.assert_array_equal(loaded.predict(keys, BATCH, verbose=0), predicted)
        loaded.fit(keys, targets, BATCH, shuffle=False, verbose=0)
        model.fit(keys, targets, BATCH, shuffle=False, verbose=0)
        np.testing.assert_allclose(loaded.predict(keys), model.predict(keys), atol=1e-5)
        manager.restore_or_initialize()
        np.testing.assert_array_equal(model.predict(keys, BATCH, verbose=0), predicted)
        model.export(f"{folder}/served", verbose=False)
        served = tf.saved_model.load(f"{folder}/served")
        np.testing.assert_allclose(served.serve(tf.constant(keys)), predicted, atol=1e-5)
    return found


@case()
def rows_on_disk() -> Arrays:
    with tempfile.TemporaryDirectory() as folder, sok.Storage(f"{folder}/rows") as storage:
        return fitted(model_of(rows(storage=storage)), "adagrad")


@case()
def mirrored() -> Arrays:
    """Trains by `fit` and by `strategy.run` in a strategy of one replica."""
    found = {}
    keys, targets = examples()
    data = tf.data.Dataset.from_tensor_slices((keys, targets)).batch(BATCH)
    strategy = tf.distribute.MirroredStrategy([device()])
    with strategy.scope():
        model, other = model_of(rows()), model_of(rows())
        model.compile(keras.optimizers.Adagrad(0.05), "mse")
        optimizer = keras.optimizers.Adagrad(0.05)
        optimizer.build(other.trainable_variables)
    found["fit"] = model.fit(data, epochs=2, verbose=0).history["loss"]
    step = tf.function(lambda *batch: strategy.run(loss_step, (other, optimizer, *batch)))
    found["loop"] = [
        float(step(*batch)) for batch in strategy.experimental_distribute_dataset(data)
    ]
    return found | contents(other)


@case(1e-3)
def workers() -> Arrays:
    """Has two processes train over TCP, on one GPU, like one with batches of all."""
    return trained_by_workers("cpu")


@case(1e-3)
def table_of_workers() -> Arrays:
    """Has each of the two keep its rows on the GPU, and look them up there."""
    return trained_by_workers("gpu" if on_gpu() else "cpu")


def trained_by_workers(table_device: str) -> Arrays:
    """Trains by one process, and by two, whose rows have to be those of the one."""
    found = {}
    for count in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                str(Path(__file__).with_name("cases.py")),
                f"worker_{table_device}",
                folder,
            ]
            launcher = [sys.executable, "-m", "sok_embed", "run", "-np", str(count), "--"]
            subprocess.run([*launcher, *command], check=True, cwd=folder)
            parts = [dict(np.load(f"{folder}/{rank}.npz")) for rank in range(count)]
        losses = np.mean([part["losses"] for part in parts], 0)
        joined = {"losses": losses, "kernel": parts[0]["weight.0"]}
        keys = np.concatenate([part["rows.keys"] for part in parts])
        joined["rows"] = np.concatenate([part["rows.rows"] for part in parts])[np.argsort(keys)]
        if count == 2:
            np.testing.assert_array_equal(parts[1]["weight.0"], parts[0]["weight.0"])
            for name, value in joined.items():
                np.testing.assert_allclose(value, found[name], rtol=1e-3, atol=1e-4)
        found = joined
    return found


def work(folder: str, table_device: str) -> None:
    """Trains as one worker, on its part of each batch, with its rows on a device."""
    sok.init()
    if on_gpu() and sok.size() > 1:
        gpu = tf.config.get_visible_devices("GPU")[0]
        assert tf.config.experimental.get_memory_growth(gpu)
    keras.utils.set_random_seed(1)
    keys, targets = examples()
    part = np.arange(len(keys)) * sok.size() // BATCH % sok.size() == sok.rank()
    layer = rows(device=table_device)
    looks_up_there = layer.table.lookup_device or layer.table.exchange_device
    assert (looks_up_there is not None) == (table_device == "gpu")
    model = model_of(layer)
    model.compile(sok.DistributedOptimizer(keras.optimizers.Adam(1e-3)), "mse")
    first = sok.callbacks.BroadcastVariables(0)
    losses = model.fit(
        keys[part],
        targets[part],
        BATCH // sok.size(),
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[first],
    ).history["loss"]
    np.savez(f"{folder}/{sok.rank()}.npz", losses=losses, **contents(model))


@case()
def mirrored_others() -> Arrays:
    found = {}
    keys, targets = ids()
    layers = {
        "adaptive": lambda: sok.AdaptiveEmbedding(DIM, 50, promote_after=2, name="rows", seed=3),
        "hashed": lambda: sok.HashedEmbedding(KEYS, DIM, 1 / 8),
        "sparse": lambda: sok.HashedEmbedding(KEYS, DIM, 1 / 8, sparse_gradient=True),
        "all": lambda: sok.DynamicEmbedding(
            DIM, max_rows=KEYS, eviction="lru", name="rows", seed=3
        ),
    }
    for name, make in layers.items():
        with tf.distribute.MirroredStrategy([device()]).scope():
            model = model_of(make())
            model.compile(keras.optimizers.SGD(0.05), "mse")
        found[name] = model.fit(keys, targets, BATCH, shuffle=False, verbose=0).history["loss"]
        found[f"{name}.predicted"] = model.predict(keys, BATCH, verbose=0)
    return found
