"""Runs an example on workers of Ray Train."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from ctr.batches import InputError

_MOST_RESTARTS = 3


def launch_on_ray(
    run: Callable[[argparse.Namespace], None], options: argparse.Namespace, workers: int
) -> None:
    """Runs a function on `workers` workers of the Ray at RAY_ADDRESS, or of one that it starts.

    If a worker is lost, all are started again, up to three times.

    Args:
        run: The function that takes the options, in each worker.
        options: The options. Paths become absolute: workers have other folders.
        workers: The number of workers.
    """
    try:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.tensorflow import TensorflowTrainer
    except ImportError as error:
        raise InputError(
            f"Expected Ray, for --engine ray. Received: {error}. Install it with `pip install "
            "'sok-embed[ray]'`, or run `make demo ENGINE=ray`."
        ) from error
    for name, value in vars(options).items():
        if isinstance(value, Path):
            setattr(options, name, value.absolute())
    # Ray would print each line of a worker twice.
    examples = str(Path(__file__).resolve().parents[1])
    here = {"PYTHONPATH": examples, "RAY_TRAIN_ENABLE_PRINT_PATCH": "0"}
    # A Ray of this machine offers its processors, but lets more workers than these run.
    offered = max(workers, os.cpu_count() or 1)
    where = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": offered}
    ray.init(log_to_driver=not options.quiet, runtime_env={"env_vars": here}, **where)
    TensorflowTrainer(
        lambda: run(options),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            storage_path=str(options.output / "ray"),
            failure_config=FailureConfig(max_failures=_MOST_RESTARTS),
        ),
    ).fit()
