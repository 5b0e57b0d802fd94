"""Makes small models with one layer of embeddings, trains them and compares what they hold."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import forked
import keras
import numpy as np
from keras import optimizers as ko
from limits import HANG_S

from sok_embed import All2AllDenseEmbedding, DynamicEmbedding

DIM = 4
LENGTH = 3
BATCH = 16
RANDOM = np.random.default_rng(6)
KEYS = RANDOM.integers(-60, 60, (48, LENGTH))
TARGETS = RANDOM.normal(size=(48, 1)).astype(np.float32)
UNSEEN = np.array([[1000, 2000, -3000]])

OPTIMIZERS = {
    "sgd": lambda: ko.SGD(0.1),
    "adam": lambda: ko.Adam(0.01),
    "adagrad": lambda: ko.Adagrad(0.1),
    "ftrl": lambda: ko.Ftrl(0.1, l1_regularization_strength=0.01),
}


def dynamic(**arguments: Any) -> keras.layers.Layer:
    return DynamicEmbedding(DIM, **{"name": "emb", "seed": 3, **arguments})


def all2all(**arguments: Any) -> keras.layers.Layer:
    return All2AllDenseEmbedding(200, DIM, 1, LENGTH, **{"name": "emb", "seed": 3, **arguments})


def model_of(layer: keras.layers.Layer, optimizer: Any = None, dense: bool = True) -> Any:
    """Returns a model of a layer of embeddings with a dense layer of one output on it.

    Without `dense` the dense layer has only ones and is not trained: the output is the sum of a
    sample's embeddings, and training changes nothing but them.
    """
    inputs = keras.Input((LENGTH,), dtype="int64")
    shaped = keras.layers.Reshape((1, LENGTH))(inputs) if "All2All" in str(type(layer)) else inputs
    flat = keras.layers.Flatten()(layer(shaped))
    if dense:
        outputs = keras.layers.Dense(1, kernel_initializer="ones")(flat)
    else:
        outputs = keras.layers.Dense(
            1, kernel_initializer="ones", use_bias=False, trainable=False, name="sum"
        )(flat)
    model = keras.Model(inputs, outputs)
    model.compile(optimizer or ko.Adam(0.01), "mse", run_eagerly=True)
    return model


def train(model: Any, epochs: int = 1, keys: np.ndarray = KEYS) -> list[float]:
    """Trains a model and returns the loss of each epoch.

    It runs eagerly: tracing a graph would take longer than these few steps.
    """
    model.run_eagerly = True
    history = model.fit(
        keys, TARGETS[: len(keys)], batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0
    )
    return history.history["loss"]


def contents_of(model: Any, layer: str = "emb") -> list[Any]:
    """Returns all that the table of a layer holds, in the order of the keys."""
    contents = model.get_layer(layer).table.export(slots=True)
    order = np.argsort(contents.keys)
    arrays = [getattr(contents, n)[order] for n in ("keys", "embeddings", "slots", "update_nums")]
    return [*arrays, contents.rule, contents.steps]


def assert_same(one: list[Any], two: list[Any]) -> None:
    """Asserts that two results of `contents_of` are equal to the bit, not only nearly."""
    for ours, theirs in zip(one, two, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the text of a Python program in a process of its own, with `arguments` in sys.argv."""
    return subprocess.run(
        forked.program(program, *arguments),
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
