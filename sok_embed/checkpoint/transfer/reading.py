"""Reads rows into tables: from a checkpoint, whichever worker wrote them, or from a storage."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sok_embed import kv, tf_ops
from sok_embed.arguments import difference
from sok_embed.binding import _core
from sok_embed.checkpoint.files.holding import OpenCheckpoint
from sok_embed.checkpoint.files.manifest import Manifest
from sok_embed.checkpoint.files.rows_file import ADMISSION, SKETCH, Block, Rows
from sok_embed.checkpoint.files.rows_index import Head, merged_head
from sok_embed.checkpoint.state.tables import LocatedTable, contents_of, read_head
from sok_embed.checkpoint.tools.conversion.dump import rows_of_group
from sok_embed.checkpoint.tools.newest_first import CountedBytes, live_blocks
from sok_embed.checkpoint.tools.saved import check_totals, reader_of
from sok_embed.files.scratch import ScratchFolder
from sok_embed.tables.base_table import Part
from sok_embed.tables.counts import merge_sketches
from sok_embed.tables.owners import former_owners
from sok_embed.tables.table import Table
from sok_embed.tables.tensors import as_errors

_EVERY_WORKER = "every worker"


class PartReader:
    """Collects this worker's rows of a part, whoever wrote them.

    Attributes:
        rows: The number of rows that `check` has found.
    """

    def __init__(self, part: Part, head: Head, source: str) -> None:
        self.part = part
        self.head = head
        self._source = source
        self.rows = 0

    def check(self, rows: Rows) -> None:
        """Raises ValueError for rows that the table cannot take, before anything is changed."""
        mine = self.part.mine(rows.keys)
        self.rows += int(mine.sum())
        limit = self.part.max_rows
        if limit and self.rows > limit:
            raise ValueError(
                f"Table '{self.part.table.name}': expected at most max_rows={limit} rows for this "
                f"worker in {self._source}. Received: {self.rows} or more. Raise max_rows, or "
                "start more workers. Nothing was restored."
            )
        self._call(tf_ops.check_restore, rows.where(mine))

    def add(self, rows: Rows) -> None:
        """Adds rows to the table."""
        self._call(tf_ops.add_rows, rows.where(self.part.mine(rows.keys)))

    def _call(self, op: Callable[..., Any], own: Rows) -> None:
        if len(own.keys):
            piece = contents_of(self.head, self.part.table.dim, own)
            as_errors(lambda: op(self.part.handle, piece))


def rows_of_copy(table: Table, copy: kv.Storage, group: int) -> Callable[[], None]:
    """Checks the rows of a group of a storage, and changes nothing.

    Returns:
        A function that replaces the rows of the table, which is in memory or in another storage.

    Raises:
        ValueError: For rows that the table cannot take, and for a storage that is read-only.
    """
    there = {each.number: each for each in copy.groups()}
    if group not in there:
        raise ValueError(
            f"Table '{table.name}': expected its rows in group {group} of {copy!r}. Received: the "
            f"groups {sorted(there)}. Save the model again."
        )
    saved, own = there[group], table.storage
    if saved.dimension != table.dim:
        raise ValueError(
            f"Table '{table.name}': expected rows of {table.dim} numbers. Received: rows of "
            f"{saved.dimension}, in {copy!r}. Make the layer as it was saved."
        )
    if own is not None and own.read_only:
        raise ValueError(
            f"Table '{table.name}': expected a storage that may be written, to replace its "
            f"rows by the rows of the file. Received: {own!r}. Open it without read_only=True."
        )
    attributes = {
        **table.spec.attributes(),
        "storage": copy.path,
        "storage_id": copy.id,
        "group": group,
        "step_clock": False,
        "row_dtype": saved.row_dtype,
        "slot_dtype": saved.slot_dtype,
    }
    with tf.init_scope():
        handle = as_errors(lambda: tf_ops.anonymous_table(table.name, table.dim, **attributes))
        head, admission = read_head(handle, table.dim)
    contents = contents_of(head, table.dim, admission=admission)
    table.check_restore(contents)
    # Beside the table's storage, where there is room for its rows.
    parent = None if own is None else os.path.dirname(os.path.abspath(own.path))
    scratch = ScratchFolder("sok-embed-rows", parent)
    dump = os.path.join(scratch.path, "dump")
    copy.dump(dump, group=group)
    (part,) = table.parts
    reader = PartReader(part, head, "the file")
    for rows in rows_of_group(dump, group):
        reader.check(rows)

    def restore() -> None:
        table.restore(contents)
        for rows in rows_of_group(dump, group):
            reader.add(rows)
        if own is not None:
            own.flush()
        scratch.end()

    return restore


class TablesReader:
    """All tables of a checkpoint, for this worker; the hosts are in the order of the manifest."""

    def __init__(
        self, held: OpenCheckpoint, hosts: Sequence[LocatedTable], rank: int, size: int
    ) -> None:
        self._folder, manifest = held.chain[0]
        self._rank, self._size, self._workers = rank, size, manifest.workers
        self._entries, self._hosts = manifest.tables, list(hosts)
        sources = _sources(hosts, manifest, rank, size)
        # For each worker, its files in the chain, the newest first.
        self._readers = {
            worker: [
                reader_of(place, each, worker)
                for place, (_, each) in zip(held.places, held.chain, strict=True)
            ]
            for worker in sorted(set().union(*sources))
        }
        for number, link in enumerate(held.chain):
            if len(self._readers) == len(link.manifest.rows):  # those of all workers
                check_totals(*link, [readers[number] for readers in self._readers.values()])
        self._counted = {worker: CountedBytes() for worker in self._readers}
        self._parts: list[PartReader] = []
        # For each part, its entries in the newest files that may have such rows, by worker.
        self._saved: list[dict[int, dict[str, Any]]] = []
        self._of_hosts: list[range] = []  # the numbers of the parts of each host
        for host, of_host in zip(hosts, sources, strict=True):
            first = len(self._parts)
            for part in host.parts:
                number = len(self._parts)
                entries = {
                    worker: self._readers[worker][0].tables[number] for worker in sorted(of_host)
                }
                self._saved.append(entries)
                head = merged_head(part.table.name, list(entries.values()))
                self._parts.append(PartReader(part, head, "the checkpoint"))
            self._of_hosts.append(range(first, len(self._parts)))

    def _blocks(self) -> Iterator[tuple[int, PartReader, Block, Rows | None]]:
        """Yields a worker, a part, and the block that `live_blocks` yields for them."""
        for worker, readers in self._readers.items():
            wanted = {i for i, entries in enumerate(self._saved) if worker in entries}
            for block, rows in live_blocks(readers, wanted):
                yield worker, self._parts[block.table], block, rows

    def _counts(self, number: int, kind: int) -> dict[int, bytes]:
        """Returns the counts of one kind in the files for a part, by worker."""
        found = {worker: self._counted[worker].of(number, kind) for worker in self._saved[number]}
        return {worker: data for worker, data in found.items() if data is not None}

    def _admission(self, number: int) -> bytes:
        """Returns the counts that the admission of a part will have on this worker."""
        counts = list(self._counts(number, ADMISSION).values())
        if len(counts) == len(self._saved[number]) == 1:
            return counts[0]
        return _core.merge_admissions(counts, self._parts[number].part.mine)

    def check(self) -> None:
        """Reads all files, and raises an error for everything that `restore` would refuse."""
        for storage in self._storages():
            if storage.read_only:
                raise ValueError(
                    f"Expected storages that may be written. Received: {storage!r}. Open it "
                    "without read_only=True."
                )
        for worker, part, block, rows in self._blocks():
            if rows is not None:
                part.check(rows)
            else:
                self._counted[worker].add(block)
        for host, numbers in zip(self._hosts, self._of_hosts, strict=True):
            host.table.check_restore(self._contents_of(numbers))

    def rows_found(self) -> list[int]:
        """Returns the number of rows that `check` has found for this worker, by parts."""
        return [part.rows for part in self._parts]

    def check_rows(self, found: Sequence[int]) -> None:
        """Raises CorruptionError unless all workers together take every row that was saved.

        `found` has the sums of `rows_found` over all workers.
        """
        saved = [
            entry["parts"][part.name]["size"]
            for host, entry in zip(self._hosts, self._entries, strict=True)
            for part in host.parts
        ]
        for part, expected, received in zip(self._parts, saved, found, strict=True):
            # Rows that every worker restores are counted once on each worker.
            if not part.part.shared and expected != received:
                raise kv.CorruptionError(
                    f"Table '{part.part.table.name}': expected {expected} {part.part.name} in "
                    f"'{self._folder}' for all workers together. Received: {received}. The "
                    "checkpoint, or the part of it that workers read, is incomplete, and nothing "
                    "was restored: take another one."
                )

    def _contents_of(self, numbers: Sequence[int]) -> Any:
        """Returns all contents of a table except its rows, by the numbers of its parts."""
        first = self._parts[numbers[0]]
        table = first.part.table
        exports = [
            contents_of(self._parts[each].head, table.dim, admission=self._admission(each))
            for each in numbers
        ]
        if first.part.sketch is None:
            return table._joined(exports)
        sketches = self._counts(numbers[0], SKETCH)
        cells = merge_sketches(sketches, self._workers, first.part.sketch)
        # The figures of several workers add up to the saved figures.
        inherited = [
            entry["counters"]
            for worker, entry in self._saved[numbers[0]].items()
            if worker % self._size == self._rank
        ]
        like = next(iter(self._saved[numbers[0]].values()))["counters"]
        counters = np.array(inherited or [[0] * len(like)], np.int64).sum(0)
        counters[0] = like[0]  # the version
        return table._joined(exports, cells, counters)

    def restore(self) -> None:
        """Replaces the contents of the tables; `check` has been called."""
        for host, numbers in zip(self._hosts, self._of_hosts, strict=True):
            host.table.restore(self._contents_of(numbers))
        for _, part, _, rows in self._blocks():
            if rows is not None:
                part.add(rows)
        for storage in self._storages():
            storage.flush()

    def _storages(self) -> set[kv.Storage]:
        storages = (host.table.storage for host in self._hosts)
        return {storage for storage in storages if storage is not None}


def workers_needed(
    hosts: Sequence[LocatedTable], manifest: Manifest, rank: int, size: int
) -> list[int]:
    """Returns the workers whose files of rows a worker reads."""
    return sorted(set().union(*_sources(hosts, manifest, rank, size)))


def _sources(
    hosts: Sequence[LocatedTable], manifest: Manifest, rank: int, size: int
) -> list[set[int]]:
    """Returns, for each table, the workers that may have written rows of this worker."""
    found = []
    for host, entry in zip(hosts, manifest.tables, strict=True):
        if entry["owners"] == _EVERY_WORKER:
            found.append({0})
        elif entry["owners"] != host.table.owner_text or (
            # Counts of an admission or a sketch are those of all workers together.
            manifest.workers != size and host.table.counts_keys
        ):
            found.append(set(range(manifest.workers)))
        elif manifest.workers == size:
            found.append({rank})
        else:
            found.append(former_owners(entry["owners"], manifest.workers, rank, size))
    return found


def check_descriptions(manifest: Manifest, hosts: Sequence[LocatedTable]) -> None:
    """Raises ValueError unless the tables are the same as in the checkpoint.

    Owner rules and the places of rows may differ. Warns if names or initializers differ.
    """
    saved = {entry["path"]: entry for entry in manifest.tables}
    own = {host.path: host.description() for host in hosts}
    if saved.keys() != own.keys():
        missing = sorted(own.keys() - saved.keys())
        more = sorted(saved.keys() - own.keys())
        raise ValueError(
            "Expected a checkpoint with the tables of the model. Received: a checkpoint that "
            f"{difference(', '.join(missing), ', '.join(more))}. Make the model by the code that "
            "made the saved model."
        )
    _check_names(saved, own)
    for path, described in own.items():
        entry = saved[path]
        fixed = ("kind", "dim", "static_buckets", "sketch_capacity", "counter_bits")
        differing = [name for name in fixed if entry.get(name) != described.get(name)]
        if differing:
            name = differing[0]
            raise ValueError(
                f"Table '{described['name']}': expected a checkpoint with "
                f"{name}={described.get(name)!r}. Received: {entry.get(name)!r}. Make the model "
                "with the arguments of the saved model."
            )
        for name in ("initializer", "seed"):
            if entry[name] != described[name]:
                warnings.warn(
                    f"Table '{described['name']}': expected the {name} of the checkpoint, "
                    f"{entry[name]!r}. Received: {described[name]!r}. Rows that are made from now "
                    "on start from other values than the saved rows.",
                    stacklevel=9,
                )


def _check_names(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raises ValueError for tables that have swapped places: each has the path of another table."""
    other = [path for path in sorted(own) if own[path]["name"] != saved[path]["name"]]
    if not other:
        return
    path = other[0]
    was, name = saved[path]["name"], own[path]["name"]
    names = [sorted(entry["name"] for entry in entries.values()) for entries in (saved, own)]
    if names[0] == names[1]:
        raise ValueError(
            "Expected the tables of the model in the places that they had when the checkpoint was "
            f"saved. Received: table '{name}' where '{was}' was, at {path}. Make the layers in the "
            "order of the model that was saved."
        )
    for path in other:
        was, name = saved[path]["name"], own[path]["name"]
        if _without_count(was) != _without_count(name):
            warnings.warn(
                f"Table '{name}': expected the name of the table of the checkpoint at {path}, "
                f"'{was}'. Received: '{name}'. It takes the rows of '{was}'.",
                stacklevel=10,
            )


def _without_count(name: str) -> str:
    """Returns a name without the number that Keras adds if a process makes a layer again."""
    return re.sub(r"_\d+$", "", name)
