"""Writes checkpoints again: dealt to other workers, or with other counts, all checksums right."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from sok_embed.checkpoint.files.rows_file import ADMISSION, ROWS, SKETCH, RowsWriter
from sok_embed.checkpoint.tools.saved import open_saved, write_like

_BYTES = {ADMISSION: "admission_bytes", SKETCH: "sketch_bytes"}


def dealt(
    folder: Path,
    target: Path,
    workers: int,
    changed: Callable[[int, int, bytes], bytes] = lambda worker, kind, data: data,
) -> None:
    """Writes a checkpoint of one worker as several would have it, each with all counts.

    Args:
        folder: The checkpoint of one worker.
        target: The folder of the one to be written.
        workers: How many are to have written it.
        changed: Gets a worker's number, a kind of blocks and counts; returns those to be written.
    """
    saved = open_saved(str(folder))
    reader = saved.readers[0]
    attempt = random.randrange(1, 2**62)
    os.makedirs(target)
    records = []
    for worker in range(workers):
        with RowsWriter(str(target), attempt, worker, workers) as writer:
            entries = [dict(entry) for entry in reader.tables]
            for block in reader.blocks():
                if block.kind == ROWS:
                    rows = reader.rows_of(block)
                    mine = rows.where(rows.keys % workers == worker)
                    writer.put_rows(block.table, mine)
                    entries[block.table] |= {"rows": len(mine.keys), "size": len(mine.keys)}
                else:
                    data = changed(worker, block.kind, bytes(block.payload))
                    writer.put_bytes(block.table, block.kind, data)
                    if block.kind in _BYTES:
                        entries[block.table] |= {_BYTES[block.kind]: len(data)}
            records.append(writer.finish(entries))
    write_like(str(target), saved, attempt, workers=workers, rows=records, state=attempt)
