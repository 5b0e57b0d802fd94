"""A collection of tables over workers: lookups, training, and errors that all of them raise."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.loops import UNEVEN
from sharded.models import OPTIMIZERS, dense
from sharded.registry import Here, scenario
from sok_embed import DistributedEmbedding, FeatureConfig, TableConfig, tf_ops

SAMPLES = 48
VOCABULARY = 20


# How the tables lie: "-1" is the last worker.
PLACEMENTS: dict[str, dict[str, Any]] = {
    "keys": {},
    "mixed": {"users": "replicated", "items": 1, "places": 0, "frozen": -1},
    "whole": {"users": -1, "items": "replicated", "places": "replicated", "frozen": "replicated"},
}


def _table(*args: Any, **arguments: Any) -> TableConfig:
    """The configuration of a table, where the environment wants its rows."""
    return TableConfig(*args, device=os.environ.get("SOK_TEST_ROWS_ON", "cpu"), **arguments)


def _placed(placement: Any) -> dict[str, Any]:
    """The arguments of a table that lies so."""
    if not isinstance(placement, int):
        return {"placement": placement}
    workers = sok_embed.size()
    return {"placement": "worker", "worker": placement % workers}


def _layer(placements: str = "keys", **arguments: Any) -> DistributedEmbedding:
    """Two tables that follow the model's optimizer, one with its own, one that is frozen."""
    placed = {name: _placed(how) for name, how in PLACEMENTS[placements].items()}
    users = _table("users", VOCABULARY, 4, seed=1, **placed.get("users", {}))
    items = _table("items", None, 3, "normal", seed=2, **placed.get("items", {}))
    own = keras.optimizers.Adagrad(0.3)
    places = _table(
        "places", None, 4, optimizer=own, combiner="max", seed=3, **placed.get("places", {})
    )
    frozen = _table(
        "frozen", None, 2, trainable=False, combiner="sum", seed=4, **placed.get("frozen", {})
    )
    features = {
        "user": FeatureConfig("user", users),
        "user_log": FeatureConfig("user_log", users, combiner="sqrtn"),
        "item": FeatureConfig("item", items, combiner="sum"),
        "place": FeatureConfig("place", places),
        "frozen": FeatureConfig("frozen", frozen),
        "unused": FeatureConfig("unused", users, combiner=None),
    }
    return DistributedEmbedding(features, name="fields", **arguments)


class Fields(keras.Model):
    def __init__(self, placements: str, towers: bool = False, **arguments: Any) -> None:
        super().__init__()
        self.towers = towers
        self.layer = _layer(placements, **arguments)
        self.dense = dense()
        # Weights of a table's feature keep its holder from pooling.
        self.has_weights = placements != "whole"

    def call(self, batch: Any, training: Any = None) -> Any:
        weights = batch["weights"] if self.has_weights else None
        if self.towers:
            outputs = {}
            for names in (("user", "user_log", "unused"), ("item", "place", "frozen")):
                outputs |= _call_with(self.layer, batch, names, weights, training=training)
        else:
            outputs = self.layer(batch["keys"], weights, training=training)
        used = [outputs[name] for name in ("user", "user_log", "item", "place", "frozen")]
        return self.dense(tf.concat(used, 1))


def _call_with(
    layer: DistributedEmbedding, batch: Any, names: Any, weights: Any, **arguments: Any
) -> dict[str, Any]:
    """Calls a layer with some of its features."""
    keys = {name: batch["keys"][name] for name in names}
    some = {name: values for name, values in (weights or {}).items() if name in names}
    return layer(keys, some or None, **arguments)


