"""Makes a `tf.data.Dataset` of this worker's part of a dataset of Ray Data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import ray.train
import tensorflow as tf

from sok_embed import communicators
from sok_embed.arguments import check_integer
from sok_embed.data.arrow import columns_of
from sok_embed.data.batches import dataset_of
from sok_embed.data.joining import join
from sok_embed.ray.data_config import BATCH_SIZE

_MOST = 2**31


def dataset(
    name: str = "train",
    *,
    batch_size: int | None = None,
    feature_columns: str | Sequence[str] | None = None,
    label_column: str | None = None,
    weight_column: str | None = None,
    rows: int | None = None,
    training: bool = True,
) -> tf.data.Dataset:
    """Makes batches of this worker's part of a dataset that Ray's trainer was given. Collective.

    Split by `DataConfig`, the dataset has batches whose order is known, so that `fit` goes on at
    the right one, and `sok_embed.data.join` lets all workers end together. Split by Ray itself, it
    has other batches in each pass: `fit` says so and trains nothing. Each pass reads the dataset
    of Ray Data again.

    Columns become tensors by their types of Arrow: numbers, truth values, text and bytes `[B]`,
    lists ragged `[B, None]` or `[B, None, None]`, lists of a fixed size and tensors `[B, ...]`.

    Example:
    >>> dataset = sok_embed.ray.dataset("train", label_column="click")     # doctest: +SKIP
    >>> dataset.element_spec                                               # doctest: +SKIP
    ({'user': TensorSpec(shape=(None,), dtype=tf.int64, name=None)},
     TensorSpec(shape=(None,), dtype=tf.float32, name=None))

    Args:
        name: The name of the dataset among those of the trainer.
        batch_size: The examples of a batch of this worker. `None`: its part of the batch of
            `DataConfig`.
        feature_columns: The columns of the features: one as a tensor, or several as a dictionary.
            `None`: all but the other two.
        label_column: The column of the labels. `None`: there are none.
        weight_column: The column of the weights of examples. `None`: they weigh the same.
        rows: The rows of the whole dataset, its `count()`, by which the number of batches is known.
            `None`: it is not known before the end of a pass.
        training: True if examples of unequal batches are weighted, as by `sok_embed.data.join`.

    Returns:
        Batches `(features,)`, `(features, labels)` or `(features, labels, weights)`.

    Raises:
        KeyError: For a name that the trainer was not given.
        ValueError: For columns that are not there or of types that tensors do not have; for another
            batch size than that of `DataConfig`, or none.
        tf.errors.OpError: While it is read, for a value that is missing or of another type than
            the schema's, and for another number of batches than that of `rows`.
        RuntimeError: Outside a worker of Ray Train.
    """
    shard = ray.train.get_dataset_shard(name)
    own = getattr(shard, BATCH_SIZE, None)
    size = _batch_size(batch_size, own)
    parts = columns_of(shard.schema(), feature_columns, label_column, weight_column)

    def tables() -> Any:
        return shard.iter_batches(batch_size=size, batch_format="pyarrow")

    found = dataset_of(parts, tables, size)
    options = tf.data.Options()
    options.deterministic = bool(shard.get_context().execution_options.preserve_order)
    number = _number_of_batches(shard, size, own is not None, rows)
    if number is not None:
        found = found.apply(tf.data.experimental.assert_cardinality(number))
    found = found.with_options(options)
    return found if own is None else join(found, training=training)


def _batch_size(given: int | None, own: int | None) -> int:
    if given is not None:
        check_integer("batch_size", given, 1, _MOST)
    if given is None and own is None:
        raise ValueError(
            "Expected batch_size, since the dataset is not split by sok_embed.ray.DataConfig. "
            "Received: None. Say how many examples a batch of this worker has."
        )
    if own is not None and given not in (None, own):
        raise ValueError(
            f"Expected batch_size={own}, this worker's part of the batch of "
            f"sok_embed.ray.DataConfig. Received: {given}. Leave batch_size out."
        )
    return int(given or own or 0)


def _number_of_batches(shard: Any, size: int, in_turns: bool, rows: int | None) -> int | None:
    """Returns the batches of this worker; `None` if the number of rows is not known."""
    # A worker that has the whole dataset has no part of a split.
    workers = shard.world_size() if hasattr(shard, "world_size") else 1
    if not in_turns and workers > 1 and (rows is None or rows % workers):
        warnings.warn(
            "Expected Ray Data to be split by sok_embed.ray.DataConfig, which leaves no row out. "
            f"Received: Ray's own split, which leaves out up to {workers - 1} rows of a pass. Give "
            "the trainer dataset_config=sok_embed.ray.DataConfig(batch_size).",
            stacklevel=3,
        )
    if rows is None:
        return None
    check_integer("rows", rows, 0, 2**63 - 1)
    if in_turns:
        batches = -(-rows // size)
        return -(-(batches - communicators.rank()) // workers)
    return -(-(rows // workers) // size)
