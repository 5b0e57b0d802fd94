"""Three layers whose exchanges begin late by random times, in another order on every worker.

python any_order_worker.py STEPS FOLDER    # started by sok-embed run
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sok_embed.communicators import Communicator

NAMES = ("a", "b", "c")
KEYS, COUNT = 40, 12  # different keys, and those of a batch
NUMBERS = np.arange(KEYS, dtype=np.float32) ** 2  # of the keys of plain layers
MOST_SECONDS = 2e-3
EAGER_EVERY = 4  # one step of so many is not compiled
TIMEOUT_S = 30.0  # a deadlock is an error after it

Arrays = dict[str, np.ndarray]


def keys_of(rank: int, step: int) -> Arrays:
    """The keys of a worker's batch for each layer; any process knows them of all workers."""
    return {
        name: np.random.default_rng([rank, step, number]).integers(0, KEYS, COUNT)
        for number, name in enumerate(NAMES)
    }


def factors_of(rank: int, step: int) -> np.ndarray:
    """The gradients of vectors, for each layer and key: float32 `[3, KEYS]`.

    They are multiples of 3, whose means over 3 workers are integers.
    """
    of_keys = np.arange(len(NAMES))[:, None] + np.arange(KEYS)
    return (3 * (1 + (rank + step) % 4) * (1 + of_keys)).astype(np.float32)


class Late(Communicator):
    """Another communicator, each of whose exchanges begins late by a random time.

    Attributes:
        began: The names of exchanges in the order in which they began.
    """

    def __init__(self, on_time: Communicator) -> None:
        self._on_time = on_time
        self._random = random.Random(on_time.rank)
        self.began: list[str] = []

    @property
    def rank(self) -> int:
        return self._on_time.rank

    @property
    def size(self) -> int:
        return self._on_time.size

    def all_to_all(self, tensor: Any, splits: Any, name: str) -> Any:
        there = self._late_there(tensor, name)
        received, received_splits = self._on_time.all_to_all(there, splits, name)
        return self._late_back(received, f"{name}.gradients"), received_splits

    def exchange(self, tensor: Any, splits: Any, gradient_splits: Any, name: str) -> Any:
        there = self._late_there(tensor, f"{name}.rows")
        received, received_splits = self._on_time.exchange(there, splits, gradient_splits, name)
        return self._late_back(received, f"{name}.gradients"), received_splits

    def all_reduce(self, tensor: Any, name: str, average: bool = False) -> Any:
        return self._on_time.all_reduce(self._late(tensor, name), name, average)

    def broadcast(self, tensor: Any, root_rank: int, name: str) -> Any:
        return self._on_time.broadcast(tensor, root_rank, name)

    def barrier(self) -> None:
        self._on_time.barrier()

    def _late_there(self, sent: Any, name: str) -> Any:
        @tf.custom_gradient
        def late(values: Any) -> Any:
            return self._late(values, name), lambda upstream: upstream

        return late(sent)

    def _late_back(self, received: Any, name: str) -> Any:
        @tf.custom_gradient
        def late(values: Any) -> Any:
            return tf.identity(values), lambda upstream: self._late(upstream, name)

        return late(received)

    def _late(self, tensor: Any, name: str) -> Any:
        def wait(values: np.ndarray) -> np.ndarray:
            time.sleep(self._random.uniform(0, MOST_SECONDS))
            self.began.append(name)
            return values

        # A tf.function runs stateful ops one after the other, and this one shall not wait.
        waited = tf.numpy_function(wait, [tensor], tensor.dtype, stateful=False)
        waited.set_shape(tensor.shape)
        return waited


