"""How long does a step of many tables take in one layer, against a layer a table?

    python benchmarks/collection.py
    python benchmarks/collection.py --tables 200 --batch 256 --contenders collection layers
    horovodrun -np 2 python benchmarks/collection.py --contenders collection layers one
    pip install keras-rs
    python benchmarks/collection.py --bag 10 --contenders collection keras_rs
    pip install torch==2.13.0 fbgemm-gpu-cpu==1.8.0
    python benchmarks/collection.py --optimizer adagrad --mlp 64 32 --contenders collection fbgemm

A model with a table a field: one id a field and example, or a bag of them whose vectors are
averaged, and dense layers on the vectors, trained by Keras' `fit`, in turns. Contenders:

    collection  one DistributedEmbedding
    layers      a DynamicEmbedding a field, for bags of one id
    one         one DynamicEmbedding for all fields, with the field mixed into the key: the bound,
                for bags of one id
    static      a keras.layers.Embedding a field, which has all rows from the start
    keras_rs    the DistributedEmbedding of keras-rs, likewise
    fbgemm      FBGEMM's table batched embedding bags on the CPU, and the same dense layers, in a
                loop of PyTorch; likewise

The time is that of a step of the whole model; the ratio says how many times as long as that of the
first contender a step takes. Under horovodrun the batch is divided among the workers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from _common import interleaved, options, positions, report, use_threads

import sok_embed


class FieldsModel(keras.Model):
    """Vectors of all fields, and a dense layer."""

    def __init__(
        self, vectors_of: Callable[[list[tf.Tensor]], tf.Tensor], layers: Any, case: Case
    ) -> None:
        super().__init__()
        self.embeddings = layers  # so that Keras finds them
        self._vectors_of = vectors_of
        hidden = [keras.layers.Dense(units, "relu") for units in case.mlp]
        self.dense = keras.Sequential([*hidden, keras.layers.Dense(1)])

    def call(self, ids: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Predicts one number an example, of ids `[B, fields]`, or `[B, fields, bag]`."""
        return self.dense(self._vectors_of(tf.unstack(ids, axis=1)))


def collection(case: Case) -> FieldsModel:
    """Makes one layer for all fields."""
    features = [
        sok_embed.FeatureConfig(f"field{i}", sok_embed.TableConfig(f"field{i}", None, case.dim))
        for i in range(case.tables)
    ]
    layer = sok_embed.DistributedEmbedding(features, output="concat")
    return FieldsModel(layer, layer, case)


def layers(case: Case) -> FieldsModel:
    """Makes a layer for each field."""
    case.check_single("layers")
    made = [sok_embed.DynamicEmbedding(case.dim) for _ in range(case.tables)]
    return FieldsModel(_joined(made, case), made, case)


def static(case: Case) -> FieldsModel:
    """Makes a static layer for each field."""
    made = [keras.layers.Embedding(case.rows, case.dim) for _ in range(case.tables)]
    return FieldsModel(_joined(made, case), made, case)


def _joined(made: list[Any], case: Case) -> Callable[[list[tf.Tensor]], tf.Tensor]:
    def vectors_of(layer: Any, ids: tf.Tensor) -> tf.Tensor:
        vectors = layer(ids)
        return vectors if case.bag == 1 else tf.reduce_mean(vectors, 1)

    return lambda ids: tf.concat(
        [vectors_of(layer, column) for layer, column in zip(made, ids, strict=True)], 1
    )


def one(case: Case) -> FieldsModel:
    """Makes one layer with one table for all fields."""
    case.check_single("one")
    layer = sok_embed.DynamicEmbedding(case.dim)
    fields = tf.range(case.tables, dtype=tf.int64) * 2**40

    def vectors_of(ids: list[tf.Tensor]) -> tf.Tensor:
        return tf.reshape(layer(tf.stack(ids, 1) + fields), [-1, case.tables * case.dim])

    return FieldsModel(vectors_of, layer, case)


def keras_rs(case: Case) -> FieldsModel:
    """Makes the rival of the same name."""
    from keras_rs import layers as rival

    shapes = (case.batch, case.bag), (case.batch, case.dim)
    made = rival.DistributedEmbedding(
        [
            rival.FeatureConfig(
                f"field{i}",
                rival.TableConfig(
                    f"field{i}", case.rows, case.dim, optimizer=case.optimizer, combiner="mean"
                ),
                *shapes,
            )
            for i in range(case.tables)
        ]
    )

    def vectors_of(ids: list[tf.Tensor]) -> tf.Tensor:
        return tf.concat(made([tf.reshape(column, shapes[0]) for column in ids]), 1)

    return FieldsModel(vectors_of, made, case)


CONTENDERS = {
    "collection": collection,
    "layers": layers,
    "one": one,
    "static": static,
    "keras_rs": keras_rs,
}


class Case(NamedTuple):
    """The measured case: `tables` of `rows` rows of `dim` floats, bags of `bag` ids."""

    tables: int
    dim: int
    rows: int
    batch: int
    bag: int
    mlp: list[int]
    optimizer: str
    threads: int

    def check_single(self, contender: str) -> None:
        """Raises for bags of several ids."""
        if self.bag > 1:
            raise SystemExit(f"expected --bag 1 with the contender {contender}, got {self.bag}")


