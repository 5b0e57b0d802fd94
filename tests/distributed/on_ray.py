"""Has workers of trainers of Ray Train call `sok_embed.init()`, and prints what each found.

python on_ray.py FOLDER
"""

from __future__ import annotations

import sys

import ray
from ray import train, tune
from ray.train.tensorflow import TensorflowTrainer
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def joined() -> str:
    """Returns this worker's place, and the sum of all ranks plus 1."""
    import tensorflow as tf

    import sok_embed

    sok_embed.init()
    communicator = sok_embed.init()
    total = communicator.all_reduce(tf.constant([1.0 + communicator.rank]), "total")
    return f"{communicator.rank} of {communicator.size}: {float(total[0])}"


def main(folder: str) -> None:
    """Trains nothing: workers only meet."""
    ray.init(num_cpus=4, logging_level="ERROR", runtime_env={"env_vars": ENVIRONMENT})
    run = train.RunConfig(storage_path=folder)
    for trainer in (DataParallelTrainer, TensorflowTrainer):

        def worker(name: str = trainer.__name__) -> None:
            print(f"{name} {joined()}.", flush=True)

        scaling = train.ScalingConfig(num_workers=2)
        trainer(worker, scaling_config=scaling, run_config=run).fit()

    def trial(config: dict) -> None:
        tune.report({"joined": joined()})

    trials = tune.Tuner(trial, param_space={"number": tune.grid_search([1, 2])}).fit()
    for result in trials:
        print(f"Tune {result.metrics['joined']}.", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