def _numbers(samples: int = SAMPLES) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 4, samples)
    return {
        "user": rng.integers(0, VOCABULARY, samples),
        "user_log": [rng.integers(0, VOCABULARY, n).tolist() for n in lengths],
        "log_weights": [rng.uniform(0.5, 2, n).tolist() for n in lengths],
        "item": rng.integers(0, 12, (samples, 3)) * (2**59 + 7) - 2**62,
        "item_weights": rng.uniform(-1, 1, (samples, 3)).astype(np.float32),
        "place": rng.integers(-9, 9, (samples, 2)),
        "targets": rng.normal(size=(samples, 1)).astype(np.float32),
    }


def _ragged(bags: list[list[Any]], dtype: tf.DType) -> tf.RaggedTensor:
    return tf.ragged.constant(bags, dtype=dtype, ragged_rank=1)


def _batch(numbers: dict[str, Any], at: slice) -> dict[str, Any]:
    logs = _ragged(numbers["user_log"][at], tf.int64)
    place = tf.constant(numbers["place"][at], tf.int64)
    return {
        "keys": {
            "user": tf.constant(numbers["user"][at], tf.int64),
            "user_log": logs,
            "item": tf.constant(numbers["item"][at], tf.int64),
            "place": tf.sparse.from_dense(place),  # without its zeros, so some bags are empty
            "frozen": place,
            # Keys that no used feature has.
            "unused": tf.constant(numbers["user"][at], tf.int64) * 0 + VOCABULARY - 1,
        },
        "weights": {
            "user_log": _ragged(numbers["log_weights"][at], tf.float32),
            "item": tf.constant(numbers["item_weights"][at]),
        },
    }


def _contents(layer: DistributedEmbedding) -> dict[str, Any]:
    """This worker's rows of each table, and what they started from."""
    untrained = DistributedEmbedding.from_config(layer.get_config()).tables
    saved: dict[str, Any] = {}
    for name, table in layer.tables.items():
        contents = table.export(slots=True)
        saved[f"{name}.keys"], saved[f"{name}.rows"] = contents.keys, contents.embeddings
        saved[f"{name}.updates"] = contents.update_nums
        saved[f"{name}.untrained"] = untrained[name].lookup(contents.keys)
        saved[f"{name}.steps"] = contents.steps
        if layer.tables.placements[name].kind == tf_ops.ON_ALL:
            saved[f"{name}.replicated"] = True
    return saved


def _train(
    here: Here, optimizer: str, compiled: bool, placements: str = "keys", **arguments: Any
) -> dict[str, Any]:
    """Steps in which some workers have an empty batch."""
    model, numbers = Fields(placements, **arguments), _numbers()
    # Key 19 of "users" is that of the unused feature alone.
    numbers["user"] %= VOCABULARY - 1
    numbers["user_log"] = [[key % (VOCABULARY - 1) for key in bag] for bag in numbers["user_log"]]
    wrapped = sok_embed.DistributedOptimizer(OPTIMIZERS[optimizer]())

    def step(batch: Any, targets: Any, weight: Any) -> None:
        with tf.GradientTape() as tape:
            errors = tf.square(model(batch, training=True) - targets)
            loss = tf.reduce_sum(errors) * weight
        variables = model.trainable_variables
        wrapped.apply(tape.gradient(loss, variables), variables)

    model(_batch(numbers, slice(0, 2)), training=False)
    wrapped.build(model.trainable_variables)
    run = tf.function(step, reduce_retracing=True) if compiled else step
    first = 0
    for counts in UNEVEN[here.size]:
        begin = first + sum(counts[: here.rank])
        rows = slice(begin, begin + counts[here.rank])
        weight = tf.constant(here.size / sum(counts), tf.float32)
        run(_batch(numbers, rows), tf.constant(numbers["targets"][rows]), weight)
        first += sum(counts)
    return {**_contents(model.layer), "weight.dense": model.dense.get_weights()[0]}


@scenario
def collection_sgd(here: Here) -> dict[str, Any]:
    return _train(here, "sgd", compiled=True)


@scenario
def collection_adam(here: Here) -> dict[str, Any]:
    return _train(here, "adam", compiled=True)


