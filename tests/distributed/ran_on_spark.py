"""Runs functions on workers of Spark by `sok_embed.spark.run`, and prints a list a line, in JSON.

python ran_on_spark.py
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as of_spark

from sok_embed import spark

ROWS = 1000


def frame(session: SparkSession) -> DataFrame:
    """Returns rows whose columns all follow from `id`."""
    key = of_spark.col("id")
    return session.range(ROWS).select(
        key,
        (key / 4).cast("float").alias("quarter"),
        of_spark.concat(of_spark.lit("ü"), key).alias("text"),
        of_spark.sequence(of_spark.lit(0), key % 3).alias("several"),
    )


def read(rows: Any) -> list[Any]:
    """Returns what the rows are in two passes, and the specification of their batches."""
    passes = [
        [
            [
                int(row["id"]),
                float(row["quarter"]),
                row["text"].numpy().decode(),
                row["several"].numpy().tolist(),
            ]
            for row in rows
        ]
        for _ in range(2)
    ]
    assert passes[0] == passes[1]
    assert int(rows.cardinality()) == len(passes[0])
    several = rows.batch(4).element_spec["several"]
    assert several.ragged_rank == 1 and several.shape.as_list() == [None, None]
    return passes[0]


def join(rows: Any) -> int:
    """Returns how many batches a pass of joined data has."""
    import sok_embed

    batches = rows.batch(7).map(lambda row: (row["id"],))
    return len(list(sok_embed.data.join(batches)))


def count(rows: Any) -> int:
    """Returns how many rows there are, by reading them."""
    return len(list(rows))


def fail(words: str) -> None:
    """Fails on worker 1, and waits for it on worker 0."""
    import sok_embed

    if sok_embed.rank() == 1:
        raise ValueError(words)
    sok_embed.init().barrier()


def words(call: Any) -> str:
    """Returns the text of the error of a call."""
    try:
        call()
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main() -> None:
    """Runs all."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("sok_embed").addHandler(handler)
    builder = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false")
    session = builder.getOrCreate()
    data = frame(session)
    for each in (data.repartition(5), data.orderBy("id", ascending=False)):
        print(json.dumps(spark.run(read, 2, data=each)))
    print(json.dumps(spark.run(read, data=data.filter("id < 3").repartition(3, "id"))))
    # Processes of the third run have joined unequally many datasets.
    print(json.dumps([spark.run(join, workers, data=data) for workers in (2, 2, 3)]))
    with_null = session.sql("select 1 as id union all select null")
    print(
        json.dumps(
            [
                words(
                    lambda: spark.run(functools.partial(fail, "my own words"), 2, max_failures=1)
                ),
                *logged,
                words(lambda: spark.run(count, 2, data=with_null, max_failures=0)),
                words(lambda: spark.run(read, 2, data=session.sql("select now() as moment"))),
                words(lambda: spark.run(read)),
                words(lambda: spark.run(read, 0)),
                words(lambda: spark.run("read", 2)),  # type: ignore[arg-type]
            ]
        )
    )


if __name__ == "__main__":
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    main()
