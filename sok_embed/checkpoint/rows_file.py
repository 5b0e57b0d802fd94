"""A file of the rows of one worker: blocks with checksums, and an index behind them.

Every byte is under a checksum, and all numbers are little-endian.
`docs/reference/file-formats.md` has the layout.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sok_embed.checkpoint.files import (
    FileChecksum,
    FileRecord,
    check_digest,
    check_length,
    checksum,
    damaged,
)

MAGIC, END_MAGIC = b"SOKROWS\n", b"SOKREND\n"
VERSION = 1

ROWS, ADMISSION, SKETCH = 1, 2, 3  # kinds of blocks

# A block has at most so many bytes of payload, but at least one row.
PAYLOAD_BYTES = 4 << 20

_HEADER = struct.Struct("<8sIIQII")
_HEADER_BYTES = _HEADER.size + 8
_BLOCK = struct.Struct("<IIQQ")
_FOOTER = struct.Struct("<QQQ8s")
_ROW_BYTES = 16  # key, update count and update time


class Rows(NamedTuple):
    """Columns of n rows.

    Attributes:
        keys: int64 `[n]`.
        embeddings: float32 `[n, dim]`.
        slots: float32 `[n, slot_floats]`.
        update_nums: int64 `[n]`.
        update_times: int64 `[n]`.
    """

    keys: npt.NDArray[np.int64]
    embeddings: npt.NDArray[np.float32]
    slots: npt.NDArray[np.float32]
    update_nums: npt.NDArray[np.int64]
    update_times: npt.NDArray[np.int64]

    def where(self, chosen: npt.NDArray[np.bool_]) -> Rows:
        """The rows of which a mask bool `[n]` is true."""
        return self if chosen.all() else Rows._make(column[chosen] for column in self)

    def between(self, begin: int, end: int) -> Rows:
        """The rows from `begin` to `end`."""
        return Rows._make(column[begin:end] for column in self)


class Block(NamedTuple):
    """A part of a file.

    Attributes:
        table: Its number in the index.
        kind: `ROWS`, `ADMISSION` or `SKETCH`.
        number: Of rows how many; of other bytes where they begin.
        payload: The bytes.
    """

    table: int
    kind: int
    number: int
    payload: memoryview


def row_bytes(dim: int, slot_floats: int) -> int:
    """The bytes of a row in a block."""
    return _ROW_BYTES + 4 * (dim + slot_floats)


def rows_a_block(dim: int, slot_floats: int) -> int:
    """The most rows of a block."""
    return max(1, PAYLOAD_BYTES // row_bytes(dim, slot_floats))


class RowsWriter:
    """Writes a file, which counts once a manifest names it.

    Args:
        path: There is nothing there yet.
        attempt: The number of the save.
        worker: Whose rows they are.
        workers: Of how many.
    """

    def __init__(self, path: str, attempt: int, worker: int, workers: int) -> None:
        self.path = path
        self._file = open(path, "xb", buffering=1 << 20)
        self._checksum = FileChecksum()
        header = _HEADER.pack(MAGIC, VERSION, _HEADER_BYTES, attempt, worker, workers)
        self._put(header)
        self._put(checksum(header, 0).to_bytes(8, "little"))

    def __enter__(self) -> RowsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _put(self, data: Any) -> None:
        self._file.write(data)
        self._checksum.update(data)

    def put_rows(self, table: int, rows: Rows) -> None:
        """Adds rows, in as many blocks as they need."""
        most = rows_a_block(rows.embeddings.shape[1], rows.slots.shape[1])
        for begin in range(0, len(rows.keys), most):
            part = rows.between(begin, begin + most)
            columns: list[npt.NDArray[Any]] = [
                part.keys,
                part.update_nums.astype(np.uint32),
                part.update_times.astype(np.uint32),
                part.embeddings,
                part.slots,
            ]
            payload = b"".join(np.ascontiguousarray(column).tobytes() for column in columns)
            self._put_block(table, ROWS, len(part.keys), payload)

    def put_bytes(self, table: int, kind: int, data: bytes) -> None:
        """Adds what an admission or a sketch has counted."""
        for begin in range(0, len(data), PAYLOAD_BYTES):
            self._put_block(table, kind, begin, data[begin : begin + PAYLOAD_BYTES])

    def _put_block(self, table: int, kind: int, number: int, payload: bytes) -> None:
        offset = self._checksum.bytes
        block = _BLOCK.pack(table, kind, number, len(payload)) + payload
        self._put(block)
        self._put(checksum(block, offset).to_bytes(8, "little"))

    def finish(self, tables: Sequence[dict[str, Any]]) -> FileRecord:
        """Writes the index, forces the file to disk, and returns its record."""
        offset = self._checksum.bytes
        index = json.dumps({"tables": list(tables)}, allow_nan=False).encode()
        length = offset + len(index) + _FOOTER.size
        end = index + struct.pack("<QQ", offset, length)
        self._put(end)
        self._put(checksum(end, offset).to_bytes(8, "little") + END_MAGIC)
        self._file.flush()
        os.fsync(self._file.fileno())
        return FileRecord(
            os.path.basename(self.path), self._checksum.bytes, self._checksum.digest()
        )


class RowsReader:
    """Reads a file. Its ends are checked at once, and each block when it is read.

    Args:
        folder: Of the checkpoint.
        record: Of the file.
        attempt: The number of the save.
        worker: Whose rows they are.
        workers: Of how many.

    Attributes:
        tables: What the index says, in the order of the tables' numbers.

    Raises:
        CorruptionError: For a file that is not as it was written.
    """

    def __init__(
        self, folder: str, record: FileRecord, attempt: int, worker: int, workers: int
    ) -> None:
        self.path = os.path.join(folder, record.name)
        self._record = record
        check_length(self.path, record.bytes)
        with open(self.path, "rb") as file:
            self._check_header(file.read(_HEADER_BYTES), (attempt, worker, workers))
            self._index_offset, self.tables = self._read_index(file)

    def _check_header(self, header: bytes, expected: tuple[int, int, int]) -> None:
        if len(header) < _HEADER_BYTES or not header.startswith(MAGIC):
            raise damaged(self.path, "a header that begins with SOKROWS", "something else")
        told = int.from_bytes(header[_HEADER.size :], "little")
        if checksum(header[: _HEADER.size], 0) != told:
            raise damaged(self.path, "a header that agrees with its checksum", "another")
        _, version, length, *identity = _HEADER.unpack_from(header)
        if version != VERSION or length != _HEADER_BYTES:
            raise ValueError(
                f"Expected rows of version {VERSION} in '{self.path}', the newest that this "
                f"sok-embed knows. Received: version {version}. Restore it with the sok-embed that "
                "wrote it, or a newer one."
            )
        if tuple(identity) != expected:
            names = "save {}, worker {} of {}"
            raise damaged(self.path, names.format(*expected), names.format(*identity))

    def _read_index(self, file: Any) -> tuple[int, list[dict[str, Any]]]:
        end = self._record.bytes
        if end < _HEADER_BYTES + _FOOTER.size:
            raise damaged(self.path, "an index and a footer", f"{end} bytes in all")
        file.seek(end - _FOOTER.size)
        footer = file.read(_FOOTER.size)
        offset, length, told, magic = _FOOTER.unpack(footer)
        if magic != END_MAGIC or length != end:
            raise damaged(self.path, f"the end mark SOKREND and the length {end}", "others")
        if not _HEADER_BYTES <= offset <= end - _FOOTER.size:
            raise damaged(self.path, "the offset of the index", str(offset))
        file.seek(offset)
        index = file.read(end - _FOOTER.size - offset)
        if checksum(index + footer[:16], offset) != told:
            raise damaged(self.path, "an index that agrees with its checksum", "another")
        try:
            tables = json.loads(index)["tables"]
            fits = all(_is_entry(entry) for entry in tables)
        except (ValueError, TypeError, KeyError):
            fits = False
        if not fits:
            raise damaged(self.path, "an index of tables", "something else")
        return offset, tables

    def blocks(self) -> Iterator[Block]:
        """Yields the blocks in their order; after the last the whole file has been checked."""
        found = FileChecksum()
        with open(self.path, "rb") as file:
            found.update(file.read(_HEADER_BYTES))
            while found.bytes < self._index_offset:
                yield self._next_block(file, found)
            found.update(file.read(self._record.bytes - self._index_offset))
        check_digest(self.path, self._record, found)

    def _next_block(self, file: Any, found: FileChecksum) -> Block:
        offset = found.bytes
        head = file.read(_BLOCK.size)
        if len(head) < _BLOCK.size:
            raise damaged(self.path, f"a block at byte {offset}", "the end of the file")
        table, kind, number, length = _BLOCK.unpack(head)
        self._check_head(offset, table, kind, number, length)
        rest = file.read(length + 8)
        block = memoryview(head + rest)
        told = int.from_bytes(block[_BLOCK.size + length :], "little")
        if len(rest) < length + 8 or checksum(block[: _BLOCK.size + length], offset) != told:
            raise damaged(
                self.path, f"a block at byte {offset} that agrees with its checksum", "another"
            )
        found.update(block)
        return Block(table, kind, number, block[_BLOCK.size : _BLOCK.size + length])

    def _check_head(self, offset: int, table: int, kind: int, number: int, length: int) -> None:
        """Raises unless the lengths of a block agree with each other and with the index."""
        fits = table < len(self.tables) and kind in (ROWS, ADMISSION, SKETCH)
        if fits and kind == ROWS:
            width = row_bytes(self.tables[table]["dim"], self.tables[table]["slot_floats"])
            fits = length == number * width and 0 < length <= max(width, PAYLOAD_BYTES)
        elif fits:
            fits = 0 < length <= PAYLOAD_BYTES
        if not fits or offset + _BLOCK.size + length + 8 > self._index_offset:
            raise damaged(self.path, f"a block at byte {offset}", "lengths that do not fit")

    def rows_of(self, block: Block) -> Rows:
        """The rows of a block, which stay in its memory."""
        entry = self.tables[block.table]
        n, dim, slot_floats = block.number, entry["dim"], entry["slot_floats"]
        counters = np.frombuffer(block.payload, np.uint32, 2 * n, 8 * n).astype(np.int64)
        floats = np.frombuffer(block.payload, np.float32, n * (dim + slot_floats), _ROW_BYTES * n)
        return Rows(
            np.frombuffer(block.payload, np.int64, n),
            floats[: n * dim].reshape(n, dim),
            floats[n * dim :].reshape(n, slot_floats),
            counters[:n],
            counters[n:],
        )


_ENTRY = {
    "path": str, "part": str, "dim": int, "slot_floats": int, "rule": str, "steps": int,
    "step_clock": int, "slot_start": list, "rows": int, "admission_bytes": int,
}  # fmt: skip


def _is_entry(entry: Any) -> bool:
    """Returns whether an entry of an index says all that a reader asks for."""
    if any(type(entry[name]) is not kind for name, kind in _ENTRY.items()):
        return False
    return (
        entry["dim"] > 0
        and entry["slot_floats"] == len(entry["slot_start"])
        and all(isinstance(value, (int, float)) for value in entry["slot_start"])
    )
