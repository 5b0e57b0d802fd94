"""A file of the rows of one worker: blocks with checksums, and an index behind them.

Every byte is under a checksum, and all numbers are little-endian.
`docs/reference/rows-format.md` has the layout.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sok_embed.binding import _core
from sok_embed.checkpoint.files.names import rows_name
from sok_embed.checkpoint.files.rows_index import (
    MOST_INDEX_BYTES,
    ROW_HEAD_BYTES,
    index_bytes,
    row_bytes,
    tables_of_index,
)
from sok_embed.files.place_of import place_of
from sok_embed.files.places import Place, Readable, check_length
from sok_embed.files.records import FileChecksum, FileRecord, check_digest, checksum, damaged
from sok_embed.files.whole_files import remove_if_there

MAGIC, END_MAGIC = b"SOKROWS\n", b"SOKREND\n"
VERSION = 1

ROWS, ADMISSION, SKETCH, REMOVED = 1, 2, 3, 4  # kinds of blocks

# A block has at most so many bytes of payload, but at least one row.
PAYLOAD_BYTES = 4 << 20

_HEADER = struct.Struct("<8sIIQII")
_HEADER_BYTES = _HEADER.size + 8
_BLOCK = struct.Struct("<IIQQ")
_FOOTER = struct.Struct("<QQQ8s")
_ALIGNMENT = 64  # the alignment of TensorFlow's tensors in bytes


class Rows(NamedTuple):
    """Columns of n rows."""

    keys: npt.NDArray[np.int64]  # int64 `[n]`
    embeddings: npt.NDArray[np.float32]  # float32 `[n, dim]`
    slots: npt.NDArray[np.float32]  # float32 `[n, slot_floats]`
    update_nums: npt.NDArray[np.int64]  # int64 `[n]`
    update_times: npt.NDArray[np.int64]  # int64 `[n]`

    def where(self, chosen: npt.NDArray[np.bool_]) -> Rows:
        """Returns the rows for which a mask, bool `[n]`, is true."""
        return self if chosen.all() else Rows._make(column[chosen] for column in self)

    def with_slots(self, start: Sequence[float]) -> Rows:
        """Returns the rows; if they have no slots, with the slots of new rows, `start`.

        Rows of a worker whose table had no optimizer yet have no slots.
        """
        if self.slots.shape[1] == len(start) or not len(start):
            return self
        if self.slots.shape[1]:
            raise _core.CorruptionError(
                f"Expected rows with {len(start)} numbers of slots, as the table has them. "
                f"Received: rows with {self.slots.shape[1]}. The files are of different histories: "
                "restore another checkpoint."
            )
        return self._replace(slots=np.tile(np.array(start, np.float32), (len(self.keys), 1)))

    def between(self, begin: int, end: int) -> Rows:
        """Returns the rows from `begin` to `end`."""
        return Rows._make(column[begin:end] for column in self)

    def for_core(self) -> tuple[Any, ...]:
        """Returns the columns and their widths as writers of the core take them."""
        return (
            _flat(self.keys, np.int64).view(np.uint64),
            _flat(self.update_nums, np.int64),
            _flat(self.update_times, np.int64),
            _flat(self.embeddings, np.float32),
            _flat(self.slots, np.float32),
            self.embeddings.shape[1],
            self.slots.shape[1],
        )


class Block(NamedTuple):
    """A part of a file."""

    table: int  # the number of the table in the index
    kind: int  # `ROWS`, `ADMISSION`, `SKETCH` or `REMOVED`
    # The number of rows or removed keys; for other bytes, the offset at which they begin.
    number: int
    payload: memoryview  # the bytes


def rows_a_block(dim: int, slot_floats: int) -> int:
    """Returns the most rows of a block."""
    return max(1, PAYLOAD_BYTES // row_bytes(dim, slot_floats))


class RowsWriter:
    """Writes a file of rows, which must not exist; it is removed if a block of `with` fails.

    It is part of a checkpoint once a manifest names it. Captures and rows of storages are put into
    `core`, the captures of a save together, so that none of them keeps copies for long.
    """

    def __init__(self, folder: str, attempt: int, worker: int, workers: int) -> None:
        self.path = os.path.join(folder, rows_name(worker, workers, attempt))
        self.core = _core.RowsFileWriter(self.path, attempt, worker, workers)

    def __enter__(self) -> RowsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.core.close()
        if kind is not None:
            remove_if_there(self.path)

    def put_rows(self, table: int, rows: Rows) -> None:
        """Adds rows, in as many blocks as they need."""
        self.core.put_rows(table, *rows.for_core())

    def put_bytes(self, table: int, kind: int, data: bytes) -> None:
        """Adds the counts of an admission or a sketch."""
        self.core.put_bytes(table, kind, np.frombuffer(data, np.uint8))

    def put_removed(self, table: int, keys: npt.NDArray[np.int64]) -> None:
        """Adds keys whose rows were removed since the checkpoint before."""
        self.core.put_removed(table, _flat(keys, np.int64).view(np.uint64))

    def finish(self, tables: Sequence[dict[str, Any]]) -> FileRecord:
        """Writes the index, syncs the file, and returns its record."""
        index = index_bytes(tables)
        length, digest = self.core.finish(index)
        return FileRecord(os.path.basename(self.path), length, f"{digest:016x}")


def _aligned(length: int) -> memoryview:
    """Returns memory for a block whose columns TensorFlow can take without a copy."""
    memory = np.empty(length + _ALIGNMENT, np.uint8)
    begin = -(memory.ctypes.data + _BLOCK.size) % _ALIGNMENT
    return memory.data[begin : begin + length]


def _flat(column: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.ascontiguousarray(column, dtype).reshape(-1)


class RowsReader:
    """Reads a file. Its ends are checked at once, and each block when it is read.

    Attributes:
        tables: The entries of the index, in the order of the tables' numbers.
    """

    def __init__(
        self, folder: str | Place, record: FileRecord, attempt: int, worker: int, workers: int
    ) -> None:
        self._place = place_of(folder)
        self.path = self._place.file(record.name)
        self._record = record
        check_length(self._place, record)
        with self._place.open(record.name) as file:
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

    def _read_index(self, file: Readable) -> tuple[int, list[dict[str, Any]]]:
        end = self._record.bytes
        if end < _HEADER_BYTES + _FOOTER.size:
            raise damaged(self.path, "an index and a footer", f"{end} bytes in all")
        file.seek(end - _FOOTER.size)
        footer = file.read(_FOOTER.size)
        offset, length, told, magic = _FOOTER.unpack(footer)
        if magic != END_MAGIC or length != end:
            raise damaged(self.path, f"the end mark SOKREND and the length {end}", "others")
        length = end - _FOOTER.size - offset
        if offset < _HEADER_BYTES or not 0 <= length <= MOST_INDEX_BYTES:
            raise damaged(self.path, "the offset of the index", str(offset))
        file.seek(offset)
        index = file.read(length)
        if checksum(index + footer[:16], offset) != told:
            raise damaged(self.path, "an index that agrees with its checksum", "another")
        return offset, tables_of_index(self.path, index, offset)

    def blocks(self) -> Iterator[Block]:
        """Yields the blocks in their order; after the last one the whole file has been checked."""
        found = FileChecksum()
        with self._place.open(self._record.name) as file:
            found.update(file.read(_HEADER_BYTES))
            while found.bytes < self._index_offset:
                block, read = self._read_block(file, found.bytes)
                found.update(read)
                yield block
            found.update(file.read(self._record.bytes - self._index_offset))
        check_digest(self.path, self._record, found)

    @cached_property
    def _offsets(self) -> dict[int, list[int]]:
        """The bytes at which the blocks of each table begin; only their heads are read."""
        offsets: dict[int, list[int]] = {}
        offset = _HEADER_BYTES
        with self._place.open(self._record.name) as file:
            while offset < self._index_offset:
                file.seek(offset)
                table, _, _, length = self._read_head(file, offset)[1]
                offsets.setdefault(table, []).append(offset)
                offset += _BLOCK.size + length + 8
        return offsets

    def blocks_of(self, table: int) -> Iterator[Block]:
        """Yields the blocks of one table; each is checked."""
        with self._place.open(self._record.name) as file:
            for offset in self._offsets.get(table, []):
                file.seek(offset)
                yield self._read_block(file, offset)[0]

    def _read_head(self, file: Readable, offset: int) -> tuple[bytes, tuple[int, int, int, int]]:
        head = file.read(_BLOCK.size)
        if len(head) < _BLOCK.size:
            raise damaged(self.path, f"a block at byte {offset}", "the end of the file")
        told = _BLOCK.unpack(head)
        self._check_head(offset, *told)
        return head, told

    def _read_block(self, file: Readable, offset: int) -> tuple[Block, memoryview]:
        """Returns the block that begins at an offset, where the file stands, and all its bytes."""
        head, (table, kind, number, length) = self._read_head(file, offset)
        block = _aligned(_BLOCK.size + length + 8)
        block[: _BLOCK.size] = head
        at, read = _BLOCK.size, 1
        while at < len(block) and read:
            read = file.readinto(block[at:])
            at += read
        told = int.from_bytes(block[_BLOCK.size + length :], "little")
        if at < len(block) or checksum(block[: _BLOCK.size + length], offset) != told:
            raise damaged(
                self.path, f"a block at byte {offset} that agrees with its checksum", "another"
            )
        return Block(table, kind, number, block[_BLOCK.size : _BLOCK.size + length]), block

    def _check_head(self, offset: int, table: int, kind: int, number: int, length: int) -> None:
        """Raises unless the lengths of a block agree with each other and with the index."""
        fits = table < len(self.tables) and kind in (ROWS, ADMISSION, SKETCH, REMOVED)
        if fits and kind == ROWS:
            width = row_bytes(self.tables[table]["dim"], self.tables[table]["slot_floats"])
            fits = length == number * width and 0 < length <= max(width, PAYLOAD_BYTES)
        elif fits and kind == REMOVED:
            fits = length == 8 * number and 0 < length <= PAYLOAD_BYTES
        elif fits:
            fits = 0 < length <= PAYLOAD_BYTES
        if not fits or offset + _BLOCK.size + length + 8 > self._index_offset:
            raise damaged(self.path, f"a block at byte {offset}", "lengths that do not fit")

    @staticmethod
    def removed_in(block: Block) -> npt.NDArray[np.int64]:
        """Returns the keys of a block of removed keys."""
        return np.frombuffer(block.payload, np.int64)

    def rows_of(self, block: Block) -> Rows:
        """Returns the rows of a block, which stay in its memory."""
        entry = self.tables[block.table]
        n, dim, slot_floats = block.number, entry["dim"], entry["slot_floats"]
        counters = np.frombuffer(block.payload, np.uint32, 2 * n, 8 * n).astype(np.int64)
        floats = np.frombuffer(
            block.payload, np.float32, n * (dim + slot_floats), ROW_HEAD_BYTES * n
        )
        return Rows(
            np.frombuffer(block.payload, np.int64, n),
            floats[: n * dim].reshape(n, dim),
            floats[n * dim :].reshape(n, slot_floats),
            counters[:n],
            counters[n:],
        )
