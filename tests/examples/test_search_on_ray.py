"""A search with Ray Tune as a person runs it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from running import run_example


@pytest.mark.long
def test_the_better_of_two_learning_rates_is_found(tmp_path: Path) -> None:
    pytest.importorskip("ray.tune", reason="Ray is not installed")
    status, out, err = run_example("search_on_ray.py", tmp_path)
    assert status == 0, err
    assert len(list((tmp_path / "runs/search").glob("trial_*/result.json"))) == 4
    found = re.search(r"^best: \{'dim': [48], 'rate': (.+)\}, loss (0\.\d+)$", out, re.MULTILINE)
    assert found, out
    assert found[1] == "0.01" and float(found[2]) < math.log(2)
