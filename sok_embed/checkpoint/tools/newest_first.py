"""Merges the files of incremental checkpoints: the newest row of a key wins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sok_embed.binding import _core
from sok_embed.checkpoint.files.rows_file import (
    REMOVED,
    ROWS,
    Block,
    Rows,
    RowsReader,
    RowsWriter,
)

Watch = Callable[[int], None]  # gets the bytes that were read since the last call


class _NewestFirst:
    """Chooses the current rows of a table, while files are read from the newest to the oldest.

    The first row of each key is current, unless a newer file lists the key as removed.
    """

    def __init__(self, links: int) -> None:
        self._last = links - 1
        self._link = 0
        self._settled = _core.KeySet()  # keys of rows, and removed keys, of newer files
        self._noted: list[npt.NDArray[np.uint64]] = []  # the same of the file that is read

    def note_keys(self, link: int, keys: npt.NDArray[np.int64]) -> None:
        """Notes keys that file number `link` removes (0 is the newest), for older files."""
        if link != self._link:
            for noted in self._noted:
                self._settled.add(noted)
            self._noted.clear()
            self._link = link
        if link < self._last:
            self._noted.append(keys.view(np.uint64).copy())

    def live(self, link: int, rows: Rows) -> Rows:
        """Returns the rows of file number `link` that are current."""
        self.note_keys(link, rows.keys)
        if not len(self._settled):
            return rows
        settled = np.empty(len(rows.keys), np.uint8)
        self._settled.contains(rows.keys.view(np.uint64), settled)
        return rows.where(settled == 0)


def live_blocks(
    readers: Sequence[RowsReader],
    wanted: Collection[int] | None = None,
    watch: Watch | None = None,
) -> Iterator[tuple[Block, Rows | None]]:
    """Yields the current blocks of one worker: rows of all files, and counts of the newest file.

    Each comes with its current rows, or with `None` if it holds the counts of an admission or a
    sketch.

    Args:
        readers: The worker's files in a checkpoint and in the checkpoints on which it builds, the
            newest first. In all of them a key is in the file of the same worker.
        wanted: The numbers of the tables. A file without current blocks of these tables is not
            read. `None`: all tables, and all files are read to their ends.
        watch: A function that is called with the number of bytes that were read.
    """
    newest_first: dict[int, _NewestFirst] = defaultdict(lambda: _NewestFirst(len(readers)))
    settled: set[int] = set()  # tables of which newer files have all rows
    for link, reader in enumerate(readers):
        if wanted is not None and settled.issuperset(wanted):
            return
        for block in reader.blocks():
            if watch is not None:
                watch(len(block.payload))
            number = block.table
            if number in settled or (wanted is not None and number not in wanted):
                continue
            if block.kind == ROWS:
                yield block, newest_first[number].live(link, reader.rows_of(block))
            elif block.kind == REMOVED:
                newest_first[number].note_keys(link, reader.removed_in(block))
            elif link == 0:
                yield block, None
        settled |= {number for number, entry in enumerate(reader.tables) if entry["whole"]}


class CountedBytes:
    """Joins the counts of admissions and sketches, whose blocks come in order."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], bytearray] = defaultdict(bytearray)

    def add(self, block: Block) -> None:
        """Adds a piece; raises ValueError if bytes before it are missing."""
        held = self._held[block.table, block.kind]
        if len(held) != block.number:
            raise ValueError(
                f"Expected counts from byte {len(held)} on. Received: from {block.number} on."
            )
        held += block.payload

    def of(self, table: int, kind: int) -> bytes | None:
        """Returns all bytes of one kind for a table; `None` if it has no block of this kind."""
        held = self._held.get((table, kind))
        return None if held is None else bytes(held)

    def write(self, writer: RowsWriter) -> None:
        """Writes everything into another file."""
        for (number, kind), held in self._held.items():
            writer.put_bytes(number, kind, bytes(held))
