"""The rows of a table that an export takes, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.serving.rows import MissingRows
from sok_embed.tables.base_table import Part
from sok_embed.tables.row_batches import Batch, batches_in_memory
from sok_embed.tables.table import Table

_BATCH_BYTES = 32 << 20

# Keys, vectors, and which of the rows are exported.
Piece = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.bool_]]


class Elsewhere(NamedTuple):
    """The rows of a part of a table that do not lie in the table."""

    rows: int  # the number of rows, including those that are left out
    pieces: Callable[[], Iterator[Piece]]  # a function that yields all of them


class HeldRows:
    """The rows of one part of a table.

    Args:
        min_count: The least number of updates; other rows are left out.
        taken: A function that is called with the number of rows that were taken since the call
            before.
        elsewhere: The rows in files; `None`: the rows in the table.
    """

    def __init__(
        self,
        source: Part,
        min_count: int = 0,
        taken: Callable[[int], None] | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.source = source
        self.min_count = min_count
        self._taken = taken or (lambda rows: None)
        self._elsewhere = elsewhere
        self.name = source.table.name
        self.part = source.name
        self.dim = source.table.dim

    @property
    def start(self) -> MissingRows:
        """The start vectors, which keys without a row have."""
        spec = self.source.table.spec
        return MissingRows(*spec.initializer, spec.seed or 0, self.source.group)

    @property
    def key_limit(self) -> int:
        """The number that keys of a table without a hash must be below; 0: it has a hash."""
        return int(getattr(self.source.table, "key_limit", 0))

    @property
    def count(self) -> int:
        """The number of rows, including those that are left out."""
        if self._elsewhere is not None:
            return self._elsewhere.rows
        return int(tf_ops.size(self.source.handle))

    @property
    def batch_size(self) -> int:
        """The number of rows that are taken at a time."""
        return max(1024, _BATCH_BYTES // (4 * self.dim + 8))

    def batches(self) -> Iterator[Batch]:
        """Yields keys, int64 `[n]`, and vectors, float32 `[n, dim]`, in no order.

        Rows that have expired are left out, as lookups do.
        """
        pieces = self._own_pieces if self._elsewhere is None else self._elsewhere.pieces
        for keys, vectors, exported in pieces():
            self._taken(len(keys))
            yield (keys, vectors) if exported.all() else (keys[exported], vectors[exported])

    def _own_pieces(self) -> Iterator[Piece]:
        table, size = self.source.table, self.batch_size
        if isinstance(table, Table):
            batches = table.batches(size)
        else:
            batches = batches_in_memory(table, self.source.handle, self.dim, size)
        for keys, vectors in batches:
            yield keys, vectors, self.is_exported(keys)

    def started(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Returns the vectors that rows of keys start from, float32 `[n, dim]`.

        If rows of the table have fewer bytes than float32, the vectors are rounded in the same way.
        """
        start = self.start
        empty = tf_ops.anonymous_table(
            self.name,
            self.dim,
            initializer=start.kind,
            initializer_a=start.a,
            initializer_b=start.b,
            seed=start.seed,
            group=start.group,
            row_dtype=self.source.table.spec.row_dtype,
        )
        found = tf_ops.lookup(empty, tf.constant(keys), self.dim, False)
        vectors: npt.NDArray[np.float32] = found.embeddings.numpy()
        return vectors

    def is_exported(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns which keys have a row that is not left out, bool `[n]`."""
        found = tf_ops.metadata(self.source.handle, tf.constant(keys))
        exported: npt.NDArray[np.bool_] = found.exists.numpy()
        if self.min_count:
            exported &= found.update_nums.numpy() >= self.min_count
        return exported
