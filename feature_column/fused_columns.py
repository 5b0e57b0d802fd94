"""Looks up the rows of many embedding columns at once: columns that share rows as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from sok_embed import communicators
from sok_embed.feature_column.column_lookup import EmbeddingRows
from sok_embed.feature_column.combine import Positions
from sok_embed.lookups.exchange import look_up


class Found(NamedTuple):
    """The rows that have been looked up for a column and are not combined yet.

    Attributes:
        ids: All ids of the column in the batch.
        positions: The positions that were looked up.
        rows: The rows of these positions, float32 `[n, dim]`.
    """

    ids: tf.SparseTensor
    positions: Positions
    rows: tf.Tensor


class InputLayer(NamedTuple):
    """One call of an input layer of a TF1 graph. Its type is its key among the features.

    Attributes:
        columns: The columns of the layer.
        found: The rows that the call has looked up for columns, by their names.
    """

    columns: Sequence[Any]
    found: dict[str, Found]


def found_rows(
    asked: Sequence[tuple[Any, EmbeddingRows, Any]], inputs: Any, training: bool, name: str
) -> dict[str, Found]:
    """Looks up the rows of several columns. Collective in a layer, in one exchange.

    Columns that share rows are looked up as one. So all columns read the same row of a key, also in
    the step that admits it, and the gradient of static rows has distinct indices, which Keras'
    optimizers rely on.

    Args:
        asked: A `RowsColumn`, its rows, which are one object for columns that share them, and its
            ids and weights, for each column; the same columns on every worker.
        inputs: The features, and transformed features of columns.
        training: True if keys of mask 1 without a row get one.
        name: The name of the exchange; the same on every worker.

    Returns:
        The rows of each column, by its name.
    """
    sharing: dict[EmbeddingRows, dict[str, Positions]] = {}
    for column, rows, ids in asked:
        sharing.setdefault(rows, {})[column.name] = column.positions(ids, inputs)
    joined = {rows: _joined(rows, list(columns.values())) for rows, columns in sharing.items()}
    vectors: dict[str, tf.Tensor] = {}
    for rows, of_columns in _looked_up(joined, training, name).items():
        columns = sharing[rows]
        sizes = [tf.size(positions.keys) for positions in columns.values()]
        vectors |= zip(columns, tf.split(of_columns, sizes), strict=True)
    return {
        column.name: Found(ids.id_tensor, sharing[rows][column.name], vectors[column.name])
        for column, rows, ids in asked
    }


def _looked_up(
    keys: dict[EmbeddingRows, Positions], training: bool, name: str
) -> dict[EmbeddingRows, tf.Tensor]:
    """Returns the rows of the keys of each kind of rows, float32 `[n, dim]`."""
    static = {rows: rows.read_static(at.keys) for rows, at in keys.items() if rows.table is None}
    own = {rows: at for rows, at in keys.items() if rows.table is not None}
    if communicators.size() == 1:
        return static | {
            rows: rows.lookup(at.keys, at.buckets, at.mask, training) for rows, at in own.items()
        }
    routed = {
        rows: rows.routed(at.keys, rows.buckets_of(at.keys, at.buckets), at.mask, training)
        for rows, at in own.items()
    }
    vectors = look_up([one.asked for one in routed.values()], name)
    return static | {
        rows: one.joined(of_own)
        for (rows, one), of_own in zip(routed.items(), vectors, strict=True)
    }


def _joined(rows: EmbeddingRows, positions: Sequence[Positions]) -> Positions:
    """Returns the keys, buckets and masks of columns that share rows, one after the other."""
    first, *others = positions
    if not others:
        return first
    keys = tf.concat([one.keys for one in positions], 0)
    if rows.table is None:
        return first._replace(keys=keys)
    hashed = all(one.buckets is None for one in positions)
    buckets = [] if hashed else [rows.buckets_of(one.keys, one.buckets) for one in positions]
    return first._replace(
        keys=keys,
        buckets=None if hashed else tf.concat(buckets, 0),
        mask=tf.concat([one.mask for one in positions], 0),
    )
