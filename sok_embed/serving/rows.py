"""Files of rows that are served: safetensors files that open in milliseconds, with NumPy alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sok_embed.arguments import (
    MOST_DIMENSION,
    UINT64,
    check_choice,
    check_floats,
    check_integer,
    check_keys,
    check_number,
    check_path,
    described,
    shown,
)
from sok_embed.binding import _core
from sok_embed.files.row_views import RowViews

__all__ = ["MissingRows", "RowsFile", "RowsInfo", "open", "write"]

_DTYPES = ("float32", "float16", "int8", "int4")


class _Start(Protocol):
    """An initializer with its seed: a `MissingRows`, or a `RowInitializer` that has a seed."""

    @property
    def kind(self) -> str: ...
    @property
    def a(self) -> float: ...
    @property
    def b(self) -> float: ...
    @property
    def seed(self) -> int | None: ...


@dataclass(frozen=True)
class MissingRows:
    """The rows of keys that a file does not have: the start vectors of a table.

    Example:
    >>> MissingRows("uniform", -0.05, 0.05, seed=7)
    MissingRows(kind='uniform', a=-0.05, b=0.05, seed=7, group=0)

    Attributes:
        kind: `"constant"`, `"uniform"`, `"normal"` or `"truncated_normal"`.
        a: The constant, the lower bound, or the mean.
        b: The upper bound (exclusive), or the standard deviation (before truncation). 0 for a
            constant.
        seed: The seed of the table, any integer; counted modulo 2**64.
        group: The group of the storage in which the table's rows lie; 0 for tables in memory.
    """

    kind: str
    a: float
    b: float
    seed: int
    group: int = 0


@dataclass(frozen=True)
class RowsInfo:
    """A file that `write` has written.

    Attributes:
        path: The path of the file.
        name: The name of the table.
        rows: The number of its rows.
        dim: The length of a row.
        dtype: `"float32"`, `"float16"`, `"int8"` or `"int4"`.
        file_bytes: The length of the file.
    """

    path: str
    name: str
    rows: int
    dim: int
    dtype: str
    file_bytes: int


def write(
    path: str | bytes | os.PathLike[Any],
    batches: Iterable[tuple[Any, Any]],
    *,
    dim: int,
    dtype: str = "float32",
    missing: str | _Start = "zeros",
    name: str = "",
    extra: Mapping[str, str] | None = None,
) -> RowsInfo:
    """Writes a file of rows, which replaces an older one once it is complete and on the device.

    Rows of more than 256 MB are sorted with the help of a temporary file in the same folder, in the
    same memory at every size.

    Example:
    >>> keys = np.array([42, -7])
    >>> batch = (keys, np.array([[0.5, 1.0], [2.0, 4.0]], np.float32))
    >>> write("items.safetensors", [batch], dim=2).rows
    2
    >>> with open("items.safetensors") as items:
    ...     items.lookup(np.array([-7, 8])).tolist()
    [[2.0, 4.0], [0.0, 0.0]]

    Args:
        path: The path of the file. Its folder must exist.
        batches: Pairs of keys, uint64 or int64 `[n]`, and rows, float32 `[n, dim]`, in any order. A
            key may come once.
        dim: The length of a row, in [1, 2**20].
        dtype: The type of the values in the file: `"float32"`, `"float16"`, `"int8"` or `"int4"`.
            float16 rounds to nearest. Integers have a scale and a bias a row, and no value is off
            by more than half a scale: about 1/510 of the row's range for int8, 1/30 for int4.
        missing: The rows of keys that the file does not have: `"zeros"`, a `MissingRows`, or a
            `sok_embed.initializers.RowInitializer` with a seed.
        name: The name of the table.
        extra: Strings to add to `RowsFile.metadata`.

    Returns:
        A `RowsInfo`.

    Raises:
        ValueError: For a key that comes twice, and for values that are not finite or that float16
            cannot hold where it is needed: the message names the key. For arrays of other shapes.
        TypeError: For arrays of other dtypes, and for `extra` with other things than strings.
        OSError: Where the file cannot be written.
    """
    path = check_path(path)
    dim = check_integer("dim", dim, 1, MOST_DIMENSION + 1)
    check_choice("dtype", dtype, _DTYPES, remedy="Pass the name, as in dtype='float16'.")
    extra = dict(extra or {})
    for key, value in extra.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError(
                f"Expected extra to map names to strings. Received: {shown(value)} under "
                f"{shown(key)}. Pass str(value)."
            )
    writer = _core.ServedRowsWriter(path, dtype, dim, name, _start_of(missing), [*extra.items()])
    try:
        for keys, rows in batches:
            writer.add(*_check_batch(keys, rows, dim), dim)
        count, file_bytes = writer.finish()
    finally:
        writer.close()
    return RowsInfo(path, name, count, dim, dtype, file_bytes)


class RowsFile(RowViews):
    """A file of rows that is open for lookups, from any number of threads at once.

    The file is mapped, not read: processes that have it open share its pages. It goes on reading
    the same file if `write` replaces it.

    Args:
        path: The path of a file that `write` made.

    Raises:
        sok_embed.kv.CorruptionError: For a file that is cut or damaged, as far as its header
            shows: see `verify`.
        FileNotFoundError, PermissionError, sok_embed.kv.StorageError: From the file system.
        ValueError: For a file of a later format, and for a path that is not that of a file.
    """

    def __init__(self, path: str | bytes | os.PathLike[Any]) -> None:
        self._path = check_path(path)
        self._rows = _core.ServedRows(self._path)
        self._dim = self._rows.dim
        self._dtype = self._rows.dtype
        self._size = self._rows.size
        self._file_bytes = self._rows.file_bytes
        self._metadata: dict[str, str] = json.loads(self._rows.header)["__metadata__"]

    @property
    def path(self) -> str:
        """Returns the path that the file was opened at."""
        return self._path

    @property
    def dim(self) -> int:
        """Returns the length of a row."""
        return self._dim

    @property
    def dtype(self) -> str:
        """Returns the type of the values in the file, such as `"int8"`."""
        return self._dtype

    @property
    def name(self) -> str:
        """Returns the name of the table."""
        return self._metadata["name"]

    @property
    def metadata(self) -> dict[str, str]:
        """Returns all strings of the file's `__metadata__`."""
        return dict(self._metadata)

    @property
    def file_bytes(self) -> int:
        """Returns the length of the file."""
        return self._file_bytes

    def __len__(self) -> int:
        return self._size

    def lookup(self, keys: Any) -> npt.NDArray[np.float32]:
        """Returns the rows of keys.

        Args:
            keys: uint64 or int64, of any shape.

        Returns:
            float32 `[*keys.shape, dim]`. Keys that the file does not have get the rows that `write`
            was given for them: zeros, or start vectors of a table.

        Raises:
            RuntimeError: For a file that is closed.
            sok_embed.kv.CorruptionError: If the file's index is invalid.
        """
        keys = np.asarray(keys)
        out = np.empty((*keys.shape, self._dim), np.float32)
        self._rows.lookup(check_keys(np.ascontiguousarray(keys)), out.reshape(-1))
        return out

    def contains(self, keys: Any) -> npt.NDArray[np.bool_]:
        """Returns which keys the file has, as bool of the keys' shape.

        Args:
            keys: uint64 or int64, of any shape.

        Raises:
            RuntimeError: For a file that is closed.
            sok_embed.kv.CorruptionError: If the file's index is invalid.
        """
        keys = np.asarray(keys)
        out = np.empty(keys.shape, np.uint8)
        self._rows.contains(check_keys(np.ascontiguousarray(keys)), out.reshape(-1))
        return out.view(np.bool_)

    def keys(self) -> npt.NDArray[np.uint64]:
        """Returns the keys in the order of the file, uint64 `[len(self)]`.

        The array is read-only and lies in the file, which stays mapped as long as it lives.

        Raises:
            RuntimeError: For a file that is closed.
        """
        return self._rows.keys()

    def batches(
        self, size: int = 65536
    ) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]]:
        """Yields all keys and rows in the order of the file, such as `write` takes them.

        Args:
            size: The number of rows of a batch; the last one may have fewer.

        Yields:
            Keys, uint64 `[n]`, and rows, float32 `[n, dim]`.

        Raises:
            RuntimeError: For a file that is closed.
        """
        size = check_integer("size", size, 1)
        keys = self.keys()
        for begin in range(0, self._size, size):
            part = keys[begin : begin + size]
            rows = np.empty((len(part), self._dim), np.float32)
            self._rows.read(begin, rows.reshape(-1))
            yield part, rows

    def verify(self) -> None:
        """Reads the whole file, and raises an error if anything in it is invalid.

        Raises:
            RuntimeError: For a file that is closed.
            sok_embed.kv.CorruptionError: For a checksum that is wrong, and for keys that are not in
                their place.
        """
        self._rows.verify()

    def close(self) -> None:
        """Closes the file; calls that run in other threads end normally."""
        self._rows.close()

    def __enter__(self) -> RowsFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RowsFile({self._path!r}: {self._size} rows of {self._dim} {self._dtype})"


