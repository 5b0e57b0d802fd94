"""Lists whole models that differ on one worker, and the differences that are allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

import sok_embed as sok
from sharded.differing.columns import adaptive, embedded
from sharded.differing.kinds import KEYS, collection, folder, look_up, rows, table


def _model(
    *,
    optimizer: Any = "adam",
    loss: str = "mse",
    towers: tuple[str, ...] = ("city", "item"),
    named: bool = True,
    dropout: float = 0.0,
    rows: Mapping[str, Any] | None = None,
) -> keras.Model:
    """Makes a model of two towers, in the order in which they are named."""
    keras.utils.clear_session()
    inputs = {name: keras.Input((2,), dtype="int64", name=name) for name in sorted(towers)}
    outputs = {}
    for name in towers:
        layer = sok.DynamicEmbedding(2, name=f"{name}_rows", **(rows or {}))
        flat = keras.layers.Flatten(name=f"{name}_flat")(layer(inputs[name]))
        dropped = keras.layers.Dropout(dropout, name=f"{name}_dropout")(flat)
        dense = keras.layers.Dense(1, name=f"{name}_tower" if named else None)
        outputs[name] = dense(dropped)
    model = keras.Model(inputs, keras.layers.Add(name="sum")(list(outputs.values())))
    model.compile(sok.DistributedOptimizer(optimizer), loss)
    return model


def _batch() -> dict[str, Any]:
    return {"x": {"city": KEYS, "item": KEYS}, "y": np.ones([2, 1], np.float32)}


def fit(**arguments: Any) -> keras.Model:
    model = _model(**arguments)
    model.fit(**_batch(), verbose=0)
    return model


class _Lower(keras.callbacks.Callback):
    """Lowers the learning rate after the first epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.25


def _lowered_on_one_worker(odd: bool) -> None:
    callbacks = [sok.callbacks.BroadcastVariables(), *([_Lower()] if odd else [])]
    _model(optimizer="sgd").fit(**_batch(), epochs=3, verbose=0, callbacks=callbacks)


def _broadcast(odd: bool, **arguments: Any) -> None:
    callbacks = [sok.callbacks.BroadcastVariables()]
    _model(**arguments).fit(**_batch(), verbose=0, callbacks=callbacks)


def _stepped_before(odd: bool) -> None:
    model = _model()
    model.optimizer.iterations.assign(5 if odd else 0)
    model.fit(**_batch(), verbose=0)


def _turned(odd: bool) -> tuple[str, ...]:
    return ("item", "city") if odd else ("city", "item")


# Whole models, in the form of OTHERS.
MODELS: dict[str, tuple[Callable[[bool], object], str]] = {
    "fit with another optimizer": (
        lambda odd: fit(optimizer="adam" if odd else "sgd"),
        "class of the optimizer",
    ),
    "fit with another rate": (
        lambda odd: fit(optimizer=keras.optimizers.Adam(0.1 if odd else 0.5)),
        "learning_rate of the optimizer is 0.5 on worker",
    ),
    "fit with another seed": (
        lambda odd: fit(rows={"seed": int(odd)}),
        "seed of layer 'city_rows' is 0 on worker",
    ),
    "fit with a table that is frozen": (
        lambda odd: fit(rows={"trainable": False, "seed": int(odd)}),
        "seed of layer 'city_rows'",
    ),
    "fit after steps of one worker": (_stepped_before, "steps before of the optimizer"),
    "fit with another dropout": (lambda odd: fit(dropout=0.5 * odd), "rate of layer"),
    "fit with another loss": (lambda odd: fit(loss="mae" if odd else "mse"), "loss of the loss"),
    "fit with towers in another order": (lambda odd: fit(towers=_turned(odd)), "variable 0"),
    "fit with towers without names in another order": (
        lambda odd: fit(towers=_turned(odd), named=False),
        "variable 0",
    ),
    "a broadcast with towers in another order": (
        lambda odd: _broadcast(odd, towers=_turned(odd)),
        "variable 0",
    ),
    "a rate that one worker lowers": (
        _lowered_on_one_worker,
        "and 0.25 on worker 1. Change the rate",
    ),
}

# Differences that raise nothing.
ALIKE: dict[str, Callable[[bool], object]] = {
    "the same model": lambda odd: fit(),
    "names and starts of dense weights and optimizers": lambda odd: _broadcast(
        odd,
        optimizer=keras.optimizers.SGD(0.1 if odd else 0.2, name="a" if odd else "b"),
    ),
    "a device": lambda odd: look_up(rows(device="auto" if odd else "cpu")),
    "folders": lambda odd: look_up(
        rows(storage=sok.Storage(folder(), cache_bytes=2**20 if odd else 2**21))
    ),
    "shapes for readers": lambda odd: collection(
        sok.FeatureConfig("f", table(), (2, 2) if odd else None, (2, 2) if odd else None)
    ),
    "parts of a column": lambda odd: embedded(adaptive(partition_num=2 if odd else None)),
}
