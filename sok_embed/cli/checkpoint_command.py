"""The commands `sok-embed checkpoint`, which look into checkpoints and move their rows.

What brings NumPy and the core is imported by the commands that need it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import click

from sok_embed.cli.terminal import (
    MountedPath,
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

_SHOWN = 20  # lines of a list that is printed for people


@click.group()
def checkpoint() -> None:
    """Look into checkpoints, check them, compare them, and move their rows.

    A checkpoint is a folder with a manifest.json; a directory is the directory of a
    CheckpointManager or of BackupAndRestore, with a folder for each step.
    """


@checkpoint.command()
@click.argument("directory", type=MountedPath(exists=True, file_okay=False))
@as_json_option
def ls(directory: str, as_json: bool) -> None:
    """List the checkpoints of DIRECTORY in the order of their saves."""
    from sok_embed.checkpoint.tools.survey import listed

    found = listed(directory)
    if as_json:
        print_json({"path": directory, "checkpoints": found})
        return
    head = ("checkpoint", "step", "saved", "workers", "tables", "rows", "bytes", "changes since")
    lines = [head, *(_listed_line(each) for each in found)]
    click.echo(printable(table(lines)) if found else f"no checkpoints in '{printable(directory)}'")


def _listed_line(each: dict[str, Any]) -> tuple[str, ...]:
    name, step = os.path.basename(each["path"]), str(each["step"])
    if each["state"] != "whole":
        return (name, step, "", "", "", "", "", each["state"])
    shown = [f"{each[field]:,}" for field in ("workers", "tables", "rows", "bytes")]
    return (name, step, _time_of(each["saved"]), *shown, each["parent"] or "")


def _time_of(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


@checkpoint.command()
@click.argument("path", type=MountedPath())
@click.option("--table", "name", metavar="TABLE", help="Show only the table of this path or name.")
@click.option(
    "--keys",
    "--key",
    metavar="KEYS",
    help="Show the rows of these keys, such as 1,-2,0xff. Needs --table.",
)
@string_option
@as_json_option
def show(path: str, name: str | None, keys: str | None, strings: bool, as_json: bool) -> None:
    """Show what is in the checkpoint PATH, or rows of one of its tables."""
    from sok_embed.checkpoint.tools.saved import open_saved
    from sok_embed.checkpoint.tools.survey import rows_of_keys, surveyed

    saved = open_saved(path)
    if keys is not None:
        if name is None:
            raise click.UsageError("Expected --table with --keys. Received: --keys alone.")
        texts = (text.strip() for text in keys.split(","))
        wanted = [key - 2**64 if key >= 2**63 else key for key in given_keys(texts, strings)]
        _show_rows(rows_of_keys(saved, saved.one(name), wanted), as_json)
        return
    report = surveyed(saved, [] if name is None else [name])
    if as_json:
        print_json(report)
        return
    _show_survey(report)


def _show_rows(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        for row in found["rows"]:
            shown = {"key": row["key"], "update_count": row["update_count"]}
            shown["last_update"] = _shown_update(row["last_update"], found["times"])
            shown |= {"embedding": row["embedding"], **row["slots"]}
            lines = [(name, numbers(value)) for name, value in shown.items()]
            click.echo(table(lines, right=False) + "\n")
    if found["missing"]:
        raise FileNotFoundError(
            f"there are no rows of keys {', '.join(map(str, found['missing']))} in table "
            f"'{found['table']}'"
        )


def _shown_update(time: int, times: str) -> str:
    return f"step {time}" if times == "steps" else _time_of(time)


def _show_survey(report: dict[str, Any]) -> None:
    for field in ("path", "step", "workers", "bytes", "changes since"):
        value = report["parent" if field == "changes since" else field]
        if value is None:
            continue
        shown = printable(value) if isinstance(value, str) else f"{value:,}"
        click.echo(f"{field:<8}  {shown}")
    click.echo(f"{'saved':<8}  {_time_of(report['saved'])}")
    heads = ("name", "kind", "dim", "rule", "slot floats", "steps", "rows", "bytes", "owners")
    lines = [("table", *heads)]
    for each in report["tables"]:
        counted = [f"{each[field]:,}" for field in ("steps", "rows", "bytes")]
        first = (each["table"], each["name"], each["kind"], str(each["dim"]))
        lines.append((*first, each["rule"] or "none", str(each["slot_floats"]), *counted,
                      each["owners"]))  # fmt: skip
    if len(lines) > 1:
        click.echo("\n" + printable(table(lines)))
    variables = [
        (each["variable"], each["dtype"], "x".join(map(str, each["shape"])) or "scalar")
        for each in report["variables"]
    ]
    _show_list("variable", ("dtype", "shape"), variables)
    files = [(each["name"], f"{each['bytes']:,}", each["checksum"]) for each in report["files"]]
    _show_list("file", ("bytes", "checksum"), files, most=None)


def _show_list(
    what: str,
    heads: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    most: int | None = _SHOWN,
) -> None:
    if not rows:
        return
    shown = rows if most is None else rows[:most]
    click.echo("\n" + printable(table([(what, *heads), *shown])))
    if len(rows) > len(shown):
        click.echo(f"and {len(rows) - len(shown):,} more, which --json has")


@checkpoint.command()
@click.argument("path", type=MountedPath(exists=True, file_okay=False))
@as_json_option
@click.pass_context
def verify(context: click.Context, path: str, as_json: bool) -> None:
    """Read every byte of the checkpoint PATH, or of all checkpoints in a directory.

    Prints a line for each fault, and exits with 1 if there are any. A folder without a manifest,
    which an unfinished save has left, is not a fault.
    """
    from sok_embed.checkpoint.tools.survey import checkpoints_in, not_whole_in
    from sok_embed.checkpoint.tools.verify import verify as verify_one
    from sok_embed.kv import CorruptionError

    folders = checkpoints_in(path)
    report = []
    for folder in folders:
        with _byte_bar(f"verify {os.path.basename(folder)}", [folder]) as watch:
            try:
                found = verify_one(folder, watch)._asdict()
            except (CorruptionError, FileNotFoundError, ValueError) as error:
                if isinstance(error, FileNotFoundError) and folder != path:
                    continue  # a job has removed it meanwhile
                found = {"bytes": 0, "rows": 0, "faults": [str(error)]}
        report.append({"path": folder, **found})
    faulty = any(each["faults"] for each in report)
    left = [] if path in folders else not_whole_in(path)
    if as_json:
        print_json({"whole": not faulty, "checkpoints": report, "not_whole": left})
    else:
        for each in report:
            for fault in each["faults"]:
                click.echo(printable(f"{each['path']}: {' '.join(fault.split())}"))
            if not each["faults"]:
                click.echo(
                    printable(
                        f"{each['path']}: whole, {each['rows']:,} rows and {each['bytes']:,} bytes "
                        "in all files that it needs"
                    )
                )
        for folder in left:
            click.echo(printable(f"{folder}: not whole, as a save leaves it that did not end"))
    context.exit(int(faulty))


@contextmanager
def _byte_bar(what: str, folders: Sequence[str]) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar of the bytes of checkpoints."""
    total = 0
    for folder in folders:
        with suppress(OSError):  # a file that went, or whose error is reported elsewhere
            total += sum(
                entry.stat().st_size for entry in os.scandir(folder)
                if entry.is_file() and entry.name.startswith(("rows-", "dense-", "data-"))
            )  # fmt: skip
    done = 0
    with bar(what) as progress:

        def watch(more: int) -> None:
            nonlocal done
            done += more
            progress(min(done, total), total)

        yield watch


