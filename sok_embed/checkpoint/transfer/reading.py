"""What one worker takes out of a checkpoint: the rows that are its own, whoever wrote them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sok_embed import kv, tf_ops
from sok_embed.checkpoint.files.manifest import Link, Manifest
from sok_embed.checkpoint.files.places import Place
from sok_embed.checkpoint.files.rows_file import (
    ADMISSION,
    REMOVED,
    ROWS,
    SKETCH,
    Block,
    Rows,
    RowsReader,
)
from sok_embed.checkpoint.state.tables import Head, Host, Part, owner_text
from sok_embed.checkpoint.tools.newest_first import NewestFirst
from sok_embed.checkpoint.tools.saved import check_totals, reader_of
from sok_embed.checkpoint.transfer.writing import head_in
from sok_embed.tables.adaptive_table import AdaptiveTable
from sok_embed.tables.counts import merge_admissions, merge_sketches
from sok_embed.tables.table import Table
from sok_embed.tables.tensors import as_errors

_EVERY_WORKER = "every worker"


class _Place(NamedTuple):
    """Where a file says something of rows.

    Attributes:
        link: Of which checkpoint of the chain, 0 being the newest.
        worker: Who wrote the file.
        table: The number in its index.
    """

    link: int
    worker: int
    table: int


class PartReader:
    """The rows of a part that are this worker's, in all files that may have some.

    Args:
        part: That takes them.
        places: Where rows may be.
        readers: Of files, by the number of the checkpoint and the worker.

    Attributes:
        head: What the table will hold beside rows.
    """

    def __init__(
        self, part: Part, places: Sequence[_Place], readers: Mapping[tuple[int, int], RowsReader]
    ) -> None:
        self.part = part
        self.places = set(places)
        # The newest checkpoint says what there is beside rows.
        self.newest = sorted(place for place in places if place.link == 0)
        self._links = 1 + max(place.link for place in places)
        entries = [readers[place[:2]].tables[place.table] for place in self.newest]
        self.head = merged_head(part, [head_in(entry) for entry in entries])
        self._counts: dict[tuple[int, int], bytearray] = {}
        self.rows = 0  # that `check` has found
        self.start()

    def start(self) -> None:
        """Begins with the newest checkpoint."""
        self._newest_first = NewestFirst(self._links)

    def remove(self, link: int, keys: npt.NDArray[np.int64]) -> None:
        """Has keys count as gone in older checkpoints."""
        self._newest_first.remove(link, keys)

    def own(self, link: int, rows: Rows) -> Rows:
        """Which rows of a checkpoint count, and are this worker's."""
        live = self._newest_first.live(link, rows)
        return live.where(self.part.mine(live.keys))

    def check(self, own: Rows) -> None:
        """Looks at rows before anything is changed."""
        self.rows += len(own.keys)
        limit = self.part.max_rows
        if limit and self.rows > limit:
            raise ValueError(
                f"Table '{self.part.table.name}': expected at most max_rows={limit} rows for this "
                f"worker in the checkpoint. Received: {self.rows} or more. Raise max_rows, or "
                "start more workers. Nothing was restored."
            )
        if len(own.keys):
            piece = self.head.contents(self.part.table.dim, own)
            as_errors(lambda: tf_ops.check_restore(self.part.handle, piece))

    def add(self, own: Rows) -> None:
        """Takes up rows."""
        if len(own.keys):
            piece = self.head.contents(self.part.table.dim, own)
            as_errors(lambda: tf_ops.add_rows(self.part.handle, piece))

    def add_bytes(self, worker: int, kind: int, begin: int, data: memoryview) -> None:
        """Keeps a piece of what an admission or a sketch has counted; they come in order."""
        held = self._counts.setdefault((worker, kind), bytearray())
        if len(held) != begin:
            raise ValueError(
                f"Expected counts from byte {len(held)} on. Received: from {begin} on."
            )
        held += data

    def counts(self, kind: int) -> dict[int, bytes]:
        """All that was kept of a kind, by the worker who wrote it."""
        return {
            worker: bytes(data)
            for (worker, each), data in sorted(self._counts.items())
            if each == kind
        }

    def admission(self) -> bytes:
        """What the admission of this worker will have counted."""
        counts = self.counts(ADMISSION)
        if len(counts) == 1 and len(self.newest) == 1:
            return next(iter(counts.values()))
        return merge_admissions(list(counts.values()), self.part.mine)


def merged_head(part: Part, heads: Sequence[Head]) -> Head:
    """What a table holds that was put together from the parts of several workers."""
    trained = [head for head in heads if head.rule] or list(heads)
    if any((head.rule, head.slot_start) != (trained[0].rule, trained[0].slot_start)
           for head in trained):  # fmt: skip
        raise ValueError(
            f"Table '{part.table.name}': expected workers with one optimizer in the checkpoint. "
            f"Received: {sorted({head.rule for head in trained})}."
        )
    return trained[0]._replace(
        steps=max(head.steps for head in heads),
        step_clock=max(head.step_clock for head in heads),
    )