def fbgemm(case: Case, ids: Any, targets: Any) -> Callable[[int], None]:
    """Returns a function that runs steps of FBGEMM's embedding bags and PyTorch's dense layers."""
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    rules = {
        "adam": (EmbOptimType.ADAM, torch.optim.Adam),
        "adagrad": (EmbOptimType.EXACT_ADAGRAD, torch.optim.Adagrad),
        "sgd": (EmbOptimType.EXACT_SGD, torch.optim.SGD),
    }
    rule, dense_rule = rules[case.optimizer]
    torch.set_num_threads(case.threads or os.cpu_count() or 1)
    placed = (case.rows, case.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)
    bags = SplitTableBatchedEmbeddingBagsCodegen(
        embedding_specs=[placed] * case.tables,
        optimizer=rule,
        learning_rate=1e-3,
        pooling_mode=PoolingMode.MEAN,
    )
    widths = [case.tables * case.dim, *case.mlp]
    hidden = [
        layer
        for width, units in zip(widths, case.mlp, strict=False)
        for layer in (torch.nn.Linear(width, units), torch.nn.ReLU())
    ]
    dense = torch.nn.Sequential(*hidden, torch.nn.Linear(widths[-1], 1))
    optimizer = dense_rule(dense.parameters(), lr=1e-3)
    offsets = torch.arange(0, case.tables * case.batch + 1, dtype=torch.int64) * case.bag
    batches = [
        # Its keys are in the order of the tables.
        (
            torch.from_numpy(np.ascontiguousarray(np.swapaxes(part, 0, 1)).reshape(-1)),
            torch.from_numpy(wanted),
        )
        for part, wanted in zip(
            ids.reshape(-1, case.batch, case.tables, case.bag),
            targets.reshape(-1, case.batch, 1),
            strict=True,
        )
    ]

    def run(steps: int) -> None:
        for step in range(steps):
            keys, wanted = batches[step % len(batches)]
            loss = torch.nn.functional.mse_loss(dense(bags(keys, offsets)), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def fit_of(
    model: FieldsModel, case: Case, batches: tf.data.Dataset, steps: int
) -> Callable[[int], None]:
    """Returns a function that fits the model for a number of steps."""
    optimizer = keras.optimizers.get(
        {"class_name": case.optimizer, "config": {"learning_rate": 1e-3}}
    )
    if sok_embed.size() > 1:
        optimizer = sok_embed.DistributedOptimizer(optimizer)
    model.compile(optimizer, "mse")
    model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0)

    def run(_: int) -> None:
        model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0)

    return run


def _steps_of(run: Callable[[int], None], steps: int, _: int) -> None:
    run(steps)


def main() -> None:
    """Prints a case a batch size and distribution."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=26, help="fields, each with a table")
    parser.add_argument("--steps", type=int, default=0, help="of a repeat; 0: by the batch")
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=[*CONTENDERS, "fbgemm"],
        default=["collection", "layers", "one", "static"],
    )
    parser.add_argument("--bag", type=int, default=1, help="ids of a field and example")
    parser.add_argument("--mlp", type=int, nargs="*", default=[], help="units of hidden layers")
    parser.add_argument("--optimizer", choices=["adam", "adagrad", "sgd"], default="adam")
    parser.set_defaults(dim=[16], keys=100_000, batch=2048, dist=["zipf"], repeats=5)
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    sok_embed.init()
    tables, batch = arguments.tables, arguments.batch // sok_embed.size()
    for dist in arguments.dist:
        for dim in arguments.dim:
            rng = np.random.default_rng(arguments.seed + sok_embed.rank())
            case = Case(
                tables,
                dim,
                arguments.keys,
                batch,
                arguments.bag,
                arguments.mlp,
                arguments.optimizer,
                arguments.threads,
            )
            shape = (arguments.batches * batch, tables, *([case.bag] if case.bag > 1 else []))
            ids = positions(dist, arguments.keys, shape, rng)
            targets = rng.normal(size=(len(ids), 1)).astype(np.float32)
            data = tf.data.Dataset.from_tensor_slices((ids, targets)).batch(batch).cache().repeat()
            # The end of an iterator sometimes waits for the thread that tunes it, up to seconds.
            untuned = tf.data.Options()
            untuned.autotune.enabled = False
            data = data.with_options(untuned)
            steps = arguments.steps or max(4, min(100, 2_000_000 // (batch * tables * case.bag)))
            runs = {
                name: functools.partial(_steps_of, fbgemm(case, ids, targets), steps)
                if name == "fbgemm"
                else fit_of(CONTENDERS[name](case), case, data, steps)
                for name in arguments.contenders
            }
            seconds = interleaved(runs, 1, arguments.repeats)
            ms = {name: round(value / steps * 1e3, 3) for name, value in seconds.items()}
            if sok_embed.rank() > 0:
                continue
            first = ms[arguments.contenders[0]]
            ratio = {name: round(value / first, 2) for name, value in ms.items()}
            said = {**case._asdict(), "dist": dist}
            told = ", ".join(f"{name} {value} ms ({ratio[name]}x)" for name, value in ms.items())
            report(
                {"benchmark": "collection", **said, "ms_a_step": ms, "ratio": ratio},
                f"{sok_embed.size()} worker(s), {tables} tables, dim {dim}, "
                f"bags of {case.bag}, {case.optimizer}, batch {arguments.batch}, {dist}: {told}",
            )


if __name__ == "__main__":
    main()
