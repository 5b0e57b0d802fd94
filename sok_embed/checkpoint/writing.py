"""What one worker writes of a checkpoint: the rows that it has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from sok_embed import tf_ops
from sok_embed.adaptive_table import AdaptiveTable
from sok_embed.checkpoint.files import FileRecord, removed_on_error, rows_name
from sok_embed.checkpoint.rows_file import ADMISSION, SKETCH, RowsWriter
from sok_embed.checkpoint.tables import Head, Host, Part
from sok_embed.tensors import as_errors


def write_rows(
    folder: str, hosts: Sequence[Host], attempt: int, worker: int, workers: int
) -> FileRecord:
    """Writes all rows of this worker into one file, which is removed on an error.

    Rows that every worker has are written by worker 0.
    """
    path = os.path.join(folder, rows_name(worker, workers, attempt))
    entries: list[dict[str, Any]] = []
    with removed_on_error(path), RowsWriter(path, attempt, worker, workers) as writer:
        for host in hosts:
            for part in host.parts:
                entries.append(_write_part(writer, len(entries), host, part, worker))
            if isinstance(host.table, AdaptiveTable):
                # The counts stand with the own rows, which come first.
                entries[-2] |= _write_sketch(writer, len(entries) - 2, host.table)
        return writer.finish(entries)


def _write_part(
    writer: RowsWriter, number: int, host: Host, part: Part, worker: int
) -> dict[str, Any]:
    head, admission = part.head()
    rows = 0
    if worker == 0 or not part.shared:
        scratch = f"{writer.path}.rows"
        for piece in part.pieces(head, scratch):
            writer.put_rows(number, piece)
            rows += len(piece.keys)
    writer.put_bytes(number, ADMISSION, admission)
    return {
        "path": host.path,
        "part": part.name,
        "dim": part.table.dim,
        "slot_floats": len(head.slot_start),
        **head._asdict(),
        "rows": rows,
        "admission_bytes": len(admission),
    }


def _write_sketch(writer: RowsWriter, number: int, table: AdaptiveTable) -> dict[str, Any]:
    exported = as_errors(
        lambda: tf_ops.adaptive_export(table.resource_handle, table.dim, with_rows=False)
    )
    sketch = exported.cells.numpy().tobytes()
    writer.put_bytes(number, SKETCH, sketch)
    return {
        "sketch_bytes": len(sketch),
        "counters": [int(count) for count in exported.counters.numpy()],
    }


def head_in(entry: dict[str, Any]) -> Head:
    """The head of a table, as an index has it."""
    return Head(*(entry[field] for field in Head._fields))