@checkpoint.command()
@click.argument("a", type=MountedPath(exists=True, file_okay=False))
@click.argument("b", type=MountedPath(exists=True, file_okay=False))
@as_json_option
def diff(a: str, b: str, as_json: bool) -> None:
    """Compare the checkpoints A and B: rows of tables bit by bit, and dense variables.

    TensorFlow is imported only where files of dense variables differ.
    """
    from sok_embed.checkpoint.tools.difference import difference
    from sok_embed.checkpoint.tools.saved import open_saved
    from sok_embed.checkpoint.tools.survey import as_report

    saved = open_saved(a), open_saved(b)
    with _byte_bar("diff", [each.folder for each in saved]) as watch:
        found = difference(*saved, watch)
    report = as_report(found)
    if as_json:
        print_json(report)
        return
    click.echo(f"step   {found.steps[0]:,} and {found.steps[1]:,}")
    for side, labels in (("A", found.only_a), ("B", found.only_b)):
        for label in labels:
            click.echo(printable(f"only in {side}: table {label}"))
    _show_tables_apart(report)
    _show_list(
        "variable",
        ("A", "B", "differing", "largest"),
        [
            (
                each["variable"], each["a"] or "none", each["b"] or "none",
                "" if each["differing"] is None else f"{each['differing']:,}",
                "" if each["largest"] is None else f"{each['largest']}",
            )
            for each in report["variables"]
        ],
    )  # fmt: skip
    if found.same:
        click.echo("no difference in rows and variables")


