"""Reads the tables of a checkpoint from its files, for tools without a model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from sok_embed.checkpoint.files import manifest as manifests
from sok_embed.checkpoint.files.holding import OpenCheckpoint, all_files, hold
from sok_embed.checkpoint.files.manifest import Link, Manifest
from sok_embed.checkpoint.files.manifest_schema import PARTS
from sok_embed.checkpoint.files.names import dense_prefix
from sok_embed.checkpoint.files.rows_file import Rows, RowsReader, RowsWriter
from sok_embed.checkpoint.files.rows_index import merged_head, total
from sok_embed.checkpoint.tools.newest_first import CountedBytes, Watch, live_blocks
from sok_embed.files.places import Place
from sok_embed.files.records import FileRecord, damaged, local_path, record_of
from sok_embed.files.schema import brief
from sok_embed.files.whole_files import sync


def label_of(path: str, part: str) -> str:
    """Returns the label of a table, from its path (unique) or its name (maybe not unique)."""
    return path if part == "rows" else f"{path}:{part}"


@dataclass(frozen=True)
class TableHead:
    """The properties of a table, without its rows."""

    # The path in the checkpoint, with the part of an adaptive table; for a storage or a dump, the
    # number of the group.
    label: str
    name: str  # the name of the table
    dim: int  # the length of its vectors
    # The rule of its row optimizer, as checkpoints and dumps have it; empty before the first
    # commit.
    rule: str
    slot_start: tuple[float, ...]  # the values of a new row's slots, slot after slot
    steps: int  # the number of commits; of several workers the largest
    step_clock: int  # the time of its clock if it counts steps; -1: times are in seconds since 1970
    initializer: dict[str, Any]  # `kind`, `a`, `b` and `seed`
    rows: int  # the number of rows
    ttl: int = 0  # seconds after its last update that a row is kept; 0: no limit
    # The group in a storage or a dump; `None` if the table comes from another source.
    group: int | None = None

    @property
    def slot_floats(self) -> int:
        """The floats of a row that its optimizer keeps."""
        return len(self.slot_start)

    @property
    def whole(self) -> str:
        """The text that the parts of one table share, and no other table has."""
        return self.label

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which commands may ask for the table."""
        return (self.label, self.name)


@dataclass(frozen=True, kw_only=True)
class SavedTable(TableHead):
    """A table of a checkpoint, or one of the two that an adaptive table consists of."""

    number: int  # the number of the table in the index of each file of rows
    path: str  # the attributes that lead to it
    part: str  # `"rows"`; of an adaptive table `"own"` or `"static"`, whose keys are buckets
    described: dict[str, Any]  # the manifest's description of the whole table

    @property
    def whole(self) -> str:
        """See `TableHead`."""
        return self.path

    @property
    def names(self) -> tuple[str, ...]:
        """See `TableHead`."""
        return (self.label, self.path, self.name, label_of(self.name, self.part))


_Table = TypeVar("_Table", bound=TableHead)


def chosen(source: str, tables: Sequence[_Table], names: Sequence[str]) -> list[_Table]:
    """Returns the tables with these names, in their order; without names, all tables.

    Raises:
        ValueError: For a name that no table has, or that several have.
    """
    found: set[int] = set()
    for name in names:
        fits = [i for i, table in enumerate(tables) if name in table.names]
        if len({tables[i].whole for i in fits}) != 1:
            known = ", ".join(f"'{table.label}'" for table in tables) or "none"
            raise ValueError(
                f"Expected the path or the name of a table in '{source}', which has {known}. "
                f"Received: {name!r}, which {'several tables have' if fits else 'no table has'}."
            )
        found.update(fits)
    return [table for i, table in enumerate(tables) if not names or i in found]


class Saved(NamedTuple):
    """A checkpoint."""

    held: OpenCheckpoint  # the checkpoint and the checkpoints on which it builds, with open files
    # The readers of the files of rows, by worker, the newest checkpoint first.
    readers_of: list[list[RowsReader]]
    tables: list[SavedTable]  # the tables in the order of the indices

    @property
    def chain(self) -> list[Link]:
        """The checkpoint, and the checkpoints on which it builds, the newest first."""
        return self.held.chain

    @property
    def folder(self) -> str:
        """Its absolute path."""
        return self.chain[0].folder

    @property
    def manifest(self) -> Manifest:
        """The manifest of the checkpoint."""
        return self.chain[0].manifest

    @property
    def readers(self) -> list[RowsReader]:
        """The readers of its own files of rows, in the order of the workers."""
        return [readers[0] for readers in self.readers_of]

    @property
    def row_bytes(self) -> int:
        """The bytes of all files of rows, including the checkpoints on which it builds."""
        return sum(record.bytes for link in self.chain for record in link.manifest.rows)

    def rows(self, table: SavedTable) -> Iterator[Rows]:
        """Yields all rows of a table; see `rows_of`."""
        return (rows for _, rows in rows_of(self, [table]))

    def chosen(self, names: Sequence[str]) -> list[SavedTable]:
        """Returns the tables with these names; without names, all tables."""
        return chosen(self.folder, self.tables, names)

    def one(self, name: str | None) -> SavedTable:
        """Returns the table with a name; without a name, the only table."""
        found = self.chosen([name] if name is not None else [])
        if len(found) != 1:
            labels = ", ".join(f"'{table.label}'" for table in found) or "none"
            raise ValueError(
                f"Expected one table of '{self.folder}'. Received: {labels}. Name one of them."
            )
        return found[0]


