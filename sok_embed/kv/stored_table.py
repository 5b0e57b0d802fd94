"""A group of a storage for callers that look at its rows, remove them or copy them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from sok_embed.arguments import UINT32, check_flag, check_integer, check_keys, keys_of
from sok_embed.files.row_views import RowViews
from sok_embed.kv.group import GROUPS, Group, group_of
from sok_embed.kv.metadata import Metadata, read_metadata

if TYPE_CHECKING:
    from sok_embed.kv.storage import Storage


class StoredTable(RowViews):
    """A group of a storage as it is. `Storage.table` makes one.

    It has the dimension, the initializer and the optimizer that the group has on disk, and changes
    none of them, so opening it needs no arguments. It works beside a layer, a table or an
    `Embedding` that trains the same group, and in a storage that is read-only.

    Example:
    >>> import numpy as np
    >>> from sok_embed import kv
    >>> storage = kv.Storage("shop")
    >>> items = kv.Embedding(storage, kv.Optimizer("adam"), kv.Initializer("ones"), 2, group=3)
    >>> items.assign(np.array([7, 8]), np.zeros([2, 2], np.float32))
    >>> table = storage.table(3)
    >>> table.dimension, table.remove(np.array([7])), len(table)
    (2, 1, 1)

    Args:
        storage: The storage.
        group: The number of the group, in [0, 256).

    Raises:
        FileNotFoundError: If the storage lacks the group; the message lists the groups.
    """

    def __init__(self, storage: Storage, group: int) -> None:
        self.storage = storage
        self.group = check_integer("group", group, 0, GROUPS)
        self.dimension = self.description().dimension

    def description(self) -> Group:
        """Returns the description of the group: dimension, initializer, optimizer, rows."""
        return group_of(self.group, json.loads(self.storage.ready().describe(self.group)))

    @overload
    def lookup(
        self, keys: Any, *, return_exists: Literal[False] = False
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def lookup(
        self, keys: Any, *, return_exists: Literal[True]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]: ...

    def lookup(
        self, keys: Any, *, return_exists: bool = False
    ) -> npt.NDArray[np.float32] | tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Reads vectors. No row is made, and no admission counts.

        Args:
            keys: An array of uint64 or int64 of any shape; an integer or a list counts as an array
                `[n]`.
            return_exists: True to return also which keys have a row.

        Returns:
            float32 `keys.shape + [dimension]`. A key without a row gets the vector that training
            would start from by the group's initializer; zeros if the group has none. With
            `return_exists`, a tuple of the vectors and bool `keys.shape`.

        Raises:
            TypeError: For arrays of other dtypes, and for strings.
            ValueError: For an array that is not contiguous, and for other objects.
        """
        keys = keys_of(keys)
        wanted = check_keys(keys)
        vectors = np.empty((*keys.shape, self.dimension), np.float32)
        exists = np.empty(wanted.size, np.uint8)
        self.storage.ready().read_rows(self.group, wanted, vectors.reshape(-1), exists)
        if check_flag("return_exists", return_exists):
            return vectors, exists.view(np.bool_).reshape(keys.shape)
        return vectors

    def contains(self, keys: Any) -> npt.NDArray[np.bool_]:
        """Returns which keys have a row: bool `keys.shape`. Errors are those of `lookup`."""
        return self.metadata(keys).exists

    def metadata(self, keys: Any) -> Metadata:
        """Returns how often and when rows were updated: `Metadata` of three arrays `keys.shape`.

        Errors are those of `lookup`.
        """
        native = self.storage.ready()
        return read_metadata(keys_of(keys), functools.partial(native.read_row_meta, self.group))

    def remove(self, keys: Any) -> int:
        """Removes rows with the optimizer's state of them, and the counts of an admission.

        The removal is durable when the storage has been flushed, or at once if nobody has opened
        the group for training. The bytes of the rows stay in files until `Storage.compact`.

        Args:
            keys: The keys, as for `lookup`. Those without a row are ignored.

        Returns:
            The number of rows that were removed.

        Raises:
            TypeError, ValueError: As `lookup`.
            PermissionError: If the storage is read-only.
        """
        return self.storage.ready().remove_rows(self.group, check_keys(keys_of(keys)))

    def batches(self, n: int) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]]:
        """Yields all rows, `n` at a time, ascending by key as uint64.

        Training may go on meanwhile. Each batch has its rows as they are when the batch is read. A
        row that exists from the first batch to the last comes exactly once. A row that is made or
        removed meanwhile may be included or not. Memory is taken for one batch at a time. Before
        each batch, rows that training has changed since the last one are written to the database as
        pending.

        Args:
            n: The most rows of a batch; the last one may have fewer.

        Yields:
            Tuples of keys, uint64 `[rows]`, and vectors, float32 `[rows, dimension]`.

        Raises:
            ValueError: For an `n` that is not a positive integer.
        """
        rows = check_integer("n", n, 1, UINT32)
        return self._pages(rows)

    def _pages(self, n: int) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]]:
        start, last = 0, False
        while not last:
            keys, vectors, last = self.storage.ready().read_page(self.group, start, n)
            if len(keys):
                yield keys, vectors.reshape(-1, self.dimension)
                last = last or int(keys[-1]) == 2**64 - 1
                start = int(keys[-1]) + 1

    def stats(self) -> dict[str, int]:
        """Returns the figures that `Embedding.stats` has.

        If nobody has opened the group for training, all figures but `rows` and `steps` are 0.
        """
        return self.storage.ready().row_stats(self.group)

    def __len__(self) -> int:
        """Returns the number of rows; with a TTL, some that have expired may be among them."""
        return self.stats()["rows"]

    def __bool__(self) -> bool:
        return True  # a table without rows is true, too

    def __repr__(self) -> str:
        return f"<StoredTable of {self.dimension}, group {self.group} of '{self.storage.path}'>"