def open(path: str | bytes | os.PathLike[Any]) -> RowsFile:  # noqa: A001
    """Opens a file of rows; see `RowsFile`, and `write` for an example.

    Args:
        path: The path of a file that `write` made.
    """
    return RowsFile(path)


def _start_of(missing: Any) -> tuple[str, float, float, int, int] | None:
    """Returns kind, numbers, seed and group, rounded as ops round them; `None` for zeros."""
    if isinstance(missing, str) and missing == "zeros":
        return None
    seed = getattr(missing, "seed", None)
    if not hasattr(missing, "kind") or seed is None:
        raise ValueError(
            "Expected missing to be 'zeros', or a MissingRows or a RowInitializer with the seed of "
            f"the table. Received: {shown(missing)}."
        )
    group = check_integer("group", getattr(missing, "group", 0), 0, 256)
    a, b = (float(np.float32(check_number(name, getattr(missing, name)))) for name in "ab")
    return missing.kind, a, b, check_integer("seed", seed) % UINT64, group


def _check_batch(
    keys: Any, rows: Any, dim: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]:
    keys, rows = np.asarray(keys), np.asarray(rows)
    if keys.ndim != 1 or rows.shape != (len(keys), dim):
        raise ValueError(
            f"Expected keys [n] and rows [n, {dim}]. Received: keys {described(keys)} of shape "
            f"{list(keys.shape)}, rows {described(rows)} of shape {list(rows.shape)}. Pass batches "
            "as pairs of the two, as in [(keys, rows)], and dim as the length of a row."
        )
    keys, rows = np.ascontiguousarray(keys), np.ascontiguousarray(rows)
    return check_keys(keys), check_floats("rows", rows, None)
