"""Models with a table of every kind, and all that they hold, for tests of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

import sok_embed as sok
from sok_embed import FeatureConfig, TableConfig
from sok_embed.tf_ops import ANCHOR_SIZE

RANDOM = np.random.default_rng(8)
KEYS = RANDOM.integers(-40, 40, (48, 2))
TARGETS = RANDOM.normal(size=(48, 1)).astype(np.float32)


def every_kind(
    folder: Path | None = None,
    optimizer: Any = "adam",
    seed: int = 3,
    dropout: float = 0.2,
    admissions: bool = True,
) -> Any:
    """A model of all layers with rows; with a folder also one whose rows lie on disk.

    With admissions, training depends on the number of workers: a key that two of them look up in
    one step is counted twice.
    """
    inputs = keras.Input((2,), dtype="int64")
    positive = keras.ops.abs(inputs)
    counted = sok.admission.FrequencyAdmission(3) if admissions else None
    filtered = None
    if admissions:
        filtered = sok.admission.CountingBloomAdmission(3, capacity=500, counter_bits=2)
    own = keras.optimizers.Adagrad(0.1)
    configs = [
        TableConfig("spread", None, 3, seed=seed, placement="key"),
        TableConfig("everywhere", 64, 4, seed=seed, placement="replicated", optimizer=own),
        TableConfig("whole", None, 2, seed=seed, placement="worker"),
    ]
    features = [FeatureConfig(config.name, config) for config in configs]
    fields = sok.DistributedEmbedding(features, output="concat", name="fields")
    vectors = [
        sok.DynamicEmbedding(4, seed=seed, name="plain")(inputs),
        sok.DynamicEmbedding(2, seed=seed, admission=counted, name="counted")(inputs),
        sok.DynamicEmbedding(2, seed=seed, admission=filtered, name="filtered")(inputs),
        sok.DynamicEmbedding(2, seed=seed, max_rows=60, eviction="lru", name="evicting")(inputs),
        sok.AdaptiveEmbedding(
            4, 7, promote_after=3, sketch_capacity=100, seed=seed, name="adaptive"
        )(inputs),
    ]
    if folder is not None:
        stored = sok.DynamicEmbedding(4, seed=seed, storage=sok.Storage(folder), name="stored")
        vectors.append(stored(inputs))
    flat = [keras.layers.Flatten()(each) for each in vectors]
    flat += [
        fields([inputs, positive, inputs]),
        sok.HashedEmbeddingBag(64, 4, size=60, name="hashed")(positive),
    ]
    dropped = keras.layers.Dropout(dropout, seed=5)(keras.layers.Concatenate()(flat))
    output = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(3))
    model = keras.Model(inputs, output(dropped))
    model.compile(optimizer, "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    return model


def train(model: Any, epochs: int = 1) -> None:
    model.fit(KEYS, TARGETS, batch_size=12, epochs=epochs, shuffle=False, verbose=0)


def tables_of(model: Any) -> dict[str, Any]:
    """All tables, by layer and name."""
    found = {}
    for layer in model.layers:
        if isinstance(layer, sok.DistributedEmbedding):
            found |= {f"{layer.name}.{name}": table for name, table in layer.tables.items()}
        elif hasattr(layer, "table"):
            found[layer.name] = layer.table
    return found


def contents_of(table: Any) -> dict[str, npt.NDArray[Any]]:
    """All that a table holds; rows in the order of their keys."""
    adaptive = isinstance(table, sok.AdaptiveTable)
    held = table.snapshot().by_name()
    for prefix in ("own_", "static_") if adaptive else ("",):
        order = np.argsort(held[f"{prefix}keys"])
        for field in ("keys", "embeddings", "slots", "update_nums", "update_times"):
            held[prefix + field] = held[prefix + field][order]
    return {name: np.asarray(value) for name, value in held.items()}


def held_by(model: Any) -> dict[str, npt.NDArray[Any]]:
    """All that a model holds, by name."""
    held = {
        f"{name}.{field}": value
        for name, table in tables_of(model).items()
        for field, value in contents_of(table).items()
    }
    variables = [*model.variables, *model.optimizer.variables]
    held |= {f"variable.{i}": np.asarray(each) for i, each in enumerate(variables)}
    return held


def is_read(value: npt.NDArray[Any]) -> bool:
    """Returns whether anything reads a value: nothing reads what optimizers keep of anchors.

    That tells which tickets there were, which a run that goes on from a file counts anew.
    """
    return value.shape != (ANCHOR_SIZE,)


def assert_as_trained(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Both are what the same batches leave, within rounding: sums of gradients have any order."""
    for name, value in expected.items():
        if name.endswith("update_times") or not is_read(value):  # the times are of the clock
            continue
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Both have the same bits."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
