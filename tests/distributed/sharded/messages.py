"""How many messages a step of many tables or columns takes, and how many bytes they have."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.registry import Here, scenario
from sok_embed import DistributedEmbedding, FeatureConfig, TableConfig
from sok_embed import feature_column as fc
from sok_embed.communicators import Communicator
from sok_embed.communicators.horovod import HorovodCommunicator

STEPS = 4
KINDS = ("ALLTOALL", "ALLREDUCE")


def _steps_of(path: Path) -> dict[str, int]:
    """How often each kind of message was carried out, by Horovod's timeline."""
    text = path.read_text().strip().rstrip(",")
    events = json.loads(text if text.endswith("]") else text + "]")
    began = Counter(event["name"] for event in events if event.get("ph") == "B")
    return {kind: began[kind] for kind in KINDS}


@scenario
def message_counts(here: Here) -> dict[str, Any]:
    saved: dict[str, Any] = {}
    for tables in (1, 26):
        features = [FeatureConfig(f"f{i}", TableConfig(f"t{i}", None, 4)) for i in range(tables)]
        layer = DistributedEmbedding(features, output="concat", name="fields")
        inputs = [keras.Input((), dtype="int64") for _ in range(tables)]
        hidden = keras.layers.Dense(8, "relu")(layer(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile(sok_embed.DistributedOptimizer(keras.optimizers.Adam(1e-3)), "mse")
        rng = np.random.default_rng(here.rank)
        keys = tuple(rng.integers(0, 50, 8) for _ in range(tables))
        found = _counted(here, model, keys)
        saved |= {f"{tables}.{kind}": n for kind, n in found.items()}
    return saved


@scenario
def message_counts_of_columns(here: Here) -> dict[str, Any]:
    saved: dict[str, Any] = {}
    for columns in (1, 4, 26):
        names = [f"c{i}" for i in range(columns)]
        items = [fc.categorical_column_with_adaptive_embedding(name, 9, tf.int64) for name in names]
        layer = fc.DenseFeatures([fc.embedding_column(item, 2) for item in items], name="features")
        inputs = {name: keras.Input((2,), dtype="int64", name=name) for name in names}
        mask = keras.Input((2,), dtype="int32", name="mask")
        embedded = layer(inputs, dict.fromkeys(names, mask))
        model = keras.Model({**inputs, "mask": mask}, keras.layers.Dense(1)(embedded))
        optimizer = sok_embed.DistributedOptimizer(keras.optimizers.Adam(1e-3))
        model.compile(optimizer, "mse", run_eagerly=columns > 1)  # tracing many takes long
        rng = np.random.default_rng(here.rank)
        batch = {name: rng.integers(0, 50, (8, 2)) for name in names}
        found = _counted(here, model, {**batch, "mask": rng.integers(0, 2, (8, 2), np.int32)})
        saved |= {f"{columns}.{kind}": n for kind, n in found.items()}
    return saved


@scenario
def what_a_step_waits_for(here: Here) -> dict[str, Any]:
    """The ops that those of a step's graph wait for, as names of layers and kinds of messages."""
    saved: dict[str, Any] = {}
    for clipnorm in (None, 1.0):
        features = [FeatureConfig("f", TableConfig("t", None, 4))]
        rows = DistributedEmbedding(features, output="concat", name="fields")
        bottom = keras.layers.Dense(3, name="bottom")
        model = keras.layers.Dense(1, name="top")
        optimizer = sok_embed.DistributedOptimizer(keras.optimizers.Adam(1e-3, clipnorm=clipnorm))

        @tf.function
        def step(keys: tf.Tensor, values: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                joined = tf.concat([rows([keys]), bottom(values)], 1)  # noqa: B023
                loss = tf.reduce_sum(model(joined))  # noqa: B023
            weights = [*rows.weights, *bottom.weights, *model.weights]  # noqa: B023
            weights = [weight for weight in weights if weight.trainable]
            optimizer.apply(tape.gradient(loss, [w.value for w in weights]), weights)  # noqa: B023

        given = tf.constant([here.rank, 7], tf.int64), tf.ones([2, 5])
        graph = step.get_concrete_function(*given).graph
        waits = {
            _kind(op): sorted({_kind(other) for other in _waits_for(op)} - {""})
            for op in graph.get_operations()
            if _kind(op)
        }
        saved |= {f"{clipnorm}.{kind}": np.array(kinds, str) for kind, kinds in waits.items()}
    return saved


def _kind(op: tf.Operation) -> str:
    """What an op of the graph above is, by its name: a message or a product of a dense layer."""
    if op.type == "MatMul" and "gradient" not in op.name:
        return op.name.split("/")[0].removesuffix("_1")
    if op.type not in ("SokEmbed>AllToAll", "HorovodAllreduce"):
        return ""
    if "sok_embed.gradients" in op.name:
        return "reduction"
    return op.name.rsplit(".", 1)[-1].split("/")[0]


def _waits_for(op: tf.Operation) -> set[tf.Operation]:
    found: set[tf.Operation] = set()
    new = [op]
    while new:
        inputs = new.pop()
        for other in [*(tensor.op for tensor in inputs.inputs), *inputs.control_inputs]:
            if other not in found:
                found.add(other)
                new.append(other)
    return found


def _counted(here: Here, model: Any, inputs: Any) -> dict[str, int]:
    """The messages of some steps of `fit`, once everything is traced.

    By Horovod's timeline, where Horovod has started the workers and rows go over it too; else by
    the count of exchanges. Nothing on a worker alone, and on all but the first.
    """
    if here.size == 1:
        return {}
    communicator = sok_embed.communicators.current()
    data = tf.data.Dataset.from_tensors((inputs, np.ones((8, 1)))).repeat()
    if not isinstance(communicator, HorovodCommunicator):
        model.fit(data, steps_per_epoch=2, verbose=0)
        before = communicator.connections.stats()["exchanges"]
        model.fit(data, steps_per_epoch=STEPS, verbose=0)
        count = communicator.connections.stats()["exchanges"] - before
        return {"exchanges": count} if here.rank == 0 else {}
    sok_embed.init("horovod", exchange="horovod")
    try:
        return _by_timeline(here, model, data)
    finally:
        sok_embed.init(communicator)


def _by_timeline(here: Here, model: Any, data: tf.data.Dataset) -> dict[str, int]:
    import horovod.tensorflow as hvd

    model.fit(data, steps_per_epoch=2, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timeline.json"
        sok_embed.communicators.current().barrier()
        if here.rank == 0:
            hvd.start_timeline(str(path))
        # A barrier is an allreduce.
        sok_embed.communicators.current().barrier()
        model.fit(data, steps_per_epoch=STEPS, verbose=0)
        sok_embed.communicators.current().barrier()
        if here.rank > 0:
            return {}
        hvd.stop_timeline()
        return _steps_of(path)


class Counting(Communicator):
    """Another communicator, whose exchanges are counted. Eager."""

    def __init__(self, counted: Communicator) -> None:
        self._counted = counted
        self.bytes: list[int] = []

    @property
    def rank(self) -> int:
        return self._counted.rank

    @property
    def size(self) -> int:
        return self._counted.size

    def all_to_all(self, tensor: Any, splits: Any, name: str) -> Any:
        to_others = int(tf.reduce_sum(splits)) - int(splits[self.rank])
        if ".agreement." not in name:  # the first lookup compares layers, once
            self.bytes.append(to_others * tensor.dtype.size)
        return self._counted.all_to_all(tensor, splits, name)

    def all_reduce(self, tensor: Any, name: str, average: bool = False) -> Any:
        return self._counted.all_reduce(tensor, name, average)

    def broadcast(self, tensor: Any, root_rank: int, name: str) -> Any:
        return self._counted.broadcast(tensor, root_rank, name)

    def barrier(self) -> None:
        self._counted.barrier()


# Names, dims and bags of the features of `message_bytes`, and how their tables lie.
SPREAD = {"a": (4, 1), "b": (3, 2)}
POOLED = (5, 3)
REPLICATED = 2
ROUNDS = 4


def keys_of(rank: int, number: int) -> dict[str, np.ndarray]:
    """What a worker looks up in a round; any worker knows it of all."""
    rng = np.random.default_rng(100 * number + rank)
    count = int(rng.integers(0, 20))
    return {
        "a": rng.integers(-9, 9, (count, 1)),
        "b": rng.integers(0, 2**40, (count, 2)),
        "pooled": rng.integers(0, 30, (count, POOLED[1])),
        "replicated": rng.integers(0, 12, (count, 1)),
    }


@scenario
def message_bytes(here: Here) -> dict[str, Any]:
    """The bytes that this worker sends to others, of each message of some steps."""
    placed = {
        "a": {"placement": "key"},
        "b": {"placement": "key"},
        "pooled": {"placement": "worker", "worker": 0},
        "replicated": {"placement": "replicated"},
    }
    dims = {**{name: dim for name, (dim, _) in SPREAD.items()}, "pooled": POOLED[0]}
    features = {
        name: FeatureConfig(
            name, TableConfig(name, None, dims.get(name, REPLICATED), combiner="sum", **how)
        )
        for name, how in placed.items()
    }
    layer = DistributedEmbedding(features, name="counted")
    layer.build()
    communicator = sok_embed.communicators.current()
    counting = Counting(communicator)
    sok_embed.init(counting)
    try:
        for number in range(ROUNDS):
            keys = {name: tf.constant(ids) for name, ids in keys_of(here.rank, number).items()}
            with tf.GradientTape() as tape:
                outputs = layer(keys, training=True)
                loss = tf.add_n([tf.reduce_sum(vectors) for vectors in outputs.values()])
            tape.gradient(loss, layer.anchor.value)
    finally:
        sok_embed.init(communicator)
    return {"bytes": np.array(counting.bytes, np.int64)}
