"""Defines the command `sok-embed top`, which shows the tables of a training while it runs."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from sok_embed.cli.terminal import as_json_option, print_json, printable, table
from sok_embed.files.table_status import read_status

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
    ends; where stdout is not a terminal, and with --once or --json, the figures are printed once.
    """
    if as_json:
        print_json(read_status(folder))
        return
    repeats = not once and sys.stdout.isatty()
    try:
        while True:
            status = read_status(folder)
            text = printable(_shown(status, time.time()))
            if repeats:
                click.clear()
            click.echo(text)
            if not repeats or status.get("ended"):
                return
            time.sleep(interval)
    except KeyboardInterrupt:
        return


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
    lines.append("  ".join(f"{name} {_cell(name, value)}" for name, value in named))
    columns = sorted(
        {figure for figures in tables.values() for figure in figures},
        key=lambda figure: (_ORDER.index(figure) if figure in _ORDER else len(_ORDER), figure),
    )
    rows = [
        (name, *(_cell(figure, figures.get(figure)) for figure in columns))
        for name, figures in tables.items()
    ]
    return "\n".join([*lines, "", table([("table", *columns), *rows])])


def _cell(figure: str, value: float | None) -> str:
    """Returns a figure as text: shares as percentages, counts with commas, "-" for none."""
    if value is None:
        return "-"
    if figure.endswith(("_rate", "_saturation", "_share")):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
