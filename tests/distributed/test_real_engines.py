"""Workers of a real Ray and a real Spark join by `init()` alone, where these are installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import killed_training
import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.long


def printed(script: str, *arguments: object) -> str:
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_workers_of_any_trainer_of_ray_join_and_trials_are_alone(tmp_path) -> None:
    pytest.importorskip("ray.train", reason="Ray is not installed")
    output = printed("on_ray.py", tmp_path)
    for trainer in ("DataParallelTrainer", "TensorflowTrainer"):
        found = set(re.findall(rf"{trainer} (\d of \d: [\d.]+)\.", output))
        assert found == {"0 of 2: 3.0", "1 of 2: 3.0"}
    assert re.findall(r"Tune (.*)\.\n", output) == ["0 of 1: 1.0"] * 2


@pytest.fixture
def spark() -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_tasks_of_a_barrier_stage_of_spark_join_and_others_are_alone(master) -> None:
    together = ["0 of 2: 3.0", "1 of 2: 3.0"]
    alone = ["0 of 1: 1.0"] * 2
    assert printed("on_spark.py", master).splitlines() == [
        *("first", *together, "second", *together, "alone", *alone)
    ]


@pytest.mark.usefixtures("spark")
def test_a_run_on_spark_of_which_a_worker_was_killed_ends_as_one_that_was_not(tmp_path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder, *arguments in ((whole,), (killed, "die")):
        folder.mkdir()
        printed("trained_on_spark.py", folder, *arguments)
    assert (killed / "has-died").exists()
    killed_training.check_equal(killed, whole)


@pytest.mark.usefixtures("spark")
def test_workers_of_spark_have_each_row_of_a_frame_once_in_an_order_of_their_values() -> None:
    lines = [json.loads(line) for line in printed("ran_on_spark.py").splitlines()]
    dealt, dealt_of_another_order, partitions, batches, errors = lines
    assert dealt == dealt_of_another_order
    rows = sorted(row for worker in dealt for row in worker)
    assert rows == [[key, key / 4, f"ü{key}", list(range(key % 3 + 1))] for key in range(1000)]
    # Each of 1000 rows is on either worker with the same chance: five standard deviations.
    assert all(abs(len(worker) - 500) < 80 for worker in dealt)
    assert dealt[0] != sorted(dealt[0])
    assert len(partitions) == 3
    assert sorted(row[0] for worker in partitions for row in worker) == [0, 1, 2]
    assert [len(set(run)) for run in batches] == [1, 1, 1]
    assert [len(run) for run in batches] == [2, 2, 3]
    failed, logged, *refused = errors
    assert "Expected all workers of Spark to end well. Received: failure 2 of 2" in failed
    assert "ValueError: my own words" in failed and "\tat " not in failed
    assert "started again after failure 1 of 2" in logged and "ValueError: my own words" in logged
    for text, expected in zip(
        refused,
        (
            "Expected a value everywhere in column 'id'",
            "arrays of them in column 'moment'. Received: timestamp",
            "Expected workers, data or both. Received: neither",
            "Expected workers to be a positive integer. Received: 0",
            "Expected a function to run. Received: 'read'",
        ),
        strict=True,
    ):
        assert expected in text, text
