"""Deltas of a served model: changes since the delta before, in a numbered folder of files.

No TensorFlow is needed. `docs/reference/serving-live.md` describes the format.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sok_embed.files import schema
from sok_embed.files.records import (
    DELTA,
    PIECE_BYTES,
    FileChecksum,
    FileRecord,
    checksum_of_json,
    damaged,
    opened,
    record_of,
)
from sok_embed.files.whole_files import sync, write_whole
from sok_embed.serving import rows as rows_files
from sok_embed.serving.safetensors import WeightSpec, packed, unpacked

FOLDER = "deltas"  # within the folder of the version
CURRENT = "CURRENT.json"
MOST_CURRENT = 4096  # the most bytes that it has
STAGED = "delta"  # begins the names of folders that are being written
MANIFEST = "delta.json"
_WEIGHTS = "weights.safetensors"
_FORMAT, _VERSION = "sok-embed delta", 1
MOST_NUMBER = 2**53

Batches = Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.float32]]]


class ExportedTable(NamedTuple):
    """A table of an exported model, described by its file of rows."""

    file: str  # the name of the file
    rows: rows_files.RowsFile  # the file, which is open


class Base(NamedTuple):
    """An exported model on which deltas build."""

    folder: str  # the numbered folder of the export
    identity: str  # a text that no other export has
    tables: Sequence[ExportedTable]  # the tables, in the order of the names of their files
    weights: Mapping[str, WeightSpec]  # the kinds of its dense weights, by name

    @property
    def deltas(self) -> str:
        """The folder of its deltas."""
        return os.path.join(self.folder, FOLDER)

    def delta(self, number: int) -> str:
        """Returns the folder of a delta."""
        return os.path.join(self.deltas, f"{number:08d}")


class TableChanges(NamedTuple):
    """The changes of a table, in files that are open or will be written."""

    rows: rows_files.RowsFile | None  # new rows and those that have changed; `None`: there are none
    # The keys whose rows were removed, in a file of rows of dim 1; `None`: there are none.
    gone: rows_files.RowsFile | None


class Delta(NamedTuple):
    """A delta that has been read."""

    number: int  # the number, from 1 on
    digest: str  # the checksum of its manifest, which its successor names
    step: int  # the step of the training
    tables: list[TableChanges]  # the changes of each table of the base
    weights: dict[str, bytes]  # the bytes of all dense weights, by name


class DeltaWriter:
    """Writes a delta into a folder that is there and empty, under a name that is not a number."""

    def __init__(self, base: Base, folder: str) -> None:
        self._base = base
        self._folder = folder
        self._tables: list[dict[str, Any]] = [{"rows": None, "gone": None} for _ in base.tables]
        self.is_empty = True

    def put_rows(self, table: int, batches: Batches) -> None:
        """Writes rows of a table, in the dtype of the base."""
        file = self._base.tables[table].rows
        self._put(table, "rows", batches, file.dim, file.dtype)

    def put_gone(self, table: int, keys: npt.NDArray[np.uint64]) -> None:
        """Writes keys of a table that have no row any more."""
        self._put(table, "gone", iter([(keys, np.zeros([len(keys), 1], np.float32))]), 1, "float16")

    def _put(self, table: int, kind: str, batches: Batches, dim: int, dtype: str) -> None:
        path = os.path.join(self._folder, f"{kind}-{table}.safetensors")
        written = rows_files.write(
            path, batches, dim=dim, dtype=dtype, name=self._base.tables[table].rows.name
        )
        if written.rows == 0:
            os.remove(path)
            return
        self._tables[table][kind] = {"rows": written.rows, **self._record(path)}
        self.is_empty = False

    def _record(self, path: str) -> dict[str, Any]:
        record = record_of(self._folder, os.path.basename(path))._asdict()
        del record["name"]  # which its place in the manifest says
        return record

    def finish(
        self,
        number: int,
        previous: str,
        step: int,
        weights: Mapping[str, npt.NDArray[np.generic]],
    ) -> str:
        """Writes the rest, and gives the folder its number. Returns the digest of the manifest.

        `previous` is the digest of the delta before, `""` for the first. The weights are all dense
        ones, by name.

        Raises:
            FileExistsError: If there is a delta of this number.
        """
        path = os.path.join(self._folder, _WEIGHTS)
        with open(path, "xb") as file:
            file.write(packed(weights))
            file.flush()
            os.fsync(file.fileno())
        content: dict[str, Any] = {
            "format": _FORMAT,
            "format_version": _VERSION,
            "base": self._base.identity,
            "number": number,
            "previous": previous,
            "step": step,
            "tables": [
                {"file": table.file, **entry}
                for table, entry in zip(self._base.tables, self._tables, strict=True)
            ],
            "weights": self._record(path),
        }
        content["checksum"] = digest = checksum_of_json(content)
        path = os.path.join(self._folder, MANIFEST)
        write_whole(path, json.dumps(content, indent=1).encode(), f"{path}.tmp")
        goal = self._base.delta(number)
        if os.path.lexists(goal):
            raise FileExistsError(
                f"Expected '{goal}' to be free for the next delta. Received: a delta that is there "
                "already. Another process has published; publish to one export from one process."
            )
        # A server that may read the folder of all deltas must be able to read this one.
        os.chmod(self._folder, stat.S_IMODE(os.stat(self._base.deltas).st_mode))
        os.rename(self._folder, goal)
        sync(self._base.deltas)
        return digest


def read_delta(base: Base, number: int, previous: str, scratch: str) -> Delta:
    """Reads a delta, and opens copies of its files, so that later changes of it have no effect.

    `previous` is the digest of the delta before it. A delta of another export, one that follows
    another delta, or one of a later format is a ValueError.
    """
    folder = base.delta(number)
    check_there(base, number)
    path = os.path.join(folder, MANIFEST)
    content = _manifest(path, base)
    if content["base"] != base.identity or content["number"] != number:
        raise ValueError(
            f"Expected delta {number} of '{base.folder}' in '{folder}'. Received: delta "
            f"{content['number']} of {'it' if content['base'] == base.identity else 'another'}."
        )
    if content["previous"] != previous:
        raise ValueError(
            f"Expected a delta in '{folder}' that follows the one that is served. Received: a "
            "delta that follows another delta."
        )
    copies: list[str] = []

    def copied(name: str, record: Any) -> str | None:
        if record is None:
            return None
        copy = os.path.join(scratch, f"{secrets.token_hex(8)}.safetensors")
        copies.append(copy)
        with open(copy, "xb") as file:
            read_recorded(os.path.join(folder, name), record, file.write)
        return copy

    tables: list[TableChanges] = []
    try:
        for i, (table, entry) in enumerate(zip(base.tables, content["tables"], strict=True)):
            files: list[rows_files.RowsFile | None] = [None, None]
            for place, (kind, dim) in enumerate((("rows", table.rows.dim), ("gone", 1))):
                name = f"{kind}-{i}.safetensors"
                copy = copied(name, entry[kind])
                if copy is not None:
                    files[place] = _opened(copy, folder, name, dim, entry[kind]["rows"])
            tables.append(TableChanges(*files))
        parts: list[bytes] = []
        path = os.path.join(folder, _WEIGHTS)
        read_recorded(path, content["weights"], parts.append)
        weights = unpacked(path, b"".join(parts), base.weights)
    except BaseException:
        for copy in copies:
            os.remove(copy)
        raise
    return Delta(number, content["checksum"], content["step"], tables, weights)


def check_there(base: Base, number: int) -> None:
    """Raises FileNotFoundError unless there is a folder of a delta."""
    folder = base.delta(number)
    if os.path.lexists(folder):
        return
    names = os.listdir(base.deltas) if os.path.isdir(base.deltas) else []
    newest = max((int(name) for name in names if re.fullmatch("[0-9]+", name)), default=0)
    raise FileNotFoundError(
        f"Expected delta {number} of export {os.path.basename(base.folder)} in '{folder}'. "
        "Received: no such folder; "
        + (f"the newest delta there is {newest}." if newest else "the export has no deltas.")
    )


def read_current(base: Base) -> int:
    """Returns the number of the newest delta, from `CURRENT.json`; 0: there is none."""
    path = os.path.join(base.deltas, CURRENT)
    try:
        return current_of(path, _start_of(path, MOST_CURRENT))
    except FileNotFoundError:
        return 0


def current_of(path: str, data: bytes) -> int:
    """Returns the number of the newest delta that the content of a `CURRENT.json` names."""
    content = _parsed(path, data, MOST_CURRENT, {"delta": _number})
    return int(content["delta"])


def write_current(base: Base, number: int) -> None:
    """Writes the number of the newest delta to `CURRENT.json`."""
    path = os.path.join(base.deltas, CURRENT)
    write_whole(path, text_of_current(number), f"{path}.tmp")


def text_of_current(number: int) -> bytes:
    """Returns the content of a `CURRENT.json` that names a delta."""
    return json.dumps({"delta": number}).encode()


def manifest_of(path: str, data: bytes) -> tuple[str, list[FileRecord]]:
    """Reads the content of a delta's manifest, without the export on which it builds.

    Returns:
        The digest of the manifest, and the records of the files that it names.
    """
    content = _checked_manifest(path, data)
    named = {"tables": schema.list_of(schema.record({"rows": _rows, "gone": _rows}))}
    schema.checked(path, content, schema.record(named), of=DELTA)
    files = {
        f"{kind}-{i}.safetensors": entry[kind]
        for i, entry in enumerate(content["tables"])
        for kind in ("rows", "gone")
    }
    return content["checksum"], [
        FileRecord(name, record["bytes"], record["checksum"])
        for name, record in {**files, _WEIGHTS: content["weights"]}.items()
        if record is not None
    ]


_number = schema.integer(0, MOST_NUMBER)
_record = {"bytes": schema.integer(), "checksum": schema.hexadecimal}
_rows = schema.nothing_or(schema.record({**_record, "rows": schema.integer(1)}))


def _opened_file(path: str) -> Any:
    """Opens a regular file of a delta; a link is refused."""
    try:
        return opened(path, DELTA, links=False)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"Expected a file '{path}'. Received: no such file. The delta is incomplete."
        ) from None


def _start_of(path: str, most: int) -> bytes:
    """Returns the bytes of a file, and no more than one beyond `most`."""
    with _opened_file(path) as file:
        return file.read(most + 1)


def _parsed(path: str, data: bytes, most: int, fields: Mapping[str, schema.Check]) -> Any:
    """Returns the JSON of at most so many bytes of a file, after its fields were checked."""
    if len(data) > most:
        raise damaged(path, f"at most {most} bytes", "more", DELTA)
    content = schema.parsed(path, data, of=DELTA)
    schema.checked(path, content, schema.record(fields), of=DELTA)
    return content


def read_recorded(path: str, record: Mapping[str, Any], take: Callable[[bytes], object]) -> None:
    """Passes the content of a file on in pieces; raises unless it fits its record."""
    found, size = FileChecksum(), record["bytes"]
    with _opened_file(path) as file:
        length = os.fstat(file.fileno()).st_size
        if length != size:
            raise damaged(path, f"{size} bytes", f"{length}", DELTA)
        while data := file.read(min(size - found.bytes, PIECE_BYTES)):
            found.update(data)
            take(data)
    if found.digest() != record["checksum"]:  # it covers the length too
        raise damaged(path, f"the checksum {record['checksum']}", found.digest(), DELTA)


def _manifest(path: str, base: Base) -> dict[str, Any]:
    content = _checked_manifest(path, _start_of(path, schema.MOST_BYTES))
    if content["base"] == base.identity:
        tables = [
            schema.record({"file": schema.exactly(table.file), "rows": _rows, "gone": _rows})
            for table in base.tables
        ]
        schema.checked(path, content, schema.record({"tables": schema.tuple_of(*tables)}), of=DELTA)
    return content


def _checked_manifest(path: str, data: bytes) -> dict[str, Any]:
    """Returns a manifest, in which all but its tables has been checked."""
    content: dict[str, Any] = _parsed(
        path, data, schema.MOST_BYTES, {"format": schema.exactly(_FORMAT)}
    )
    if content.get("format_version") != _VERSION:
        raise ValueError(
            f"Expected a delta of format {_VERSION} in '{path}'. Received: format "
            f"{schema.brief(content.get('format_version'))}. Read it with the sok-embed that "
            "wrote it, or a newer one."
        )
    whole = {
        "base": schema.text,
        "number": _number,
        "previous": schema.text,
        "step": schema.integer(),
        "weights": schema.record(_record),
        "checksum": schema.text,
    }
    schema.checked(path, content, schema.record(whole), of=DELTA)
    rest = {name: value for name, value in content.items() if name != "checksum"}
    if content["checksum"] != checksum_of_json(rest):
        raise damaged(path, "contents that agree with their checksum", "something else", DELTA)
    return content


def _opened(copy: str, folder: str, name: str, dim: int, count: int) -> rows_files.RowsFile:
    path = os.path.join(folder, name)
    rows = rows_files.open(copy)
    if rows.dim != dim or len(rows) != count:
        received = f"{len(rows)} rows of dim {rows.dim}"
        raise damaged(path, f"{count} rows of dim {dim}", received, DELTA)
    rows.verify()
    return rows