class TablesReader:
    """All tables of a checkpoint, for this worker.

    Args:
        chain: The checkpoint, and those that it has the changes since, the newest first.
        folders: Where the files of each of them are read.
        hosts: The tables that are to be restored, in the order of the manifest.
        rank: The number of this worker.
        size: How many there are.
    """

    def __init__(
        self,
        chain: Sequence[Link],
        folders: Sequence[Place],
        hosts: Sequence[Host],
        rank: int,
        size: int,
    ) -> None:
        self._folder, manifest = chain[0]
        self._rank, self._size = rank, size
        self._workers = manifest.workers
        self._entries = manifest.tables
        self._hosts = list(hosts)
        sources = _sources(hosts, manifest, rank, size)
        # The newest checkpoint first, as its rows count.
        self._readers = {
            (number, worker): reader_of(folder, each, worker)
            for number, (folder, (_, each)) in enumerate(zip(folders, chain, strict=True))
            for worker in workers_needed(hosts, manifest, rank, size)
        }
        self._check_totals(chain)
        self._parts: list[PartReader] = []
        for host, of_host in zip(hosts, sources, strict=True):
            for part in host.parts:
                number = len(self._parts)
                places = [
                    place
                    for worker in sorted(of_host)
                    for place in self._places(worker, number, len(chain))
                ]
                self._parts.append(PartReader(part, places, self._readers))
        self._adaptive: dict[int, tf_ops.AdaptiveExport] = {}

    def _places(self, worker: int, number: int, links: int) -> Iterator[_Place]:
        """Where a worker's rows of a part are: back to the newest file that has all of them."""
        for link in range(links):
            yield _Place(link, worker, number)
            if self._readers[link, worker].tables[number]["whole"]:
                return

    def _check_totals(self, chain: Sequence[Link]) -> None:
        """Compares manifests with files as far as this worker reads the files of all workers."""
        for number, link in enumerate(chain):
            workers = range(len(link.manifest.rows))
            readers = [self._readers.get((number, worker)) for worker in workers]
            if all(readers):
                check_totals(*link, [reader for reader in readers if reader is not None])

    def _blocks(self) -> Iterator[tuple[_Place, PartReader, RowsReader, Block]]:
        """Yields all blocks that count, those of the newest checkpoint first."""
        for part in self._parts:
            part.start()
        wanted = {place[:2] for part in self._parts for place in part.places}
        for (link, worker), reader in self._readers.items():
            if (link, worker) not in wanted:
                continue
            for block in reader.blocks():
                place = _Place(link, worker, block.table)
                part = self._parts[block.table]
                if place not in part.places:
                    continue
                if block.kind == REMOVED:
                    part.remove(link, reader.removed_in(block))
                else:
                    yield place, part, reader, block

    def check(self) -> None:
        """Reads all files, and raises for whatever `restore` would refuse."""
        for storage in self._storages():
            if storage.read_only:
                raise ValueError(
                    f"Expected storages that may be written. Received: {storage!r}. Open it "
                    "without read_only=True."
                )
        for place, part, reader, block in self._blocks():
            if block.kind == ROWS:
                part.check(part.own(place.link, reader.rows_of(block)))
            elif place.link == 0:
                part.add_bytes(place.worker, block.kind, block.number, block.payload)
        for number, part in enumerate(self._parts):
            empty = part.head.contents(part.part.table.dim, admission=part.admission())
            as_errors(lambda part=part, empty=empty: tf_ops.check_restore(part.part.handle, empty))
            if part.part.name == "own":
                contents = self._adaptive[number] = self._adaptive_contents(number)
                table = part.part.table
                assert isinstance(table, AdaptiveTable)
                table.check_restore(contents)

    def rows_found(self) -> list[int]:
        """How many rows `check` has found for this worker, by parts."""
        return [part.rows for part in self._parts]

    def check_rows(self, found: Sequence[int]) -> None:
        """Raises CorruptionError unless all workers together take every row that was saved.

        Args:
            found: The sums of `rows_found` over all workers.
        """
        saved = [
            entry["parts"][part.name]["size"]
            for host, entry in zip(self._hosts, self._entries, strict=True)
            for part in host.parts
        ]
        for part, expected, received in zip(self._parts, saved, found, strict=True):
            # Rows that every worker takes are counted by each.
            if not part.part.shared and expected != received:
                raise kv.CorruptionError(
                    f"Table '{part.part.table.name}': expected {expected} {part.part.name} in "
                    f"'{self._folder}' for all workers together. Received: {received}. The "
                    "checkpoint, or what workers take of it, is incomplete, and nothing was "
                    "restored: take another one."
                )

    def _adaptive_contents(self, number: int) -> tf_ops.AdaptiveExport:
        """Everything of an adaptive table but its rows."""
        own, static = self._parts[number], self._parts[number + 1]
        host = next(host for host in self._hosts if host.table is own.part.table)
        fields: dict[str, Any] = {}
        for reader in (own, static):
            head = reader.head.contents(host.table.dim)
            fields |= {f"{reader.part.name}_{name}": v for name, v in head._asdict().items()}
        cells = merge_sketches(own.counts(SKETCH), self._workers, host.sketch_place)
        # Figures of several workers add up to what they were.
        inherited = [
            self._readers[place[:2]].tables[number]["counters"]
            for place in own.newest
            if place.worker % self._size == self._rank
        ]
        like = self._readers[own.newest[0][:2]].tables[number]["counters"]
        counters = np.array(inherited or [[0] * len(like)], np.int64).sum(0)
        counters[0] = like[0]  # the version
        return tf_ops.AdaptiveExport(
            **fields, cells=np.frombuffer(cells, np.uint8), counters=counters
        )

    def restore(self) -> None:
        """Replaces everything that the tables hold; `check` has been called."""
        for number, part in enumerate(self._parts):
            table = part.part.table
            if isinstance(table, Table):
                table.restore(part.head.contents(table.dim, admission=part.admission()))
            elif number in self._adaptive:
                assert isinstance(table, AdaptiveTable)
                table.restore(self._adaptive[number])
        for place, part, reader, block in self._blocks():
            if block.kind == ROWS:
                part.add(part.own(place.link, reader.rows_of(block)))
        for storage in self._storages():
            storage.flush()

    def _storages(self) -> set[kv.Storage]:
        tables = (host.table for host in self._hosts if isinstance(host.table, Table))
        return {table.storage for table in tables if table.storage is not None}


