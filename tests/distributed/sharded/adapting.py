"""Training of adaptive tables, whose buckets are spread over the workers."""

from __future__ import annotations

import tempfile
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.fitting import fit
from sharded.loops import ANY_SHAPE, UNEVEN, step_of, train_uneven
from sharded.models import OPTIMIZERS, contents, dense, keys_and_targets, share
from sharded.registry import Here, scenario

BUCKETS = 31
EVERY_KEY = np.arange(-45, 45)
# A batch has flat keys, row lengths, targets.
ANY_RAGGED = [
    tf.TensorSpec([None], tf.int64),
    tf.TensorSpec([None], tf.int64),
    tf.TensorSpec([None, 1], tf.float32),
]


def _layer(**arguments: Any) -> sok_embed.AdaptiveEmbedding:
    # Counts are exact, and those of 180 lookups of 80 keys reach 3 in the middle of it.
    given = {"output_dim": 4, "static_buckets": BUCKETS, "promote_after": 3, "name": "adaptive"}
    return sok_embed.AdaptiveEmbedding(**{**given, **arguments})


def _model(layer: Any) -> Any:
    layers = [keras.Input((3,), dtype="int64"), layer, keras.layers.Flatten(), dense()]
    return keras.Sequential(layers)


def _saved(model: Any) -> dict[str, Any]:
    """Own rows and static rows of this worker, by key; figures; dense weights."""
    layer = next(layer for layer in model.layers if layer.name == "adaptive")
    table = layer.table
    saved = {**contents(model), "stats": [layer.stats()[n] for n in ("promoted", "lookups")]}
    buckets = table.buckets(EVERY_KEY)
    mine = EVERY_KEY[buckets % table.owners == table.owner]
    saved["static.keys"], saved["static.rows"] = mine, table.lookup_static(mine)
    saved["static.untrained"] = type(layer).from_config(layer.get_config()).table.lookup(mine)
    saved["owners"] = table.buckets(table.export()[0]) % table.owners
    return saved


def _fit(here: Here, optimizer: str, **arguments: Any) -> dict[str, Any]:
    model = _model(_layer(**arguments))
    model.compile(sok_embed.DistributedOptimizer(OPTIMIZERS[optimizer]()), "mse")
    fit(model, *keys_and_targets(), here)
    saved = _saved(model)
    before = model.get_layer("adaptive").table.snapshot().by_name()
    saved["predictions"] = model.predict(keys_and_targets()[0] + 3, batch_size=8, verbose=0)
    after = model.get_layer("adaptive").table.snapshot().by_name()
    saved["unchanged"] = all(np.array_equal(ours, after[name]) for name, ours in before.items())
    return saved


@scenario
def adaptive_sgd(here: Here) -> dict[str, Any]:
    return _fit(here, "sgd")


@scenario
def adaptive_adam(here: Here) -> dict[str, Any]:
    return _fit(here, "adam")


@scenario
def adaptive_all_own(here: Here) -> dict[str, Any]:
    return _fit(here, "sgd", mask=1)


@scenario
def adaptive_uneven(here: Here) -> dict[str, Any]:
    """Some workers have no samples in some steps."""
    model = _model(_layer())
    step = step_of(model, sok_embed.DistributedOptimizer(OPTIMIZERS["sgd"]()))
    train_uneven(model, tf.function(step, input_signature=ANY_SHAPE), UNEVEN[here.size], here)
    return _saved(model)


@scenario
def adaptive_masked(here: Here) -> dict[str, Any]:
    """Masks of all three kinds; in one step a worker has static keys only."""
    keys, targets = keys_and_targets()
    random = np.random.default_rng(5)
    masks = random.choice([-1, -1, 0, 1], keys.shape).astype(np.int32)
    masks[:12:2] = 0
    inputs, mask = keras.Input((3,), dtype="int64"), keras.Input((3,), dtype="int32")
    embedded = _layer()(inputs, mask=mask)
    model = keras.Model([inputs, mask], dense()(keras.layers.Flatten()(embedded)))
    model.compile(sok_embed.DistributedOptimizer(OPTIMIZERS["adam"]()), "mse")
    fit(model, [keys, masks], targets, here)
    return _saved(model)


