"""Converts rows of tables from one form to another, in pieces."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import NamedTuple

from sok_embed import kv
from sok_embed.binding import _core
from sok_embed.checkpoint.files import manifest as manifests
from sok_embed.checkpoint.files.rows_file import Rows
from sok_embed.checkpoint.tools.conversion.dump import dump_tables, groups_of, write_dump
from sok_embed.checkpoint.tools.conversion.into_checkpoint import write_checkpoint
from sok_embed.checkpoint.tools.conversion.keras_file import HDF5_MAGIC, is_keras_file, keras_tables
from sok_embed.checkpoint.tools.conversion.npz import npz_head, npz_rows, write_npz
from sok_embed.checkpoint.tools.conversion.parquet import (
    parquet_head,
    parquet_rows,
    write_parquet,
)
from sok_embed.checkpoint.tools.conversion.tables import Moving
from sok_embed.checkpoint.tools.saved import TableHead, chosen, open_saved
from sok_embed.files.records import damaged, local_path, opened
from sok_embed.files.whole_files import sync

FORMS = ("parquet", "npz", "dump", "storage", "checkpoint")
_MAGIC = {b"PAR1": "parquet", b"PK\x03\x04": "npz", b"SOKD": "dump", HDF5_MAGIC: "keras"}
_SUFFIXES = {".parquet": "parquet", ".npz": "npz"}

Watch = Callable[[int, int], None]  # gets the rows so far, and how many there will be
# Returns the requested tables of a source. Gets the path of the source, a folder for temporary
# files, and the names.
Read = Callable[[str, str, Sequence[str]], list[Moving]]


class Converted(NamedTuple):
    """The result of a conversion."""

    form: str  # one of `FORMS`
    tables: list[TableHead]  # the heads of the tables, in the order in which they were written
    rows: int  # the number of rows of all tables
    left_out: int = 0  # the number of rows that had expired and were not written to a storage


def form_of_source(path: str) -> str:
    """Returns the form of the rows at a path."""
    if os.path.isdir(path):
        if manifests.is_whole(path):
            return "checkpoint"
        if _core.holds_storage(path):
            return "storage"
        received = "a folder with neither"
    else:
        try:
            with opened(path) as file:
                begin = file.read(4)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{_expected(path)} Received: a path that does not exist."
            ) from None
        if begin in _MAGIC:
            return "keras" if is_keras_file(path) else _MAGIC[begin]
        received = f"a file that begins with {begin!r}"
    raise ValueError(f"{_expected(path)} Received: {received}.")


def _expected(path: str) -> str:
    return f"Expected a checkpoint, a storage, a dump, Parquet, .npz or .keras at '{path}'."


def form_of_target(path: str, given: str | None) -> str:
    """Returns the form in which rows are to be written."""
    form = given or _SUFFIXES.get(os.path.splitext(path)[1])
    if form is None:
        raise ValueError(
            f"Expected a target that ends in {' or '.join(_SUFFIXES)}. Received: '{path}'. Name "
            f"the form with --to: {', '.join(FORMS)}."
        )
    return form


def convert(
    source: str,
    target: str,
    form: str,
    *,
    tables: Sequence[str] = (),
    group: int | None = None,
    base: str | None = None,
    base_table: str | None = None,
    watch: Watch | None = None,
    read: Read | None = None,
) -> Converted:
    """Writes rows in another form. The target is either complete or does not exist.

    Args:
        source: A checkpoint, a storage, a dump, a Parquet file, an `.npz`, a `.keras` file, or a
            file of weights that ends in `.weights.h5`.
        target: The path of the target, which must not exist yet.
        form: One of `FORMS`.
        tables: Paths or names of the tables; none: all of them.
        group: The group of the table in a dump or a storage.
        base: The checkpoint from which a new one takes everything but the rows of a table.
        base_table: The name of that table; `None`: the table with the same label as the rows'
            table.
        watch: The function that is called with the progress.
        read: The function that finds the tables of a source of another library. `None`: the source
            is one of those above.

    Raises:
        FileExistsError: If there is something at the target.
        CorruptionError: For a damaged source.
        ValueError: For tables that do not exist, or do not fit the target.
        RuntimeError: If pyarrow is needed and not installed.
    """
    source, target = local_path(source), local_path(target)
    if os.path.lexists(target):
        raise FileExistsError(
            f"Expected nothing at '{target}'. Received: a path that exists. Convert to another "
            "path."
        )
    _check_arguments(form, group, base)
    parent, name = os.path.split(target)
    # On the target's disk.
    with TemporaryDirectory(
        prefix=f"{name}.converting-", dir=parent, ignore_cleanup_errors=True
    ) as work:
        moving = (read or _source_tables)(source, work, tables)
        if not moving:
            raise ValueError(f"Expected tables with rows in '{source}'. Received: none.")
        moving = _counted(source, moving, watch)
        made = os.path.join(work, "made")
        converted = _write(made, form, moving, group, base, base_table, work)
        os.rename(made, target)
        sync(parent)
    return converted


def _check_arguments(form: str, group: int | None, base: str | None) -> None:
    if (base is not None) != (form == "checkpoint"):
        raise ValueError(
            "Expected --base, the checkpoint from which everything except the rows is taken, with "
            f"the form 'checkpoint' and with no other form. Received: the form '{form}' "
            f"{'with' if base else 'without'} it. {'Leave out' if base else 'Give'} --base."
        )
    if group is not None and form not in ("dump", "storage"):
        raise ValueError(
            "Expected a group only for a dump or a storage. Received: a group for the form "
            f"'{form}'. Leave --group out."
        )


def _source_tables(source: str, work: str, names: Sequence[str]) -> list[Moving]:
    """Returns the requested tables of a source."""
    form = form_of_source(source)
    if form == "checkpoint":
        saved = open_saved(source)
        return [Moving(table, partial(saved.rows, table)) for table in saved.chosen(names)]
    if form == "storage":
        file = os.path.join(work, "dumped")
        number = int(names[0]) if len(names) == 1 and names[0].isdecimal() else None
        with kv.Storage(source, ttl=None, read_only=True) as storage:
            storage.dump(file, number)
        source, form = file, "dump"
    if form == "dump":
        tables = dump_tables(source)
    elif form == "keras":
        tables = keras_tables(source, work, names)
    elif form == "npz":
        head = npz_head(source)
        tables = [Moving(head, lambda: npz_rows(source, head))]
    else:
        head = parquet_head(source)
        tables = [Moving(head, lambda: parquet_rows(source, head))]
    wanted = chosen(source, [table.head for table in tables], names)
    return [table for table in tables if table.head in wanted]


def _counted(source: str, tables: Sequence[Moving], watch: Watch | None) -> list[Moving]:
    """Returns the same tables; reading them tells `watch`, and raises if rows are missing."""
    total, done = sum(table.head.rows for table in tables), 0

    def pieces(table: Moving) -> Iterator[Rows]:
        nonlocal done
        found = 0
        for rows in table.pieces():
            yield rows
            found += len(rows.keys)
            done += len(rows.keys)
            if watch is not None:
                watch(done, total)
        if found != table.head.rows:
            expected = f"{table.head.rows} rows of table '{table.head.label}'"
            raise damaged(source, expected, str(found))

    return [Moving(table.head, partial(pieces, table)) for table in tables]


def _write(
    path: str,
    form: str,
    tables: list[Moving],
    group: int | None,
    base: str | None,
    base_table: str | None,
    work: str,
) -> Converted:
    heads = [table.head for table in tables]
    if form in ("dump", "storage"):
        file = path if form == "dump" else os.path.join(work, "dump")
        rows = write_dump(file, tables, groups_of(heads, group))
        if form == "dump":
            return Converted(form, heads, rows)
        ttls = {head.ttl for head in heads}
        if len(ttls) > 1:
            raise ValueError(
                f"Expected tables with one time to live for a storage. Received: {sorted(ttls)}."
            )
        with kv.Storage(path, ttl=ttls.pop()) as storage:
            taken = storage.load(file)
        return Converted(form, heads, taken, rows - taken)
    if len(tables) != 1:
        raise ValueError(
            f"Expected one table for the form '{form}'. Received: "
            f"{', '.join(repr(head.label) for head in heads)}. Name one table with --table, and "
            "convert the other tables one by one."
        )
    (table,) = tables
    if form == "npz":
        rows = write_npz(path, table.head, table.pieces(), work)
    elif form == "parquet":
        rows = write_parquet(path, table.head, table.pieces())
    else:
        assert base is not None
        return Converted(form, heads, write_checkpoint(path, table, base, base_table))
    sync(path)
    return Converted(form, heads, rows)