@scenario
def collection_eager(here: Here) -> dict[str, Any]:
    return _train(here, "sgd", compiled=False)


@scenario
def collection_sgd_mixed(here: Here) -> dict[str, Any]:
    return _train(here, "sgd", compiled=True, placements="mixed")


@scenario
def collection_adam_mixed(here: Here) -> dict[str, Any]:
    return _train(here, "adam", compiled=True, placements="mixed")


@scenario
def collection_sgd_whole(here: Here) -> dict[str, Any]:
    return _train(here, "sgd", compiled=False, placements="whole")


@scenario
def collection_adam_whole(here: Here) -> dict[str, Any]:
    return _train(here, "adam", compiled=True, placements="whole")


@scenario
def collection_sgd_towers(here: Here) -> dict[str, Any]:
    return _train(here, "sgd", compiled=True, towers=True)


@scenario
def collection_adam_towers_mixed(here: Here) -> dict[str, Any]:
    return _train(here, "adam", compiled=True, placements="mixed", towers=True)


@scenario
def collection_sgd_bfloat16(here: Here) -> dict[str, Any]:
    return _train(here, "sgd", compiled=True, exchange_dtype="bfloat16")


@scenario
def collection_fit(here: Here) -> dict[str, Any]:
    return _fit(here)


@scenario
def collection_fit_placed(here: Here) -> dict[str, Any]:
    return _fit(here, a="replicated", b=-1)


def _fit(here: Here, **placements: Any) -> dict[str, Any]:
    """Trains a functional model by `fit`, with a clipped norm, which is that of all workers."""
    placed = {name: _placed(how) for name, how in placements.items()}
    layer = DistributedEmbedding(
        {
            "a": FeatureConfig("a", _table("a", None, 3, seed=1, **placed.get("a", {}))),
            "b": FeatureConfig("b", _table("b", 30, 2, seed=2, **placed.get("b", {}))),
        },
        output="concat",
        name="fields",
    )
    inputs = {name: keras.Input((2,), dtype="int64", name=name) for name in "ab"}
    model = keras.Model(inputs, dense()(layer(inputs)))
    optimizer = keras.optimizers.SGD(0.5, global_clipnorm=0.5)
    model.compile(sok_embed.DistributedOptimizer(optimizer), "mse")
    rng = np.random.default_rng(3)
    keys = {"a": rng.integers(-20, 20, (SAMPLES, 2)), "b": rng.integers(0, 30, (SAMPLES, 2))}
    targets = rng.normal(size=(SAMPLES, 1))
    model.fit(
        {name: array[here.rank :: here.size] for name, array in keys.items()},
        targets[here.rank :: here.size],
        batch_size=12 // here.size,
        shuffle=False,
        verbose=0,
    )
    return {**_contents(layer), "weight.dense": model.layers[-1].get_weights()[0]}


@scenario
def collection_rows(here: Here) -> dict[str, Any]:
    return _rows(here, "keys")


@scenario
def collection_rows_mixed(here: Here) -> dict[str, Any]:
    return _rows(here, "mixed")


@scenario
def collection_rows_bfloat16(here: Here) -> dict[str, Any]:
    return _rows(here, "keys", exchange_dtype="bfloat16")


def _rows(here: Here, placements: str, **arguments: Any) -> dict[str, Any]:
    """Each worker looks the same keys up, with an empty batch in between."""
    layer, numbers = _layer(placements, **arguments), _numbers()
    batch = _batch(numbers, slice(0, 10))
    outputs = layer(batch["keys"], batch["weights"], training=True)
    if here.rank == here.size - 1:
        none = _batch(numbers, slice(0, 0))
        empty = layer(none["keys"], none["weights"])
        assert [tuple(output.shape)[0] for output in empty.values()] == [0] * 6
    else:
        layer(batch["keys"], batch["weights"])
    for names in (("user", "item"), ("place",), ("user_log", "frozen")):
        some = _call_with(layer, batch, names, batch["weights"])
        for name in names:
            np.testing.assert_array_equal(some[name], outputs[name])
    return {**{f"output.{name}": v for name, v in outputs.items()}, **_contents(layer)}