def open_saved(folder: str) -> Saved:
    """Reads the manifest and the indices of a checkpoint, and checks them against each other."""
    return saved_of(hold(local_path(folder), all_files))


def saved_of(held: OpenCheckpoint) -> Saved:
    """Returns the same as `open_saved`, for a checkpoint whose files are already open."""
    of_links = [
        [reader_of(place, manifest, worker) for worker in range(len(manifest.rows))]
        for (_, manifest), place in zip(held.chain, held.places, strict=True)
    ]
    for link, readers in zip(held.chain, of_links, strict=True):
        check_totals(*link, readers)
    of_workers = [list(readers) for readers in zip(*of_links, strict=True)]
    return Saved(held, of_workers, saved_tables(held.chain[0].manifest, of_links[0]))


def reader_of(folder: str | Place, manifest: Manifest, worker: int) -> RowsReader:
    """Returns the reader of a worker's rows, whose file has the tables of the manifest."""
    record = manifest.rows[worker]
    reader = RowsReader(folder, record, manifest.attempt, worker, manifest.workers)
    told = [(entry["path"], entry["part"], entry["dim"]) for entry in reader.tables]
    expected = [(entry["path"], part, entry["dim"]) for entry, part in _parts(manifest)]
    if told != expected:
        raise damaged(reader.path, f"an index of the tables {brief(expected)}", brief(told))
    return reader


def _parts(manifest: Manifest) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the entries of a manifest with the parts of each, in the order of the indices."""
    for entry in manifest.tables:
        for part in PARTS[entry["kind"]]:
            yield entry, part


def check_totals(folder: str, manifest: Manifest, readers: Sequence[RowsReader]) -> None:
    """Raises CorruptionError if a manifest and the files of all workers disagree."""
    for number, (entry, part) in enumerate(_parts(manifest)):
        told = entry["parts"][part]
        for field, value in total([reader.tables[number] for reader in readers]).items():
            if told[field] != value:
                raise damaged(
                    os.path.join(folder, manifests.NAME),
                    f"{brief(value)} as '{field}' of table '{label_of(entry['path'], part)}', as "
                    "the files of rows say",
                    brief(told[field]),
                )


def saved_tables(manifest: Manifest, readers: Sequence[RowsReader]) -> list[SavedTable]:
    """Returns the tables of a manifest, with the fields that are in the indices of the files."""
    tables = []
    for number, (entry, part) in enumerate(_parts(manifest)):
        entries = [reader.tables[number] for reader in readers]
        head = merged_head(entry["path"], entries)
        tables.append(
            SavedTable(
                number=number,
                label=label_of(entry["path"], part),
                path=entry["path"],
                part=part,
                name=entry["name"],
                dim=entry["dim"],
                initializer={**entry["initializer"], "seed": entry["seed"]},
                described=entry,
                rows=entry["parts"][part]["size"],
                **head._asdict(),
            )
        )
    return tables


def rows_of(
    saved: Saved, chosen: Sequence[SavedTable], watch: Watch | None = None
) -> Iterator[tuple[SavedTable, Rows]]:
    """Yields all rows of some tables, a block at a time, in no particular order.

    Every file is read to its end, and all of it is checked. Rows of a worker that had no optimizer
    for a table yet get the slots of new rows, as a restore gives them.
    """
    tables = {table.number: table for table in chosen}
    for readers in saved.readers_of:
        for block, rows in live_blocks(readers, watch=watch):
            table = tables.get(block.table)
            if table is not None and rows is not None:
                yield table, rows.with_slots(table.slot_start)


def copy_rows(
    readers: Sequence[RowsReader],
    writer: RowsWriter,
    leave_out: int | None = None,
    watch: Watch | None = None,
) -> None:
    """Copies the current rows and counts of a worker's files, as `live_blocks` takes them.

    Rows of the table of number `leave_out` are left out.
    """
    counted = CountedBytes()
    for block, rows in live_blocks(readers, watch=watch):
        if rows is None:
            counted.add(block)
        elif block.table != leave_out:
            writer.put_rows(block.table, rows)
    counted.write(writer)


def write_like(folder: str, saved: Saved, attempt: int, **changed: Any) -> None:
    """Copies all files except files of rows into a folder that has these, and writes its manifest.

    Fields of the manifest that differ are in `changed`.
    """
    manifest, place = saved.manifest, saved.held.places[0]
    old, new = f"-{manifest.attempt:016x}", f"-{attempt:016x}"

    def copy(record: FileRecord) -> FileRecord:
        name = record.name.replace(old, new)
        with place.open(record.name) as file, open(os.path.join(folder, name), "xb") as copied_file:
            shutil.copyfileobj(file, copied_file, 1 << 20)
        copied = record_of(folder, name)
        if copied.checksum != record.checksum:
            path = place.file(record.name)
            raise damaged(path, f"the checksum {record.checksum}", copied.checksum)
        return copied

    changed["files"] = [copy(record) for record in manifest.files]
    changed["data"] = [copy(record) for record in manifest.data]
    changed["dense"] = {**manifest.dense, "prefix": dense_prefix(attempt)}
    sync(folder)
    manifests.write(folder, manifest._replace(attempt=attempt, **changed))
