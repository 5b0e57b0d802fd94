"""Rows of a table as other tools take them, and the rows that are nearest to others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sok_embed.arguments import check_integer, shown

if TYPE_CHECKING:
    import pandas
    import pyarrow

# The most rows that are read, and the most queries that are compared with them, at a time.
_ROWS, _QUERIES = 65_536, 256
_METRICS = ("cosine", "dot")

Keys = npt.NDArray[Any]  # int64 or uint64
Vectors = npt.NDArray[np.float32]


class Strings(Protocol):
    """Tells the strings of keys: a `sok_embed.data.Vocabulary`."""

    def strings(self, keys: Any) -> npt.NDArray[np.object_]:
        """Returns the string of each key, and `None` for a key whose string is not known."""


class Nearest(NamedTuple):
    """The rows that are nearest to others, the nearest first, and of equally near ones by key.

    Attributes:
        keys: The keys of the rows, int64 or uint64 `[queries, k]`; fewer than `k` columns if the
            table has fewer rows.
        scores: The cosine of each or its dot product, float32 of the same shape.
    """

    keys: Keys
    scores: Vectors


class RowViews:
    """The rows of a table for pandas, Arrow and searches, read in pieces."""

    @abstractmethod
    def batches(self, n: int) -> Iterator[tuple[Keys, Vectors]]:
        """Yields all rows, at most `n` at a time: keys `[rows]`, vectors `[rows, dim]`."""

    @abstractmethod
    def lookup(self, keys: Any) -> Vectors:
        """Returns the rows of keys, float32 `[*keys.shape, dim]`."""

    @abstractmethod
    def contains(self, keys: Any) -> npt.NDArray[np.bool_]:
        """Returns which keys have a row."""

    def arrow_batches(
        self, n: int = _ROWS, vocabulary: Strings | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yields all rows of this worker as batches of Arrow, at most `n` rows at a time.

        Args:
            n: The most rows of a batch.
            vocabulary: A `sok_embed.data.Vocabulary` that tells the strings of keys; `None`: there
                are keys alone.

        Yields:
            Record batches with a column `key` (int64 or uint64), with a vocabulary a column
            `string` (missing where the string is not known), and `vector`, lists of `dim` float32.

        Raises:
            ModuleNotFoundError: Without pyarrow.
        """
        import pyarrow

        for keys, vectors in self._pieces(check_integer("n", n, 1)):
            columns: dict[str, Any] = {"key": pyarrow.array(keys)}
            if vocabulary is not None:
                columns["string"] = pyarrow.array(vocabulary.strings(keys), pyarrow.string())
            numbers = pyarrow.array(vectors.reshape(-1))
            columns["vector"] = pyarrow.FixedSizeListArray.from_arrays(numbers, vectors.shape[1])
            yield pyarrow.RecordBatch.from_pydict(columns)

    def to_arrow(self, vocabulary: Strings | None = None) -> pyarrow.Table:
        """Returns all rows of this worker as a table of Arrow: see `arrow_batches`.

        Raises:
            ModuleNotFoundError: Without pyarrow.
        """
        import pyarrow

        return pyarrow.Table.from_batches(list(self.arrow_batches(vocabulary=vocabulary)))

    def to_pandas(self, vocabulary: Strings | None = None) -> pandas.DataFrame:
        """Returns all rows of this worker as a frame of pandas.

        Args:
            vocabulary: A `sok_embed.data.Vocabulary`; `None`: the index has keys.

        Returns:
            A frame with a column for each of the `dim` numbers of a row, float32. Its index, `key`,
            has the keys; with a vocabulary strings, and the digits of keys that it does not know.

        Raises:
            ModuleNotFoundError: Without pandas.
        """
        import pandas

        keys, vectors = zip(*self._pieces(), strict=True)
        index: Any = np.concatenate(keys)
        if vocabulary is not None:
            strings = vocabulary.strings(index)
            pairs = zip(index, strings, strict=True)
            index = [str(key) if text is None else text for key, text in pairs]
        return pandas.DataFrame(np.concatenate(vectors), pandas.Index(index, name="key"))

    def nearest(
        self, keys: Any = None, k: int = 10, *, vectors: Any = None, metric: str = "cosine"
    ) -> Nearest:
        """Finds the rows that are nearest to some: exactly, by comparing all rows of this worker.

        Rows are read in pieces, so that a table on disk need not fit into memory. A search over
        many rows again and again is the work of an index, such as that of Faiss.

        Example:
        >>> import numpy as np
        >>> import sok_embed
        >>> table = sok_embed.DynamicEmbedding(2).table
        >>> table.assign([1, 2, 3], np.array([[1, 0], [1, 1], [-1, 0]]))
        >>> table.nearest([1], k=2).keys.tolist()
        [[2, 3]]

        Args:
            keys: Keys of rows, any shape of n keys, or one key: rows near to these rows are looked
                for, without the rows themselves.
            k: The number of rows for each.
            vectors: The vectors, float `[n, dim]`, to which near rows are looked for instead.
            metric: `"cosine"`: the cosine of the angle, 0 for a row of zeros; `"dot"`: the dot
                product. Both are computed in float32.

        Returns:
            `Nearest(keys, scores)`, both `[n, k]`, the greatest first, of equal ones the smallest
            key; fewer columns, if the table has fewer rows. Rows that have numbers that are not
            finite are never near.

        Raises:
            ValueError: For keys without a row, vectors of another dim or of numbers that are not
                finite, another `k` or metric.
        """
        check_integer("k", k, 1)
        if metric not in _METRICS:
            raise ValueError(
                f"Expected metric to be one of {', '.join(_METRICS)}. Received: {shown(metric)}."
            )
        own, queries = self._queries(keys, vectors)
        prepared = _of_length_one if metric == "cosine" else np.asarray
        queries = prepared(queries)
        nearest: list[tuple[Keys, Vectors]] = []
        for row_keys, rows in self._pieces():
            own = None if own is None else own.astype(row_keys.dtype)  # modulo 2**64
            usable = np.isfinite(rows).all(1)
            row_keys, rows = row_keys[usable], prepared(rows[usable])
            nearest = nearest or [(row_keys[:0], rows[:0, 0])] * len(queries)
            for begin in range(0, len(queries), _QUERIES):
                scores = queries[begin : begin + _QUERIES] @ rows.T
                scores[np.isnan(scores)] = -np.inf  # infinite products of both signs
                for i, row in enumerate(scores, begin):
                    worst = nearest[i][1][-1] if len(nearest[i][1]) == k else -np.inf
                    better = row >= worst
                    if own is not None:
                        better &= row_keys != own[i]
                    nearest[i] = _best(k, nearest[i], (row_keys[better], row[better]))
        return Nearest(*(np.stack(each) for each in zip(*nearest, strict=True)))

    def _queries(self, keys: Any, vectors: Any) -> tuple[Keys | None, Vectors]:
        """Returns the keys of a search, and its vectors, float32 `[n, dim]`."""
        if (keys is None) == (vectors is None):
            given = "neither" if keys is None else "both"
            raise ValueError(f"Expected keys or vectors to look near to. Received: {given}.")
        dim = self._no_rows()[1].shape[1]
        if keys is not None:
            keys = np.asarray(keys).reshape(-1)
            lacking = keys[~self.contains(keys)]
            if len(lacking):
                raise ValueError(
                    f"Expected keys that have a row. Received: {len(lacking)} of {len(keys)} "
                    f"without one, such as {lacking[0]}. Give vectors= to look near to others."
                )
            vectors = self.lookup(keys)
        queries = np.asarray(vectors, np.float32)
        if queries.ndim != 2 or queries.shape[1] != dim or not len(queries):
            raise ValueError(
                f"Expected at least one key, or vectors of shape [n, {dim}]. Received: shape "
                f"{list(queries.shape)}."
            )
        if not np.isfinite(queries).all():
            number = queries[~np.isfinite(queries)][0]
            raise ValueError(f"Expected vectors of finite numbers. Received: {number} in one.")
        return keys, queries

    def _pieces(self, n: int = _ROWS) -> Iterator[tuple[Keys, Vectors]]:
        """Yields all rows in pieces, and one piece without rows of a table that has none."""
        piece = None
        for piece in self.batches(n):
            yield piece
        if piece is None:
            yield self._no_rows()

    def _no_rows(self) -> tuple[Keys, Vectors]:
        keys = np.empty(0, np.int64)
        return keys, self.lookup(keys)


def _of_length_one(rows: Vectors) -> Vectors:
    """Returns rows divided by their Euclidean norm; a row of zeros stays as it is."""
    squares = np.einsum("ij,ij->i", rows, rows)
    if ((squares < 1e-30) | (squares > 1e30)).any():  # float32 may not hold them
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    norms = np.sqrt(np.where(squares == 0, 1, squares))
    return np.asarray(rows / norms[:, None], np.float32)


def _best(k: int, *found: tuple[Keys, Vectors]) -> tuple[Keys, Vectors]:
    """Returns the `k` of greatest score; of equal scores those of the smallest keys."""
    keys, scores = (np.concatenate(each) for each in zip(*found, strict=True))
    if len(scores) > k:
        kept = scores >= np.partition(scores, -k)[-k]
        keys, scores = keys[kept], scores[kept]
    order = np.lexsort((keys, -scores))[:k]
    return keys[order], scores[order]
