"""Batches of a collection of tables, and what NumPy and static Keras layers make of them.

There are three tables and eight features, in every form an input has. Every batch has every key of
every table, so that a static layer, whose rows all take each step, trains as the tables do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras_reference import SummedGradientEmbedding

from sok_embed import DistributedEmbedding, FeatureConfig, TableConfig

BATCH = 8
STEPS = 50

Array = npt.NDArray[Any]

# Of each table: its keys, and the length of a row. Those of "users" are numbers of a vocabulary.
KEYS: dict[str, Array] = {
    "users": np.arange(12),
    "items": np.sort(np.random.default_rng(5).integers(-(2**63), 2**63 - 1, 10)),
    "places": np.array([-7, 0, 1, 2, 2**40, 2**62]),
}
DIMS = {"users": 4, "items": 6, "places": 4}


@dataclass(frozen=True)
class Case:
    """A feature: its table, how its bags are combined, and in which form they come."""

    table: str
    combiner: str | None
    form: str  # "dense", "ragged", "sparse", or "flat" for [B]
    length: int = 1  # of a bag; the most, of ragged and sparse ones
    weighted: bool = False


# One feature of each table is dense and has room for all of its keys.
CASES = {
    "user": Case("users", "mean", "dense", 3),
    "user_log": Case("users", "sum", "ragged", 4, weighted=True),
    "user_pair": Case("users", None, "dense", 2),
    "item": Case("items", "mean", "flat"),
    "item_log": Case("items", "sqrtn", "sparse", 5, weighted=True),
    "item_best": Case("items", "max", "dense", 4),
    "place": Case("places", "mean", "dense", 3, weighted=True),
    "place_log": Case("places", None, "ragged", 3),
}


@dataclass
class Bags:
    """A feature of a batch: for each example its keys, as numbers of them, and their weights."""

    case: Case
    numbers: list[list[int]]
    weights: list[list[float]]

    def keys(self) -> Any:
        keys = [KEYS[self.case.table][bag].tolist() for bag in self.numbers]
        return self._tensor(keys, tf.int64)

    def own_weights(self) -> Any:
        return self._tensor(self.weights, tf.float32) if self.case.weighted else None

    def _tensor(self, values: list[list[Any]], dtype: tf.DType) -> Any:
        if self.case.form in ("dense", "flat"):
            tensor = tf.constant(values, dtype)
            return tensor if self.case.form == "dense" else tensor[:, 0]
        ragged = tf.ragged.constant(values, dtype=dtype, ragged_rank=1)
        if self.case.form == "ragged":
            return ragged
        # from_ragged leaves a dense shape of the longest bag, which may differ between batches.
        sparse = ragged.to_sparse()
        return tf.SparseTensor(sparse.indices, sparse.values, [len(values), self.case.length])


def random_bags(case: Case, examples: int, random: np.random.Generator) -> Bags:
    """Bags of which the first BATCH, the next BATCH, … have every key if there is room."""
    count = len(KEYS[case.table])
    numbers, weights = [], []
    for _ in range(examples // BATCH):
        room = BATCH * case.length
        if case.form == "dense" and room >= count:
            flat = random.permutation(np.resize(np.arange(count), room))
        else:
            flat = random.integers(0, count, room)
        lengths = np.full(BATCH, case.length)
        if case.form in ("ragged", "sparse"):
            lengths = random.integers(0, case.length + 1, BATCH)
            lengths[random.integers(BATCH)] = 0
        bags = flat.reshape(BATCH, case.length)
        numbers += [bag[:length].tolist() for bag, length in zip(bags, lengths, strict=True)]
        own = [random.uniform(0.5, 2, length).astype(np.float32).tolist() for length in lengths]
        if case.weighted:
            # The weights of one bag add up to 0, and so do their squares.
            longest = int(np.argmax(lengths))
            own[longest] = [0.0] * len(own[longest])
            if case.combiner == "mean" and len(own[longest]) > 1:
                own[longest][:2] = [0.5, -0.5]
        weights += own
    return Bags(case, numbers, weights)


def random_batch(seed: int = 1, examples: int = BATCH) -> dict[str, Bags]:
    random = np.random.default_rng(seed)
    return {name: random_bags(case, examples, random) for name, case in CASES.items()}


def inputs_of(batch: dict[str, Bags]) -> dict[str, Any]:
    return {name: bags.keys() for name, bags in batch.items()}


def weights_of(batch: dict[str, Bags]) -> dict[str, Any]:
    return {name: bags.own_weights() for name, bags in batch.items() if bags.case.weighted}


def start_of(seed: int = 2) -> dict[str, Array]:
    """What the rows of each table start from."""
    random = np.random.default_rng(seed)
    return {
        name: random.uniform(-0.5, 0.5, (len(keys), DIMS[name])).astype(np.float32)
        for name, keys in KEYS.items()
    }


def table_configs(**arguments: Any) -> dict[str, TableConfig]:
    """The tables; `arguments` are by table, dicts of more arguments."""
    limits = {"users": len(KEYS["users"])}
    return {
        name: TableConfig(name, limits.get(name), dim, **arguments.get(name, {}))
        for name, dim in DIMS.items()
    }


def feature_configs(
    tables: dict[str, TableConfig] | None = None, names: tuple[str, ...] = tuple(CASES)
) -> dict[str, FeatureConfig]:
    tables = tables or table_configs()
    return {
        name: FeatureConfig(name, tables[CASES[name].table], combiner=CASES[name].combiner)
        for name in names
    }


def make_layer(
    start: dict[str, Array] | None = None,
    names: tuple[str, ...] = tuple(CASES),
    tables: dict[str, TableConfig] | None = None,
    **arguments: Any,
) -> DistributedEmbedding:
    """Makes a layer whose rows are put in."""
    layer = DistributedEmbedding(feature_configs(tables, names), **arguments)
    for name, rows in (start or start_of()).items():
        if name in layer.tables:
            layer.tables[name].assign(KEYS[name], rows)
    return layer


def rows_of(layer: DistributedEmbedding) -> dict[str, Array]:
    return {name: table.lookup(KEYS[name]) for name, table in layer.tables.items()}


def pooled(bags: Bags, rows: Array) -> list[Array]:
    """The vector of each bag in float64; with combiner=None, the vectors of its keys."""
    rows = rows.astype(np.float64)
    vectors = []
    for numbers, weights in zip(bags.numbers, bags.weights, strict=True):
        x = rows[numbers]
        w = np.array(weights if bags.case.weighted else np.ones(len(numbers)))[:, None]
        combiner = bags.case.combiner
        if combiner is None:
            vectors.append(x * w)
        elif len(numbers) == 0:
            vectors.append(np.zeros(rows.shape[1]))
        elif combiner == "max":
            vectors.append(x.max(axis=0))
        else:
            divisor = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
            vectors.append((x * w).sum(axis=0) / divisor if divisor else np.zeros(rows.shape[1]))
    return vectors


def assert_pooled(outputs: dict[str, Any], batch: dict[str, Bags], rows: dict[str, Array]) -> None:
    """1e-6: sums of at most 5 products of about 1 in float32, against float64."""
    assert set(outputs) == set(batch)
    for name, bags in batch.items():
        expected = pooled(bags, rows[bags.case.table])
        found = outputs[name]
        if bags.case.combiner is None and bags.case.form == "ragged":
            np.testing.assert_array_equal(found.row_lengths(), [len(bag) for bag in bags.numbers])
            found, expected = found.flat_values, np.concatenate(expected)
        np.testing.assert_allclose(found, np.stack(expected), rtol=0, atol=1e-6, err_msg=name)


class StaticTables(keras.layers.Layer):
    """The same from static Keras layers with dense gradients, over bags that are filled up."""

    def __init__(self, start: dict[str, Array], names: tuple[str, ...] = tuple(CASES)) -> None:
        super().__init__(autocast=False)
        self.names = names
        self.embeddings: dict[str, Any] = {}
        for table in dict.fromkeys(CASES[name].table for name in names):
            self.embeddings[table] = SummedGradientEmbedding(*start[table].shape, name=table)
            self.embeddings[table].build()
            self.embeddings[table].set_weights([start[table]])

    def call(self, inputs: Any, weights: Any = None, training: Any = None) -> Any:
        given = weights or {}
        return {name: self._of(name, inputs[name], given.get(name)) for name in self.names}

    def _of(self, name: str, keys: Any, weights: Any) -> Any:
        case = CASES[name]
        known = tf.constant(KEYS[case.table], tf.int64)
        if case.form == "ragged":
            there = tf.ones_like(keys, tf.float32).to_tensor()
            weights = there if weights is None else weights.to_tensor()
            filled = keys.to_tensor(int(KEYS[case.table][0]))
        elif case.form == "sparse":
            there = tf.sparse.to_dense(keys.with_values(tf.ones_like(keys.values, tf.float32)))
            weights = there if weights is None else tf.sparse.to_dense(weights)
            filled = tf.sparse.to_dense(keys, int(KEYS[case.table][0]))
        else:
            filled = keys[:, None] if case.form == "flat" else keys
            there = tf.ones_like(filled, tf.float32)
            weights = there if weights is None else weights
        numbers = tf.reshape(tf.searchsorted(known, tf.reshape(filled, [-1])), tf.shape(filled))
        x = self.embeddings[case.table](numbers)
        w = weights[:, :, None]
        if case.combiner is None:
            if case.form == "dense":
                return x * w
            return tf.RaggedTensor.from_tensor(x * w, keys.row_lengths())
        if case.combiner == "max":
            return tf.reduce_max(x, 1)
        divisor = {
            "sum": tf.ones_like(w[:, 0]),
            "mean": tf.reduce_sum(w, 1),
            "sqrtn": tf.sqrt(tf.reduce_sum(w**2, 1)),
        }[case.combiner]
        return tf.math.divide_no_nan(tf.reduce_sum(x * w, 1), divisor)

    def rows(self) -> dict[str, Array]:
        return {name: each.get_weights()[0] for name, each in self.embeddings.items()}


class Model(keras.Model):
    """A linear model of the outputs, or of some of them, of ours or of the static layers."""

    def __init__(self, layer: Any, used: tuple[str, ...] | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.used = used
        self.dense = keras.layers.Dense(
            1, kernel_initializer=keras.initializers.RandomNormal(0.0, 0.3, 3)
        )

    def call(self, batch: Any, training: Any = None) -> Any:
        outputs = self.layer(batch["keys"], batch.get("weights"), training=training)
        return self.dense(joined(outputs, self.used))

    def rows(self) -> dict[str, Array]:
        ours = isinstance(self.layer, DistributedEmbedding)
        return rows_of(self.layer) if ours else self.layer.rows()


def joined(outputs: dict[str, Any], used: tuple[str, ...] | None = None) -> tf.Tensor:
    """All outputs, or those of some names, as one matrix."""
    parts = []
    for name in sorted(used or outputs):
        output = outputs[name]
        if isinstance(output, tf.RaggedTensor):
            parts.append(tf.reduce_sum(output, axis=1))
        else:
            parts.append(tf.reshape(output, [tf.shape(output)[0], np.prod(output.shape[1:])]))
    return tf.concat(parts, 1)


def data_of(
    examples: int = BATCH * STEPS, seed: int = 1, names: tuple[str, ...] = tuple(CASES)
) -> tf.data.Dataset:
    """Batches for `fit`."""
    batch = {name: bags for name, bags in random_batch(seed, examples).items() if name in names}
    given = {"keys": inputs_of(batch), "weights": weights_of(batch)}
    targets = np.random.default_rng(seed + 100).normal(size=(examples, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((given, targets)).batch(BATCH)


def step_of(model: Any, optimizer: Any) -> Callable[[Any, Any], None]:
    """A step by a tape, for loops of one's own."""

    def step(given: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(given, training=True) - targets))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    return step