@scenario
def adaptive_ragged(here: Here) -> dict[str, Any]:
    """Rows of keys are combined; some of them, and all of one worker's in a step, are empty."""
    keys, targets = keys_and_targets()
    # Only every sixth of the first 12 rows has keys, so that a worker has none in that step.
    lengths = np.random.default_rng(6).integers(0, 4, len(keys))
    lengths[:12] = np.where(np.arange(12) % 6 == 0, 3, 0)
    layer = _layer(combiner="mean")
    layer.build()
    output = dense()
    output.build((None, 4))
    optimizer = sok_embed.DistributedOptimizer(OPTIMIZERS["sgd"]())
    variables = [layer.anchor, *output.trainable_variables]

    @tf.function(input_signature=ANY_RAGGED)
    def step(values: Any, row_lengths: Any, its_targets: Any) -> None:
        with tf.GradientTape() as tape:
            rows = tf.RaggedTensor.from_row_lengths(values, row_lengths)
            predictions = output(layer(rows, training=True))
            loss = tf.reduce_mean(tf.square(predictions - its_targets))
        optimizer.apply(tape.gradient(loss, variables), variables)

    for first in range(0, len(keys), 12):
        batch = slice(first, first + 12)
        own_keys, own_lengths = share(keys[batch], here), share(lengths[batch], here)
        flat = own_keys[np.arange(3) < own_lengths[:, None]]
        step(tf.constant(flat), tf.constant(own_lengths), tf.constant(share(targets[batch], here)))

    return _saved(SimpleNamespace(layers=[layer, output]))


@scenario
def adaptive_resumed(here: Here) -> dict[str, Any]:
    """In the middle of training all state goes to another model, by way of a checkpoint."""
    keys, targets = keys_and_targets()
    models = []
    for _ in range(2):
        keras.utils.clear_session()
        models.append(_model(_layer(seed=4)))
        models[-1].compile(sok_embed.DistributedOptimizer(OPTIMIZERS["adam"]()), "mse")
    first, second = models
    fit(first, keys[:24], targets[:24], here)
    second.optimizer.build(second.trainable_variables)
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(model=first).save(f"{folder}/checkpoint")
        tf.train.Checkpoint(model=second).restore(path).assert_existing_objects_matched()
    fit(second, keys[24:], targets[24:], here)
    return _saved(second)


@scenario
def adaptive_flipped(here: Here) -> dict[str, Any]:
    """All keys are trained with a mask of 0, and then looked up with a mask of 1."""
    layer = _layer(mask=0)
    start = layer(EVERY_KEY)
    model = _model(layer)
    model.compile(sok_embed.DistributedOptimizer(OPTIMIZERS["adam"]()), "mse")
    fit(model, *keys_and_targets(), here)
    return {
        "start": start,
        "size": layer.table.size(),
        "static": layer(EVERY_KEY),
        "own": layer(EVERY_KEY, training=True, mask=1),
        "later_size": layer.table.size(),
    }


@scenario
def adaptive_initial_rows(here: Here) -> dict[str, Any]:
    """Each worker asks for all keys, in all ways; then all of them get a row."""
    layer = _layer()
    evaluated = layer(EVERY_KEY)
    ways = {
        "static": layer(EVERY_KEY, mask=0),
        "mixed": layer(EVERY_KEY, mask=EVERY_KEY % 3 - 1),
        "trained": layer(EVERY_KEY, training=True, mask=1),
    }
    return {
        "evaluated": evaluated,
        **ways,
        "size": layer.table.size(),
        "buckets": layer.table.buckets(layer.table.export()[0]),
    }


@scenario
def adaptive_wrong_mask(here: Here) -> dict[str, Any]:
    """Makes an error on each worker, before anything travels."""
    try:
        _layer()(EVERY_KEY, training=True, mask=np.full(EVERY_KEY.shape, 2))
    except tf.errors.InvalidArgumentError as error:
        return {"message": error.message}
    return {"message": "none"}
