"""Trains by `checkpoint.fit` on two workers of Ray, of which one may be killed within an epoch.

python trained_on_ray.py FOLDER [die]

Worker 0 leaves the losses, and each worker its rows, in FOLDER.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import ray
from ray import train
from ray.train.tensorflow import TensorflowTrainer

ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def loop(config: dict[str, Any]) -> None:
    """Trains, and goes on where Ray starts the workers again."""
    import keras
    import numpy as np
    import tensorflow as tf

    import sok_embed as sok

    sok.init()
    keras.utils.set_random_seed(7)
    rows = sok.DynamicEmbedding(4, seed=1, name="rows")
    model = keras.Sequential([keras.Input((2,), dtype="int64"), rows, keras.layers.Flatten()])
    model.add(keras.layers.Dense(1))
    model.compile(sok.DistributedOptimizer("adam"), "mse")
    random = np.random.default_rng(0)
    keys, targets = random.integers(0, 50, (96, 2)), random.normal(size=(96, 1))
    examples = tf.data.Dataset.from_tensor_slices((keys, targets.astype(np.float32)))
    data = examples.shuffle(96, seed=3).shard(sok.size(), sok.rank()).batch(16 // sok.size())
    folder = Path(config["folder"])
    first = folder / "has-died"

    def die(batch: int, logs: Any) -> None:
        step = int(model.optimizer.iterations)
        if config["dies"] and sok.rank() == 1 and step == 9 and not first.exists():
            first.touch()
            os.kill(os.getpid(), 9)

    history = sok.checkpoint.fit(
        model,
        data,
        directory=folder / "checkpoints",
        epochs=3,
        save_freq=2,
        position="count",
        on_saved=lambda path: train.report({"checkpoint": path}),
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=die)],
        verbose=0,
    )
    keys, vectors = rows.table.export()
    order = np.argsort(keys)
    np.savez(folder / f"rows-{sok.rank()}", keys=keys[order], vectors=vectors[order])
    if sok.rank() == 0:
        np.save(folder / "losses", history.history["loss"])


def main(folder: str, dies: bool) -> None:
    """Starts a Ray of this machine and trains."""
    ray.init(num_cpus=2, logging_level="ERROR", runtime_env={"env_vars": ENVIRONMENT})
    TensorflowTrainer(
        loop,
        train_loop_config={"folder": folder, "dies": dies},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            storage_path=folder, failure_config=train.FailureConfig(max_failures=2)
        ),
    ).fit()


if __name__ == "__main__":
    main(sys.argv[1], "die" in sys.argv[2:])
