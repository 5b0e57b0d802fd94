"""Defines the commands for storages: `inspect`, `get`, `dump`, `load`, `remove`, `compact`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import click

from sok_embed.cli.terminal import (
    as_json_option,
    bar,
    given_keys,
    numbers,
    print_json,
    print_result,
    printable,
    string_option,
    table,
)

# Commands import NumPy and the core only where they need them, so that --help and completion in
# the shell answer at once.
if TYPE_CHECKING:
    from sok_embed import kv

_GROUPS = 256  # as kv.GROUPS says


def _time(text: str) -> int:
    """Reads seconds since 1970, or a time in ISO 8601 (local without a zone), as seconds."""
    try:
        return int(text) if text.isdigit() else int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither seconds since 1970 nor a time such as 2026-01-31."
        ) from None


_folder = click.argument("path", type=click.Path())
_group_number = click.IntRange(0, _GROUPS - 1)


@click.command()
@_folder
@click.option("--group", type=_group_number, help="Only this group.")
@as_json_option
def inspect(path: str, group: int | None, as_json: bool) -> None:
    """Show the groups of PATH, with the ages and update counts of their rows.

    Reads every row. For a file that dump wrote, shows what its header says of the rows.
    """
    if os.path.isfile(path):
        _inspect_dump(path, group, as_json)
        return
    from sok_embed.binding import _core

    with _opened(path) as storage:
        groups = _chosen(path, storage.groups(), group)
        report: dict[str, Any] = {
            "path": storage.path,
            "ttl": storage.ttl,
            "file_bytes": _core.file_bytes(path),
            "groups": [_survey(storage, known) for known in groups],
        }
    if as_json:
        print_json(report)
        return
    click.echo(f"path        {printable(report['path'])}")
    click.echo(f"ttl         {_shown_ttl(report['ttl'])}")
    click.echo(f"file bytes  {report['file_bytes']:,}")
    head = ("group", "dimension", "optimizer", "rows", "expired", "bytes", "steps")
    surveys = report["groups"]
    click.echo("\n" + table([head, *(_overview(survey) for survey in surveys)]))
    for survey in surveys:
        for title in ("last_update", "update_count"):
            heading = f"group {survey['group']}: rows by {title.replace('_', ' ')}"
            shown = [(label, f"{rows:,}") for label, rows in survey[title].items() if rows]
            if shown:
                click.echo(f"\n{heading}\n{table(shown)}")


# Numbers are not options, so that a key may be negative.
@click.command(context_settings={"ignore_unknown_options": True})
@_folder
@click.argument("group", type=_group_number)
@click.argument("key")
@click.option(
    "--slots", is_flag=True, help="Show the slots that the optimizer keeps for the row, too."
)
@string_option
@as_json_option
def get(path: str, group: int, key: str, slots: bool, strings: bool, as_json: bool) -> None:
    """Show the row of KEY in GROUP of PATH.

    KEY is decimal, signed or unsigned, or hexadecimal with 0x in front; with --string, a string id,
    whose key is its sok_embed.fingerprint.
    """
    ((wanted, given),) = given_keys([key], strings).items()
    with _opened(path) as storage:
        known = storage.table(group).description()
        row = storage.ready().get(group, wanted)
    if row is None:
        raise FileNotFoundError(f"there is no row of key {given} in group {group} of '{path}'")
    floats = [float(number) for number in row["floats"]]
    shown: dict[str, Any] = {
        "group": group,
        "key": given,
        "update_count": row["update_num"],
        "last_update": row["update_time"],
        "embedding": floats[: known.dimension],
    }
    if slots:
        shown["slots"] = _named_slots(known, floats[known.dimension :])
    if as_json:
        print_json(shown)
        return
    shown["last_update"] = datetime.fromtimestamp(row["update_time"]).astimezone().isoformat()
    shown.update(shown.pop("slots", {}))
    lines = ((name, numbers(value)) for name, value in shown.items())
    click.echo(table(list(lines), right=False))


@click.command()
@_folder
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option("--group", type=_group_number, help="Only this group.")
@click.option(
    "--min-count",
    type=click.IntRange(0),
    default=0,
    help="Write only rows with at least this many updates.",
)
@click.option(
    "--newer-than",
    type=_time,
    metavar="TIME",
    help="Write only rows updated after this time, in seconds since 1970 or as 2026-01-31T12:00.",
)
@as_json_option
def dump(
    path: str,
    file: str,
    overwrite: bool,
    group: int | None,
    min_count: int,
    newer_than: int | None,
    as_json: bool,
) -> None:
    """Write rows of PATH into a new FILE, to move them to another storage."""
    if os.path.lexists(file) and not overwrite:
        raise FileExistsError(
            f"Expected nothing at '{file}'. Received: a path that exists. Dump to another "
            "path, or replace it with --overwrite."
        )
    with _opened(path) as storage, bar("dump") as progress:
        rows = storage.dump(file, group, min_count, newer_than, progress)
    print_result(as_json, f"{rows:,} rows in {file}", rows=rows, file=file)


@click.command()
@_folder
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--damo", is_flag=True, help="Read a FILE that was written by dump of Damo-Embedding."
)
@click.option(
    "--ttl",
    type=click.IntRange(0, 2**32 - 1),
    metavar="SECONDS",
    help="The time for which PATH keeps a row after its last update, from now on; 0: no limit. "
    "Default: as PATH has it; if PATH is new, as the rows of FILE had it.",
)
@as_json_option
def load(path: str, file: str, damo: bool, ttl: int | None, as_json: bool) -> None:
    """Add the rows of FILE to PATH, which is made if it does not exist."""
    from sok_embed import kv
    from sok_embed.binding import _core
    from sok_embed.kv.worker_folder import worker_folder

    theirs = None if damo else kv.read_dump(file).ttl
    if ttl is None and not _core.holds_storage(path):
        ttl = theirs or 0
    # A load that fails leaves the TTL of the folder as it is.
    folder = worker_folder(path)
    storage = _core.Storage(folder, ttl, 256 << 20, False, False, ttl_with_load=True)
    with closing(storage), bar("load") as progress:
        rows = (storage.load_damo if damo else storage.load)(
            file, lambda done, total: progress(done, total) is not False
        )
        ttl = storage.ttl
    text = f"{rows:,} rows from {file}"
    if ttl or theirs:
        text += f"\nttl {_shown_ttl(ttl)}"
    if theirs is not None and theirs != ttl:
        text += f"; where the rows come from, {_shown_ttl(theirs)}"
    print_result(as_json, text, rows=rows, file=file, ttl=ttl)


@click.command(context_settings={"ignore_unknown_options": True})
@_folder
@click.argument("group", type=_group_number)
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option(
    "--keys-from",
    type=click.File(),
    metavar="FILE",
    help="Remove the keys in FILE too, separated by blanks or line ends, strings by line ends; -: "
    "stdin.",
)
@string_option
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@as_json_option
def remove(
    path: str,
    group: int,
    keys: tuple[str, ...],
    keys_from: IO[str] | None,
    strings: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove the rows of KEYs in GROUP of PATH, with the slots and counts of these keys.

    KEY is decimal, signed or unsigned, or hexadecimal with 0x in front; with --string, a string id,
    whose key is its sok_embed.fingerprint. It asks before it removes rows, unless --yes is given.
    The bytes of the rows stay in the files until compact rewrites them.
    """
    text = "" if keys_from is None else keys_from.read()
    given = given_keys((*keys, *(text.splitlines() if strings else text.split())), strings)
    if not given:
        raise click.UsageError("Expected keys, as KEY or in --keys-from. Received: none.")

    with _opened(path) as storage:  # this does not make the folder
        there = storage.table(group).contains(list(given))
    missing = [key for key, exists in zip(given.values(), there, strict=True) if not exists]
    removed = len(given) - len(missing)
    if not dry_run:
        _confirm(yes, f"Remove {removed:,} rows of group {group} of '{path}' for good?")
        from sok_embed import kv

        with kv.Storage(path) as storage:
            removed = storage.remove(group, list(given))
    said = f"{removed:,} rows {'would go' if dry_run else 'removed'}"
    if missing:
        said += f"; {len(missing):,} keys have none, such as {missing[0]}"
    elif not dry_run:
        said += f"; run sok-embed compact {path} to have their bytes go, too"
    print_result(as_json, said, dry_run=dry_run, removed=removed, missing=missing)