class Plain:
    """A layer made of exchanges alone, each of whose keys has a fixed number.

    Attributes:
        gradients: Sums of the gradients of the keys that this worker owns, `[KEYS]`.
    """

    def __init__(self, name: str, communicator: Communicator) -> None:
        self._name = f"plain.{name}"
        self._communicator = communicator
        self._numbers = tf.Variable(NUMBERS, name=name)
        self.gradients = tf.Variable(tf.zeros([KEYS]))

    def step(self, keys: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
        """Looks keys up and adds the factor of each to its gradient; returns the vectors' sum."""
        size = self._communicator.size
        keys = tf.gather(keys, tf.argsort(keys % size, stable=True))
        splits = tf.math.bincount(tf.cast(keys % size, tf.int32), minlength=size)
        asked, answers = self._communicator.all_to_all(keys, splits, f"{self._name}.keys")
        with tf.GradientTape() as tape:
            rows = tf.gather(self._numbers, asked)
            vectors, _ = self._communicator.exchange(rows, answers, splits, self._name)
            loss = tf.reduce_sum(vectors * tf.gather(factors, keys))
        gradients = tape.gradient(loss, self._numbers)
        self.gradients.scatter_add(gradients)
        return tf.reduce_sum(vectors)


def plain_steps(late: Late) -> tuple[list[Plain], Callable[..., Any], Callable[..., Any]]:
    """Three plain layers, and their step: compiled, and eagerly in a thread for each layer."""
    layers = [Plain(name, late) for name in NAMES]
    threads = ThreadPoolExecutor(len(NAMES))

    @tf.function
    def compiled(keys: list[tf.Tensor], factors: list[tf.Tensor]) -> tf.Tensor:
        of_layers = zip(layers, keys, factors, strict=True)
        return tf.stack([layer.step(*given) for layer, *given in of_layers])

    def eager(keys: list[tf.Tensor], factors: list[tf.Tensor]) -> tf.Tensor:
        of_layers = zip(layers, keys, factors, strict=True)
        calls = [threads.submit(layer.step, *given) for layer, *given in of_layers]
        return tf.stack([call.result() for call in calls])

    return layers, compiled, eager


def table_steps() -> tuple[dict[str, Any], Callable[..., Any], Callable[..., Any]]:
    """Three layers with tables and a weight, and their step: compiled and eager.

    Eager calls of one thread take place in the order of the program, on each worker alike.
    """
    layers = [sok_embed.DynamicEmbedding(1, "zeros", name=name) for name in NAMES]
    for layer in layers:
        layer.build()
    weight = keras.Variable(0.0, name="weight")
    variables = [weight, *(layer.trainable_variables[0] for layer in layers)]
    optimizer = sok_embed.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(variables)

    def eager(keys: list[tf.Tensor], factors: list[tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss, sums = factors[0][0] * weight, []
            for layer, each, of_keys in zip(layers, keys, factors, strict=True):
                vectors = layer(each, training=True)[:, 0]
                sums.append(tf.reduce_sum(vectors))
                loss += tf.reduce_sum(vectors * tf.gather(of_keys, each))
        optimizer.apply(tape.gradient(loss, [each.value for each in variables]), variables)
        return tf.stack(sums)

    return {"layers": layers, "weight": weight}, tf.function(eager), eager


def main() -> None:
    """Runs all steps, and writes what came of them."""
    steps, folder = int(sys.argv[1]), Path(sys.argv[2])
    tf.config.threading.set_inter_op_parallelism_threads(8)  # a late exchange keeps a thread
    late = Late(sok_embed.init(timeout=TIMEOUT_S))
    sok_embed.init(late)
    plain, *plain_step = plain_steps(late)
    tables, *table_step = table_steps()
    told: dict[str, Any] = {"plain_sums": [], "table_sums": [], "orders": []}
    for step in range(steps):
        keys = [tf.constant(each) for each in keys_of(late.rank, step).values()]
        factors = [tf.constant(each) for each in factors_of(late.rank, step)]
        is_eager = step % EAGER_EVERY == EAGER_EVERY - 1
        late.began.clear()
        told["plain_sums"].append(plain_step[is_eager](keys, factors).numpy().tolist())
        told["table_sums"].append(table_step[is_eager](keys, factors).numpy().tolist())
        # The first step of each kind compares the models of workers as well.
        told["orders"].append([name for name in late.began if ".agreement." not in name])
    every_key = tf.range(KEYS, dtype=tf.int64)
    told["gradients"] = [layer.gradients.numpy().tolist() for layer in plain]
    told["rows"] = [layer(every_key)[:, 0].numpy().tolist() for layer in tables["layers"]]
    told["weight"] = float(tables["weight"].value)
    (folder / f"{late.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
