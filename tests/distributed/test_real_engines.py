"""Workers of a real Ray and a real Spark join by `init()` alone, where these are installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.long


def printed(script: str, *arguments: object) -> str:
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_workers_of_any_trainer_of_ray_join_and_trials_are_alone(tmp_path) -> None:
    pytest.importorskip("ray.train", reason="Ray is not installed")
    output = printed("on_ray.py", tmp_path)
    for trainer in ("DataParallelTrainer", "TensorflowTrainer"):
        found = set(re.findall(rf"{trainer} (\d of \d: [\d.]+)\.", output))
        assert found == {"0 of 2: 3.0", "1 of 2: 3.0"}
    assert re.findall(r"Tune (.*)\.\n", output) == ["0 of 1: 1.0"] * 2


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_tasks_of_a_barrier_stage_of_spark_join_and_others_are_alone(master) -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    together = ["0 of 2: 3.0", "1 of 2: 3.0"]
    alone = ["0 of 1: 1.0"] * 2
    assert printed("on_spark.py", master).splitlines() == [
        *("first", *together, "second", *together, "alone", *alone)
    ]