def can_ask() -> bool:
    """Returns true if a person can answer a question."""
    return sys.stdin.isatty()


def _confirm(yes: bool, question: str) -> None:
    """Asks a person before rows are removed; raises if nobody can answer."""
    if yes:
        return
    if not can_ask():
        raise click.UsageError(
            "Expected --yes where no person can be asked, as stdin is not a terminal. Received: "
            "neither. Look with --dry-run first."
        )
    click.confirm(printable(question), abort=True, err=True)


@click.command()
@_folder
@as_json_option
def compact(path: str, as_json: bool) -> None:
    """Rewrite the files of PATH without expired and superseded rows."""
    from sok_embed import kv
    from sok_embed.binding import _core

    _opened(path).close()  # this does not make the folder
    before = _core.file_bytes(path)
    with kv.Storage(path, ttl=None) as storage:
        storage.compact()
    after = _core.file_bytes(path)
    print_result(
        as_json, f"{before:,} bytes before, {after:,} after", bytes_before=before, bytes_after=after
    )


def _shown_ttl(ttl: int | None) -> str:
    if ttl is None:
        return "not in the file"
    return f"{ttl} s" if ttl else "none: rows are kept without limit"


def _inspect_dump(path: str, number: int | None, as_json: bool) -> None:
    from sok_embed import kv

    dump = kv.read_dump(path)
    groups = _chosen(path, dump.groups, number)
    report = [_described(group) | {"rows": group.rows} for group in groups]
    size = os.path.getsize(path)
    if as_json:
        print_json({"path": path, "ttl": dump.ttl, "file_bytes": size, "groups": report})
        return
    click.echo(f"dump        {path}")
    click.echo(f"ttl         {_shown_ttl(dump.ttl)}")
    click.echo(f"file bytes  {size:,}")
    head = ("group", "dimension", "optimizer", "rows", "steps")
    rows = [
        (str(g.number), str(g.dimension), g.optimizer or "none", f"{g.rows:,}", f"{g.steps:,}")
        for g in groups
    ]
    click.echo("\n" + table([head, *rows]))


