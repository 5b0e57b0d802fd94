"""How long does a step of many tables take in one layer, against a layer a table?

    python benchmarks/collection.py
    python benchmarks/collection.py --tables 200 --batch 256 --contenders collection layers
    horovodrun -np 2 python benchmarks/collection.py --contenders collection layers one

A model with a table a field: one id a field and example, Adam, a dense layer on the vectors,
trained by Keras' `fit`, in turns. Contenders:

    collection  one DistributedEmbedding
    layers      a DynamicEmbedding a field
    one         one DynamicEmbedding for all fields, with the field mixed into the key: the bound
    static      a keras.layers.Embedding a field, which has all rows from the start

The time is that of a step of the whole model; the ratio says how many times as long as that of the
first contender a step takes. Under horovodrun the batch is divided among the workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _common import interleaved, options, positions, report, use_threads

import sok_embed


class FieldsModel(keras.Model):
    """Vectors of all fields, and a dense layer."""

    def __init__(self, vectors_of: Callable[[list[tf.Tensor]], tf.Tensor], layers: Any) -> None:
        super().__init__()
        self.embeddings = layers  # so that Keras finds them
        self._vectors_of = vectors_of
        self.dense = keras.layers.Dense(1)

    def call(self, ids: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Predicts one number an example."""
        return self.dense(self._vectors_of(tf.unstack(ids, axis=1)))


def collection(tables: int, dim: int, rows: int) -> FieldsModel:
    """One layer for all fields."""
    features = [
        sok_embed.FeatureConfig(f"field{i}", sok_embed.TableConfig(f"field{i}", None, dim))
        for i in range(tables)
    ]
    layer = sok_embed.DistributedEmbedding(features, output="concat")
    return FieldsModel(layer, layer)


def layers(tables: int, dim: int, rows: int) -> FieldsModel:
    """A layer a field."""
    made = [sok_embed.DynamicEmbedding(dim) for _ in range(tables)]
    return FieldsModel(_joined(made), made)


def static(tables: int, dim: int, rows: int) -> FieldsModel:
    """A static layer a field."""
    made = [keras.layers.Embedding(rows, dim) for _ in range(tables)]
    return FieldsModel(_joined(made), made)


def _joined(made: list[Any]) -> Callable[[list[tf.Tensor]], tf.Tensor]:
    return lambda ids: tf.concat(
        [layer(column) for layer, column in zip(made, ids, strict=True)], 1
    )


def one(tables: int, dim: int, rows: int) -> FieldsModel:
    """One layer with one table for all fields."""
    layer = sok_embed.DynamicEmbedding(dim)
    fields = tf.range(tables, dtype=tf.int64) * 2**40

    def vectors_of(ids: list[tf.Tensor]) -> tf.Tensor:
        return tf.reshape(layer(tf.stack(ids, 1) + fields), [-1, tables * dim])

    return FieldsModel(vectors_of, layer)


CONTENDERS = {"collection": collection, "layers": layers, "one": one, "static": static}


def fit_of(model: FieldsModel, batches: tf.data.Dataset, steps: int) -> Callable[[int], None]:
    """Returns a function that fits the model for a number of steps."""
    optimizer = keras.optimizers.Adam(1e-3)
    if sok_embed.size() > 1:
        optimizer = sok_embed.DistributedOptimizer(optimizer)
    model.compile(optimizer, "mse")
    model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0)

    def run(_: int) -> None:
        model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0)

    return run


def main() -> None:
    """Prints a case a batch size and distribution."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=26, help="fields, each with a table")
    parser.add_argument("--steps", type=int, default=0, help="of a repeat; 0: by the batch")
    parser.add_argument("--contenders", nargs="+", choices=[*CONTENDERS], default=[*CONTENDERS])
    parser.set_defaults(dim=[16], keys=100_000, batch=2048, dist=["zipf"], repeats=5)
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    sok_embed.init()
    tables, batch = arguments.tables, arguments.batch // sok_embed.size()
    for dist in arguments.dist:
        for dim in arguments.dim:
            rng = np.random.default_rng(arguments.seed + sok_embed.rank())
            shape = (arguments.batches * batch, tables)
            ids = positions(dist, arguments.keys, shape, rng)
            targets = rng.normal(size=(len(ids), 1)).astype(np.float32)
            data = tf.data.Dataset.from_tensor_slices((ids, targets)).batch(batch).cache().repeat()
            steps = arguments.steps or max(4, min(100, 2_000_000 // (batch * tables)))
            runs = {
                name: fit_of(CONTENDERS[name](tables, dim, arguments.keys), data, steps)
                for name in arguments.contenders
            }
            seconds = interleaved(runs, 1, arguments.repeats)
            ms = {name: round(value / steps * 1e3, 3) for name, value in seconds.items()}
            if sok_embed.rank() > 0:
                continue
            first = ms[arguments.contenders[0]]
            ratio = {name: round(value / first, 2) for name, value in ms.items()}
            case = {
                "tables": tables,
                "dim": dim,
                "batch": batch,
                "dist": dist,
                "keys": arguments.keys,
            }
            told = ", ".join(f"{name} {value} ms ({ratio[name]}x)" for name, value in ms.items())
            report(
                {"benchmark": "collection", **case, "ms_a_step": ms, "ratio": ratio},
                f"{sok_embed.size()} worker(s), {tables} tables, dim {dim}, "
                f"batch {arguments.batch}, {dist}: {told}",
            )


if __name__ == "__main__":
    main()
