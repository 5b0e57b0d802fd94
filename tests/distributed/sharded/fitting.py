"""Training by `fit`."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import gpu_standin
import keras
import numpy as np
from strange_optimizer import RootMomentum

import sok_embed
from sharded.models import (
    GLOBAL_BATCH,
    OPTIMIZERS,
    SAMPLES,
    TABLES,
    all_layers_inputs,
    all_layers_model,
    contents,
    dense,
    keys_and_targets,
    one_table_model,
    share,
)
from sharded.registry import Here, scenario


def fit(model: Any, inputs: Any, targets: Any, here: Here, **arguments: Any) -> None:
    model.fit(
        keras.tree.map_structure(lambda array: share(array, here), inputs),
        share(targets, here),
        batch_size=GLOBAL_BATCH // here.size,
        shuffle=False,
        verbose=0,
        **arguments,
    )


def _fit_all_layers(here: Here, optimizer: str) -> dict[str, Any]:
    model = all_layers_model(here)
    model.compile(sok_embed.DistributedOptimizer(OPTIMIZERS[optimizer]()), "mse")
    targets = np.random.default_rng(1).normal(size=(SAMPLES, 1))
    fit(model, all_layers_inputs(0), targets, here)
    saved = contents(model)
    # There are other keys too, and not as many on each worker as there are workers.
    saved["predictions"] = model.predict(all_layers_inputs(5, 17), batch_size=8, verbose=0)
    saved["sizes_after_predict"] = [model.get_layer(name).table.size() for name in TABLES]
    return saved


@scenario
def fit_sgd(here: Here) -> dict[str, Any]:
    return _fit_all_layers(here, "sgd")


@scenario
def fit_adam(here: Here) -> dict[str, Any]:
    return _fit_all_layers(here, "adam")


@scenario
def gradient_accumulation(here: Here) -> dict[str, Any]:
    model = one_table_model()
    optimizer = keras.optimizers.Adam(0.05, gradient_accumulation_steps=2)
    model.compile(sok_embed.DistributedOptimizer(optimizer), "mse")
    keys, targets = keys_and_targets()
    fit(model, keys[:48], targets[:48], here)
    return contents(model)


def _fit_clipped(here: Here, of_rows: Any = None, **options: Any) -> dict[str, Any]:
    model = one_table_model(of_rows)
    optimizer = keras.optimizers.SGD(0.5, **options)
    model.compile(sok_embed.DistributedOptimizer(optimizer), "mse")
    keys, targets = keys_and_targets()
    fit(model, keys[:48], targets[:48], here)
    return contents(model)


@scenario
def unclipped(here: Here) -> dict[str, Any]:
    return _fit_clipped(here)


@scenario
def clipped_by_norm(here: Here) -> dict[str, Any]:
    return _fit_clipped(here, clipnorm=0.02)


@scenario
def clipped_by_norm_in_the_layer(here: Here) -> dict[str, Any]:
    """The optimizer of the layer clips, and that of the model does not."""
    return _fit_clipped(here, keras.optimizers.SGD(0.5, clipnorm=0.02))


@scenario
def clipped_by_the_norm_of_all(here: Here) -> dict[str, Any]:
    return _fit_clipped(here, global_clipnorm=0.03)


@scenario
def clipped_by_value(here: Here) -> dict[str, Any]:
    return _fit_clipped(here, clipvalue=0.003)


@scenario
def clipped_windows(here: Here) -> dict[str, Any]:
    return _fit_clipped(here, global_clipnorm=0.03, gradient_accumulation_steps=2)


@scenario
def an_overflow_on_one_worker(here: Here) -> dict[str, Any]:
    model = one_table_model()
    inner = keras.optimizers.SGD(0.5, global_clipnorm=0.03)
    scaling = keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=2)
    model.compile(sok_embed.DistributedOptimizer(scaling), "mse")
    keys, targets = keys_and_targets()
    targets = targets[:48].copy()
    targets[GLOBAL_BATCH] = np.inf  # one worker meets it, in the second step
    fit(model, keys[:48], targets, here)
    return {**contents(model), "scale": float(model.optimizer.dynamic_scale)}


def _fit_scaled(here: Here, exponent: int, **options: Any) -> dict[str, Any]:
    model = one_table_model()
    scaling = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.5, **options),
        initial_scale=2.0**exponent,
        dynamic_growth_steps=10**6,
    )
    model.compile(sok_embed.DistributedOptimizer(scaling), "mse")
    keys, targets = keys_and_targets()
    fit(model, keys[:48], targets[:48], here)
    return {**contents(model), "scale": float(model.optimizer.dynamic_scale)}


@scenario
def a_large_loss_scale(here: Here) -> dict[str, Any]:
    return _fit_scaled(here, 120)


@scenario
def a_large_loss_scale_and_a_norm(here: Here) -> dict[str, Any]:
    return _fit_scaled(here, 100, global_clipnorm=0.03)


@scenario
def a_small_loss_scale_and_a_norm(here: Here) -> dict[str, Any]:
    return _fit_scaled(here, -40, global_clipnorm=0.03)


@scenario
def regularized(here: Here) -> dict[str, Any]:
    """Rows are constrained too."""
    of_row = {"regularizer": "l2", "constraint": keras.constraints.MaxNorm(0.1, axis=1)}
    return _fit_every_row(here, keras.optimizers.SGD(0.5), of_row)


@scenario
def own_formula(here: Here) -> dict[str, Any]:
    """The optimizer has an `update_step` of its own, and clips by norm."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has an update_step of its own")
        return _fit_every_row(here, RootMomentum(0.1, global_clipnorm=0.01), {})


