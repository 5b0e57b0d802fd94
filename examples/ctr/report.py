"""Reports a run as lines of text, as a JSON line and as a picture."""

from __future__ import annotations

import json
import math
import resource
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ctr.training import Outcome, Plan

_SURFACE, _INK, _MUTED, _LINE, _PALE = "#ffffff", "#1c1c1c", "#6b6b6b", "#2a62b8", "#b4c9e8"
_FEW_STEPS = 30
_TICKS = [1, 2, 5, 10]  # multiplied by powers of ten


def peak_memory_bytes() -> int:
    """Returns the largest resident memory this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


def figures(
    plan: Plan,
    outcome: Outcome,
    source: str,
    workers: int,
    memory_bytes: int,
    ceiling: float | None,
) -> dict[str, Any]:
    """Returns the run in plain values, ready for JSON: a figure that could not be taken is null."""
    return {
        "source": source,
        "workers": workers,
        **asdict(plan),
        "steps": len(outcome.losses),
        "final_loss": _known(float(np.mean(outcome.losses[-20:]))),
        "test_auc": _known(outcome.test_auc),
        "best_possible_test_auc": _known(ceiling),
        "table_rows": outcome.table_rows,
        "table_bytes": outcome.table_bytes,
        "keys_per_second": _known(outcome.keys_per_second),
        "peak_memory_bytes": memory_bytes,
    }


def text(run: dict[str, Any]) -> str:
    """Lays out the figures for a person."""
    auc, ceiling, speed = run["test_auc"], run["best_possible_test_auc"], run["keys_per_second"]
    best = "" if ceiling is None else f"  (the planted signal itself: {ceiling:.4f})"
    workers = "1 worker" if run["workers"] == 1 else f"{run['workers']} workers"
    lines = {
        "run": f"{run['source']}, {run['embedding']} embedding, {workers}",
        "test AUC": "none, the test rows are all of one class" if auc is None else f"{auc:.4f}",
        "embedding rows": f"{run['table_rows']:,}  ({run['table_bytes'] / 1e6:,.1f} MB)",
        "training speed": "none, it takes two steps" if speed is None else f"{speed:,.0f} keys/s",
        "peak resident memory": f"{run['peak_memory_bytes'] / 1e6:,.0f} MB",
    }
    lines["test AUC"] += best
    if speed is not None:
        lines["training speed"] += "  (without the first step, which compiles)"
    if run["workers"] > 1:
        lines["peak resident memory"] += "  (sum over the workers)"
    return "\n".join(f"{name + ':':22}{value}" for name, value in lines.items())


def write(run: dict[str, Any], outcome: Outcome, output: Path) -> tuple[Path, Path]:
    """Writes `report.json` and `training.png` into `output`; returns both paths."""
    output.mkdir(parents=True, exist_ok=True)
    json_path, picture_path = output / "report.json", output / "training.png"
    json_path.write_text(json.dumps(run) + "\n", encoding="utf-8")
    picture = draw(outcome, f"{run['source']}, {run['embedding']} embedding")
    picture.savefig(picture_path, dpi=150)
    return json_path, picture_path


def draw(outcome: Outcome, title: str) -> Figure:
    """Draws the loss and the rows by step; of a run of any length, one step too."""
    number = np.arange(1, len(outcome.losses) + 1)
    figure = Figure(figsize=(10, 3.8), facecolor=_SURFACE, layout="tight")
    left, right = figure.subplots(1, 2)
    figure.suptitle(title, color=_INK, fontsize=11, x=0.01, ha="left")
    window = len(number) // 25
    # A line through few steps needs points: a line of one step draws nothing.
    bold = {"color": _LINE, "linewidth": 1.8, "marker": "o" if len(number) <= _FEW_STEPS else ""}
    if window > 1:
        left.plot(number, outcome.losses, color=_PALE, linewidth=0.8, label="each step")
        smooth = _trailing_mean(outcome.losses, window)
        left.plot(number, smooth, **bold, label=f"mean of the last {window} steps")
        left.legend(frameon=False, labelcolor=_MUTED, fontsize=8)
        left.set_ylabel("training loss (log loss)")
    else:
        left.plot(number, outcome.losses, **bold)
        left.set_ylabel("training loss (log loss) of each step")
    right.plot(number, outcome.rows, **bold)
    right.set_ylabel("embedding rows")
    right.set_ylim(0, max(1.0, float(outcome.rows.max()) * 1.08))
    right.yaxis.set_major_locator(MaxNLocator(integer=True, steps=_TICKS))
    right.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for panel in (left, right):
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, steps=_TICKS))
        if len(number) == 1:
            panel.set_xlim(0, 2)
        panel.set_xlabel("training step", color=_MUTED)
        panel.yaxis.label.set_color(_MUTED)
        panel.tick_params(colors=_MUTED, labelsize=8)
        panel.grid(axis="y", color="#e6e6e6", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color("#c9c9c9")
    return figure


def _trailing_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Returns the mean of up to `window` values up to each place."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    stop = np.arange(1, len(values) + 1)
    start = np.maximum(stop - window, 0)
    return (sums[stop] - sums[start]) / (stop - start)


def _known(figure: float | None) -> float | None:
    return None if figure is None or math.isnan(figure) else float(figure)
