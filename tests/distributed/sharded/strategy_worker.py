"""One worker under a strategy of tf.distribute: trains, and saves what it has and is told."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.registry import Here
from sharded.strategies import examples, keras_step, one_table, run_all, share


class Another(sok_embed.communicators.LocalCommunicator):
    """Says that this worker has the rank of the other one."""

    def __init__(self, here: Here) -> None:
        self._here = here

    @property
    def rank(self) -> int:
        return 1 - self._here.rank

    @property
    def size(self) -> int:
        return self._here.size


def told(call: Callable[[], Any]) -> str:
    """The error of a call, as `ValueError: message`."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def step(here: Here, strategy: Any, optimizer: Any, **arguments: Any) -> None:
    """One step of a new model under the strategy."""
    with strategy.scope():
        model, made = one_table(), optimizer()
    run = arguments.get("run", strategy.run)
    change = arguments.get("change", lambda gradients: gradients)
    keys, targets = examples()
    at = share(here, 0)

    def changed(keys: Any, targets: Any) -> None:
        apply = made.apply
        made.apply = lambda gradients, weights: apply(change(gradients), weights)
        keras_step(model, made, 1.0)(keys, targets)

    compiled = tf.function(lambda keys, targets: run(changed, args=(keys, targets)))
    compiled(tf.constant(keys[at]), tf.constant(targets[at]))


def refusals(here: Here, strategy: Any, communicator: Any) -> dict[str, str]:
    """What is said of each thing that cannot work."""
    sgd = keras.optimizers.SGD
    with strategy.scope():
        model = one_table()
        model.compile("sgd", "mse")
        dense = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        dense.compile("sgd", "mse")
    keys, targets = examples()
    found = {
        name: told(lambda name=name: getattr(model, name)(keys, targets))  # type: ignore[misc]
        for name in ("fit", "evaluate", "train_on_batch", "test_on_batch")
    }
    found["fit_of_a_dense_model"] = told(lambda: dense.fit(keys, targets, verbose=0))
    with strategy.scope():
        found["distributed_optimizer"] = told(lambda: sok_embed.DistributedOptimizer("sgd"))
    late = sok_embed.DistributedOptimizer(sgd(0.1))
    makers = {
        "late_distributed_optimizer": lambda: late,
        "clipnorm": lambda: sgd(0.1, clipnorm=1.0),
        "global_clipnorm": lambda: sgd(0.1, global_clipnorm=1.0),
        "clipvalue": lambda: sgd(0.1, clipvalue=1.0),
        "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(sgd(0.1)),
    }
    for name, make in makers.items():
        found[name] = told(lambda make=make: step(here, strategy, make))  # type: ignore[misc]
    for name, other in {"local": "local", "rank": Another(here)}.items():
        sok_embed.init(other)
        with strategy.scope():
            found[name] = told(one_table)
        sok_embed.init(communicator)
    outside = sok_embed.DynamicEmbedding(2)
    outside.build()
    found["built_outside"] = told(
        lambda: strategy.run(lambda: outside(tf.constant([1]), training=True))
    )
    # Only this worker's gradients, and gradients that each worker multiplies by another number.
    found["not_summed"] = told(
        lambda: step(here, strategy, lambda: sgd(0.1), run=lambda function, args: function(*args))
    )
    found["factors"] = told(
        lambda: step(
            here,
            strategy,
            lambda: sgd(0.1),
            change=lambda gradients: [each * (1.0 + here.rank) for each in gradients],
        )
    )
    return found


def main(kind: str, folder: Path, wanted: list[str]) -> None:
    communicator = sok_embed.init()
    if kind == "multi_worker":
        strategy: Any = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    here = Here(sok_embed.rank(), sok_embed.size())
    for name, arrays in run_all(here, strategy, kind, wanted).items():
        np.savez(folder / f"{name}.{here.rank}.npz", **arrays)
    if kind == "multi_worker":
        said = refusals(here, strategy, communicator)
        (folder / f"refusals.{here.rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
    except Exception:
        traceback.print_exc()
        raise