def _fit_every_row(here: Here, optimizer: Any, of_row: dict[str, Any]) -> dict[str, Any]:
    """Trains a layer and a collection. Every example has every row, as the whole batch has."""
    _, targets = keys_and_targets()
    keys = np.random.default_rng(2).permuted(np.tile(np.arange(3), (len(targets), 1)), axis=1)
    table = sok_embed.TableConfig("rows", None, 4, combiner=None, seed=1, **of_row)
    of_layer = {f"embeddings_{name}": value for name, value in of_row.items()}
    layers = [
        sok_embed.DynamicEmbedding(4, name="dynamic", **of_layer),
        sok_embed.DistributedEmbedding(sok_embed.FeatureConfig("keys", table), name="collection"),
    ]
    inputs = keras.Input((3,), dtype="int64")
    vectors = keras.layers.Concatenate()([layer(inputs) for layer in layers])
    model = keras.Model(inputs, dense()(keras.layers.Flatten()(vectors)))
    model.compile(sok_embed.DistributedOptimizer(optimizer), "mse")
    fit(model, keys, targets, here)
    keys, rows = layers[1].tables["rows"].export()
    untrained = type(layers[1]).from_config(layers[1].get_config()).tables["rows"].lookup(keys)
    found = {"rows.keys": keys, "rows.rows": rows, "rows.untrained": untrained}
    return {**contents(model), **found}


@scenario
def rows_on_a_gpu(here: Here) -> dict[str, Any]:
    """Rows of three layers lie on a stand-in for a GPU, and in a second model on the host."""
    if not gpu_standin.is_built():
        return {}
    gpu_standin.use(tempfile.mkdtemp())
    found: dict[str, Any] = {}
    for device in ("gpu", "cpu"):
        inputs = keras.Input((3,), dtype="int64")
        dynamic = sok_embed.DynamicEmbedding(4, name="dynamic", seed=1, device=device)
        all2all = sok_embed.All2AllDenseEmbedding(
            100, 4, 3, 1, name="all2all", seed=1, device=device
        )
        adaptive = sok_embed.AdaptiveEmbedding(4, 10, name="adaptive", seed=1, device=device)
        vectors = [dynamic(inputs), all2all(keras.ops.expand_dims(inputs, -1))[:, :, 0]]
        hidden = keras.layers.Concatenate()([*vectors, adaptive(inputs)])
        model = keras.Model(inputs, dense()(keras.layers.Flatten()(hidden)))
        model.compile(sok_embed.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
        fit(model, *keys_and_targets(), here)
        saved = contents(model)
        found |= saved if device == "gpu" else {f"host.{name}": saved[name] for name in saved}
        layers = (dynamic, all2all, adaptive)
        found[f"{device}.devices"] = [layer.table.device for layer in layers]
    return found


@scenario
def static_embedding_beside_a_table(here: Here) -> dict[str, Any]:
    """The gradient of a static embedding is an IndexedSlices."""
    keys = keras.Input((3,), dtype="int64")
    vectors = [
        sok_embed.DynamicEmbedding(4, name="dynamic")(keys),
        keras.layers.Embedding(
            20, 4, name="static", embeddings_initializer=keras.initializers.RandomUniform(seed=5)
        )(keras.ops.mod(keys, 20)),
    ]
    model = keras.Model(keys, dense()(keras.layers.Flatten()(keras.layers.Add()(vectors))))
    model.compile(sok_embed.DistributedOptimizer(keras.optimizers.SGD(0.5)), "mse")
    fit(model, *keys_and_targets(), here)
    return contents(model)


def _fit_with_policy(here: Here, policy: str) -> dict[str, Any]:
    keras.config.set_dtype_policy(policy)
    try:
        model = one_table_model()
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(sok_embed.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    fit(model, *keys_and_targets(), here)
    return {**contents(model), "compute_dtype": model.get_layer("dynamic").compute_dtype}


@scenario
def mixed_bfloat16(here: Here) -> dict[str, Any]:
    return _fit_with_policy(here, "mixed_bfloat16")


@scenario
def bfloat16(here: Here) -> dict[str, Any]:
    return _fit_with_policy(here, "bfloat16")


@scenario
def broadcast_variables(here: Here) -> dict[str, Any]:
    """Workers start with other weights, and with another state of the optimizer."""
    root = here.size - 1
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int64"),
            sok_embed.DynamicEmbedding(4, name="dynamic", seed=11),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(1, name="dense"),
        ]
    )
    optimizer = sok_embed.DistributedOptimizer(keras.optimizers.Adam(0.0))
    optimizer.build(model.trainable_variables)
    own = np.full([12, 1], 1.0 + here.rank)
    model.get_layer("dense").set_weights([own, own[0]])
    model.get_layer("norm").set_weights([np.full(12, 2.0 + here.rank)] * 4)
    optimizer.iterations.assign(100 * (1 + here.rank))
    model.compile(optimizer, "mse")
    start = {**contents(model), "iterations": int(optimizer.iterations)}
    seen: dict[str, Any] = {}
    look = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen.update(
            seen or {**contents(model), "iterations": int(optimizer.iterations)}
        )
    )
    callbacks = [sok_embed.callbacks.BroadcastVariables(root_rank=root), look]
    fit(model, *keys_and_targets(), here, callbacks=callbacks)
    names = [name for name in seen if name.startswith("weight.") or name == "iterations"]
    return {
        f"{when}.{n}": arrays[n]
        for when, arrays in (("start", start), ("begin", seen))
        for n in names
    }