def _show_tables_apart(report: dict[str, Any]) -> None:
    columns = ("embeddings", "slots", "update_nums", "update_times")
    heads = ("only A", "only B", "both", "embeddings", "slots", "counts", "times")
    lines = []
    for each in report["tables"]:
        if not each["same"]:
            counted = [f"{each[field]:,}" for field in ("only_a", "only_b", "both")]
            differing = [
                f"{each['differing'][name]:,}" if name in each["differing"] else "-"
                for name in columns
            ]
            lines.append((each["table"], *counted, *differing))
    _show_list("table", heads, lines, most=None)
    for each in report["tables"]:
        for name, number in each["largest"].items():
            click.echo(printable(f"{each['table']}: largest difference of {name} {number}"))
        for name, values in each["head"].items():
            click.echo(printable(f"{each['table']}: {name} {values[0]} and {values[1]}"))


@checkpoint.command()
@click.argument("directory", type=MountedPath(exists=True, file_okay=False))
@click.option(
    "--keep", type=click.IntRange(1), required=True, help="Keep this many last checkpoints."
)
@click.option(
    "--keep-every", type=click.IntRange(1), metavar="K", help="Keep the first of each K steps, too."
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@as_json_option
def prune(directory: str, keep: int, keep_every: int | None, dry_run: bool, as_json: bool) -> None:
    """Remove old checkpoints of DIRECTORY, and the files of unfinished saves.

    Works like a CheckpointManager: it keeps the last checkpoints, and always the last one that can
    be read; it removes a manifest first. Not for a directory into which a job is saving.
    """
    from sok_embed.checkpoint.tools.survey import pruned

    found = pruned(directory, keep, keep_every, dry_run)
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {path}" for path in (*found["removed"], *found["leftovers"])]
    lines += [f"kept {path}, which cannot be read" for path in found["unreadable"]]
    lines.append(f"{len(found['kept'])} kept")
    print_result(as_json, "\n".join(lines), dry_run=dry_run, **found)


@checkpoint.command()
@click.argument("path", type=MountedPath(exists=True, file_okay=False))
@as_json_option
def compact(path: str, as_json: bool) -> None:
    """Make the checkpoint PATH, which has only changes, a whole one, so that it needs no other.

    Checkpoints that build on it still work. Not for a directory into which a job is saving.
    """
    from sok_embed.checkpoint.files.manifest import read_chain
    from sok_embed.checkpoint.tools.compaction import compact as compact_one

    folders = [link.folder for link in read_chain(os.path.abspath(path))]
    with _byte_bar(f"compact {os.path.basename(path)}", folders) as watch:
        built_on = compact_one(path, watch)
    others = "another checkpoint" if built_on == 1 else f"{built_on} others"
    text = f"{path}: has everything, and was built on {others}"
    if not built_on:
        text = f"{path}: has everything already"
    print_result(as_json, text, path=path, built_on=built_on)
