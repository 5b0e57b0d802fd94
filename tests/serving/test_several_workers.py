"""One process exports what several workers have trained and saved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
from served_models import answered, assert_same_bits
from trained_by_two import make_model

from sok_embed.serving import export

PROGRAM = Path(__file__).with_name("trained_by_two.py")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    worker = forked.command(PROGRAM, folder)
    command = [sys.executable, "-m", "sok_embed", "run", "-np", "2", "--", *worker]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder


@pytest.mark.parametrize("ops", ["native", "stock"])
def test_a_checkpoint_of_two_workers_is_served_as_they_predict(ops, trained, tmp_path):
    predicted = np.load(trained / "predicted.npz")
    folder = export(make_model(), tmp_path, ops=ops, source=trained / "saved")
    found = answered(folder, {"ids": predicted["asked"]})
    assert_same_bits(found, [predicted["vectors"], predicted["scores"]])
