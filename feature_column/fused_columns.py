"""Looks up own rows of all adaptive columns of a layer at once, over several workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from sok_embed.feature_column.column_lookup import EmbeddingRows
from sok_embed.feature_column.combine import Positions
from sok_embed.lookups.exchange import look_up


class Wanted(NamedTuple):
    """The lookup of a column.

    Attributes:
        rows: The rows to look up in, the same object for columns that share rows.
        positions: The positions to look up, from `with_weight`.
    """

    rows: EmbeddingRows
    positions: Positions


def rows_of_columns(wanted: Sequence[Wanted], training: bool, name: str) -> list[tf.Tensor]:
    """Looks up the keys of several columns in one exchange. Collective.

    Columns that share rows are looked up as one, so that an owner receives a key once.

    Args:
        wanted: The lookup of each column; the same columns on every worker.
        training: True if keys of mask 1 without a row get one.
        name: The name of the exchange; the same on every worker.

    Returns:
        float32 `[n, dim]` for each column, the rows of its keys.
    """
    sharing: dict[EmbeddingRows, list[int]] = {}
    for i, column in enumerate(wanted):
        sharing.setdefault(column.rows, []).append(i)
    routed = [
        rows.routed(*_joined(rows, [wanted[i].positions for i in columns]), training)
        for rows, columns in sharing.items()
    ]
    own = look_up([one.asked for one in routed], name)
    found: dict[int, tf.Tensor] = {}
    for one, vectors, columns in zip(routed, own, sharing.values(), strict=True):
        sizes = [tf.size(wanted[i].positions.keys) for i in columns]
        found |= zip(columns, tf.split(one.joined(vectors), sizes), strict=True)
    return [found[i] for i in range(len(wanted))]


def _joined(
    rows: EmbeddingRows, positions: Sequence[Positions]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns keys, buckets and masks of columns that share rows, one after the other."""
    fields = [(one.keys, rows.buckets_of(one.keys, one.buckets), one.mask) for one in positions]
    keys, buckets, mask = (tf.concat(field, 0) for field in zip(*fields, strict=True))
    return keys, buckets, mask