def _chosen(path: str, groups: Sequence[kv.Group], number: int | None) -> list[kv.Group]:
    """Returns the group of a number, or all groups for `None`; raises if it does not exist."""
    found = [group for group in groups if number in (None, group.number)]
    if number is not None and not found:
        known = ", ".join(str(group.number) for group in groups)
        raise FileNotFoundError(
            f"there is no group {number} in '{path}', which has "
            f"{f'the groups {known}' if known else 'none'}"
        )
    return found


def _opened(path: str) -> kv.Storage:
    from sok_embed import kv

    return kv.Storage(path, ttl=None, read_only=True)


def _described(group: kv.Group) -> dict[str, Any]:
    return {
        "group": group.number,
        "dimension": group.dimension,
        "row_dtype": group.row_dtype,
        "slot_dtype": group.slot_dtype,
        "optimizer": group.optimizer,
        "slots": dict(group.slots),
        "initializer": group.initializer,
        "steps": group.steps,
    }


def _survey(storage: kv.Storage, group: kv.Group) -> dict[str, Any]:
    counted = storage.ready().survey(group.number)
    return _described(group) | {
        "rows": counted["rows"],
        "expired": counted["expired"],
        "bytes": counted["bytes"],
        "last_update": dict(zip(_age_labels(counted["age_limits"]), counted["ages"], strict=True)),
        "update_count": {
            _update_label(i): rows for i, rows in enumerate(counted["updates"]) if rows
        },
    }


def _age_labels(limits: Sequence[int]) -> list[str]:
    """Returns names for ages of rows: within each limit, in seconds, and over the last one."""
    names = [f"{limit // 86400} d" if limit >= 86400 else f"{limit // 3600} h" for limit in limits]
    return [*(f"within {name}" for name in names), f"over {names[-1]} ago"]


def _update_label(i: int) -> str:
    """Returns the name of a range of update counts: 0, 1, 2-3, 4-7 and so on."""
    return str(i) if i < 2 else f"{2 ** (i - 1)}-{2**i - 1}"


def _overview(survey: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(survey["group"]),
        str(survey["dimension"]),
        survey["optimizer"] or "none",
        f"{survey['rows']:,}",
        f"{survey['expired']:,}",
        f"{survey['bytes']:,}",
        f"{survey['steps']:,}",
    )


def _named_slots(group: kv.Group, floats: list[float]) -> dict[str, list[float]]:
    """Returns the slots by name; empty for a row that this optimizer has not updated."""
    named = {}
    for name, width in group.slots if floats else ():
        named[name], floats = floats[:width], floats[width:]
    return named
