"""Writes the report of `adaptive_tradeoff.py`: test AUC against memory."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ctr.arrays import Rows
from ctr.seeds import note, spread

# The aim is a third of the memory of own rows only, and an AUC that is as good.
SHARE = 1 / 3
MARGIN = 0.002
_SURFACE, _INK, _MUTED = "#ffffff", "#1c1c1c", "#6b6b6b"
_MARKS = {
    "own rows only": ("D", _INK),
    "static rows only": ("^", "#8c8c8c"),
    "exact filter": ("s", "#c4572b"),
    "Bloom filter": ("v", "#d99a2b"),
    "adaptive": ("o", "#2a62b8"),
}


def count_ids(train: Rows, test: Rows) -> dict[str, Any]:
    """Returns a sentence: the number of ids in the training rows, their rarity, and the new ids."""
    ids, counts = np.unique(train.keys, return_counts=True)
    place = np.minimum(np.searchsorted(ids, test.keys), len(ids) - 1)
    return {
        "ids": len(ids),
        "once": float(np.mean(counts == 1)),
        "twice": float(np.mean(counts == 2)),
        "new_in_test": float(np.mean(ids[place] != test.keys)),
    }


def filter_bytes(admission: Any, waiting: int, counter_bytes: int) -> int:
    """Returns the bytes of a filter: a counter for each id that waits, or a Bloom filter's.

    The latter has `m` counters for `capacity` ids: of the rate of false positives `p`, that is
    `m = -k capacity / log(1 - p**(1 / k))` with `k = round(-log2 p)`.
    """
    if admission.kind == "frequency":
        return waiting * counter_bytes
    hashes = max(1, round(-math.log2(admission.false_positive_rate)))
    per_id = -hashes / math.log1p(-(admission.false_positive_rate ** (1 / hashes)))
    return math.ceil(admission.capacity * per_id * admission.counter_bits / 8)


def summary(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns means over the seeds for each setting, and differences from own rows only."""
    (own,) = (each["runs"] for each in report["settings"] if each["kind"] == "own rows only")
    rows = []
    for setting in report["settings"]:
        runs = setting["runs"]
        differences = [
            run["test_auc"] - reference["test_auc"]
            for run, reference in zip(runs, own, strict=True)
        ]
        size = mean(run["bytes"] for run in runs)
        rows.append(
            {
                "kind": setting["kind"],
                "name": setting["name"],
                "own_rows": round(mean(run["own_rows"] for run in runs)),
                "static_rows": round(mean(run["static_rows"] for run in runs)),
                "bytes": size,
                "share": size / mean(run["bytes"] for run in own),
                "test_auc": [run["test_auc"] for run in runs],
                "differences": differences,
            }
        )
    return rows


def markdown(report: dict[str, Any]) -> str:
    """Makes the table of a run."""
    ids = [each["ids"] for each in report["ids"]]
    once, twice, new = (
        mean(each[name] for each in report["ids"]) for name in ("once", "twice", "new_in_test")
    )
    ceilings = [auc for auc in report["best_possible_test_auc"] if auc is not None]
    rows = summary(report)
    lines = [
        f"{report['source']}, {report['training_rows']:,} training rows, {mean(ids):,.0f} ids, "
        f"{once:.0%} of them seen once and {twice:.0%} twice; {new:.0%} of the ids of test rows "
        f"are new. Dim {report['dim']}, {report['optimizer']} at {report['learning_rate']}, "
        f"epochs: {report['epochs']}. Mean and standard deviation of {len(ids)} seeds."
        + (f" The planted signal itself: {spread(ceilings)}." if ceilings else ""),
        "",
        "| Rows | Own | Static | Memory | Of own rows only | Test AUC | Less own rows only |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['kind']}{', ' if row['name'] else ''}{row['name']} | {row['own_rows']:,} "
            f"| {row['static_rows']:,} | {row['bytes'] / 1e6:.1f} MB | {row['share']:.0%} "
            f"| {spread(row['test_auc'])} | {spread(row['differences'], '+')} |"
        )
    good = [row for row in rows if row["share"] <= SHARE and mean(row["differences"]) >= -MARGIN]
    lines += ["", f"At most a third of the memory, and at most {MARGIN} of AUC less: "]
    lines[-1] += "; ".join(f"{row['kind']}, {row['name']}" for row in good) or "none"
    lines[-1] += "."
    return "\n".join(lines)


def write(report: dict[str, Any], output: Path) -> None:
    """Prints the table and the figures; writes `adaptive-tradeoff.png`, `.md` and `.json`."""
    output.mkdir(parents=True, exist_ok=True)
    text, figures = markdown(report), json.dumps(report)
    (output / "adaptive-tradeoff.json").write_text(figures + "\n", encoding="utf-8")
    (output / "adaptive-tradeoff.md").write_text(text + "\n", encoding="utf-8")
    _draw(report, output / "adaptive-tradeoff.png")
    note(f"written: {output}/adaptive-tradeoff.png, .md, .json")
    print(text)
    print(figures)


def _draw(report: dict[str, Any], path: Path) -> None:
    """Draws a point for each setting, with the lowest and the highest seed; by memory and by rows.

    Up is the difference from own rows only, seed by seed: what the clicks of a seed are like moves
    all settings alike.
    """
    rows = summary(report)
    figure = Figure(figsize=(10, 4.2), facecolor=_SURFACE, layout="tight")
    panels = figure.subplots(1, 2, sharey=True)
    axis_names = ("memory, MB; dotted: a third", "rows, own and static ones; dotted: a third")
    scales = (
        [row["bytes"] / 1e6 for row in rows],
        [row["own_rows"] + row["static_rows"] for row in rows],
    )
    for axes, axis_name, places in zip(panels, axis_names, scales, strict=True):
        axes.axhspan(-MARGIN, 0, color=_MUTED, alpha=0.12, linewidth=0)
        axes.axhline(0, color=_MUTED, linestyle="--", linewidth=1)
        axes.axvline(places[0] * SHARE, color=_MUTED, linestyle=":", linewidth=1)
        for kind, (mark, colour) in _MARKS.items():
            chosen = [i for i, row in enumerate(rows) if row["kind"] == kind]
            differences = [rows[i]["differences"] for i in chosen]
            means = [mean(each) for each in differences]
            low = [mean(each) - min(each) for each in differences]
            high = [max(each) - mean(each) for each in differences]
            axes.errorbar(
                [places[i] for i in chosen],
                means,
                yerr=[low, high],
                fmt=mark,
                color=colour,
                label=kind,
                markersize=5,
                elinewidth=0.8,
                capsize=2,
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.12g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(axis_name, color=_MUTED)
        axes.tick_params(colors=_MUTED, labelsize=8)
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#c9c9c9")
    panels[0].set_ylabel("test AUC, less that of own rows only", color=_MUTED)
    panels[1].legend(frameon=False, labelcolor=_MUTED, fontsize=8, loc="lower right")
    title = f"{report['source']}, dim {report['dim']}"
    panels[0].set_title(title, color=_INK, fontsize=11, loc="left")
    figure.savefig(path, dpi=150)
