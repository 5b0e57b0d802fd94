"""What does a step of several workers send, and how long does it take, by the placement of tables?

    horovodrun -np 2 python benchmarks/exchange.py
    horovodrun -np 2 python benchmarks/exchange.py --bag 50 --placement key worker replicated

A `DistributedEmbedding` of equal tables, a feature of `--bag` ids for each, ids by Zipf's law: one
step looks them up, and takes and applies the gradient of a sum, by SGD. Placements take turns. The
bytes are those that worker 0 sends to others in one step, by message: keys, rows, gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _common import interleaved, options, positions, report, use_threads

import sok_embed
from sok_embed.communicators import Communicator

PLACEMENTS = ("key", "worker", "replicated")


class Counting(Communicator):
    """A communicator that counts the messages of another communicator, eagerly."""

    def __init__(self, counted: Communicator) -> None:
        self._counted = counted
        self.bytes: list[int] = []

    @property
    def rank(self) -> int:
        """See `Communicator.rank`."""
        return self._counted.rank

    @property
    def size(self) -> int:
        """See `Communicator.size`."""
        return self._counted.size

    def all_to_all(
        self, tensor: tf.Tensor, splits: tf.Tensor, name: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Communicator.all_to_all`."""
        to_others = int(tf.reduce_sum(splits)) - int(splits[self.rank])
        self.bytes.append(to_others * tensor.dtype.size)
        return self._counted.all_to_all(tensor, splits, name)

    def all_reduce(self, tensor: tf.Tensor, name: str, average: bool = False) -> tf.Tensor:
        """See `Communicator.all_reduce`."""
        return self._counted.all_reduce(tensor, name, average)

    def broadcast(self, tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
        """See `Communicator.broadcast`."""
        return self._counted.broadcast(tensor, root_rank, name)

    def barrier(self) -> None:
        """See `Communicator.barrier`."""
        self._counted.barrier()


def features_of(
    placement: str, tables: int, dim: int, workers: int
) -> list[sok_embed.FeatureConfig]:
    """Returns a feature for each of some equal tables, `f0` of `t0` and so on."""
    features = []
    for number in range(tables):
        holder = number % workers if placement == "worker" else None
        table = sok_embed.TableConfig(
            f"t{number}", None, dim, combiner="sum", placement=placement, worker=holder
        )
        features.append(sok_embed.FeatureConfig(f"f{number}", table))
    return features


def step_of(placement: str, tables: int, dim: int) -> Callable[[list[tf.Tensor]], None]:
    """Returns a step of a new layer: a lookup, its gradient, and the optimizer's."""
    features = features_of(placement, tables, dim, sok_embed.size())
    layer = sok_embed.DistributedEmbedding(features, output="concat", name=placement)
    layer.build()
    optimizer = sok_embed.DistributedOptimizer(keras.optimizers.SGD(0.01))
    optimizer.build(layer.trainable_variables)

    def step(ids: list[tf.Tensor]) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids, training=True))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)

    return step


def _call(step: Callable[[list[tf.Tensor]], None], batches: list[Any], number: int) -> None:
    step(batches[number])


def main() -> None:
    """Prints a case a dim, with all placements."""
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--bag", type=int, default=1, help="ids of a feature and example")
    parser.add_argument("--placement", nargs="+", choices=PLACEMENTS, default=[*PLACEMENTS])
    parser.set_defaults(dim=[16], keys=100_000, batch=2048, dist=["zipf"], repeats=5, threads=1)
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    communicator = sok_embed.init()
    batch = arguments.batch // communicator.size
    rng = np.random.default_rng(arguments.seed + communicator.rank)
    shape = (arguments.batches, arguments.tables, batch, arguments.bag)
    for dist in arguments.dist:
        ids = positions(dist, arguments.keys, shape, rng)
        batches = [[tf.constant(table) for table in each] for each in ids]
        for dim in arguments.dim:
            runs: dict[str, Callable[[int], Any]] = {}
            sent = {}
            for placement in arguments.placement:
                step = step_of(placement, arguments.tables, dim)
                counting = sok_embed.init(Counting(communicator))
                step(batches[0])
                sent[placement] = counting.bytes  # type: ignore[attr-defined]
                sok_embed.init(communicator)
                compiled = tf.function(step, reduce_retracing=True)
                for each in batches:
                    compiled(each)
                runs[placement] = functools.partial(_call, compiled, batches)
            seconds = interleaved(runs, arguments.batches, arguments.repeats)
            if communicator.rank > 0:
                continue
            ms = {name: round(value * 1e3, 2) for name, value in seconds.items()}
            told = "; ".join(
                f"{name} {value} ms, {' + '.join(f'{n / 1e3:,.0f}' for n in sent[name])} kB"
                for name, value in ms.items()
            )
            report(
                {
                    "benchmark": "exchange",
                    "workers": communicator.size,
                    "tables": arguments.tables,
                    "dim": dim,
                    "bag": arguments.bag,
                    "batch": arguments.batch,
                    "dist": dist,
                    "ms_a_step": ms,
                    "bytes_sent": sent,
                },
                f"{communicator.size} workers, {arguments.tables} tables, dim {dim}, bags of "
                f"{arguments.bag}, {dist}: {told}",
            )


if __name__ == "__main__":
    main()
