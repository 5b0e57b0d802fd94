"""Trains on two workers of Spark, of which one may be killed within an epoch.

python trained_on_spark.py FOLDER [die]

FOLDER gets what `killed_training.py` leaves there. The data is that of a DataFrame.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from pathlib import Path

import killed_training
import numpy as np
import tensorflow as tf
from pyspark.sql import SparkSession

import sok_embed as sok
from sok_embed import spark


def train(folder: Path, dies: bool, rows: tf.data.Dataset) -> list[float]:
    """Trains on batches of this worker's rows."""
    batches = rows.batch(8).map(lambda row: (row["keys"].to_tensor(shape=(None, 2)), row["target"]))
    return killed_training.train(folder, dies, sok.data.join(batches))


def main(folder: Path, dies: bool) -> None:
    """Trains on a Spark of two executors."""
    logging.basicConfig()
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.addPyFile(killed_training.__file__)
    random = np.random.default_rng(0)
    keys, targets = random.integers(0, 50, (96, 2)), random.normal(size=96).astype(np.float32)
    pairs = zip(keys.tolist(), targets.tolist(), strict=True)
    data = session.createDataFrame(list(pairs), "keys array<long>, target float").repartition(5)
    losses = spark.run(functools.partial(train, folder, dies), 2, data=data, max_failures=1)
    assert len(losses) == 2
    np.testing.assert_array_equal(np.load(folder / "losses.npy"), losses[0])


if __name__ == "__main__":
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    main(Path(sys.argv[1]), "die" in sys.argv[2:])
