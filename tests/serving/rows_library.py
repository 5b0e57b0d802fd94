"""Calls `libsok_rows.so` from Python, and makes exports with deltas without TensorFlow."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from pathlib import Path

import numpy as np

from sok_embed.serving import rows
from sok_embed.serving.c_interface import compiler_arguments
from sok_embed.serving.delta_files import Base, DeltaWriter, ExportedTable, write_current

OK, INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, EXHAUSTED, CORRUPT = range(6)
NEWEST = 2**64 - 1
FOLDER = Path(next(each for each in compiler_arguments() if each.startswith("-L"))[2:])
LIBRARY = ctypes.CDLL(str(FOLDER / "libsok_rows.so"))
LIBRARY.sok_rows_error.restype = ctypes.c_char_p
POINTER = ctypes.c_void_p


class RowsError(Exception):
    """An error of the library.

    Attributes:
        status: The kind.
    """

    def __init__(self, status: int) -> None:
        super().__init__(LIBRARY.sok_rows_error().decode())
        self.status = status


def call(name: str, *arguments: object) -> None:
    status = getattr(LIBRARY, name)(*arguments)
    if status != OK:
        raise RowsError(status)


class Info(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("rows", ctypes.c_uint64),
        ("file_bytes", ctypes.c_uint64),
        ("path", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("dim", ctypes.c_uint32),
        ("layers", ctypes.c_uint32),
    ]


class VersionInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("delta", ctypes.c_uint64),
        ("step", ctypes.c_uint64),
        ("tables", ctypes.c_uint64),
    ]


class Table:
    """The rows behind a handle."""

    def __init__(self, handle: POINTER, owner: object = None) -> None:
        self.handle = handle
        self._owner = owner

    @property
    def info(self) -> Info:
        info = Info(ctypes.sizeof(Info))
        call("sok_rows_get_info", self.handle, ctypes.byref(info))
        return info

    def lookup(self, keys: np.ndarray) -> np.ndarray:
        found = np.empty([len(keys), self.info.dim], np.float32)
        call("sok_rows_lookup", self.handle, *_pointers(keys), found.ctypes.data_as(POINTER))
        return found

    def contains(self, keys: np.ndarray) -> np.ndarray:
        found = np.empty([len(keys)], np.uint8)
        call("sok_rows_contains", self.handle, *_pointers(keys), found.ctypes.data_as(POINTER))
        return found.astype(np.bool_)

    def verify(self) -> None:
        call("sok_rows_verify", self.handle)


class File(Table):
    """A file of rows."""

    def __init__(self, path: object) -> None:
        handle = POINTER()
        call("sok_rows_open", os.fsencode(path), ctypes.byref(handle))
        super().__init__(handle)

    def close(self) -> None:
        LIBRARY.sok_rows_close(self.handle)


class Version:
    """The tables of an export at one version."""

    def __init__(self, exported: POINTER) -> None:
        self.handle = POINTER()
        call("sok_rows_open_version", exported, ctypes.byref(self.handle))
        self.info = VersionInfo(ctypes.sizeof(VersionInfo))
        call("sok_rows_get_version_info", self.handle, ctypes.byref(self.info))

    def table(self, file: str) -> Table:
        handle = POINTER()
        call("sok_rows_table", self.handle, file.encode(), ctypes.byref(handle))
        return Table(handle, self)

    def close(self) -> None:
        LIBRARY.sok_rows_close_version(self.handle)


class Export:
    """An export whose deltas are applied."""

    def __init__(self, folder: object) -> None:
        self.handle = POINTER()
        call("sok_rows_open_export", os.fsencode(folder), ctypes.byref(self.handle))

    def update(self, delta: int = NEWEST) -> None:
        call("sok_rows_update", self.handle, ctypes.c_uint64(delta))

    def newest(self) -> int:
        number = ctypes.c_uint64()
        call("sok_rows_newest", self.handle, ctypes.byref(number))
        return number.value

    def version(self) -> Version:
        return Version(self.handle)

    @property
    def delta(self) -> int:
        version = self.version()
        version.close()
        return version.info.delta

    def close(self) -> None:
        LIBRARY.sok_rows_close_export(self.handle)


def _pointers(keys: np.ndarray) -> tuple[POINTER, ctypes.c_size_t]:
    assert keys.dtype in (np.uint64, np.int64) and keys.flags.c_contiguous
    return keys.ctypes.data_as(POINTER), ctypes.c_size_t(len(keys))


class Exported:
    """A folder as an export and its publisher write it, with the rows of two tables.

    Attributes:
        folder: The folder of the version.
        base: The export as deltas see it.
    """

    FILES = ("ads.safetensors", "items.safetensors")
    DIMS = (3, 16)

    def __init__(self, folder: Path, dtype: str, seed: int, missing: object = "zeros") -> None:
        self._random = np.random.default_rng(seed)
        self.folder = folder
        (folder / "assets").mkdir(parents=True)
        (folder / "assets" / "vocabulary.txt").write_text("a\nb\n")
        (folder / "deltas").mkdir()
        identity = self._random.bytes(40)
        (folder / "fingerprint.pb").write_bytes(identity)
        self.keys = np.concatenate(
            [np.array([0, 1, 2**63, 2**64 - 1], np.uint64), np.arange(100, 396, dtype=np.uint64)]
        )
        tables = []
        for file, dim in zip(self.FILES, self.DIMS, strict=True):
            path = folder / "assets" / file
            some = self._some(200)
            rows.write(
                path, [(some, self._vectors(200, dim))], dim=dim, dtype=dtype, missing=missing,
                name=file.removesuffix(".safetensors"),
            )  # fmt: skip
            tables.append(ExportedTable(file, rows.open(path)))
        self.base = Base(str(folder), hashlib.sha256(identity).hexdigest(), tables, {})
        self._digest = ""
        self._number = 0
        # Of each table the rows of keys that deltas have changed; `None`: there is none any more.
        self._changed: list[dict[int, np.ndarray | None]] = [{}, {}]

    def _some(self, n: int) -> np.ndarray:
        return self._random.choice(self.keys, n, replace=False)

    def _vectors(self, n: int, dim: int) -> np.ndarray:
        return self._random.normal(size=[n, dim]).astype(np.float32)

    def publish(self, most: int = 60, of_all: bool = False) -> None:
        """Writes a delta of random changes; now and then a table has none of a kind.

        Args:
            most: A number that keys of a kind are fewer than.
            of_all: True if both tables have changes of both kinds.
        """
        self._number += 1
        folder = self.folder / "deltas" / ".writing"
        folder.mkdir()
        writer = DeltaWriter(self.base, str(folder))
        for i, table in enumerate(self.base.tables):
            n, m = self._random.integers(1, most, 2) * self._random.integers(int(of_all), 2, 2)
            gone, new = self._some(n), self._some(m)
            writer.put_gone(i, gone)
            writer.put_rows(i, iter([(new, self._vectors(m, table.rows.dim))]))
        self._digest = writer.finish(self._number, self._digest, 10 * self._number, {})
        write_current(self.base, self._number)
        self._note()

    def _note(self) -> None:
        """Reads the delta by Python, file by file."""
        folder = Path(self.base.delta(self._number))
        for i, changed in enumerate(self._changed):
            for kind in ("gone", "rows"):
                path = folder / f"{kind}-{i}.safetensors"
                if not path.exists():
                    continue
                with rows.open(path) as file:
                    keys = file.keys().copy()
                    found = file.lookup(keys)
                for key, vector in zip(keys, found, strict=True):
                    changed[int(key)] = None if kind == "gone" else vector

    def expected(self, i: int, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of keys by Python, and which keys have one."""
        base = self.base.tables[i].rows
        found, there = base.lookup(keys), base.contains(keys)
        for place, key in enumerate(keys.view(np.uint64)):
            changed = self._changed[i].get(int(key), found)
            if changed is None:
                found[place], there[place] = self._missing(i, key), False
            elif changed is not found:
                found[place], there[place] = changed, True
        return found, there

    def _missing(self, i: int, key: np.uint64) -> np.ndarray:
        """Returns the row of a key without one, from a file that has no rows at all."""
        base = self.base.tables[i].rows
        path = self.folder / f"none-{i}.safetensors"
        if not path.exists():
            start = base.metadata["missing"]
            missing = rows.MissingRows(**json.loads(start)) if start != "zeros" else start
            rows.write(path, [], dim=base.dim, missing=missing)
        with rows.open(path) as none:
            return none.lookup(np.array([key]))[0]
