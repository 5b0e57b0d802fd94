"""Checkpoints that are written by hand, without a model, and what is in them as NumPy has it."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sok_embed.checkpoint.files import manifest as manifests
from sok_embed.checkpoint.files.manifest import Manifest
from sok_embed.checkpoint.files.names import dense_prefix
from sok_embed.checkpoint.files.rows_file import ADMISSION, SKETCH, Rows, RowsWriter
from sok_embed.files.records import record_of

INITIALIZER = {"kind": "uniform", "a": -0.5, "b": 0.5}
NAN = np.array([0x7FC01234], np.uint32).view(np.float32)[0]  # with a payload of its own


class Table(NamedTuple):
    """A table of a checkpoint.

    Attributes:
        name: The last part of its path, too.
        rows: All of them.
        rule: Of its optimizer.
        owners: The text of the rule.
        parts: `("rows",)`, or those of an adaptive table, which have rows of one kind each.
        static: The rows of the second part.
        step_clock: As in an index.
        start: Of every element of a slot.
    """

    name: str
    rows: Rows
    rule: str = "adam"
    owners: str = "key % size"
    static: Rows | None = None
    step_clock: int = -1
    start: float = 0.0

    @property
    def path(self) -> str:
        return f"model/{self.name}"

    @property
    def parts(self) -> dict[str, Rows]:
        return {"rows": self.rows} if self.static is None else {
            "own": self.rows, "static": self.static
        }  # fmt: skip


def rows_of(keys: Any, dim: int, slot_floats: int, seed: int = 1) -> Rows:
    """Rows of random content; slots that sum squares must not be negative, so none is."""
    random_numbers = np.random.default_rng(seed)
    keys = np.asarray(keys, np.int64)
    n = len(keys)
    return Rows(
        keys,
        random_numbers.normal(size=(n, dim)).astype(np.float32),
        random_numbers.uniform(size=(n, slot_floats)).astype(np.float32),
        random_numbers.integers(0, 2**32, n),
        random_numbers.integers(1_600_000_000, 1_700_000_000, n),
    )


def write_by_hand(
    folder: Path, tables: list[Table], workers: int = 1, step: int = 7, serial: int = 1
) -> Path:
    """Writes a checkpoint whose rows lie on the workers key % workers; dense files are not read."""
    tables = sorted(tables, key=lambda table: table.path)
    os.makedirs(folder)
    attempt = random.randrange(2**62)
    records, entries_of = [], []
    for worker in range(workers):
        with RowsWriter(str(folder), attempt, worker, workers) as writer:
            entries = _put(writer, tables, worker, workers)
            records.append(writer.finish(entries))
        entries_of.append(entries)
    described = [_described(table, [e for each in entries_of for e in each]) for table in tables]
    prefix = dense_prefix(attempt)
    dense = {"prefix": prefix, "variables": [], "metrics": [], "others": []}
    files = []
    for ending in (".data-00000-of-00001", ".index"):
        (folder / f"{prefix}{ending}").write_bytes(b"of no variables")
        files.append(record_of(str(folder), f"{prefix}{ending}"))
    manifests.write(
        str(folder), Manifest(attempt, serial, step, workers, dense, described, records, files)
    )
    return folder


def _put(
    writer: RowsWriter, tables: list[Table], worker: int, workers: int
) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for table in tables:
        for part, rows in table.parts.items():
            mine = rows.where(rows.keys % workers == worker)
            writer.put_rows(len(entries), mine)
            counted = f"counts of {table.name} on {worker}".encode()
            writer.put_bytes(len(entries), ADMISSION, counted)
            entry = {
                "path": table.path, "part": part, "dim": rows.embeddings.shape[1],
                "slot_floats": rows.slots.shape[1], "rule": table.rule, "steps": 9 + worker,
                "step_clock": table.step_clock,
                "slot_start": [table.start] * rows.slots.shape[1],
                "rows": len(mine.keys), "admission_bytes": len(counted),
            }  # fmt: skip
            if part == "own":
                writer.put_bytes(len(entries), SKETCH, b"sketch")
                entry |= {"sketch_bytes": 6, "counters": [1, 2, 0, 0, 0]}
            entries.append(entry)
    return entries


def _described(table: Table, entries: list[dict[str, Any]]) -> dict[str, Any]:
    parts = {}
    for part, rows in table.parts.items():
        parts[part] = {
            "rule": table.rule, "slot_floats": rows.slots.shape[1], "rows": len(rows.keys),
            "steps": max(each["steps"] for each in entries),
        }  # fmt: skip
    adaptive = table.static is not None
    more = {"static_buckets": 5, "sketch_capacity": 9, "counter_bits": 8} if adaptive else {}
    return {
        "path": table.path, "name": table.name, "kind": "adaptive" if adaptive else "table",
        "dim": table.rows.embeddings.shape[1], "owners": table.owners,
        "initializer": INITIALIZER, "seed": 3, **more, "parts": parts,
    }  # fmt: skip


def rewrite_manifest(folder: Path, change: Any) -> None:
    """Writes the manifest again, with a checksum that fits, after a change of its fields."""
    manifests.write(str(folder), change(manifests.read(str(folder))))


def by_key(rows: Rows) -> Rows:
    """The same rows in the order of their keys."""
    return Rows._make(column[np.argsort(rows.keys, kind="stable")] for column in rows)


def bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(array).view(np.uint32) if array.dtype == np.float32 else array


def assert_same_rows(found: Rows, expected: Rows) -> None:
    """Both have the same rows, bit for bit, in any order."""
    for name, a, b in zip(Rows._fields, by_key(found), by_key(expected), strict=True):
        np.testing.assert_array_equal(bits(a), bits(b), err_msg=name)


def flipped(path: Path, at: int) -> bytes:
    """Flips a bit of a file, and returns what was in it."""
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[at] ^= 1 << random.randrange(8)
    path.write_bytes(bytes(changed))
    return whole


def copied(folder: Path, name: str) -> Path:
    """A copy of a folder beside it."""
    return Path(shutil.copytree(folder, folder.with_name(name)))
