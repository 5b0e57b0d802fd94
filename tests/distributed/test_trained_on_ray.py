"""Runs of Ray Train that are disturbed, compared with trainings that are not."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from seeds import seed_of_test

trained_on_ray = pytest.importorskip("trained_on_ray", reason="Ray is not installed")

import ray_cluster  # noqa: E402


def trained_by_one_process():
    """Returns the losses of epochs, and the rows by key, of a training that knows no Ray."""
    model, rows = trained_on_ray.model_and_rows("adam")
    data = tf.data.Dataset.from_tensor_slices(trained_on_ray.examples())
    epochs = trained_on_ray.Settings.epochs
    history = model.fit(data.batch(trained_on_ray.BATCH), epochs=epochs, verbose=0)
    keys, vectors = rows.table.export()
    return history.history["loss"], dict(zip(keys.tolist(), vectors, strict=True))


def test_a_run_of_ray_data_goes_on_after_a_worker_was_killed(tmp_path) -> None:
    driver = ray_cluster.Driver(tmp_path, failures=1, deaths=[(1, 14)], score="loss")
    driver.wait()
    assert (tmp_path / "died-1-14").exists()
    losses, rows = trained_by_one_process()
    found = driver.trained()
    # Sums of float32 have another order.
    np.testing.assert_allclose(found.losses, losses, rtol=1e-5)
    assert found.rows.keys() == rows.keys()
    for key, row in rows.items():
        np.testing.assert_allclose(found.rows[key], row, rtol=1e-4, atol=1e-6)
    kept = driver.check_kept()
    (last,) = [metrics for path, metrics in kept if path.endswith("step-000000018")]
    assert last["loss"] == found.losses[-1]


@pytest.mark.long
def test_runs_are_disturbed_at_random_moments(tmp_path) -> None:
    """By hand: PYTHONPATH=tests python tests/distributed/ray_cluster.py --rounds 10."""
    seed = seed_of_test()
    runs = ray_cluster.Runs(tmp_path)
    for kind in ray_cluster.KINDS:
        with ray_cluster.cluster() as on:
            print(runs.run(on, kind, seed), flush=True)
