"""Describes checkpoints for commands, as dicts of JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sok_embed.binding import _core
from sok_embed.checkpoint.files import manifest as manifests
from sok_embed.checkpoint.files.manifest import Manifest
from sok_embed.checkpoint.files.rows_index import row_bytes
from sok_embed.checkpoint.files.step_folders import StepFolders
from sok_embed.checkpoint.tools.difference import Difference
from sok_embed.checkpoint.tools.saved import Saved, SavedTable
from sok_embed.files.records import local_path
from sok_embed.kv import CorruptionError

# A trainer that keeps one checkpoint may replace it while the directory is read. Then it is read
# again, at most this many times. One reading succeeds unless saves come as fast as readings.
_READINGS = 20


def listed(directory: str) -> list[dict[str, Any]]:
    """Returns a directory's checkpoints: incomplete ones first, the others in the order of saves.

    If a checkpoint is removed meanwhile, the directory is read again.

    Each has `path`, `step` and `state`: `"whole"`, `"no manifest"`, `"damaged"` or `"unknown"`
    (written by a later version). A whole one also has `serial`, `saved`, `workers`, `tables`,
    `parent` (the folder of the checkpoint on which it builds), `rows` (of all tables) and `bytes`
    (of its own files).
    """
    folders = StepFolders(local_path(directory))
    for _ in range(_READINGS):
        found, removed = _read(folders)
        if not removed:
            break
    return found


def _read(folders: StepFolders) -> tuple[list[dict[str, Any]], bool]:
    """Returns the checkpoints as `listed` does, and whether one was removed meanwhile."""
    removed = False
    found: list[dict[str, Any]] = [
        {"path": folders.folder(step), "step": step, "state": "no manifest"}
        for step in folders._steps()
        if not folders._is_whole(step)
    ]
    for step in folders.by_age():
        folder = folders.folder(step)
        about: dict[str, Any] = {"path": folder, "step": step, "state": "whole"}
        try:
            about |= _about(folder, manifests.read_chain(folder)[0].manifest)
        except FileNotFoundError:
            removed = True
            continue
        except OSError as error:
            if not folders._is_whole(step):
                removed = True  # after those that it has the changes since
                continue
            is_damaged = isinstance(error, CorruptionError)
            about |= {"state": "damaged" if is_damaged else "unreadable", "error": str(error)}
        except ValueError as error:
            about |= {"state": "unknown", "error": str(error)}
        found.append(about)
    return found, removed


def _about(folder: str, manifest: Manifest) -> dict[str, Any]:
    own = os.path.getsize(os.path.join(folder, manifests.NAME))
    files = (*manifest.rows, *manifest.files, *manifest.data)
    return {
        "serial": manifest.serial,
        "saved": os.path.getmtime(os.path.join(folder, manifests.NAME)),
        "workers": manifest.workers,
        "tables": len(manifest.tables),
        "parent": manifest.parent and manifest.parent.folder,
        "rows": sum(
            part["size"]
            for entry in manifest.tables for part in entry["parts"].values()
        ),
        "bytes": own + sum(record.bytes for record in files),
    }  # fmt: skip


def surveyed(saved: Saved, names: Sequence[str]) -> dict[str, Any]:
    """Returns the contents of the manifest and the indices of a checkpoint."""
    manifest = saved.manifest
    return {
        "path": saved.folder,
        "step": manifest.step,
        **_about(saved.folder, manifest),
        "attempt": f"{manifest.attempt:016x}",
        "tables": [_table(saved, table) for table in saved.chosen(names)],
        **{
            field: [
                {"variable": path, "dtype": dtype, "shape": shape}
                for path, dtype, shape in manifest.dense[field]
            ]
            for field in ("variables", "metrics")
        },
        "others": manifest.dense["others"],
        "files": [record._asdict() for record in (*manifest.rows, *manifest.files, *manifest.data)],
    }


def _table(saved: Saved, table: SavedTable) -> dict[str, Any]:
    described = table.described
    entries = [reader.tables[table.number] for reader in saved.readers]
    return {
        "table": table.label,
        "path": table.path,
        "part": table.part,
        "name": described["name"],
        "kind": described["kind"],
        "dim": table.dim,
        "rule": table.rule or None,
        "slots": _core.rule_slots(table.rule) if table.rule else [],
        "slot_floats": table.slot_floats,
        "steps": table.steps,
        "step_clock": None if table.step_clock < 0 else table.step_clock,
        "rows": table.rows,
        "rows_of_workers": [entry["rows"] for entry in entries],
        "bytes": sum(
            entry["rows"] * row_bytes(table.dim, entry["slot_floats"]) for entry in entries
        ),
        "admission_bytes": sum(entry["admission_bytes"] for entry in entries),
        "sketch_bytes": sum(entry.get("sketch_bytes", 0) for entry in entries),
        "owners": described["owners"],
        "initializer": described["initializer"],
        "seed": described["seed"],
    }


def rows_of_keys(saved: Saved, table: SavedTable, keys: Sequence[int]) -> dict[str, Any]:
    """Returns rows of a table, in the order of the keys; `missing` are the keys without one.

    It reads all files of rows.
    """
    wanted = np.array(keys, np.int64)
    found: dict[int, dict[str, Any]] = {}
    for rows in saved.rows(table):
        for at in np.flatnonzero(np.isin(rows.keys, wanted)):
            key = int(rows.keys[at])
            found[key] = {
                "key": key,
                "update_count": int(rows.update_nums[at]),
                "last_update": int(rows.update_times[at]),
                "embedding": rows.embeddings[at].tolist(),
                "slots": dict(_named_slots(table, rows.slots[at].tolist())),
            }
    return {
        "table": table.label,
        "times": "seconds" if table.step_clock < 0 else "steps",
        "rows": [found[key] for key in keys if key in found],
        "missing": [key for key in keys if key not in found],
    }


def _named_slots(table: SavedTable, floats: list[float]) -> Iterator[tuple[str, list[float]]]:
    names = _core.rule_slots(table.rule) if table.rule else []
    if not names and floats:
        names = ["slots"]  # of a rule of a later version
    width = len(floats) // max(1, len(names))
    for i, name in enumerate(names):
        yield name, floats[i * width : (i + 1) * width]


def checkpoints_in(path: str) -> list[str]:
    """Returns the checkpoint at a path, or those of a directory in the order of their saves."""
    folder = local_path(path)
    if manifests.is_whole(folder):
        return [path]
    folders = StepFolders(folder)
    found = [folders.folder(step) for step in folders.by_age()]
    if not found:
        raise FileNotFoundError(
            f"Expected a checkpoint, or a directory of checkpoints, in '{path}'. Received: a "
            f"folder without {manifests.NAME} and without whole checkpoints."
        )
    return found


def not_whole_in(directory: str) -> list[str]:
    """Returns the folders of a directory that have no manifest."""
    folders = StepFolders(local_path(directory))
    return [folders.folder(step) for step in folders._steps() if not folders._is_whole(step)]


def pruned(
    directory: str, keep: int, keep_every: int | None, dry_run: bool
) -> dict[str, list[str]]:
    """Removes old checkpoints and leftovers, as a `CheckpointManager` does; none if `dry_run`.

    Links stay, since their targets do not belong to the directory.

    Returns:
        The folders: `removed`; `leftovers`, which were removed too; `kept`; and `unreadable`, which
        are among the kept ones and stay with all checkpoints on which they may build.
    """
    folders = StepFolders(local_path(directory), keep, keep_every)
    found = folders._too_many(_last_readable(folders))
    goes, left = (
        [step for step in steps if not os.path.islink(folders.folder(step))]
        for steps in (found.steps, folders._leftovers())
    )
    kept = [step for step in folders.by_age() if step not in goes]
    if not dry_run:
        for step in (*left, *goes):
            folders._remove(step)
    return {
        name: [folders.folder(step) for step in steps]
        for name, steps in (
            ("removed", goes),
            ("leftovers", left),
            ("kept", kept),
            ("unreadable", found.unreadable),
        )
    }


def _last_readable(folders: StepFolders) -> int:
    """Returns the last step whose manifests can all be read; -1 if there is no such step.

    These are its own manifest, and the manifests of the checkpoints on which it builds.
    """
    for step in reversed(folders.by_age()):
        try:
            manifests.read_chain(folders.folder(step))
        except (OSError, ValueError):
            continue
        return step
    return -1


def as_report(found: Difference) -> dict[str, Any]:
    """Returns a difference as JSON, in which NaN and infinity are strings."""
    tables = [
        {"table": each.table, "name": each.name, "same": each.same, **asdict(each)}
        for each in found.tables
    ]
    variables = [each._asdict() for each in found.variables]
    told = {"same": found.same, **found._asdict(), "tables": tables, "variables": variables}
    report: dict[str, Any] = _plain(told)
    return report


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
