"""Writes a checkpoint that is like another one except for the rows of one table."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from sok_embed.binding import _core
from sok_embed.checkpoint.files.manifest_schema import ANY_WORKER, MIXED_OWNERS, ONE_WORKER
from sok_embed.checkpoint.files.rows_file import Rows, RowsWriter
from sok_embed.checkpoint.tools.conversion.tables import Head
from sok_embed.checkpoint.tools.saved import Saved, SavedTable, copy_rows, write_like
from sok_embed.kv import CorruptionError
from sok_embed.tables.owners import MixedRule, ModuloRule, OneWorkerRule, OwnerRule


def check_fits(base: Saved, table: SavedTable, head: Head) -> None:
    """Raises ValueError for rows that do not fit the table."""

    def refuse(what: str, of_table: object, of_rows: object, remedy: str) -> None:
        raise ValueError(
            f"Expected rows of {what} {of_table} for table '{table.label}' of '{base.folder}'. "
            f"Received: the rows of table '{head.label}', of {what} {of_rows}. {remedy}"
        )

    if base.manifest.parent is not None:
        raise ValueError(
            f"Expected a base with all rows. Received: '{base.folder}', which has only the changes "
            f"since '{base.chain[1].folder}'. Compact it first: sok-embed checkpoint compact."
        )
    if head.dim != table.dim:
        refuse("dim", table.dim, head.dim, "Give rows of a table of this dim.")
    if head.rule and table.rule and head.rule != table.rule:
        of_table, of_rows = _core.shown_rule(table.rule), _core.shown_rule(head.rule)
        refuse("optimizer", of_table, of_rows, "Give rows that the same optimizer has trained.")
    if head.slot_floats and table.slot_floats and head.slot_floats != table.slot_floats:
        remedy = "Give rows that the same optimizer has trained."
        refuse("slots of floats", table.slot_floats, head.slot_floats, remedy)
    if (head.step_clock >= 0) != (table.step_clock >= 0):
        of_table, of_rows = _unit(table.step_clock), _unit(head.step_clock)
        refuse("times in", of_table, of_rows, "Give rows whose ages are counted in the same way.")


def _unit(step_clock: int) -> str:
    """Returns the unit in which a table counts times."""
    return "steps" if step_clock >= 0 else "seconds"


def write_checkpoint(
    folder: str, base: Saved, table: SavedTable, head: Head, pieces: Iterable[Rows]
) -> int:
    """Writes a checkpoint into a folder that is empty. Returns the number of rows of the table.

    Everything else is copied from `base`, including the counts of admissions and sketches. Rows
    without slots get the slots of new rows.

    Raises:
        ValueError: For keys that are not buckets, where static rows are replaced.
    """
    workers, attempt = base.manifest.workers, secrets.randbelow(2**62) + 1
    deal = _Deal(table, workers)
    taken = _taken(table, head)
    counts = [0] * workers
    with ExitStack() as stack:
        writers = [
            stack.enter_context(RowsWriter(folder, attempt, worker, workers))
            for worker in range(workers)
        ]
        for writer, readers in zip(writers, base.readers_of, strict=True):
            copy_rows(readers, writer, leave_out=table.number)
        for rows in pieces:
            _check_keys(table, rows.keys)
            rows = rows.with_slots(taken["slot_start"])
            for worker, part in deal.parts(rows):
                writers[worker].put_rows(table.number, part)
                counts[worker] += len(part.keys)
        records = []
        for worker, (writer, reader) in enumerate(zip(writers, base.readers, strict=True)):
            entries = [dict(entry) for entry in reader.tables]
            entries[table.number] |= {**taken, "rows": counts[worker], "size": counts[worker]}
            records.append(writer.finish(entries))
    tables = _tables(base, table, taken, sum(counts), deal)
    write_like(folder, base, attempt, tables=tables, rows=records, state=attempt)
    return sum(counts)


def _taken(table: SavedTable, head: Head) -> dict[str, Any]:
    """Returns the fields of the index for the new rows, except their number."""
    trained: SavedTable | Head = head if head.rule else table
    return {
        "rule": trained.rule,
        "slot_floats": trained.slot_floats,
        "slot_start": list(trained.slot_start),
        "steps": trained.steps,
        "step_clock": head.step_clock,
    }


def _check_keys(table: SavedTable, keys: npt.NDArray[np.int64]) -> None:
    buckets = table.described.get("static_buckets", 0)
    if table.part == "static" and ((keys < 0) | (keys >= buckets)).any():
        raise ValueError(
            f"Table '{table.label}': expected buckets in [0, {buckets}) as keys. Received: "
            f"{keys.min()} to {keys.max()}."
        )


def _tables(
    base: Saved, table: SavedTable, taken: dict[str, Any], rows: int, deal: _Deal
) -> list[dict[str, Any]]:
    """Returns the manifest's entries of the tables."""
    tables = []
    for entry in base.manifest.tables:
        if entry["path"] == table.path:
            told = {name: taken[name] for name in ("rule", "slot_floats", "steps")}
            parts = {**entry["parts"], table.part: {**told, "rows": rows, "size": rows}}
            entry = {**entry, "parts": parts, "owners": deal.text}
        tables.append(entry)
    return tables


class _Deal:
    """Decides into which worker's file each row of a table is written.

    Attributes:
        text: The rule, for the manifest.
    """

    def __init__(self, table: SavedTable, workers: int) -> None:
        self.text = str(table.described["owners"])
        self._workers = workers
        self._rule = _rule_of(self.text)
        if self._rule is None and self.text != "every worker" and workers > 1:
            self.text = ANY_WORKER

    def parts(self, rows: Rows) -> list[tuple[int, Rows]]:
        """Returns the rows that go to each worker."""
        if self._rule is None or self._workers == 1:
            return [(0, rows)]
        owners = self._rule.owners(rows.keys, self._workers)
        assert owners is not None
        return [(worker, rows.where(owners == worker)) for worker in range(self._workers)]


def _rule_of(text: str) -> OwnerRule | None:
    """Returns the rule that a manifest's text names.

    `None` if it is unknown, or needs more than the key.
    """
    if text == ModuloRule.text:
        return ModuloRule()
    if (mixed := MIXED_OWNERS.fullmatch(text)) is not None:
        return MixedRule(int(mixed[1]))
    if ONE_WORKER.fullmatch(text):
        return OneWorkerRule(int(text))
    return None


def check_whole(found: list[str], folder: str) -> None:
    """Raises CorruptionError if a checkpoint that was just written has faults."""
    if found:
        raise CorruptionError(
            f"Expected the rows to make a whole checkpoint. Received, in '{folder}': {found[0]} "
            "Nothing was kept: give rows in which each key occurs once."
        )
