"""How many rows a second come from a Parquet file to a step?

    python benchmarks/data_sources.py
    python benchmarks/data_sources.py --gib 1 --repeats 5

Writes a file like Criteo's: a label, 13 floats and 26 columns of strings of eight hex digits, with
from 100 to a million different ones by Zipf's law, in row groups of 250,000 rows. Then each
contender begins with the file and ends with its last batch, in random order:

- `sok_embed`: `sok_embed.data.from_parquet`;
- `keras`: `pandas.read_parquet`, arrays in a dictionary, `tf.data.Dataset.from_tensor_slices`;
- `reader`: what readers such as NVTabular's do, row groups as arrays of NumPy, cut into batches in
  a generator of Python, for `tf.data.Dataset.from_generator`.

Each batch goes to a step, which hashes the strings and adds all numbers up; the sums must be the
same. Prints the median rows a second, and the ratios.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
from _common import interleaved, rates, ratios, report

import sok_embed as sok

FLOATS = [f"I{i + 1}" for i in range(13)]
TEXTS = [f"C{i + 1}" for i in range(26)]
GROUP = 250_000
Feed = Callable[[str, int], tf.data.Dataset]


def write(path: str, gib: float, random: np.random.Generator) -> int:
    """Writes a file of about so many GiB. Returns its rows."""
    ids = [10 ** (2 + i % 5) for i in range(len(TEXTS))]
    names = [pa.array([f"{i * 2654435761 % 2**32:08x}" for i in range(n)]) for n in ids]
    rows, writer = 0, None
    while writer is None or os.path.getsize(path) < gib * 2**30:
        columns = {"label": (random.random(GROUP) < 0.25).astype(np.float32)}
        columns |= {name: random.lognormal(2, 2, GROUP).astype(np.float32) for name in FLOATS}
        for i, name in enumerate(TEXTS):
            places = np.minimum(random.zipf(1.1 if i % 2 else 1.3, GROUP), ids[i]) - 1
            columns[name] = names[i].take(pa.array(places))
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
        rows += GROUP
    writer.close()
    return rows


def of_sok_embed(path: str, batch: int) -> tf.data.Dataset:
    return sok.data.from_parquet(path, batch, label="label")


def of_keras(path: str, batch: int) -> tf.data.Dataset:
    frame = pd.read_parquet(path)
    labels = frame.pop("label").to_numpy()
    # An array of objects is what TensorFlow makes strings of.
    arrays = {name: frame[name].to_numpy() for name in frame}
    return tf.data.Dataset.from_tensor_slices((arrays, labels)).batch(batch).prefetch(2)


def of_reader(path: str, batch: int) -> tf.data.Dataset:
    def batches() -> Iterator[Any]:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            arrays = {
                name: table[name].combine_chunks().to_numpy(zero_copy_only=False)
                for name in table.column_names
            }
            labels = arrays.pop("label")
            for first in range(0, len(table), batch):  # whose last one of a row group is shorter
                part = slice(first, first + batch)
                yield {name: each[part] for name, each in arrays.items()}, labels[part]

    features = {name: tf.TensorSpec([None], tf.float32) for name in FLOATS}
    features |= {name: tf.TensorSpec([None], tf.string) for name in TEXTS}
    signature = (features, tf.TensorSpec([None], tf.float32))
    return tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(2)


FEEDS: dict[str, Feed] = {"sok_embed": of_sok_embed, "keras": of_keras, "reader": of_reader}


def hashing(sums: dict[str, set[int]], name: str, feed: Feed, path: str, batch: int) -> None:
    """Reads all rows into steps that hash and add. Remembers the sum."""

    def step(total: tf.Tensor, element: Any) -> tf.Tensor:
        features, labels = element
        keys = sok.fingerprint(tf.stack([features[each] for each in TEXTS]))
        numbers = tf.stack([features[each] for each in FLOATS])
        whole = tf.cast(tf.floor(numbers), tf.int64)
        return (
            total
            + tf.reduce_sum(keys)
            + tf.reduce_sum(whole)
            + tf.cast(tf.reduce_sum(labels), tf.int64)
        )

    dataset = feed(path, batch)
    run = tf.function(lambda: dataset.reduce(tf.constant(0, tf.int64), step))
    sums.setdefault(name, set()).add(int(run()))


def main() -> None:
    """Measures all contenders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=0.1, help="the size of the file")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(FEEDS), default=list(FEEDS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="data-sources-") as folder:
        path = f"{folder}/rows.parquet"
        rows = write(path, args.gib, np.random.default_rng(args.seed))
        sums: dict[str, set[int]] = {}

        def call(name: str) -> Callable[[int], None]:
            return lambda _: hashing(sums, name, FEEDS[name], path, args.batch)

        seconds = interleaved({name: call(name) for name in args.only}, 1, args.repeats)
        if len(set().union(*sums.values())) > 1:
            raise SystemExit(f"Expected one sum. Received: {sums}.")
        rate = rates(seconds, rows)
        case = {
            "rows": rows,
            "gib": round(os.path.getsize(path) / 2**30, 2),
            "batch": args.batch,
            "million_rows_a_second": rate,
            "ratios": ratios(rate) if "sok_embed" in rate else {},
        }
        report(case, " ".join(f"{name}={value}" for name, value in case.items()))


if __name__ == "__main__":
    main()
