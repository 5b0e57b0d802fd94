"""The rows of a table that an export takes, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.serving.rows import MissingRows
from sok_embed.tables.base_table import Part
from sok_embed.tables.row_batches import Batch, batches_in_memory
from sok_embed.tables.table import Table

_BATCH_BYTES = 32 << 20


class HeldRows:
    """The rows of one part of a table.

    Args:
        part: The part.
        min_count: The least number of updates; other rows are left out.
        taken: A function that is called with the number of rows that were taken since the call
            before.
    """

    def __init__(
        self, part: Part, min_count: int = 0, taken: Callable[[int], None] | None = None
    ) -> None:
        self._part = part
        self.min_count = min_count
        self._taken = taken or (lambda rows: None)
        self.name = part.table.name
        self.part = part.name
        self.dim = part.table.dim

    @property
    def start(self) -> MissingRows:
        """The start vectors, which keys without a row have."""
        attributes = self._part.table._attributes
        return MissingRows(
            attributes["initializer"],
            attributes["initializer_a"],
            attributes["initializer_b"],
            attributes["seed"],
            self._part.group,
        )

    @property
    def key_limit(self) -> int:
        """The number that keys of a table without a hash must be below; 0: it has a hash."""
        return int(getattr(self._part.table, "key_limit", 0))

    @property
    def count(self) -> int:
        """The number of rows, including those that are left out."""
        return int(tf_ops.size(self._part.handle))

    @property
    def batch_size(self) -> int:
        """The number of rows that are taken at a time."""
        return max(1024, _BATCH_BYTES // (4 * self.dim + 8))

    def batches(self) -> Iterator[Batch]:
        """Yields keys, int64 `[n]`, and vectors, float32 `[n, dim]`, in no order.

        Rows that have expired are left out, as lookups do.
        """
        table, size = self._part.table, self.batch_size
        if isinstance(table, Table):
            batches = table.batches(size)
        else:
            batches = batches_in_memory(table, self._part.handle, self.dim, size)
        for keys, vectors in batches:
            stays = self.stays(keys)
            self._taken(len(keys))
            yield (keys, vectors) if stays.all() else (keys[stays], vectors[stays])

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
            row_dtype=self._part.table._attributes["row_dtype"],
        )
        found = tf_ops.lookup(empty, tf.constant(keys), self.dim, False)
        vectors: npt.NDArray[np.float32] = found.embeddings.numpy()
        return vectors

    def stays(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns which keys have a row that is not left out, bool `[n]`."""
        found = tf_ops.metadata(self._part.handle, tf.constant(keys))
        stays: npt.NDArray[np.bool_] = found.exists.numpy()
        if self.min_count:
            stays &= found.update_nums.numpy() >= self.min_count
        return stays
