"""Chooses the source that a path, or its absence, stands for."""

from __future__ import annotations

from pathlib import Path

from ctr import criteo, movielens
from ctr.batches import InputError, Source
from ctr.generated import Generated

DEFAULT_SAMPLES = 600_000


def open_source(path: Path | None, samples: int | None, seed: int) -> Source:
    """Opens a Criteo or MovieLens file by its first line, or generates clicks without a path."""
    if path is None:
        return Generated(DEFAULT_SAMPLES if samples is None else samples, seed)
    if samples is not None:
        raise InputError(
            f"--samples: expected only without --data, as it sizes the generated clicks. Received: "
            f"--samples {samples} --data {path}. Leave one of them out."
        )
    if not path.is_file():
        raise InputError(f"--data: expected a file. Received: {path}. Check the path.")
    columns = _columns(path)
    if columns == criteo.COLUMNS:
        return criteo.Criteo(path)
    if columns == movielens.COLUMNS:
        return movielens.MovieLens(path, seed)
    raise InputError(
        f"{path}, line 1: expected Criteo ({criteo.COLUMNS} columns, tabs or commas) or MovieLens "
        f"({movielens.COLUMNS} columns, tabs). Received: {columns} columns. "
        "Give a Criteo train file, or u.data or ua.base of MovieLens 100k, unpacked."
    )


def _columns(path: Path) -> int:
    with path.open(encoding="utf-8", errors="replace") as lines:
        first = next(lines, "")
    if not first.strip():
        return 0
    return len(first.split("\t" if "\t" in first else ","))
