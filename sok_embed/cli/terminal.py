"""The errors, keys, tables, progress and JSON of all `sok-embed` commands on a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

_UINT64 = 2**64

string_option = click.option(
    "--string", "strings", is_flag=True, help="Take KEY as a string id, not as an integer."
)
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


class Group(click.Group):
    """Commands whose errors are one line on stderr and exit status 1."""

    def invoke(self, context: click.Context) -> Any:
        """See `click.Group.invoke`."""
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise  # the reader of our output has gone, which click deals with
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error, click.exceptions.Exit | click.exceptions.Abort):
                raise
            click.echo(f"error: {printable(' '.join(str(error).split()))}", err=True)
            context.exit(1)


def printable(text: str) -> str:
    """Returns the text with a replacement for each byte that is not UTF-8, as in some paths."""
    return os.fsencode(text).decode(errors="replace")


def key_of(text: str) -> int:
    """Returns a key of 64 bits as it was given: decimal, signed or not, or hexadecimal after 0x.

    Returns:
        An integer in [-2^63, 2^64). Two of them that differ by 2^64 are one key.

    Raises:
        click.BadParameter: For any other text.
    """
    try:
        key = int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not an integer, in decimal or after 0x. For a string id pass --string."
        ) from None
    if not -_UINT64 // 2 <= key < _UINT64:
        raise click.BadParameter(f"{text} does not fit into 64 bits.")
    return key


def given_keys(texts: Iterable[str], strings: bool) -> dict[int, int | str]:
    """Returns distinct keys, in [0, 2^64), each with the integer or the string that was given.

    Args:
        texts: The keys, as for `key_of`, or strings.
        strings: True for strings, whose keys are their `sok_embed.fingerprint`s.

    Raises:
        click.BadParameter: As `key_of`.
    """
    if not strings:
        return {key % _UINT64: key for key in map(key_of, texts)}
    from sok_embed.fingerprints import fingerprint

    given = list(texts)
    keys = fingerprint(given).tolist() if given else []
    return {key % _UINT64: text for key, text in zip(keys, given, strict=True)}


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Makes a progress bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def numbers(value: Any) -> str:
    """Returns a list of numbers as they are printed, and anything else as its text."""
    return " ".join(f"{number:g}" for number in value) if isinstance(value, list) else str(value)


def table(rows: Sequence[tuple[str, ...]], right: bool = True) -> str:
    """Lays the rows out in columns; all but the first to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [
            cell.rjust(width) if right else cell
            for cell, width in zip(row[1:], widths[1:], strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def print_json(value: dict[str, Any]) -> None:
    """Prints one JSON object."""
    click.echo(json.dumps(value, indent=2))


def print_result(as_json: bool, text: str, **result: Any) -> None:
    """Prints what a command has done: as JSON or for people."""
    if as_json:
        print_json(result)
    else:
        click.echo(printable(text))


class MountedPath(click.Path):
    """A path that is not a URL: these commands read and write files of this machine."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuses a URL, and checks other paths as `click.Path` does."""
        if "://" in os.fspath(value):
            from sok_embed.files.records import local_path

            try:
                local_path(value)
            except ValueError as error:
                self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)
