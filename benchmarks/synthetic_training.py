"""How many samples a second does a synthetic recommender of NVIDIA's train, and in what memory?

    python benchmarks/synthetic_training.py
    python benchmarks/synthetic_training.py --model tiny --batch 65536 --resident

A model of synthetic_models.py: a `DistributedEmbedding` for all of its tables, its numbers, and its
dense layers, trained with Adagrad. Ids follow a power law, as in NVIDIA's benchmark. Tables grow
while they train; with `--resident` every row of every table is there before the first step.

NVIDIA publishes times of an iteration at a global batch of 65,536 on one A100 and more
(https://github.com/NVIDIA-Merlin/distributed-embeddings, examples/benchmarks/synthetic_models).
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _common import report, use_threads
from synthetic_models import MODELS, Model, described
from tqdm import tqdm

import sok_embed

# The exponent of the power law that ids follow; it is that of NVIDIA's benchmark.
ALPHA = 1.05


def power_law(
    count: int, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Draws from `[0, count)` with a density of `(id + 1) ** -ALPHA`, by its inverse integral."""
    power = 1.0 - ALPHA
    most = float(count + 1) ** power
    drawn = (rng.random(shape) * (most - 1.0) + 1.0) ** (1.0 / power)
    return np.minimum(drawn.astype(np.int64) - 1, count - 1)


def batch_of(model: Model, size: int, rng: np.random.Generator) -> dict[str, tf.Tensor]:
    """Returns random inputs of the model, and targets."""
    said = described(model)
    rows = {table["name"]: table["vocabulary_size"] for table in said["tables"]}
    batch: dict[str, tf.Tensor] = {}
    for feature in said["features"]:
        length = feature["max_length"]
        shape = (size,) if length == 1 else (size, length)
        batch[feature["name"]] = tf.constant(power_law(rows[feature["table"]], shape, rng))
    batch["numbers"] = tf.constant(rng.normal(size=(size, model.numbers)).astype(np.float32))
    batch["targets"] = tf.constant(rng.integers(0, 2, (size, 1)).astype(np.float32))
    return batch


class Recommender(keras.Model):
    """The embeddings, the numbers, and dense layers on both."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        said = described(model)
        tables = {
            table["name"]: sok_embed.TableConfig(
                table["name"],
                table["vocabulary_size"],
                table["embedding_dim"],
                combiner=table["combiner"],
            )
            for table in said["tables"]
        }
        features = [
            sok_embed.FeatureConfig(feature["name"], tables[feature["table"]])
            for feature in said["features"]
        ]
        self.table_configs = list(tables.values())
        self.names = [feature.name for feature in features]
        self.embedding = sok_embed.DistributedEmbedding(features, output="concat")
        self.stride = model.stride
        hidden = [keras.layers.Dense(units, "relu") for units in model.dense]
        self.dense = keras.Sequential([*hidden, keras.layers.Dense(1)])

    def call(self, batch: dict[str, tf.Tensor], training: bool | None = None) -> tf.Tensor:
        """Returns a logit an example."""
        vectors = self.embedding([batch[name] for name in self.names], training=training)
        if self.stride is not None:
            vectors = tf.nn.avg_pool1d(vectors[:, :, None], self.stride, self.stride, "SAME")[
                ..., 0
            ]
        return self.dense(tf.concat([vectors, batch["numbers"]], 1))


def make_resident(model: Recommender, chunk: int = 1 << 20) -> None:
    """Makes every row of every table, as training would."""
    for config in tqdm(model.table_configs, desc="making rows"):
        table = model.embedding.tables[config.name]
        for first in range(0, config.vocabulary_size, chunk):
            keys = np.arange(first, min(first + chunk, config.vocabulary_size))
            table.assign(keys, table.lookup(keys))


def main() -> None:
    """Trains, and reports the median step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=list(MODELS), default="tiny")
    parser.add_argument("--batch", type=int, default=65_536, help="examples a step")
    parser.add_argument("--batches", type=int, default=8, help="distinct ones")
    parser.add_argument("--steps", type=int, default=30, help="that are timed")
    parser.add_argument("--resident", action="store_true", help="make all rows before the first")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are cores")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    rng = np.random.default_rng(arguments.seed)
    data = MODELS[arguments.model]
    model = Recommender(data)
    batches = [batch_of(data, arguments.batch, rng) for _ in range(arguments.batches)]
    optimizer = keras.optimizers.Adagrad(0.01)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(batch["targets"], model(batch, training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    model(batches[0], training=False)
    if arguments.resident:
        make_resident(model)
    seconds = []
    for number in tqdm(range(arguments.batches + arguments.steps), desc="steps"):
        start = time.perf_counter()
        step(batches[number % len(batches)]).numpy()
        if number >= arguments.batches:  # each batch was seen once
            seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    stats = [table.stats() for table in model.embedding.tables.values()]
    rows = sum(int(each["rows"]) for each in stats)
    table_bytes = sum(int(each["bytes"]) for each in stats)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report(
        {
            "benchmark": "synthetic_training",
            "model": arguments.model,
            "batch": arguments.batch,
            "resident": arguments.resident,
            "ms_a_step": round(median * 1e3, 1),
            "samples_a_second": round(arguments.batch / median),
            "rows": rows,
            "table_bytes": table_bytes,
            "peak_bytes": peak,
        },
        f"{arguments.model}, Adagrad, batch {arguments.batch:,}: {median * 1e3:,.0f} ms a step, "
        f"{arguments.batch / median:,.0f} samples/s; {rows:,} rows in tables of "
        f"{table_bytes / 2**30:.2f} GiB, at most {peak / 2**30:.1f} GiB resident",
    )


if __name__ == "__main__":
    main()
