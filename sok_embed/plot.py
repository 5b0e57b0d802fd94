"""Pictures of tables with matplotlib, and files for the projector of TensorBoard."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from sok_embed.arguments import check_integer
from sok_embed.files.row_views import Keys, RowViews, Strings, Vectors
from sok_embed.files.table_status import text_of_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sok_embed.planning import Plan

__all__ = ["ages", "load", "memory", "norms", "over_time", "projector", "updates_by_rank"]

_ROWS = 65_536  # that are read at a time
_MOST_LINES = 10  # in a picture; more of them cannot be told apart
_MOST_POINTS = 100_000  # that the projector shows


def over_time(
    logs: Mapping[str, Iterable[float]] | str | os.PathLike[str],
    figure: str = "rows",
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draws a figure of each table over the epochs of a training.

    Example:
    >>> axes = over_time({"items/rows": [10, 14], "users/rows": [3, 9]})
    >>> [line.get_label() for line in axes.lines]
    ['items', 'users']

    Args:
        logs: The `history` of `fit` with `sok_embed.callbacks.TableMetrics`, or the path of a file
            of `keras.callbacks.CSVLogger`.
        figure: The name of the figure, such as `"rows"`, `"hit_rate"`, `"new_rows"`.
        ax: The axes to draw on; `None`: new ones.

    Returns:
        The axes, with a line for each table, and one for its `val_` figure. Of more than ten lines
        those with the greatest last values are drawn.

    Raises:
        ValueError: For logs without that figure, and a `history` whose validations left epochs out.
        ModuleNotFoundError: Without matplotlib.
    """
    columns = _columns_of(logs, figure) if isinstance(logs, str | os.PathLike) else logs
    epochs = np.array(list(columns.get("epoch", ())), np.float64) + 1
    lines = {
        name.removesuffix(f"/{figure}"): np.array(list(values), np.float64)
        for name, values in columns.items()
        if name.endswith(f"/{figure}")
    }
    lines = {name: values for name, values in lines.items() if np.isfinite(values).any()}
    if not lines:
        raise ValueError(
            f"Expected logs with the figure '{figure}' of a table, as TableMetrics adds it. "
            f"Received: {', '.join(columns) or 'no logs'}."
        )
    last = {name: values[np.isfinite(values)][-1] for name, values in lines.items()}
    shown = sorted(lines, key=lambda name: -last[name])[:_MOST_LINES]
    count = f"{len(shown)} of {len(lines)}" if len(shown) < len(lines) else str(len(lines))
    ax = _axes(ax, f"{figure}: {count} lines", "epoch", figure)
    if not len(epochs):
        epochs = np.arange(1.0, 1 + max(map(len, lines.values())))
    for name, values in lines.items():
        if len(values) != len(epochs):
            raise ValueError(
                f"Expected {len(epochs)} values of '{name}/{figure}', one an epoch. Received: "
                f"{len(values)}. A file of CSVLogger says to which epochs they belong."
            )
        there = np.isfinite(values)  # not where a validation left the epoch out
        if name in shown:
            ax.plot(epochs[there], values[there], label=name, marker=".")
    ax.yaxis.set_major_formatter(lambda value, _: text_of_figure(figure, value))
    ax.locator_params("x", integer=True)
    ax.set_ylim(0, 1.05 * max(ax.dataLim.ymax, 1e-9))
    ax.legend()
    return ax


def updates_by_rank(table: RowViews, *, ax: Axes | None = None) -> Axes:
    """Draws how often rows were trained, the most frequent first, both axes in powers of ten.

    Args:
        table: The table, in memory or in a storage.
        ax: The axes to draw on; `None`: new ones.

    Raises:
        TypeError: For a table that keeps no counts.
        ModuleNotFoundError: Without matplotlib.
    """
    _, counts, _ = _counters(table)
    ax = _axes(ax, f"updates of {len(counts):,} rows", "rank of the row", "updates")
    ranks = np.unique(np.geomspace(1, max(len(counts), 1), 1000).astype(int))
    ax.loglog(ranks, np.sort(counts)[::-1][ranks - 1] if len(counts) else ranks * 0)
    return ax


def ages(table: RowViews, *, ax: Axes | None = None) -> Axes:
    """Draws a histogram of the time since rows were last trained.

    Times count back from the latest update of any row. They are seconds; steps of a table in memory
    with an eviction that counts steps.

    Args:
        table: The table, in memory or in a storage.
        ax: The axes to draw on; `None`: new ones.

    Raises:
        TypeError: For a table that keeps no times.
        ModuleNotFoundError: Without matplotlib.
    """
    _, _, times = _counters(table)
    newest = times.max(initial=0)
    unit = "seconds" if newest > 10**9 else "steps"  # since 1970
    ax = _axes(ax, f"ages of {len(times):,} rows", f"{unit} before the latest update", "rows")
    ages = newest - times  # whole numbers
    ax.hist(ages, bins=min(50, 1 + int(ages.max(initial=0))))
    return ax


def norms(table: RowViews, *, ax: Axes | None = None) -> Axes:
    """Draws a histogram of the Euclidean norms of rows.

    Args:
        table: The table.
        ax: The axes to draw on; `None`: new ones.

    Raises:
        ModuleNotFoundError: Without matplotlib.
    """
    found = [np.linalg.norm(rows, axis=1) for _, rows in table.batches(_ROWS)]
    values = np.concatenate([np.empty(0), *found])
    finite = values[np.isfinite(values)]
    title = f"norms of {len(finite):,} rows"
    if len(finite) < len(values):
        title += f", and {len(values) - len(finite):,} that are not finite"
    ax = _axes(ax, title, "Euclidean norm", "rows")
    ax.hist(finite, bins=50)
    return ax


