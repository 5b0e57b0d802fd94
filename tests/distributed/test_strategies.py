"""Workers under strategies of tf.distribute train like one process without a strategy."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import forked
import keras
import keras_reference
import numpy as np
import pytest
import tensorflow as tf
from sharded.launch import LIMIT_S, Ended, launch
from sharded.registry import Here
from sharded.results import Results, assert_equal_tables, assert_equal_weights
from sharded.strategies import AVERAGED, CLIPPED, FITTED, SUMMED, run_all, tables_of, train

WORKER = Path(__file__).parent / "sharded" / "strategy_worker.py"


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def run_cluster(folder: Path, wanted: list[str]) -> Ended:
    """Starts a chief and a worker, which nobody but TF_CONFIG tells of each other."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    cluster = {"chief": addresses[:1], "worker": addresses[1:]}
    workers = []
    for kind in cluster:
        config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})
        with (folder / f"{kind}.log").open("w") as log:
            process = subprocess.Popen(
                forked.command(WORKER, "multi_worker", folder, *wanted),
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_CONFIG": config},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        workers.append(process)
    try:
        codes = [process.wait(LIMIT_S) for process in workers]
    finally:
        for process in workers:
            process.kill()
            process.wait()
    output = "".join((folder / f"{kind}.log").read_text() for kind in cluster)
    return Ended(max(codes, key=abs), False, output)


@pytest.fixture(scope="session")
def wanted(request: pytest.FixtureRequest) -> list[str]:
    """Names of what the chosen tests look at, and the one that all runs have."""
    cases = [item for item in request.session.items if item.path == Path(__file__)]
    parameters = [item.callspec.params for item in cases if hasattr(item, "callspec")]
    return sorted({next(reversed(SUMMED)), *(each["name"] for each in parameters)})


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory, wanted: list[str]) -> Results:
    """The reference: this process, without a strategy."""
    folder = tmp_path_factory.mktemp("alone")
    for kind in ("multi_worker", "mirrored"):
        for name, arrays in run_all(Here(0, 1), tf.distribute.get_strategy(), kind, wanted).items():
            np.savez(folder / f"{name}.0.npz", **arrays)
    return Results(folder, 1, Ended(0, False, ""))


@pytest.fixture(scope="session")
def multi_worker(tmp_path_factory: pytest.TempPathFactory, wanted: list[str]) -> Results:
    folder = tmp_path_factory.mktemp("multi_worker")
    return Results(folder, 2, run_cluster(folder, wanted))


@pytest.fixture(scope="session")
def mirrored(tmp_path_factory: pytest.TempPathFactory, wanted: list[str]) -> Results:
    """Two workers of two replicas each."""
    folder = tmp_path_factory.mktemp("mirrored")
    return Results(folder, 2, launch(WORKER, 2, ["mirrored", str(folder), *wanted], horovod=False))


def assert_equal_predictions(one: Results, many: Results, scenario: str) -> None:
    expected = one.of(scenario)[0]["predictions"]
    for worker in many.of(scenario):
        np.testing.assert_allclose(worker["predictions"], expected, rtol=0, atol=1e-5)


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", SUMMED)
def test_workers_of_a_multi_worker_strategy_train_as_one(
    alone: Results, multi_worker: Results, name: str
) -> None:
    assert_equal_tables(alone, multi_worker, name, *tables_of(SUMMED[name]))
    assert_equal_weights(alone, multi_worker, name)
    assert_equal_predictions(alone, multi_worker, name)


def test_a_norm_of_rows_that_is_clipped_is_that_of_all_workers(alone: Results) -> None:
    # What is compared above moves by no more than the clipped steps.
    _, untrained = alone.table("norm_of_all_rows", "dynamic", "untrained")
    _, rows = alone.table("norm_of_all_rows", "dynamic")
    assert np.linalg.norm(rows - untrained) < 5 * 0.05 + 1e-5


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", [*AVERAGED, *FITTED])
def test_replicas_of_several_workers_train_as_one(
    alone: Results, mirrored: Results, name: str
) -> None:
    assert_equal_tables(alone, mirrored, name, *tables_of({**AVERAGED, **FITTED}[name]))
    assert_equal_weights(alone, mirrored, name)
    assert_equal_predictions(alone, mirrored, name)


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", CLIPPED)
def test_norms_of_replicas_are_those_of_the_same_replica_on_all_workers(
    alone: Results, mirrored: Results, name: str, tmp_path: Path
) -> None:
    keras.utils.set_random_seed(7)
    strategy = keras_reference.mirrored()
    np.savez(
        tmp_path / f"{name}.0.npz", **train(Here(0, 1), strategy, as_workers=2, **CLIPPED[name])
    )
    replicas = Results(tmp_path, 1, Ended(0, False, ""))
    assert_equal_tables(replicas, mirrored, name, "dynamic")
    assert_equal_weights(replicas, mirrored, name)
    # A worker without replicas clips otherwise.
    without, clipped = (each.table(name, "dynamic")[1] for each in (alone, replicas))
    assert np.abs(without - clipped).max() > 1e-4


REFUSALS = {
    **dict.fromkeys(
        ("fit", "evaluate", "train_on_batch", "test_on_batch"),
        ("ValueError", "expected a loop of your own under a MultiWorkerMirroredStrategy"),
    ),
    # This one is Keras' own.
    "fit_of_a_dense_model": ("ValueError", "PerReplica"),
    **dict.fromkeys(
        ("distributed_optimizer", "late_distributed_optimizer"),
        ("ValueError", "sums gradients over its 2 workers"),
    ),
    **dict.fromkeys(
        ("clipnorm", "global_clipnorm"), ("ValueError", "without clipnorm and global_clipnorm")
    ),
    "clipvalue": ("ValueError", "clipvalue=1.0 under a tf.distribute strategy"),
    "loss_scale": ("ValueError", "expected no LossScaleOptimizer"),
    "local": ("ValueError", "Received: worker 0 of 1, by sok_embed.init()"),
    "rank": ("ValueError", "expected to be worker {rank} of 2, as the MultiWorkerMirroredStrategy"),
    "built_outside": ("ValueError", "expected to be built inside of the scope"),
    "not_summed": ("InvalidArgumentError", "summed over its 2 workers"),
    "factors": ("InvalidArgumentError", "scale the loss instead of gradients"),
}


@pytest.fixture(scope="session")
def said(multi_worker: Results) -> list[dict[str, str]]:
    multi_worker.of(next(reversed(SUMMED)))  # fails with what was printed, if there is nothing
    folder = multi_worker.folder
    return [json.loads((folder / f"refusals.{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_work_under_a_multi_worker_strategy_is_refused_on_every_worker(
    said: list[dict[str, str]], name: str
) -> None:
    kind, message = REFUSALS[name]
    for rank, found in enumerate(said):
        assert found[name].startswith(kind), found[name]
        assert message.format(rank=rank) in found[name]
