"""Rows that expire in a cache that is too small take no other row with them."""

import subprocess
import sys
from pathlib import Path

import pytest
from expiring_trainer import SCENARIOS
from limits import HANG_S
from seeds import seed_of_test

from sok_embed.binding import _core

TRAINER = Path(__file__).with_name("expiring_trainer.py")


@pytest.mark.cover(1)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_live_row_keeps_its_values_while_others_expire(tmp_path, scenario):
    seed = seed_of_test()
    done = subprocess.run(
        [sys.executable, TRAINER, _core.__file__, tmp_path / "rows", scenario, str(seed)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    assert done.stdout == "0\n", f"{done.stdout.strip()} vectors differ"
