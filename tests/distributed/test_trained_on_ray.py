"""Runs of Ray Train that lose workers on the way, compared with a training that knows no Ray."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from sok_embed.checkpoint.tools.verify import verify

trained_on_ray = pytest.importorskip("trained_on_ray", reason="Ray is not installed")


def run(*arguments: object) -> None:
    """Runs `trained_on_ray.py`."""
    command = [sys.executable, trained_on_ray.__file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


def trained_by_one_process():
    """Returns the losses of epochs, and the rows by key, of a training that knows no Ray."""
    model, rows = trained_on_ray.model_and_rows("adam")
    data = tf.data.Dataset.from_tensor_slices(trained_on_ray.examples())
    history = model.fit(data.batch(trained_on_ray.BATCH), epochs=trained_on_ray.EPOCHS, verbose=0)
    keys, vectors = rows.table.export()
    return history.history["loss"], dict(zip(keys.tolist(), vectors, strict=True))


def rows_of(folder: Path, workers: int):
    """Returns the rows of all workers by key."""
    files = [np.load(folder / f"rows-{rank}.npz") for rank in range(workers)]
    pairs = (zip(each["keys"].tolist(), each["vectors"], strict=True) for each in files)
    return dict(itertools.chain.from_iterable(pairs))


def check_trained(folder: Path, workers: int) -> None:
    """Compares a run with that of one process, whose sums of float32 have another order."""
    losses, rows = trained_by_one_process()
    np.testing.assert_allclose(np.load(folder / "losses.npy"), losses, rtol=1e-5)
    found = rows_of(folder, workers)
    assert found.keys() == rows.keys()
    for key, row in rows.items():
        np.testing.assert_allclose(found[key], row, rtol=1e-4, atol=1e-6)


def test_a_run_of_ray_data_goes_on_after_a_worker_was_killed(tmp_path) -> None:
    run(tmp_path, "run", 2, "TensorflowTrainer", "ray", "1:14")
    assert (tmp_path / "died-1-14").exists()
    check_trained(tmp_path, 2)
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert [Path(path).name for path, _ in kept] == ["step-000000026", "step-000000027"]
    assert {str(each) for each in (tmp_path / "run" / "sok_embed").iterdir()} == {
        path for path, _ in kept
    }
    assert all(verify(path).faults == [] for path, _ in kept)
    assert kept[-1][1]["loss"] == np.load(tmp_path / "losses.npy")[-1]
