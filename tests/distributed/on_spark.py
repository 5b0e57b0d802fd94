"""Has tasks of Spark call `sok_embed.init()`, and prints what each found.

python on_spark.py MASTER
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from pyspark.sql import SparkSession

os.environ |= {
    "PYSPARK_PYTHON": sys.executable,
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def joined(rows: object) -> Iterator[str]:
    """Yields this task's place, and the sum of all ranks plus 1."""
    import tensorflow as tf

    import sok_embed

    sok_embed.init()
    communicator = sok_embed.init()
    total = communicator.all_reduce(tf.constant([1.0 + communicator.rank]), "total")
    yield f"{communicator.rank} of {communicator.size}: {float(total[0])}"


def main(master: str) -> None:
    """Runs a barrier stage, another in the same processes, and a stage of tasks by themselves."""
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    context = builder.getOrCreate().sparkContext
    for stage in ("first", "second"):
        tasks = context.parallelize(range(2), 2).barrier()
        print(stage, *tasks.mapPartitions(joined).collect(), sep="\n")
    print("alone", *context.parallelize(range(2), 2).mapPartitions(joined).collect(), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
