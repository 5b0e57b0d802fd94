"""Turns a checkpoint of changes into a full one, which needs no other checkpoint."""

from __future__ import annotations

import os
import secrets

from sok_embed.checkpoint.files import manifest as manifests
from sok_embed.checkpoint.files.rows_file import RowsWriter
from sok_embed.checkpoint.tools.newest_first import Watch
from sok_embed.checkpoint.tools.saved import Saved, copy_rows, open_saved, write_like


def compact(folder: str | os.PathLike[str], watch: Watch | None = None) -> int:
    """Writes all rows of a checkpoint, and of the checkpoints on which it builds, into its folder.

    The full contents replace the changes in one step. Checkpoints that build on this one stay
    valid, and it no longer needs the checkpoints on which it was built. No job may save into the
    directory meanwhile.

    Args:
        folder: The folder of the checkpoint.
        watch: The function that is called with the number of bytes that were read.

    Returns:
        The number of checkpoints on which it was built; 0 if there was nothing to do.

    Raises:
        FileNotFoundError: If the folder lacks a whole checkpoint.
        CorruptionError: For a damaged file of the checkpoint, or of one on which it builds.
        ValueError: For a URL, and for a checkpoint of a later version.
        OSError: From the file system. The checkpoint stays as it was.
    """
    saved = open_saved(os.fspath(folder))
    if len(saved.chain) == 1:
        return 0
    attempt = secrets.randbelow(2**62) + 1
    try:
        _write(saved, attempt, watch)
    except BaseException:
        manifests.remove_attempts(saved.folder, lambda each: each == attempt)
        raise
    manifests.remove_attempts(saved.folder, lambda each: each != attempt)
    return len(saved.chain) - 1


def _write(saved: Saved, attempt: int, watch: Watch | None) -> None:
    manifest = saved.manifest
    records = []
    for worker in range(len(manifest.rows)):
        with RowsWriter(saved.folder, attempt, worker, manifest.workers) as writer:
            entries = [
                {**entry, "rows": entry["size"], "removed": 0, "whole": True}
                for entry in saved.readers[worker].tables
            ]
            copy_rows(saved.readers_of[worker], writer, watch=watch)
            records.append(writer.finish(entries))
    parts = [
        {**entry, "parts": {name: {**part, "rows": part["size"]} for name, part in named.items()}}
        for entry in manifest.tables
        for named in [entry["parts"]]
    ]
    write_like(saved.folder, saved, attempt, tables=parts, rows=records, parent=None)