def workers_needed(hosts: Sequence[Host], manifest: Manifest, rank: int, size: int) -> list[int]:
    """Whose files of rows a worker reads.

    Args:
        hosts: The tables that are to be restored, in the order of the manifest.
        manifest: Of a checkpoint that has their descriptions.
        rank: The number of the worker that reads.
        size: How many there are.
    """
    return sorted(set().union(*_sources(hosts, manifest, rank, size)))


def _sources(hosts: Sequence[Host], manifest: Manifest, rank: int, size: int) -> list[set[int]]:
    """Which workers wrote rows of each table that may be this worker's."""
    found = []
    for host, entry in zip(hosts, manifest.tables, strict=True):
        if entry["owners"] == _EVERY_WORKER:
            found.append({0})
        elif manifest.workers == size and entry["owners"] == owner_text(host.table):
            found.append({rank})
        else:
            found.append(set(range(manifest.workers)))
    return found


def check_descriptions(manifest: Manifest, hosts: Sequence[Host]) -> None:
    """Raises ValueError unless the tables are those that the checkpoint has.

    Owner rules may differ, and where rows lie. Warns of other names and of new starts.
    """
    saved = {entry["path"]: entry for entry in manifest.tables}
    own = {host.path: host.description() for host in hosts}
    if saved.keys() != own.keys():
        missing = sorted(own.keys() - saved.keys())
        more = sorted(saved.keys() - own.keys())
        raise ValueError(
            "Expected a checkpoint with the tables of the model. Received: one that lacks "
            f"{', '.join(missing) or 'none'} and has {', '.join(more) or 'none'} more. Make the "
            "model by the code that made the one that was saved."
        )
    _check_names(saved, own)
    for path, described in own.items():
        entry = saved[path]
        fixed = ("kind", "dim", "static_buckets", "sketch_capacity", "counter_bits")
        differing = [name for name in fixed if entry.get(name) != described.get(name)]
        if differing:
            name = differing[0]
            raise ValueError(
                f"Table '{described['name']}': expected a checkpoint with {name}="
                f"{described.get(name)!r}. Received: {entry.get(name)!r}. Make the model with the "
                "arguments of the one that was saved."
            )
        for name in ("initializer", "seed"):
            if entry[name] != described[name]:
                warnings.warn(
                    f"Table '{described['name']}': expected the {name} of the checkpoint, "
                    f"{entry[name]!r}. Received: {described[name]!r}. Rows that are made from now "
                    "on start otherwise than those that were saved.",
                    stacklevel=9,
                )


def _check_names(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raises ValueError for tables that have changed places, whose paths are those of others."""
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
                f"'{was}'. Received: another one. It takes the rows of '{was}'.",
                stacklevel=10,
            )


def _without_count(name: str) -> str:
    """A name without the number that Keras adds where a process makes a layer again."""
    return re.sub(r"_\d+$", "", name)
