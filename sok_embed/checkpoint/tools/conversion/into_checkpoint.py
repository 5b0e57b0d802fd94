"""Writes a checkpoint that is like another one except for the rows of one table."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from sok_embed.binding import _core
from sok_embed.checkpoint.files.manifest_schema import ANY_WORKER, MIXED_OWNERS, ONE_WORKER
from sok_embed.checkpoint.files.rows_file import RowsWriter
from sok_embed.checkpoint.tools.conversion.tables import Moving
from sok_embed.checkpoint.tools.saved import (
    Saved,
    SavedTable,
    TableHead,
    copy_rows,
    open_saved,
    write_like,
)
from sok_embed.checkpoint.tools.verify import verify
from sok_embed.kv import CorruptionError
from sok_embed.tables.owners import MixedRule, ModuloRule, OneWorkerRule, OwnerRule


def write_checkpoint(folder: str, moving: Moving, base: str, name: str | None) -> int:
    """Writes a checkpoint into a new folder. Returns the number of rows of the table.

    Everything but the rows of one table is copied from `base`, including the counts of admissions
    and sketches. Rows without slots get the slots of new rows. `None` as the name stands for the
    label of the rows' table.

    Raises:
        ValueError: For rows that do not fit the table.
    """
    saved, head = open_saved(base), moving.head
    table = saved.one(name or head.label)
    _check_fits(saved, table, head)
    os.mkdir(folder)
    workers, attempt = saved.manifest.workers, secrets.randbelow(2**62) + 1
    owners = str(table.described["owners"])
    rule = _rule_of(owners)
    if rule is None and owners != "every worker" and workers > 1:
        owners = ANY_WORKER
    trained = head if head.rule else table
    taken = {"rule": trained.rule, "slot_floats": trained.slot_floats, "steps": trained.steps}
    start = list(trained.slot_start)
    counts = [0] * workers
    with ExitStack() as stack:
        writers = [
            stack.enter_context(RowsWriter(folder, attempt, worker, workers))
            for worker in range(workers)
        ]
        for writer, readers in zip(writers, saved.readers_of, strict=True):
            copy_rows(readers, writer, leave_out=table.number)
        for rows in moving.pieces():
            _check_keys(table, rows.keys)
            rows = rows.with_slots(start)
            of_rows = None if rule is None else rule.owners(rows.keys, workers)
            for worker, writer in enumerate(writers[:1] if of_rows is None else writers):
                part = rows if of_rows is None else rows.where(of_rows == worker)
                writer.put_rows(table.number, part)
                counts[worker] += len(part.keys)
        records = []
        for writer, reader, count in zip(writers, saved.readers, counts, strict=True):
            entries = [dict(entry) for entry in reader.tables]
            own = {"slot_start": start, "step_clock": head.step_clock, "rows": count, "size": count}
            entries[table.number] |= taken | own
            records.append(writer.finish(entries))
    told = {**taken, "rows": sum(counts), "size": sum(counts)}
    tables = [
        {**entry, "parts": {**entry["parts"], table.part: told}, "owners": owners}
        if entry["path"] == table.path
        else entry
        for entry in saved.manifest.tables
    ]
    write_like(folder, saved, attempt, tables=tables, rows=records, state=attempt)
    if faults := verify(folder).faults:
        raise CorruptionError(
            f"Expected the rows to make a whole checkpoint. Received, in '{folder}': {faults[0]} "
            "Nothing was kept: give rows in which each key occurs once."
        )
    return sum(counts)


def _check_fits(base: Saved, table: SavedTable, head: TableHead) -> None:
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
        of_table, of_rows = (
            "steps" if each.step_clock >= 0 else "seconds" for each in (table, head)
        )
        refuse("times in", of_table, of_rows, "Give rows whose ages are counted in the same way.")


def _check_keys(table: SavedTable, keys: npt.NDArray[np.int64]) -> None:
    buckets = table.described.get("static_buckets", 0)
    if table.part == "static" and ((keys < 0) | (keys >= buckets)).any():
        raise ValueError(
            f"Table '{table.label}': expected buckets in [0, {buckets}) as keys. Received: "
            f"{keys.min()} to {keys.max()}."
        )


def _rule_of(text: str) -> OwnerRule | None:
    """Returns the rule of a manifest's text; `None` if it is unknown or needs more than keys."""
    if text == ModuloRule.text:
        return ModuloRule()
    if (mixed := MIXED_OWNERS.fullmatch(text)) is not None:
        return MixedRule(int(mixed[1]))
    if ONE_WORKER.fullmatch(text):
        return OneWorkerRule(int(text))
    return None
