"""Where are steps with a sparse gradient of a hashed weight faster than with a dense one?"""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _common import interleaved, report

from sok_embed import tf_ops

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.01),
    "adam": lambda: keras.optimizers.Adam(1e-3),
}
SLOTS = range(20, 28)
TOUCHED = tuple(2**power for power in range(1, 11))
HEADINGS = ("touched", "elements", "dense ms", "sparse ms", "dense/sparse")
ROW = "{:9} {:>6} {:>10} {:>10} {:>10} {:>10} {:>12}"
# A step that reads this many elements is long enough to be timed alone.
ELEMENTS = 2**22


def sweep(arguments: Any) -> None:
    """Reports each case, and prints a table of times for each optimizer."""
    dim = arguments.dim[0]
    optimizers = arguments.optimizer or list(OPTIMIZERS)
    for name in optimizers:
        print(ROW.format("optimizer", "slots", *HEADINGS), file=sys.stderr)
        for power in arguments.slots or SLOTS:
            variable = keras.Variable(lambda shape, dtype: tf.zeros(shape, dtype), (2**power,))
            optimizer = OPTIMIZERS[name]()
            optimizer.build([variable])
            for part in arguments.touched or TOUCHED:
                _case(variable, optimizer, name, dim, part, arguments)


def _case(variable: Any, optimizer: Any, name: str, dim: int, part: int, arguments: Any) -> None:
    slots = variable.shape[0]
    ids = ids_that_touch(slots, part, dim, arguments)
    elements = ids.size * dim
    steps = {
        gradient: _step(variable, optimizer, dim, gradient, arguments)
        for gradient in ("dense", "sparse")
    }
    batch = tf.constant(ids)
    touched = int(steps["sparse"](batch))
    steps["dense"](batch)
    calls = max(1, min(8, ELEMENTS // max(elements, slots)))
    repeats = min(arguments.repeats, 3) if slots >= 2**24 else arguments.repeats
    seconds = interleaved(
        {gradient: partial(_call, step, batch) for gradient, step in steps.items()}, calls, repeats
    )
    ratio = seconds["dense"] / seconds["sparse"]
    report(
        {
            "benchmark": "hashed_bag_gradient",
            "optimizer": name,
            "slots": slots,
            "dim": dim,
            "block_size": arguments.block_size,
            "ids": ids.size,
            "touched": touched,
            "milliseconds": {kind: round(1e3 * value, 3) for kind, value in seconds.items()},
            "dense_over_sparse": round(ratio, 3),
            "threads": arguments.threads,
        },
        ROW.format(
            name,
            f"2**{math.log2(slots):.0f}",
            f"1/{slots / touched:.1f}",
            f"1/{slots / elements:.1f}",
            f"{1e3 * seconds['dense']:.2f}",
            f"{1e3 * seconds['sparse']:.2f}",
            f"{ratio:.2f}",
        ),
    )


def ids_that_touch(slots: int, part: int, dim: int, arguments: Any) -> Any:
    """Returns bags of distinct ids whose elements are expected to reach `1 / part` of the slots.

    Of S slots, n that are drawn at random leave `S * exp(-n / S)` untouched.
    """
    count = -slots * math.log1p(-1 / part) / dim
    bags = max(1, round(count / arguments.bag))
    rng = np.random.default_rng(arguments.seed)
    return rng.permutation(bags * arguments.bag).reshape(bags, arguments.bag)


def _step(variable: Any, optimizer: Any, dim: int, gradient: str, arguments: Any) -> Any:
    spec = tf_ops.HashSpec(block_size=arguments.block_size)

    @tf.function(reduce_retracing=True)
    def step(ids: tf.Tensor) -> tf.Tensor:
        weight = variable.value
        with tf.GradientTape() as tape:
            bags = tf_ops.hashed_bag(
                weight,
                ids,
                num_embeddings=2**31,
                embedding_dim=dim,
                spec=spec,
                gradient=gradient,
            )
            loss = tf.reduce_mean(tf.reduce_sum(tf.square(bags - 1.0), 1))
        slope = tape.gradient(loss, weight)
        optimizer.apply([slope], [variable])
        return tf.size(slope.values if gradient == "sparse" else slope, tf.int64)

    return step


def _call(step: Any, ids: tf.Tensor, _: int) -> tf.Tensor:
    return step(ids)