def both(
    start: dict[str, Array], used: tuple[str, ...] | None = None, **arguments: Any
) -> Iterator[Model]:
    """Yields our model, then that of static layers; `arguments` are those of `make_layer`."""
    names = arguments.get("names", tuple(CASES))
    for layer in (lambda: make_layer(start, **arguments), lambda: StaticTables(start, names)):
        keras.utils.set_random_seed(4)
        yield Model(layer(), used)


def assert_trained_alike(
    ours: Model, theirs: Model, start: dict[str, Array], atol: float = 1e-5
) -> None:
    """1e-5: both compute in float32, but sum the gradients of a row in another order.

    Rows that have not been trained could be equal as well, so each must have moved.
    """
    found, expected = ours.rows(), theirs.rows()
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        np.testing.assert_allclose(found[name], rows, rtol=0, atol=atol, err_msg=name)
        assert (np.abs(rows - start[name]).max(axis=1) > 10 * atol).all(), name
        assert ours.layer.tables[name].stats()["pending_gradients"] == 0
    np.testing.assert_allclose(
        ours.dense.get_weights()[0], theirs.dense.get_weights()[0], rtol=0, atol=10 * atol
    )


def symbolic_inputs(batch: dict[str, Bags]) -> dict[str, Any]:
    """Inputs of a functional model of every form."""
    keys, weights = {}, {}
    for name, bags in batch.items():
        form = bags.case.form
        shape = {"flat": (), "dense": (bags.case.length,), "sparse": (bags.case.length,)}
        how = {form: True} if form in ("ragged", "sparse") else {}
        keys[name] = keras.Input(shape.get(form, (None,)), dtype="int64", name=name, **how)
        if bags.case.weighted:
            weights[name] = keras.Input(
                shape.get(form, (None,)), dtype="float32", name=f"{name}_weights", **how
            )
    return {"keys": keys, "weights": weights}


def functional_model(layer: Any, batch: dict[str, Bags]) -> Any:
    """A linear model of all outputs but the ragged one."""
    inputs = symbolic_inputs(batch)
    outputs = layer(inputs["keys"], inputs["weights"])
    flat = [
        keras.ops.reshape(outputs[name], (-1, int(np.prod(outputs[name].shape[1:]))))
        for name, case in CASES.items()
        if not (case.combiner is None and case.form == "ragged")
    ]
    vector = keras.layers.Concatenate()(flat)
    return keras.Model(inputs, keras.layers.Dense(1, name="dense")(vector))


def one_table(name: str = "t", dim: int = 2, **arguments: Any) -> TableConfig:
    return TableConfig(name, None, dim, **arguments)


def fit_few(model: Any, optimizer: Any, data: Any) -> None:
    model.compile(optimizer, "mse", run_eagerly=True)
    model.fit(data, shuffle=False, verbose=0)
