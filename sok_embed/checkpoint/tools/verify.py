"""Checks that no byte of a checkpoint is damaged, and that its files agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from sok_embed.checkpoint.files.holding import OpenCheckpoint, all_files, hold
from sok_embed.checkpoint.files.manifest import Link, Manifest
from sok_embed.checkpoint.files.partitions import Partitions
from sok_embed.checkpoint.files.rows_file import ADMISSION, REMOVED, ROWS, SKETCH, RowsReader
from sok_embed.checkpoint.tools.newest_first import Watch
from sok_embed.checkpoint.tools.saved import (
    check_totals,
    label_of,
    reader_of,
    rows_of,
    saved_of,
    saved_tables,
)
from sok_embed.files.places import Fetched, check_record
from sok_embed.files.records import damaged, local_path
from sok_embed.kv import CorruptionError

_KEY = np.dtype([("table", "<i4"), ("worker", "<i4"), ("key", "<i8")])
# The fields of an entry of an index, by the kind of blocks that they count.
_FIELDS = {
    ROWS: "rows", REMOVED: "removed", ADMISSION: "admission_bytes", SKETCH: "sketch_bytes",
}  # fmt: skip


class Verified(NamedTuple):
    """The result of a check."""

    bytes: int  # the number of bytes that were read and are not damaged
    rows: int  # the number of rows in all files
    faults: list[str]  # a sentence for each fault; empty if the checkpoint is whole


def verify(folder: str, watch: Watch | None = None) -> Verified:
    """Reads all files of a checkpoint, and of the checkpoints on which it builds.

    It checks all checksums, every block of rows, the lengths in the indices, the numbers of rows in
    the manifest and the indices, and that no key occurs twice in a table. Keys take 16 bytes each,
    in memory or, if they are many, in a temporary file.
    """
    folder = local_path(folder)
    faults: list[str] = []
    held: OpenCheckpoint | None = None
    with _noting(faults):
        held = hold(folder, all_files)
    if held is None:  # the checkpoint alone, without those on which it builds
        held = hold(folder, all_files, lambda path, read: [Link(path, read(path))])
    whole = rows = 0
    for link, place in zip(held.chain, held.places, strict=True):
        found = _verify_files(*link, place, faults, watch)
        whole, rows = whole + found[0], rows + found[1]
    if len(held.chain) > 1 and not faults:
        with _noting(faults):  # each file is whole; this checks that they fit together
            _check_live(held)
    held.end()
    return Verified(whole, rows, faults)


@contextmanager
def _noting(faults: list[str]) -> Iterator[None]:
    """Adds an error of the block, which ends there, to the faults.

    Other errors of the file system, such as a full folder for temporary files, are not faults of
    the checkpoint, and are raised.
    """
    try:
        yield
    except (CorruptionError, FileNotFoundError, ValueError) as error:
        faults.append(str(error))


def _check_live(held: OpenCheckpoint) -> None:
    """Raises CorruptionError unless a chain has as many rows as its newest manifest says."""
    saved = saved_of(held)
    live: Counter[int] = Counter()
    for table, rows in rows_of(saved, saved.tables):
        live[table.number] += len(rows.keys)
    for table in saved.tables:
        if live[table.number] != table.rows:
            raise damaged(
                saved.folder,
                f"{table.rows} rows of table '{table.label}' with those of the checkpoints before",
                str(live[table.number]),
            )


def _verify_files(
    folder: str, manifest: Manifest, place: Fetched, faults: list[str], watch: Watch | None
) -> tuple[int, int]:
    """Reads all files of one folder. Returns the bytes and the rows that are whole."""
    whole = rows = 0
    for record in (*manifest.files, *manifest.data):
        with _noting(faults):
            check_record(place, record)
            whole += record.bytes
            if watch is not None:
                watch(record.bytes)
    found: list[_Found] = []
    for worker in range(len(manifest.rows)):
        with _noting(faults):
            found.append(_Found(worker, reader_of(place, manifest, worker)))
    if not found:
        return whole, 0
    readers = [each.reader for each in found]
    with _noting(faults):
        saved_tables(manifest, readers)
    if len(readers) == len(manifest.rows):
        with _noting(faults):
            check_totals(folder, manifest, readers)
    told = sum(part["rows"] for entry in manifest.tables for part in entry["parts"].values())
    with Partitions(_KEY, _KEY.itemsize * told) as keys:
        for each in found:
            with _noting(faults):
                each.read(keys, watch)
                whole += manifest.rows[each.worker].bytes
                rows += each.rows
                faults += each.faults()
        labels = [label_of(entry["path"], entry["part"]) for entry in readers[0].tables]
        faults += _twice(keys, labels)
    return whole, rows


class _Found:
    """The contents of the blocks of a file."""

    def __init__(self, worker: int, reader: RowsReader) -> None:
        self.worker = worker
        self.reader = reader
        self.counted: Counter[tuple[int, str]] = Counter()  # by table and field of the index
        self.gaps: list[str] = []

    @property
    def rows(self) -> int:
        return sum(count for (_, field), count in self.counted.items() if field == "rows")

    def read(self, keys: Partitions, watch: Watch | None) -> None:
        for block in self.reader.blocks():
            at = (block.table, _FIELDS[block.kind])
            if block.kind in (ROWS, REMOVED):
                self.counted[at] += block.number
            else:
                if self.counted[at] != block.number:
                    self.gaps.append(
                        f"Expected counts from byte {self.counted[at]} on in '{self.reader.path}'. "
                        f"Received: from {block.number} on."
                    )
                self.counted[at] += len(block.payload)
            if block.kind == ROWS:
                records = np.zeros(block.number, _KEY)
                records["table"], records["worker"] = block.table, self.worker
                records["key"] = self.reader.rows_of(block).keys
                keys.add(records)
            if watch is not None:
                watch(len(block.payload))

    def faults(self) -> Iterator[str]:
        """Yields the places where the index differs from the blocks."""
        yield from self.gaps
        for number, entry in enumerate(self.reader.tables):
            for field in _FIELDS.values():
                expected, received = entry.get(field, 0), self.counted[number, field]
                if expected != received:
                    yield (
                        f"Expected {expected} {field.replace('_', ' of ')} of table "
                        f"'{entry['path']}' in '{self.reader.path}', as its index says. Received: "
                        f"{received}."
                    )


def _twice(keys: Partitions, labels: Sequence[str]) -> Iterator[str]:
    """Yields a text about each table with a key that occurs twice; `labels` are by number."""
    twice: Counter[int] = Counter()
    example: dict[int, str] = {}
    for number in range(keys.number):
        records = keys.part(number)
        records = records[np.lexsort((records["worker"], records["key"], records["table"]))]
        same = (records["key"][1:] == records["key"][:-1]) & (
            records["table"][1:] == records["table"][:-1]
        )
        for at in np.flatnonzero(same):
            table = int(records["table"][at])
            twice[table] += 1
            first, second = int(records["worker"][at]), int(records["worker"][at + 1])
            of = f"workers {first} and {second}" if first != second else f"worker {first}"
            example.setdefault(table, f"key {int(records['key'][at])} twice in the rows of {of}")
    for table in sorted(twice):
        more = twice[table] - 1
        yield (
            f"Expected every key of table '{labels[table]}' once. Received: "
            f"{example[table]}{f', and {more} more keys' if more else ''}."
        )
