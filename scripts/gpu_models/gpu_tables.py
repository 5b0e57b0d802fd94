"""Cases of this folder whose rows lie in the memory of the GPU; on the CPU in the other process."""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import BATCH, DIM, Arrays, case, examples, fitted, model_of, on_gpu, rows
from layers import trained_collection, trained_column

import sok_embed as sok


def gpu_rows(**arguments: Any) -> Any:
    """Makes a layer whose rows lie on the GPU, and whose lookups run there, if there is one."""
    layer = rows(device="gpu" if on_gpu() else "cpu", **arguments)
    assert (layer.table.lookup_device is not None) == (on_gpu() and "eviction" not in arguments)
    return layer


@case()
def table_fit_sgd() -> Arrays:
    return fitted(model_of(gpu_rows()), keras.optimizers.SGD(0.05, momentum=0.9))


@case(1e-3)
def table_fit_adam() -> Arrays:
    return fitted(model_of(gpu_rows()), "adam")


@case()
def table_fit_eagerly() -> Arrays:
    return fitted(model_of(gpu_rows()), "adagrad", examples(3), run_eagerly=True)


@case()
def table_accumulated_and_clipped() -> Arrays:
    sgd = keras.optimizers.SGD(1.0, gradient_accumulation_steps=3, global_clipnorm=0.01)
    return fitted(model_of(gpu_rows()), sgd)


@case(5e-2)
def table_mixed_float16() -> Arrays:
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    return fitted(model_of(gpu_rows()), keras.optimizers.SGD(0.05))


@case()
def table_bags() -> Arrays:
    return fitted(model_of(gpu_rows(combiner="mean"), flatten=False), "adagrad")


@case()
def table_collection() -> Arrays:
    """Has one lookup and one deposit of three tables, one of which no loss uses."""
    return trained_collection("gpu" if on_gpu() else "cpu")


@case()
def table_of_a_column() -> Arrays:
    """Has own and static rows on the GPU, where they are looked up and trained."""
    return trained_column("gpu" if on_gpu() else "cpu")


@case()
def table_adaptive() -> Arrays:
    device = "gpu" if on_gpu() else "cpu"
    layer = sok.AdaptiveEmbedding(DIM, 50, promote_after=2, name="rows", seed=3, device=device)
    return fitted(model_of(layer), keras.optimizers.Adagrad(0.05))


@case()
def table_with_an_eviction() -> Arrays:
    """Has as many rows as keys: ties are evicted in another order on a GPU."""
    return fitted(model_of(gpu_rows(eviction="lru", max_rows=4000)), "adagrad")


@case()
def table_many_steps_a_call() -> Arrays:
    """Runs four steps in one function, whose lookups must follow the commits before them."""
    return fitted(model_of(gpu_rows()), keras.optimizers.SGD(0.05), steps_per_execution=4)


@case(1e-3)
def table_saved_and_loaded() -> Arrays:
    """Takes rows to the host and back, bit for bit, and goes on from each."""
    keys, targets = examples()
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(gpu_rows())
        found = fitted(model, "adam")
        model.save(f"{folder}/model.keras")
        loaded = keras.saving.load_model(f"{folder}/model.keras")
        on_host = model_of(rows(device="cpu"))
        on_host.compile("adam", "mse")
        on_host.optimizer.build(on_host.trainable_variables)
        on_host.get_layer("rows").table.restore(model.get_layer("rows").table.snapshot())
        for other in (loaded, on_host):
            both = [each.get_layer("rows").table.export() for each in (model, other)]
            (keys_a, rows_a), (keys_b, rows_b) = [
                (held[np.argsort(held)], vectors[np.argsort(held)]) for held, vectors in both
            ]
            np.testing.assert_array_equal(keys_a, keys_b)
            np.testing.assert_array_equal(rows_a, rows_b)
        for each in (model, loaded):
            each.fit(keys, targets, BATCH, shuffle=False, verbose=0)
        np.testing.assert_allclose(
            loaded.predict(keys, verbose=0), model.predict(keys, verbose=0), atol=1e-5
        )
    return found


@case(0.0)
def table_grows_removes_and_counts() -> Arrays:
    """Grows far beyond its first memory, and takes rows out again."""
    layer = gpu_rows()
    layer.build()
    table = layer.table
    for step in range(8):
        layer(tf.range(200_000 * step, 200_000 * (step + 1), dtype=tf.int64), training=True)
    sizes = [table.size(), table.remove(np.arange(0, 1_600_000, 2)), table.size()]
    return {"sizes": np.array(sizes), "rows": table.lookup(np.arange(0, 1_600_000, 997))}
