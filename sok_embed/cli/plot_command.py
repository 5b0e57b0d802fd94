"""Defines the command `sok-embed plot`, which draws tables."""

from __future__ import annotations

import csv
import os

import click

_FIGURES = ("rows", "new_rows", "hit_rate")


@click.command()
@click.argument("path", type=click.Path(exists=True))
@click.option(
    "--output",
    type=click.Path(dir_okay=False),
    default="tables.png",
    show_default=True,
    help="The file of the picture; its ending names the format, such as .png, .svg or .pdf.",
)
@click.option("--group", type=click.IntRange(0), help="Only this group of a storage.")
def plot(path: str, output: str, group: int | None) -> None:
    """Draw the tables of PATH, with matplotlib.

    PATH is a storage, whose rows are drawn by updates, ages and norms, or a file of keras'
    CSVLogger with the figures of TableMetrics, which are drawn over the epochs.
    """
    from matplotlib.figure import Figure

    from sok_embed import kv
    from sok_embed import plot as plots

    if os.path.isfile(path):
        with open(path, newline="", encoding="utf-8") as file:
            columns = next(csv.reader(file), [])
        # Without any of them over_time says what it expects.
        names = [each for each in _FIGURES if any(c.endswith(f"/{each}") for c in columns)]
        names = names or ["rows"]
        figure = Figure(figsize=(6 * len(names), 4), layout="constrained")
        for name, ax in zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True):
            plots.over_time(path, name, ax=ax)
    else:
        draw = (plots.updates_by_rank, plots.ages, plots.norms)
        with kv.Storage(path, ttl=None, read_only=True) as storage:
            numbers = [each.number for each in storage.groups()] if group is None else [group]
            size = (6 * len(draw), 4 * len(numbers))
            figure = Figure(figsize=size, layout="constrained")
            axes = figure.subplots(len(numbers), len(draw), squeeze=False)
            for number, row in zip(numbers, axes, strict=True):
                for function, ax in zip(draw, row, strict=True):
                    function(storage.table(number), ax=ax)
                    ax.set_title(f"group {number}: {ax.get_title()}")
    figure.savefig(output)
    click.echo(output)
