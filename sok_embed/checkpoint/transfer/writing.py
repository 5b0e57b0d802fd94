"""Writes a worker's part of a checkpoint: its rows at one moment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

from sok_embed import kv, tf_ops
from sok_embed.binding import _core
from sok_embed.checkpoint.files.names import rows_name
from sok_embed.checkpoint.files.rows_file import ADMISSION, SKETCH, RowsWriter
from sok_embed.checkpoint.files.rows_index import Head, entry_of
from sok_embed.checkpoint.state.tables import LocatedTable, begin_capture, read_head
from sok_embed.files.records import FileRecord
from sok_embed.tables.base_table import Part
from sok_embed.tables.tensors import as_errors

_CACHE_BYTES = 8 << 20  # of a storage that is opened only for a dump


class RowsCapture:
    """The contents of a worker's tables at one moment, while training goes on.

    Rows in memory are not copied at once: a call that changes a row first keeps a copy of it. Rows
    that every worker has are taken from worker 0. Rows on disk are always captured whole.

    Args:
        mark: The number of this state, since which the next save may save changes; 0: no save will.
        since: The number of an earlier state: only changes since then are captured; 0: all rows are
            captured.
        apart: True if storages change before `write` is called, so that their present rows are kept
            separately in the folder.
    """

    def __init__(
        self,
        folder: str,
        hosts: Sequence[LocatedTable],
        attempt: int,
        worker: int,
        workers: int,
        mark: int,
        since: int,
        apart: bool,
    ) -> None:
        self._file = folder, attempt, worker, workers
        self._worker, self._mark, self._since = worker, mark, since
        self._path = os.path.join(folder, rows_name(worker, workers, attempt))
        self._entries: list[dict[str, Any]] = []
        self._captures: dict[int, _core.Capture] = {}
        self._stored: dict[int, tuple[kv.Storage | str, int]] = {}  # its storage and group
        self._counts: list[tuple[int, int, bytes]] = []
        self._apart: dict[int, str] = {}  # folders, by the storage
        try:
            for host in hosts:
                for part in host.parts:
                    self._capture(host, part, apart)
        except BaseException:
            self.end()
            raise

    def _capture(self, host: LocatedTable, part: Part, apart: bool) -> None:
        number = len(self._entries)
        has_rows = self._worker == 0 or not part.shared
        whole, rows, size, removed = True, 0, 0, 0
        storage = part.table.storage
        if storage is None:
            head, admission, capture, whole = self._capture_memory(part)
            if has_rows:
                self._captures[number] = capture
                rows, size, removed = capture.rows, capture.size, capture.removed
            else:
                capture.end()
        else:
            head, admission = read_head(part.handle, part.table.dim)
            if has_rows:
                source = self._set_apart(storage) if apart else storage
                self._stored[number] = source, part.group
        entry, counts = described(host, part, head, admission)
        self._counts += [(number, *each) for each in counts]
        of_rows = {"rows": rows, "size": size, "removed": removed, "whole": whole}
        self._entries.append(entry | of_rows)

    def _capture_memory(self, part: Part) -> tuple[Head, bytes, _core.Capture, bool]:
        """Returns the head, counts, the capture, and whether it is a capture of all rows."""
        if self._since:
            try:
                return *begin_capture(part, self._mark, self._since), False
            except RuntimeError:
                pass  # the table was replaced, or has another rule now, or another save goes on
        return *begin_capture(part, self._mark, 0), True

    def _set_apart(self, storage: kv.Storage) -> str:
        """Makes a checkpoint of a storage in the folder; its files are links where possible."""
        if id(storage) not in self._apart:
            folder = f"{self._path}.storage-{len(self._apart)}"
            storage.checkpoint(folder)
            self._apart[id(storage)] = folder
        return self._apart[id(storage)]

    def write(self) -> FileRecord:
        """Writes everything into one file, which is removed on an error."""
        try:
            return self._write()
        finally:
            for capture in self._captures.values():
                capture.release()

    def _write(self) -> FileRecord:
        with RowsWriter(*self._file) as writer:
            writer.core.put_captures(list(self._captures), list(self._captures.values()))
            for number in self._stored:
                self._write_stored(writer, number)
            for number, kind, data in self._counts:
                writer.put_bytes(number, kind, data)
            return writer.finish(self._entries)

    def _write_stored(self, writer: RowsWriter, number: int) -> None:
        source, group = self._stored[number]
        if isinstance(source, kv.Storage):
            rows = writer.core.put_stored(number, source.ready(), group)
        else:
            # The checkpoint of the storage belongs to this worker alone, also if there are several
            # workers.
            storage = _core.Storage(source, None, _CACHE_BYTES, write_through=False, read_only=True)
            try:
                rows = writer.core.put_stored(number, storage, group)
            finally:
                storage.close()
        self._entries[number] |= {"rows": rows, "size": rows}

    def keep(self) -> None:
        """Confirms that captured rows are safe: the next save may save only later changes."""
        for capture in self._captures.values():
            capture.keep()
        self.end()

    def end(self) -> None:
        """Ends the capture: no rows are copied for it any more."""
        for capture in self._captures.values():
            capture.end()
        self._captures.clear()
        for folder in self._apart.values():
            shutil.rmtree(folder, ignore_errors=True)
        self._apart.clear()


def described(
    host: LocatedTable, part: Part, head: Head, admission: bytes
) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
    """Returns the index's entry of a part whose rows are not written, and its counts by kind."""
    entry = entry_of(host.path, part.name, part.table.dim, head, len(admission))
    counts = [(ADMISSION, admission)] if admission else []
    if part.sketch is not None:
        table = part.table
        exported = as_errors(
            lambda: tf_ops.adaptive_export(table.resource_handle, table.dim, with_rows=False)
        )
        counts.append((SKETCH, exported.cells.numpy().tobytes()))
        entry["sketch_bytes"] = len(counts[-1][1])
        entry["counters"] = [int(count) for count in exported.counters.numpy()]
    return entry, counts