def memory(tables: Mapping[str, Any], *, ax: Axes | None = None) -> Axes:
    """Draws the bytes in memory of each table, with slots and index; of a storage its cache.

    Args:
        tables: The tables by name, such as `{layer.name: layer.table}`.
        ax: The axes to draw on; `None`: new ones.

    Raises:
        ModuleNotFoundError: Without matplotlib.
    """
    sizes = {name: table.stats()["bytes"] for name, table in tables.items()}
    names = sorted(sizes, key=lambda name: sizes[name])
    ax = _axes(ax, f"{text_of_figure('bytes', sum(sizes.values()))} in memory", "", "")
    ax.barh(names, [sizes[name] for name in names])
    ax.xaxis.set_major_formatter(lambda value, _: text_of_figure("bytes", value))
    return ax


def load(plan: Plan, *, ax: Axes | None = None) -> Axes:
    """Draws what each worker of a plan sends, receives and touches in a step, in bytes.

    Args:
        plan: The plan, of `sok_embed.plan`.
        ax: The axes to draw on; `None`: new ones.

    Raises:
        ModuleNotFoundError: Without matplotlib.
    """
    loads = plan.loads
    ax = _axes(ax, f"a step of {plan.workers} workers", "worker", "bytes")
    for i, kind in enumerate(("sent", "received", "touched")):
        places = np.arange(len(loads)) + (i - 1) / 4
        ax.bar(places, [getattr(each, kind) for each in loads], 1 / 4, label=kind)
    ax.yaxis.set_major_formatter(lambda value, _: text_of_figure("bytes", value))
    ax.legend()
    return ax


def projector(
    log_dir: str | os.PathLike[str],
    tables: Mapping[str, RowViews],
    *,
    most: int = 10_000,
    vocabulary: Strings | None = None,
) -> None:
    """Writes rows for the projector of TensorBoard, which shows them as points in space.

    `tensorboard --logdir log_dir` has them under "Projector". Files that were written before are
    replaced.

    Args:
        log_dir: The folder, which is made if it is not there.
        tables: The tables by name, such as `{layer.name: layer.table}`.
        most: The most rows of a table, at most 100,000: those that were trained most often, and of
            a table that keeps no counts the first ones.
        vocabulary: A `sok_embed.data.Vocabulary` that tells the strings of keys; `None`: points
            have keys.

    Raises:
        ValueError: For another `most`.
        ModuleNotFoundError: Without tensorboard.
    """
    from tensorboard.plugins import projector as plugin

    check_integer("most", most, 1, _MOST_POINTS + 1)
    os.makedirs(log_dir, exist_ok=True)
    config = plugin.ProjectorConfig()
    for name, table in tables.items():
        keys, rows = _most_trained(table, most)
        shown = keys if vocabulary is None else vocabulary.strings(keys)
        embedding = config.embeddings.add()
        embedding.tensor_name = name
        stem = quote(name, safe=" ")  # two names have two files
        embedding.tensor_path, embedding.metadata_path = f"{stem}.tsv", f"{stem}.labels.tsv"
        np.savetxt(os.path.join(log_dir, embedding.tensor_path), rows, "%.6g", "\t")
        labels = (key if text is None else text for key, text in zip(keys, shown, strict=True))
        with open(os.path.join(log_dir, embedding.metadata_path), "w", encoding="utf-8") as file:
            file.writelines(f"{' '.join(str(label).split()) or '(empty)'}\n" for label in labels)
    plugin.visualize_embeddings(os.fspath(log_dir), config)


def _axes(ax: Axes | None, title: str, x: str, y: str) -> Axes:
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(6, 4), layout="constrained")
    ax.set(title=title, xlabel=x, ylabel=y)
    return ax


def _columns_of(path: str | os.PathLike[str], figure: str) -> dict[str, list[float]]:
    """Returns the epochs and a figure of all tables in a file of `keras.callbacks.CSVLogger`."""
    with open(path, newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    return {
        name: [float(line[name]) if line[name] not in ("", "NA") else np.nan for line in lines]
        for name in (lines[0] if lines else ())
        if name == "epoch" or name.endswith(f"/{figure}")
    }


def _counters(table: RowViews) -> tuple[Keys, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the keys, the update counts and the update times of all rows."""
    if not _has_counters(table):
        raise TypeError(
            "Expected a table with counts and times of its rows, in memory or in a storage. "
            f"Received: {table!r}."
        )
    none = np.empty(0, np.int64)
    found = []
    for keys, _ in table.batches(_ROWS):
        counters = table.metadata(np.array(keys))  # type: ignore[attr-defined]
        found.append((np.array(keys), counters.update_nums, counters.update_times))
    keys, counts, times = map(np.concatenate, zip(*(found or [(none, none, none)]), strict=True))
    return keys, counts, times


def _has_counters(table: RowViews) -> bool:
    return callable(getattr(table, "metadata", None))  # of a file of rows it is a dictionary


def _most_trained(table: RowViews, most: int) -> tuple[Keys, Vectors]:
    """Returns at most so many rows: those that were trained most often, or the first ones."""
    if not _has_counters(table):
        return next(iter(table.batches(most)))
    keys, counts, _ = _counters(table)
    keys = keys[np.sort(np.argsort(-counts, kind="stable")[:most])]
    return keys, table.lookup(keys)
