"""Trains by `sok_embed.ray.fit` on workers of Ray, of which some may be killed on the way.

python trained_on_ray.py FOLDER [JSON]

JSON has `Settings` that differ from the defaults. FOLDER gets the run of Ray, the losses, the
weights and the rows of each worker, and `kept.json`, the checkpoints that Ray lists at the end. The
same FOLDER again goes on with the run. While it trains, there are `worker-RANK.json`, with the
process and the node of each worker, `step`, the number of steps so far, and `starts.jsonl`, with
the step and the number of workers of each start. It waits at the step that the file `hold` has, as
long as that file is there.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
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
EXAMPLES, BATCH = 100, 12  # the last batch of an epoch has 4 examples


@dataclasses.dataclass
class Settings:
    """Settings of a run."""

    python: str = sys.executable  # the command that runs Python in workers
    trainer: str = "TensorflowTrainer"  # or DataParallelTrainer
    data: str = "ray"  # or tf
    workers: int | tuple[int, int] = 2  # two numbers: Ray resizes the run
    per_worker: dict[str, float] = dataclasses.field(default_factory=lambda: {"CPU": 1})
    deaths: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # ranks and steps
    failures: int = 0  # the failures after which Ray starts the workers again
    epochs: int = 2
    pace: float = 0.0  # the least seconds of a step
    save_freq: str | int = 2
    score: str | None = None  # the metric by which Ray keeps checkpoints; None: the last ones


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
    whole = tf.data.Dataset.from_tensor_slices(examples())
    return sok.data.join(whole.shard(sok.size(), sok.rank()).batch(BATCH // sok.size()))


def loop(config: dict[str, Any]) -> None:
    """Trains, and goes on where Ray starts the workers again."""
    import keras

    import sok_embed as sok

    sok.init()
    model, rows = model_and_rows(sok.DistributedOptimizer("adam"))
    folder, settings = Path(config["folder"]), Settings(**config["settings"])
    rank, hold = sok.rank(), folder / "hold"

    def begin(logs: Any) -> None:
        node = ray.get_runtime_context().get_node_id()
        (folder / f"worker-{rank}.json").write_text(json.dumps({"pid": os.getpid(), "node": node}))
        if rank == 0:
            with (folder / "starts.jsonl").open("a") as file:
                print(json.dumps([int(model.optimizer.iterations), sok.size()]), file=file)

    def end_batch(batch: int, logs: Any) -> None:
        step = int(model.optimizer.iterations)
        if rank == 0:
            (folder / "step").write_text(str(step))
            while hold.exists() and step == int(hold.read_text() or 0):
                time.sleep(0.02)
        time.sleep(settings.pace)
        done = folder / f"died-{rank}-{step}"
        if [rank, step] in [list(each) for each in settings.deaths] and not done.exists():
            done.touch()
            os.kill(os.getpid(), 9)

    watch = keras.callbacks.LambdaCallback(on_train_begin=begin, on_train_batch_end=end_batch)
    history = sok.ray.fit(
        model,
        dataset(settings.data),
        epochs=settings.epochs,
        save_freq=settings.save_freq,
        callbacks=[watch],
        verbose=0,
    )
    keys, vectors = rows.table.export()
    np.savez(folder / f"rows-{rank}", keys=keys, vectors=vectors)
    if rank == 0:
        weights = np.concatenate([np.ravel(each) for each in model.get_weights()])
        np.savez(folder / "trained", losses=history.history["loss"], weights=weights)


def main(folder: str, settings: Settings) -> None:
    """Joins the Ray at RAY_ADDRESS, or starts one of this machine, and trains."""
    # Ray takes up each report when it looks after the workers, by default each two seconds.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")
    where: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": 4}
    runtime = {"env_vars": ENVIRONMENT, "py_executable": settings.python}
    arguments: dict[str, Any] = dict(logging_level="ERROR", include_dashboard=False, **where)
    try:
        ray.init(runtime_env=runtime, **arguments)
    except Exception:  # a node that was not up within 30 s, as on a busy machine
        ray.shutdown()
        ray.init(runtime_env=runtime, **arguments)
    ray.data.DataContext.get_current().enable_progress_bars = False
    arguments = {}
    if settings.data == "ray":
        keys, targets = examples()
        pairs = pyarrow.FixedSizeListArray.from_arrays(keys.ravel(), 2)
        table = pyarrow.table({"keys": pairs, "target": targets})
        arguments["datasets"] = {"train": ray.data.from_arrow(table)}
        arguments["dataset_config"] = sok_embed.ray.DataConfig(BATCH)
    kinds = {"TensorflowTrainer": TensorflowTrainer, "DataParallelTrainer": DataParallelTrainer}
    elastic: dict[str, Any] = {}
    if not isinstance(settings.workers, int):
        elastic["elastic_resize_monitor_interval_s"] = 1.0
    result = kinds[settings.trainer](
        loop,
        train_loop_config={"folder": folder, "settings": dataclasses.asdict(settings)},
        scaling_config=ray.train.ScalingConfig(
            num_workers=settings.workers,
            resources_per_worker=settings.per_worker,
            placement_strategy="SPREAD",
            **elastic,
        ),
        run_config=ray.train.RunConfig(
            name="run",
            storage_path=folder,
            failure_config=ray.train.FailureConfig(max_failures=settings.failures),
            checkpoint_config=ray.train.CheckpointConfig(
                num_to_keep=2,
                checkpoint_score_attribute=settings.score,
                checkpoint_score_order="min",
            ),
        ),
        **arguments,
    ).fit()
    # By a score, the last checkpoint may be one of the worst, and is kept all the same.
    kept = [[each.path, metrics] for each, metrics in result.best_checkpoints]
    if result.checkpoint.path not in [path for path, _ in kept]:
        kept.insert(0, [result.checkpoint.path, result.metrics])
    Path(folder, "kept.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    given = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    if isinstance(given.get("workers"), list):
        given["workers"] = tuple(given["workers"])
    main(sys.argv[1], Settings(**given))
