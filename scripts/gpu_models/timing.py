"""The case `timing` of this folder."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import Arrays, case, on_gpu

import sok_embed as sok


@case(float("inf"))
def timing() -> Arrays:
    """Measures steps of 65,536 examples; medians in milliseconds. Compared with nothing."""
    return {
        f"{part}, rows on the {place}": value
        for place in ("cpu", "gpu")
        for part, value in times_of(place if on_gpu() else "cpu").items()
    }


def times_of(place: str) -> Arrays:
    """Measures models whose rows lie in the memory of a device."""
    found = {}
    size, fields = 65536, 26
    random = np.random.default_rng(2)
    keys = (random.zipf(1.2, (size, fields)) % 1_000_000).astype(np.int64)
    targets = random.random((size, 1), np.float32)
    for name, widths in {"small": [64], "large": [1024, 512, 256]}.items():
        inputs = keras.Input((fields,), dtype="int64")
        rows = sok.DynamicEmbedding(16, name="rows", seed=3, device=place)
        hidden = keras.layers.Flatten()(rows(inputs))
        for width in widths:
            hidden = keras.layers.Dense(width, "relu")(hidden)
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile("adam", "mse")
        batch = next(iter(tf.data.Dataset.from_tensors((keys, targets))))
        found[f"step of {name} model"] = median_time(lambda m=model, b=batch: m.train_on_batch(*b))
        layer = model.get_layer("rows")
        look_up = tf.function(lambda keys, layer=layer: tf.reduce_sum(layer(keys)))
        optimizer = keras.optimizers.Adam()
        optimizer.build(layer.trainable_variables)

        @tf.function
        def step(keys: Any, layer: Any = layer, optimizer: Any = optimizer) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(layer(keys, training=True))
            weights = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)

        found["step of the table alone"] = median_time(lambda f=step, b=batch: f(b[0]))
        found["lookup alone"] = median_time(lambda f=look_up, b=batch: f(b[0]).numpy())
    return found


def median_time(call: Callable[[], Any], times: int = 7) -> float:
    """Returns the median time of a call in milliseconds, after three that do not count."""
    taken = []
    for number in range(times + 3):
        begin = time.perf_counter()
        call()
        if number > 2:
            taken.append(1000 * (time.perf_counter() - begin))
    return statistics.median(taken)
