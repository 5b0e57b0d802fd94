"""Models for tests of live updates: answers that tell their version, and random training."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import served_models as models
import tensorflow as tf

import sok_embed as sok
from sok_embed.serving import LiveModel, Publisher

KEYS = 40
DIM = 4


def telling() -> keras.Model:
    """Returns a model whose rows and dense weights are to be set to the number of a version.

    Its outputs are the rows of two tables, and a dense weight: of one version all are equal.
    """
    ids = keras.Input((3,), dtype="int64", name="ids")
    first = sok.DynamicEmbedding(2, "zeros", name="first")(ids)
    second = sok.DynamicEmbedding(3, "zeros", name="second")(ids)
    flat = [keras.layers.Flatten()(each) for each in (first, second)]
    ones = keras.layers.Lambda(lambda each: tf.cast(each[:, :1] * 0 + 1, tf.float32))(ids)
    dense = keras.layers.Dense(1, use_bias=False, name="dense")(ones)
    return keras.Model(ids, keras.layers.Concatenate()([*flat, dense]))


def tell(model: keras.Model, number: int, keys: Any = range(KEYS)) -> None:
    """Sets rows of both tables, and the dense weight, to a number."""
    keys = np.fromiter(keys, np.int64)
    for name, dim in (("first", 2), ("second", 3)):
        table = model.get_layer(name).table
        table.assign(keys, np.full([len(keys), dim], number, np.float32))
    model.get_layer("dense").kernel.assign([[float(number)]])


class Training:
    """A model that is trained at random and published.

    Args:
        model: The model, which is compiled.
        random: The generator of numbers.
        keys: The keys that inputs have.
    """

    def __init__(self, model: keras.Model, random: np.random.Generator, keys: Any) -> None:
        self.model = model
        self._random = random
        self._keys = np.asarray(keys)

    def batch(self, size: int = 8) -> list[np.ndarray]:
        """Returns an input of each kind, dense."""
        return [
            self._random.choice(self._keys, [size, *each.shape[1:]]).astype(each.dtype)
            for each in self.model.inputs
        ]

    def step(self) -> None:
        """Trains on a batch of some keys, and now and then takes rows away."""
        batch = self.batch()
        outputs = self.model.outputs
        targets = [np.ones([8, *each.shape[1:]], np.float32) for each in outputs]
        self.model.train_on_batch(batch, targets)
        if self._random.integers(3) == 0:
            for layer in self.model.layers:
                table = getattr(layer, "table", None)
                if isinstance(table, sok.Table):
                    table.remove(self._random.choice(self._keys, 3))


def assert_serves(live: LiveModel, model: keras.Model, fed: list[np.ndarray]) -> None:
    """Raises unless a served model answers the bits of `predict`."""
    inputs = {each.name: value for each, value in zip(model.inputs, fed, strict=True)}
    answer = live(**{name: tf.constant(value) for name, value in inputs.items()})
    expected = model.predict(fed, batch_size=len(fed[0]), verbose=0)
    models.assert_same_bits(
        [answer[name].numpy() for name in sorted(answer)], models.np_list(expected)
    )


def publisher(model: keras.Model, path: Any) -> Publisher:
    """Returns a publisher of an export that is made now."""
    from sok_embed.serving import export

    export(model, path)
    return Publisher(model, path)


class Told:
    """The tables of `telling` at one version, which follows from the number of the version alone.

    Attributes:
        tables: Of each table the numbers that its rows have, int64 `[KEYS]`; 0: no row.
    """

    def __init__(self) -> None:
        self.number = 0
        self.tables = [np.zeros(KEYS, np.int64), np.zeros(KEYS, np.int64)]

    def advance(self, model: keras.Model | None = None) -> None:
        """Makes the changes of the next version, to a model too."""
        self.number += 1
        random = np.random.default_rng(self.number)
        for table, name, dim in zip(self.tables, ("first", "second"), (2, 3), strict=True):
            gone, new = random.choice(KEYS, 3), random.choice(KEYS, 5, replace=False)
            table[gone] = 0
            table[new] = self.number
            if model is not None:
                rows = model.get_layer(name).table
                rows.remove(gone)
                rows.assign(new, np.full([len(new), dim], self.number, np.float32))
        if model is not None:
            model.get_layer("dense").kernel.assign([[float(self.number)]])

    def put(self, model: keras.Model) -> None:
        """Has a model be as it is at this version."""
        tell(model, 0)
        for table, name, dim in zip(self.tables, ("first", "second"), (2, 3), strict=True):
            rows = model.get_layer(name).table
            rows.remove(np.arange(KEYS))
            (there,) = np.nonzero(table)
            rows.assign(there, np.repeat(table[there, np.newaxis], dim, 1).astype(np.float32))
        model.get_layer("dense").kernel.assign([[float(self.number)]])

    def answer(self, ids: np.ndarray) -> np.ndarray:
        """Returns what the model answers."""
        first, second = (table[ids] for table in self.tables)
        parts = [
            np.repeat(first, 2, 1),
            np.repeat(second, 3, 1),
            np.full([len(ids), 1], self.number),
        ]
        return np.concatenate(parts, 1).astype(np.float32)


def versions_to(last: int) -> list[np.ndarray]:
    """Returns the tables of all versions up to one, int64 `[2, KEYS]` each."""
    told = Told()
    found = [np.array(told.tables)]
    for _ in range(last):
        told.advance()
        found.append(np.array(told.tables))
    return found


def version_of(answer: np.ndarray, ids: np.ndarray, versions: list[np.ndarray]) -> int:
    """Returns the version that an answer is of; raises if it is not of one alone."""
    told = Told()
    told.number = int(answer[0, -1])
    told.tables = list(versions[told.number])
    np.testing.assert_array_equal(answer, told.answer(ids))
    return told.number
