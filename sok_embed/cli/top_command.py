"""Defines the command `sok-embed top`, which shows the tables of a training while it runs."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from sok_embed.cli.terminal import as_json_option, print_json, printable, table
from sok_embed.files.table_status import read_status, text_of_figure

# The columns, in their order; other figures come after them by name.
_ORDER = (
    "rows",
    "new_rows",
    "hit_rate",
    "val_hit_rate",
    "evicted",
    "left_out",
    "refused",
    "memory_bytes",
    "disk_bytes",
    "cache_hit_rate",
    "val_cache_hit_rate",
)
_EXCHANGE = "exchange"


@click.command()
@click.argument("folder", type=click.Path())
@click.option("--once", is_flag=True, help="Print the current figures and exit.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="The time between two looks at the folder.",
)
@as_json_option
def top(folder: str, once: bool, interval: float, as_json: bool) -> None:
    """Show the tables of a training while it runs.

    FOLDER is the path of TableMetrics(path=FOLDER). The screen is refreshed until the training
    ends, and waits for one that has not begun; where stdout is not a terminal, and with --once or
    --json, the figures are printed once.
    """
    from rich.live import Live
    from rich.text import Text

    if as_json:
        print_json(read_status(folder))
        return
    if once or not sys.stdout.isatty():
        click.echo(_shown(read_status(folder), time.time()))
        return
    text, ended = "", False
    try:
        with Live(screen=True, auto_refresh=False) as live:
            while not ended:
                try:
                    status = read_status(folder)
                    text, ended = _shown(status, time.time()), bool(status.get("ended"))
                except FileNotFoundError as error:
                    text = f"{error}\n\nThis waits for it. Ctrl-C ends the wait."
                live.update(Text(printable(text), no_wrap=True, overflow="ellipsis"), refresh=True)
                time.sleep(0 if ended else interval)
    except KeyboardInterrupt:
        pass
    click.echo(printable(text))  # what stays after the screen of the live view has gone


def _shown(status: dict[str, Any], now: float) -> str:
    """Returns the figures as text: the training, its metrics, and a line for each table."""
    tables: dict[str, dict[str, float]] = {}
    metrics: dict[str, float] = {}
    for log, value in status["logs"].items():
        name, slash, figure = log.rpartition("/")
        if not slash:
            metrics[log] = value
        elif name.startswith("val_") and f"{name[4:]}/{figure}" in status["logs"]:
            tables.setdefault(name[4:], {})[f"val_{figure}"] = value
        else:
            tables.setdefault(name, {})[figure] = value
    exchanged = tables.pop(_EXCHANGE, {})
    age = max(0, round(now - status["time"]))
    state = "ended" if status.get("ended") else f"{age:,} s ago"
    lines = [
        f"epoch {status['epoch']:,}  batch {status['batches']:,}  workers {status['workers']:,}  "
        f"{state}"
    ]
    named = [*metrics.items(), *((f"{_EXCHANGE}/{name}", n) for name, n in exchanged.items())]
    lines.append("  ".join(f"{name} {text_of_figure(name, value)}" for name, value in named))
    columns = sorted(
        {figure for figures in tables.values() for figure in figures},
        key=lambda figure: (_ORDER.index(figure) if figure in _ORDER else len(_ORDER), figure),
    )
    rows = [
        (
            name,
            *(text_of_figure(each, figures[each]) if each in figures else "-" for each in columns),
        )
        for name, figures in tables.items()
    ]
    heads = (each.removesuffix("_bytes") for each in columns)
    return "\n".join([*lines, "", table([("table", *heads), *rows])])
