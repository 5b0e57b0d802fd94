"""Looks up the rows of an embedding column, in a Keras layer or in a TF1 graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.feature_column.categorical import own_rows_column_in
from sok_embed.lookups.exchange import TableQuery, look_up
from sok_embed.lookups.lookup import LookupContext, TableLookup
from sok_embed.training.commit import Commit


class Routed(NamedTuple):
    """The positions of a batch that read static rows here, and those that ask for own rows.

    Attributes:
        asked: The keys whose own rows are asked for.
        shared: float32 `[m, dim]`, the static rows that were read.
        places: int32, the positions of static rows, then the positions of own rows.
    """

    asked: TableQuery
    shared: tf.Tensor
    places: tuple[tf.Tensor, tf.Tensor]

    def joined(self, own: tf.Tensor) -> tf.Tensor:
        """Returns static rows and the given own rows, each at its position: `[n, dim]`."""
        rows = tf.dynamic_stitch(self.places, (self.shared, own))
        rows.set_shape([None, *own.shape[1:]])
        return rows


class EmbeddingRows:
    """Static rows in a variable, and own rows in a table beside it.

    A host, which is a Keras layer or a TF1 graph, makes them.

    Attributes:
        column: The `RowsColumn`.
        table: The table of own rows. `None`: there are none.
        anchor: The variable that stands for the own rows, or `None`.
    """

    table: Any = None
    anchor: Any = None
    _own: TableLookup

    def __init__(self, column: Any, static: Callable[[], tf.Variable]) -> None:
        self.column = column
        self._static = static
        self._categorical = own_rows_column_in(column)

    @property
    def static(self) -> tf.Variable:
        """The variable of the static rows, `[buckets, dim]`."""
        return self._static()

    @property
    def copies_slots(self) -> bool:
        """True if own rows start with the optimizer's slots of their static rows."""
        return bool(self._categorical.slots == "copy")

    def add_table(
        self, table: Any, host: str, make_anchor: Callable[..., Any], static: Any
    ) -> None:
        """Adds own rows, and makes their anchor.

        `static` is the variable of the static rows that the host's optimizer trains.
        """
        self.table = table
        self._own = TableLookup(table, host, self._read)
        self.anchor = self._own.make_anchor(make_anchor, Commit(table, None, static=static))

    def lookup(
        self, keys: tf.Tensor, buckets: tf.Tensor | None, mask: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """Looks keys up. Collective in a layer, if there are several workers.

        Args:
            keys: int64 `[n]`.
            buckets: int64 `[n]`, their static rows. `None`: keys are hashed.
            mask: int32 `[n]`: 1 reads the own row, 0 the static row.
            training: True if keys of mask 1 without a row get one.

        Returns:
            float32 `[n, dim]`.
        """
        if self._own.communicator().size == 1:
            context = self._begin(training)
            asked = tf_ops.TableKeys(keys, said=buckets)
            return self._read(context, tf.float32, asked, mask).embeddings
        routed = self.routed(keys, self.buckets_of(keys, buckets), mask, training)
        (own,) = look_up([routed.asked], self.table.name)
        return routed.joined(own)

    def read_static(self, rows: tf.Tensor) -> tf.Tensor:
        """Reads static rows by their numbers, `[n]`. The gradient has distinct indices."""
        distinct, places = tf.unique(rows)
        return tf.gather(tf.gather(self.static, distinct), places)

    def buckets_of(self, keys: tf.Tensor, buckets: tf.Tensor | None) -> tf.Tensor:
        """Returns the static row of each key, int64 `[n]`: as given, or by the hash of the key."""
        if buckets is None:
            return tf_ops.static_buckets(keys, self.column.static_rows)
        return buckets

    def routed(
        self, keys: tf.Tensor, buckets: tf.Tensor, mask: tf.Tensor, training: bool
    ) -> Routed:
        """Reads static rows, all of which every worker has, and lists the own rows to ask for."""
        is_own = tf.equal(mask, 1)
        shared, own = (tf.cast(tf.where(at)[:, 0], tf.int32) for at in (~is_own, is_own))
        context = self._begin(training)
        asked = self._own.query(context, tf.gather(keys, own), tf.gather(buckets, own))
        return Routed(asked, tf.gather(self.static, tf.gather(buckets, shared)), (shared, own))

    def _begin(self, training: bool) -> LookupContext:
        """Begins a call, and decides what it may do to the table."""
        return self._own.begin(training, training)

    def _read(
        self,
        context: LookupContext,
        dtype: tf.DType,
        asked: tf_ops.TableKeys,
        mask: tf.Tensor | None = None,
    ) -> tf_ops.Lookup:
        """Reads own and static rows by a mask, or own rows without one.

        Buckets come with the keys.
        """
        return tf_ops.adaptive_mask_gather(
            self.table.resource_handle,
            self.static,
            asked.keys,
            asked.said,
            tf.ones_like(asked.keys, tf.int32) if mask is None else mask,
            dim=self.column.dimension,
            make_rows=context.trains,
            anchor=context.anchor,
            dtype=dtype,
            copy_slots=self.copies_slots,
            absent_value=self._categorical.absent_value,
            counts=context.counts(self.table, asked),
            reports=asked.reports,
            device=getattr(self.table, "lookup_device", None),
        )


def check_same_rows(column: Any, made: Any) -> None:
    """Raises ValueError if a column shares rows with another that has other options."""
    wanted, there = own_rows_column_in(column), own_rows_column_in(made)
    if wanted is None or there is None:
        same = wanted is there
    else:
        same = wanted._replace(key=there.key) == there
    if same and column.dimension == made.dimension:
        return
    shared = column.shared_name is not None
    remedy = " Make both by one call of shared_embedding_columns." if shared else ""
    raise ValueError(
        f"Column '{column.name}': expected the options of '{made.name}', whose rows it shares: "
        f"{there} and dimension {made.dimension}. Received: {wanted} and dimension "
        f"{column.dimension}.{remedy}"
    )