@scenario
def collection_checkpoint(here: Here) -> dict[str, Any]:
    return _checkpoint(here, "keys")


@scenario
def collection_checkpoint_mixed(here: Here) -> dict[str, Any]:
    return _checkpoint(here, "mixed")


def _checkpoint(here: Here, placements: str) -> dict[str, Any]:
    """Each worker saves and restores its part."""
    layer, numbers = _layer(placements), _numbers()
    optimizer = sok_embed.DistributedOptimizer(OPTIMIZERS["adam"]())
    for first in range(0, 24, 12):
        batch = _batch(numbers, slice(first + here.rank, first + 12, here.size))
        with tf.GradientTape() as tape:
            outputs = layer(batch["keys"], batch["weights"], training=True)
            loss = tf.reduce_sum(outputs["user"]) + tf.reduce_sum(outputs["place"])
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(layer=layer).save(f"{folder}/worker_{here.rank}")
        again = _layer(placements)
        again.build()
        tf.train.Checkpoint(layer=again).restore(path)
    same = True
    for name, table in layer.tables.items():
        ours, theirs = (each.export(slots=True) for each in (table, again.tables[name]))
        at, there = np.argsort(ours.keys), np.argsort(theirs.keys)
        for part in ("keys", "embeddings", "slots", "update_nums"):
            same &= np.array_equal(getattr(ours, part)[at], getattr(theirs, part)[there])
        same &= (ours.rule, ours.steps) == (theirs.rule, theirs.steps)
    return {"same": same, "rows": sum(len(table) for table in again.tables.values())}


def _raised(call: Any) -> dict[str, Any]:
    try:
        call()
    except Exception as error:
        return {"type": type(error).__name__, "text": str(error)}
    return {"type": "nothing", "text": ""}


@scenario
def collection_bad_key(here: Here) -> dict[str, Any]:
    """The last worker brings a key out of the vocabulary; the next step is well again."""
    layer, numbers = _layer(), _numbers()
    look_up = tf.function(
        lambda batch: layer(batch["keys"], batch["weights"], training=True)["item"]
    )
    batch = _batch(numbers, slice(0, 4))
    look_up(batch)
    bad = {**batch, "keys": {**batch["keys"], "user": tf.constant([0, 1, VOCABULARY, 2], tf.int64)}}
    raised = _raised(lambda: look_up(bad if here.rank == here.size - 1 else batch))
    eager = _raised(
        lambda: layer((bad if here.rank == here.size - 1 else batch)["keys"], training=True)
    )
    again = look_up(batch)
    return {**raised, "eager": eager["text"], "again": again}


@scenario
def collection_of_another_configuration(here: Here) -> dict[str, Any]:
    """The last worker has another combiner. Messages of functions have a fingerprint of it."""
    combiner = "mean" if here.rank == here.size - 1 and here.size > 1 else "sum"
    table = _table("t", None, 2, combiner=combiner)
    layer = DistributedEmbedding(FeatureConfig("f", table), name="fields")
    eager = _raised(lambda: layer(np.arange(6)))
    look_up = tf.function(layer)
    compiled = _raised(lambda: look_up(tf.range(6, dtype=tf.int64)))
    return {**compiled, **{f"eager.{name}": text for name, text in eager.items()}}


@scenario
def collection_that_is_full(here: Here) -> dict[str, Any]:
    """There is no room for the keys of the last worker."""
    table = _table("t", None, 2, max_rows=3, seed=1)
    layer = DistributedEmbedding(FeatureConfig("f", table), name="fields")
    keys = np.arange(30) if here.rank == here.size - 1 else np.array([0])
    return _raised(lambda: layer(keys, training=True))
