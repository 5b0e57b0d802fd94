"""What do the figures of `TableMetrics` cost, beside the steps between them?

    python benchmarks/table_metrics.py

A model of a `DynamicEmbedding` and a `DistributedEmbedding` of 26 tables trains for some steps of
`fit`, and figures are computed, in turns. With figures after every 100 batches, the target is less
than 1 % of the time of these steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from _common import interleaved, options, report, use_threads

import sok_embed
from sok_embed.callbacks import TableMetrics

TABLES, EXAMPLES, STEPS = 26, 2048, 25
EVERY = 100  # steps between figures
TARGET = 0.01


def model_of(dim: int, tables: int) -> keras.Model:
    """Returns a model of one layer of a table and one of many."""
    features = [
        sok_embed.FeatureConfig(f"f{i}", sok_embed.TableConfig(f"t{i}", None, dim, combiner="sum"))
        for i in range(tables)
    ]
    inputs = [keras.Input((1,), dtype="int64", name=feature.name) for feature in features]
    vectors = sok_embed.DistributedEmbedding(features, name="fields")(inputs)
    vectors.append(keras.layers.Flatten()(sok_embed.DynamicEmbedding(dim)(inputs[0])))
    hidden = keras.layers.Dense(64, "relu")(keras.layers.Concatenate()(vectors))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("adam", "mse")
    return model


def train(model: keras.Model, data: tf.data.Dataset) -> Callable[[int], object]:
    """Returns a function that trains for some steps."""
    return lambda _: model.fit(data, steps_per_epoch=STEPS, verbose=0)


def figures(model: keras.Model) -> Callable[[int], object]:
    """Returns a function that computes figures, and adds them to logs."""
    callback = TableMetrics(EVERY)
    callback.set_model(model)
    callback.on_epoch_begin(0)
    return lambda _: callback.on_epoch_end(0, {})


def main() -> None:
    """Measures, and reports the share of the time that figures take."""
    arguments = options(__doc__ or "").parse_args()
    use_threads(arguments.threads)
    rng = np.random.default_rng(arguments.seed)
    missed = False
    for dim in arguments.dim:
        model = model_of(dim, TABLES)
        keys = rng.integers(0, 100_000, (TABLES, 16 * EXAMPLES, 1))
        data = tf.data.Dataset.from_tensor_slices((tuple(keys), np.ones(16 * EXAMPLES)))
        data = data.batch(EXAMPLES).cache().repeat()

        model.fit(data, steps_per_epoch=STEPS, verbose=0)  # which makes the rows
        contenders = {"steps": train(model, data), "figures": figures(model)}
        seconds = interleaved(contenders, 5, arguments.repeats)
        step = seconds["steps"] / STEPS
        share = seconds["figures"] / (EVERY * step)
        missed |= share > TARGET
        report(
            {"benchmark": "table_metrics", "dim": dim, "step": step, **seconds, "share": share},
            f"dim {dim}: {seconds['figures'] * 1e3:.2f} ms for the figures of {TABLES + 1} tables, "
            f"{step * 1e3:.1f} ms a step; {share:.2%} of {EVERY} steps, target {TARGET:.0%}",
        )
    if arguments.check and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
