"""What do rows in fewer bytes cost in test AUC, and what do they save in memory?

Trains one click model over `sok_embed.DynamicEmbedding` with rows and slots of several types, with
shorter vectors, and over vectors that ids share by a hash, with several seeds. Prints a Markdown
table, and writes it with a picture:

    python examples/row_types.py
    python examples/row_types.py --data ml-100k/u.data --batch-size 256 --optimizer adagrad \\
        --learning-rate 0.2 --epochs 6 --buckets 600 1300

Each seed draws clicks of its own; those of a file are divided by it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from adaptive_tradeoff import Setting, measure, open_clicks
from ctr.arrays import collect
from ctr.command import exit_status
from ctr.options import add_source, add_training, positive_int
from ctr.seeds import note, spread

SAMPLES = 1_500_000
TYPES = (
    ("float32", "float32"),
    ("float32", "bfloat16"),
    ("bfloat16", "bfloat16"),
    ("float16", "bfloat16"),
    ("int8", "bfloat16"),
)
_TYPES, _SHORTER, _SHARED = "types of rows", "shorter vectors", "vectors shared by a hash"
# The places of labels beside their points, in the order of TYPES, so that they do not overlap.
_LABELS = ((5, 5), (5, 5), (5, 9), (5, -12), (-5, 5))
_MARKS = {_TYPES: ("o", "#2a62b8"), _SHORTER: ("s", "#c4572b"), _SHARED: ("^", "#8c8c8c")}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_source(parser, SAMPLES)
    add = parser.add_argument
    add("--dims", type=positive_int, nargs="*", default=(8, 4), help="shorter vectors of float32")
    add("--buckets", type=positive_int, nargs="*", default=(250_000, 500_000), help="shared rows")
    add("--seeds", type=positive_int, default=5, help="runs of each")
    add_training(parser)
    add("--output", type=Path, default=Path("runs/row-types"), metavar="DIR")
    return parser.parse_args(arguments)


def settings(options: argparse.Namespace) -> Iterator[tuple[Setting, int]]:
    """Yields the settings to compare, with the length of their vectors; float32 comes first."""
    import sok_embed

    def own(dim: int, row_dtype: str, slot_dtype: str) -> Any:
        return lambda: sok_embed.DynamicEmbedding(dim, row_dtype=row_dtype, slot_dtype=slot_dtype)

    for types in TYPES:
        name = f"{types[0]}, slots {types[1]}"
        yield Setting(_TYPES, name, own(options.dim, *types)), options.dim
    for dim in options.dims:
        yield Setting(_SHORTER, f"dim {dim}", own(dim, "float32", "float32")), dim
    for buckets in options.buckets:

        def shared(buckets: int = buckets) -> Any:
            return sok_embed.AdaptiveEmbedding(options.dim, buckets, mask=0)

        yield Setting("static rows only", f"{buckets:,} rows", shared), options.dim


def main(arguments: Sequence[str]) -> int:
    """Measures every setting; returns the exit status."""
    options = parse(arguments)
    return exit_status("row_types.py", lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Trains every setting with every seed, then prints and writes the results."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seed in range(options.seeds):
        source = open_clicks(options, seed)
        train, test = collect(source, "train"), collect(source, "test")
        for setting, dim in settings(options):
            given = argparse.Namespace(**{**vars(options), "dim": dim})
            figures = measure(setting, train, test, 0, given, seed)
            kind = _SHARED if setting.kind == "static rows only" else setting.kind
            runs.setdefault((kind, setting.name), []).append(figures)
            note(
                f"seed {seed}, {setting.name}: test AUC {figures['test_auc']:.4f}, "
                f"{figures['bytes'] / 1e6:.2f} MB"
            )
    name = f"{source.name}, dim {options.dim}, {options.optimizer}"
    rows = summary(runs)
    options.output.mkdir(parents=True, exist_ok=True)
    text, figures_text = markdown(rows), json.dumps({"name": name, "rows": rows})
    (options.output / "row-types.md").write_text(text + "\n", encoding="utf-8")
    (options.output / "row-types.json").write_text(figures_text + "\n", encoding="utf-8")
    draw(rows, name, options.output / "row-types.png")
    print(text)
    print(figures_text)


def summary(runs: dict[tuple[str, str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns, for each setting, its bytes, its AUC of each seed, and the differences."""
    wide = next(iter(runs.values()))
    return [
        {
            "kind": kind,
            "name": name,
            "bytes": mean(run["bytes"] for run in each),
            "test_auc": [run["test_auc"] for run in each],
            "differences": [
                run["test_auc"] - first["test_auc"] for run, first in zip(each, wide, strict=True)
            ],
        }
        for (kind, name), each in runs.items()
    ]


def markdown(rows: list[dict[str, Any]]) -> str:
    """Makes the table of a run."""
    lines = [
        "| Rows | Memory | Of float32 | Test AUC | Less that of float32 |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        shared = f"{row['kind']}, " if row["kind"] == _SHARED else ""
        lines.append(
            f"| {shared}{row['name']} | {row['bytes'] / 1e6:.2f} MB "
            f"| {row['bytes'] / rows[0]['bytes']:.0%} | {spread(row['test_auc'])} "
            f"| {spread(row['differences'], '+')} |"
        )
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], name: str, path: Path) -> None:
    """Draws a point for each setting, with the lowest and the highest seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), facecolor="#ffffff", layout="tight")
    axes = figure.subplots()
    axes.axhline(0, color="#6b6b6b", linestyle="--", linewidth=1)
    for kind, (mark, colour) in _MARKS.items():
        chosen = [row for row in rows if row["kind"] == kind]
        places = [row["bytes"] / 1e6 for row in chosen]
        means = [mean(row["differences"]) for row in chosen]
        low = [mean(row["differences"]) - min(row["differences"]) for row in chosen]
        high = [max(row["differences"]) - mean(row["differences"]) for row in chosen]
        axes.errorbar(
            places, means, yerr=[low, high], fmt=mark, color=colour, label=kind, capsize=2
        )
        for row, x, y, (right, up) in zip(chosen, places, means, _LABELS, strict=False):
            axes.annotate(
                row["name"].replace(", slots ", " / "),
                (x, y),
                (right, up),
                textcoords="offset points",
                horizontalalignment="left" if right > 0 else "right",
                fontsize=7,
            )
    axes.set_xlabel("memory of the table, MB, with slots and index")
    axes.set_ylabel("test AUC, less that of float32")
    axes.set_title(name, fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
