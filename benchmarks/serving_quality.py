"""Measures the test AUC of exports by the type of their rows and by the rows that are left out.

    python benchmarks/serving_quality.py --data ml-100k/ua.base --batch-size 256 \\
        --optimizer adagrad --learning-rate 0.2 --epochs 6 --min-count 12 30 60 120
    python benchmarks/serving_quality.py --samples 200000 --min-count 2 3 5 10

Trains the click model of the examples over `sok_embed.DynamicEmbedding`, exports it with each
`dtype=` and some `min_count=`, and has each export answer the test rows. Prints a Markdown table,
and writes it with a picture of size against AUC. Each seed trains a model of its own; rows, bytes
of the file of rows and AUC are means over the seeds. The last column has for each seed the AUC
minus that of the float32 export with all rows of the same model.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from ctr.arrays import Rows, collect, trained_model
from ctr.auc import exact_auc
from ctr.command import exit_status
from ctr.options import add_source, add_training, positive_int
from ctr.seeds import note
from ctr.sources import open_source

SAMPLES = 200_000
DTYPES = ("float32", "float16", "int8", "int4")
_COLOURS = {"float32": "#2a62b8", "float16": "#4f9d69", "int8": "#c4572b", "int4": "#8c8c8c"}
_ASKED = 4096


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_source(parser, SAMPLES)
    add = parser.add_argument
    add("--min-count", type=positive_int, nargs="*", default=(2, 3, 5, 10), metavar="N")
    add("--seeds", type=positive_int, default=3, help="models that are trained")
    add_training(parser)
    add("--output", type=Path, default=Path("runs/serving-quality"), metavar="DIR")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    """Trains, exports and asks; prints and writes the results."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import sok_embed

    settings = [(dtype, count) for count in (0, *options.min_count) for dtype in DTYPES]
    runs: dict[tuple[str, int], list[tuple[float, float, int]]] = {each: [] for each in settings}
    for seed in range(options.seeds):
        samples = None if options.data else getattr(options, "samples", SAMPLES)
        source = open_source(options.data, samples, seed)
        test = collect(source, "test")
        _, model = trained_model(
            lambda: sok_embed.DynamicEmbedding(options.dim, name="ids"),
            collect(source, "train"), options, seed, shuffle=options.data is not None,
        )  # fmt: skip
        for setting, figures in _served(model, test, settings):
            runs[setting].append(figures)
            note(f"seed {seed}, {setting}: AUC {figures[0]:.6f}, {figures[1] / 1e6:.3f} MB")
    first = [auc for auc, _, _ in runs["float32", 0]]
    rows = [
        {
            "dtype": dtype,
            "min_count": count,
            "rows": round(mean(each[2] for each in figures)),
            "bytes": mean(each[1] for each in figures),
            "auc": mean(each[0] for each in figures),
            "differences": [each[0] - of for each, of in zip(figures, first, strict=True)],
        }
        for (dtype, count), figures in runs.items()
    ]
    name = f"{source.name}, dim {options.dim}, {options.optimizer}"
    options.output.mkdir(parents=True, exist_ok=True)
    text = markdown(rows)
    (options.output / "serving-quality.md").write_text(text + "\n", encoding="utf-8")
    draw(rows, name, options.output / "serving-quality.png")
    print(text)
    print(json.dumps({"name": name, "rows": rows}))


def _served(
    model: Any, test: Rows, settings: Sequence[tuple[str, int]]
) -> Iterator[tuple[tuple[str, int], tuple[float, float, int]]]:
    """Yields for each setting the test AUC, the bytes and the rows of its export."""
    import tensorflow as tf

    from sok_embed.serving import export, rows

    for dtype, count in settings:
        with tempfile.TemporaryDirectory() as folder:
            version = export(model, folder, dtype, count)
            loaded = tf.saved_model.load(version)
            serve = loaded.signatures["serving_default"]
            logits = []
            for begin in range(0, len(test.labels), _ASKED):
                part = {
                    name: tf.constant(each[begin : begin + _ASKED])
                    for name, each in test.inputs().items()
                }
                (outputs,) = serve(**part).values()
                logits.append(outputs.numpy()[:, 0])
            path = f"{version}/assets/ids.safetensors"
            with rows.open(path) as file:
                size, held = file.file_bytes, len(file)
        yield (dtype, count), (exact_auc(np.concatenate(logits), test.labels), size, held)


def markdown(rows: list[dict[str, Any]]) -> str:
    """Makes the table of a run."""
    lines = [
        "| `dtype` | `min_count` | Rows | kB | Test AUC "
        "| Minus that of float32 with all rows, by seed |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        differences = ", ".join(f"{each:+.6f}" for each in row["differences"])
        lines.append(
            f"| {row['dtype']} | {row['min_count']} | {row['rows']:,} | {row['bytes'] / 1e3:,.0f} "
            f"| {row['auc']:.4f} | {differences} |"
        )
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], name: str, path: Path) -> None:
    """Draws a line for each dtype, with a point for each `min_count`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), facecolor="#ffffff", layout="tight")
    axes = figure.subplots()
    for dtype, colour in _COLOURS.items():
        chosen = [row for row in rows if row["dtype"] == dtype]
        places = [row["bytes"] / 1e3 for row in chosen]
        aucs = [row["auc"] for row in chosen]
        axes.plot(places, aucs, "o-", color=colour, label=dtype, linewidth=1, markersize=4)
        if dtype == "float32":
            for row, x, y in zip(chosen, places, aucs, strict=True):
                count = str(row["min_count"] or "all rows")
                axes.annotate(count, (x, y), (0, -12), textcoords="offset points", fontsize=8)
    axes.set_xlabel("file of rows, kB; a number beside a point is its min_count")
    axes.set_ylabel("test AUC")
    axes.set_title(name, fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    given = parse(sys.argv[1:])
    raise SystemExit(exit_status("serving_quality.py", lambda: run(given)))
