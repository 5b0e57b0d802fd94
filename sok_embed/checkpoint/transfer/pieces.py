"""Writes the rows of a worker to a file for another worker, while no table is changed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from sok_embed import tf_ops
from sok_embed.checkpoint.files.records import FileRecord, rows_name
from sok_embed.checkpoint.files.rows_file import ADMISSION, SKETCH, Rows, RowsWriter
from sok_embed.checkpoint.files.rows_index import Head, row_bytes
from sok_embed.checkpoint.state.tables import Host, head_of, read_head
from sok_embed.checkpoint.transfer.writing import entry_of, sketch_of
from sok_embed.files.whole_files import removed_on_error
from sok_embed.tables.base_table import Part
from sok_embed.tables.tensors import as_errors

# The bytes of the rows that are in memory twice while they are copied.
_PIECE_BYTES = 64 << 20


def write_rows(
    folder: str, hosts: Sequence[Host], attempt: int, worker: int, workers: int
) -> FileRecord:
    """Writes all rows of this worker in memory into one file, which is removed on an error.

    It needs no capture, of which a table can have only one at a time, so a checkpoint may be
    written meanwhile. Rows that every worker has are written by worker 0.

    Raises:
        RuntimeError: If a table was changed meanwhile.
    """
    path = os.path.join(folder, rows_name(worker, workers, attempt))
    entries: list[dict[str, Any]] = []
    with removed_on_error(path), RowsWriter(path, attempt, worker, workers) as writer:
        for host in hosts:
            for part in host.parts:
                entries.append(_write_part(writer, len(entries), host, part, worker))
        return writer.finish(entries)


def _write_part(
    writer: RowsWriter, number: int, host: Host, part: Part, worker: int
) -> dict[str, Any]:
    head, admission = read_head(part.handle, part.table.dim)
    rows = 0
    if worker == 0 or not part.shared:
        for piece in _pieces(part, head):
            writer.put_rows(number, piece)
            rows += len(piece.keys)
    if admission:
        writer.put_bytes(number, ADMISSION, admission)
    sketch, of_sketch = sketch_of(part)
    if sketch:
        writer.put_bytes(number, SKETCH, sketch)
    return entry_of(host, part, head, len(admission)) | of_sketch | {"rows": rows, "size": rows}


def _pieces(part: Part, head: Head) -> Iterator[Rows]:
    """Yields all rows in pieces; raises RuntimeError if the table is changed meanwhile."""
    table = part.table
    most = max(1, _PIECE_BYTES // row_bytes(table.dim, len(head.slot_start)))
    expected = None
    for begin in itertools.count(0, most):
        size, exported = as_errors(
            lambda begin=begin: tf_ops.export_piece(part.handle, table.dim, begin, most)
        )
        now = (int(size), head_of(exported))
        expected = expected or now
        if now != expected or now[1] != head:
            raise RuntimeError(
                f"Table '{table.name}': expected it to stay as it is while it is saved. "
                "Received: a change. Save between two steps, on the thread that trains."
            )
        yield Rows._make(exported._asdict()[field].numpy() for field in Rows._fields)
        if begin + most >= expected[0]:
            return
