"""Trains by `sok_embed.ray.fit` on workers of Ray, of which some may be killed on the way.

python trained_on_ray.py FOLDER NAME WORKERS TRAINER DATA [RANK:STEP ...]

Worker RANK kills itself after STEP, once for each pair. FOLDER gets the losses and the rows of each
worker, and `kept.json`, the checkpoints that Ray lists at the end. A run of the same NAME in FOLDER
goes on from the one before.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import ray
import ray.data
import ray.train
from ray.train.tensorflow import TensorflowTrainer
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import sok_embed.ray

ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
EXAMPLES, BATCH, EPOCHS = 100, 12, 3  # the last batch of an epoch has 4 examples


def examples() -> tuple[Any, Any]:
    """Returns keys `[EXAMPLES, 2]` and targets `[EXAMPLES]`, in the order of training."""
    random = np.random.default_rng(0)
    keys = random.integers(0, 50, (EXAMPLES, 2))
    return keys, random.normal(size=EXAMPLES).astype(np.float32)


def model_and_rows(optimizer: Any) -> tuple[Any, Any]:
    """Returns the compiled model, and its layer of rows."""
    import keras

    import sok_embed as sok

    keras.utils.set_random_seed(7)
    rows = sok.DynamicEmbedding(4, seed=1, name="rows")
    model = keras.Sequential([keras.Input((2,), dtype="int64"), rows, keras.layers.Flatten()])
    model.add(keras.layers.Dense(1))
    model.compile(optimizer, "mse")
    return model, rows


def dataset(kind: str) -> Any:
    """Returns this worker's batches, of TensorFlow's or of Ray's dataset."""
    import tensorflow as tf

    import sok_embed as sok

    if kind == "ray":
        return sok.ray.dataset(feature_columns="keys", label_column="target", rows=EXAMPLES)
    whole = tf.data.Dataset.from_tensor_slices(examples()).batch(BATCH)
    rank, size = sok.rank(), sok.size()
    return sok.data.join(whole.map(lambda *batch: [each[rank::size] for each in batch]))


def loop(config: dict[str, Any]) -> None:
    """Trains, and goes on where Ray starts the workers again."""
    import keras

    import sok_embed as sok

    sok.init()
    model, rows = model_and_rows(sok.DistributedOptimizer("adam"))
    folder = Path(config["folder"])

    def die(batch: int, logs: Any) -> None:
        for rank, step in config["deaths"]:
            done = folder / f"died-{rank}-{step}"
            if (sok.rank(), int(model.optimizer.iterations)) == (rank, step) and not done.exists():
                done.touch()
                os.kill(os.getpid(), 9)

    history = sok.ray.fit(
        model,
        dataset(config["data"]),
        epochs=EPOCHS,
        save_freq=2,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=die)],
        verbose=0,
    )
    keys, vectors = rows.table.export()
    order = np.argsort(keys)
    np.savez(folder / f"rows-{sok.rank()}", keys=keys[order], vectors=vectors[order])
    if sok.rank() == 0:
        np.save(folder / "losses", history.history["loss"])


def main(folder: str, name: str, workers: str, trainer: str, data: str, *deaths: str) -> None:
    """Joins the Ray at RAY_ADDRESS, or starts one of this machine, and trains."""
    where: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": 4}
    ray.init(logging_level="ERROR", runtime_env={"env_vars": ENVIRONMENT}, **where)
    ray.data.DataContext.get_current().enable_progress_bars = False
    arguments: dict[str, Any] = {}
    if data == "ray":
        keys, targets = examples()
        pairs = pyarrow.FixedSizeListArray.from_arrays(keys.ravel(), 2)
        table = pyarrow.table({"keys": pairs, "target": targets})
        arguments["datasets"] = {"train": ray.data.from_arrow(table)}
        arguments["dataset_config"] = sok_embed.ray.DataConfig(BATCH)
    kinds = {"TensorflowTrainer": TensorflowTrainer, "DataParallelTrainer": DataParallelTrainer}
    result = kinds[trainer](
        loop,
        train_loop_config={
            "folder": folder,
            "data": data,
            "deaths": [[int(number) for number in each.split(":")] for each in deaths],
        },
        scaling_config=ray.train.ScalingConfig(num_workers=int(workers)),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=folder,
            failure_config=ray.train.FailureConfig(max_failures=len(deaths)),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
        **arguments,
    ).fit()
    kept = [[each.path, metrics] for each, metrics in result.best_checkpoints]
    Path(folder, "kept.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    main(*sys.argv[1:])
