"""How much test AUC does a hashed embedding give up for its memory?

Trains one click model over `sok_embed.HashedEmbedding` of every compression and hash, and over the
full table, with several seeds. Prints a Markdown table, and writes it with a picture:

    python examples/compression_curve.py
    python examples/compression_curve.py --data ml-100k/u.data --batch-size 256 \\
        --optimizer adagrad --learning-rate 0.2 --epochs 6
    python examples/compression_curve.py --data train.txt           # Criteo, tabs or commas

`row hashing` shares whole rows, `id % rows`; `mixed` shares single numbers, and with a block size
as many neighbours at a time. All have the same memory, and are of the ids of the training rows:
an id that is new in the test rows is one of a row for each field.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from statistics import mean
from typing import Any

from ctr.arrays import Rows, collect, train_and_test
from ctr.command import exit_status
from ctr.options import add_source, add_training, positive_int
from ctr.seeds import note, spread
from ctr.sources import open_source

SAMPLES = 400_000
COMPRESSIONS = (Fraction(1), *(Fraction(1, 4**power) for power in range(1, 5)))
# Starts all vectors: HashedEmbedding's own default would depend on the number of ids.
START = 0.05
_SURFACE, _INK, _MUTED = "#ffffff", "#1c1c1c", "#6b6b6b"
_LINES = ("#2a62b8", "#3c9a74", "#c4572b")


def compression(text: str) -> Fraction:
    """Reads a number in (0, 1], also as a fraction: `1/64`."""
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(
            f"expected a number above 0 and up to 1, as 1/64. Received: {text!r}."
        )
    return value


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add_source(parser, SAMPLES)
    add("--compression", type=compression, nargs="+", default=COMPRESSIONS, help="1/64 and so on")
    add("--block-size", type=positive_int, default=8, help="of the second line; the first has 1")
    add("--sign", action="store_true", help="mixed hashes also hash a sign for each number")
    add("--seeds", type=positive_int, default=3, help="runs of each")
    add_training(parser)
    add("--output", type=Path, default=Path("runs/compression"), metavar="DIR")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measures the curve; returns the exit status."""
    options = parse(arguments)
    return exit_status("compression_curve.py", lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Trains every model with every seed, then prints and writes the results."""
    samples = getattr(options, "samples", SAMPLES if options.data is None else None)
    source = open_source(options.data, samples, seed=0)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from ctr.embeddings import StaticRows

    vocabulary = StaticRows(options.dim, source, seed=0)
    train, test = (collect(source, split, vocabulary.inputs) for split in ("train", "test"))
    hashes: dict[str, dict[str, Any]] = {
        "mixed": {"sign": options.sign},
        f"mixed, block size {options.block_size}": {
            "sign": options.sign,
            "block_size": options.block_size,
        },
        "row hashing": {"hash": "modulo"},
    }
    aucs: dict[str, list[list[float]]] = {kind: [] for kind in hashes}
    ids = vocabulary.rows()
    note(f"{source.name}: {len(train.labels):,} training rows, {ids:,} ids")
    full = [auc(None, seed, ids, train, test, options) for seed in range(options.seeds)]
    note(f"full table: {spread(full)}")
    for share in options.compression:
        for kind in hashes:
            size = max(1, round(ids * share)) * options.dim
            hashed = {"size": size, **hashes[kind]}
            aucs[kind].append(
                [auc(hashed, seed, ids, train, test, options) for seed in range(options.seeds)]
            )
            note(f"compression {share}, {kind}: {spread(aucs[kind][-1])}")
    figures = {
        "source": source.name,
        "ids": ids,
        "dim": options.dim,
        "sign": options.sign,
        "seeds": options.seeds,
        "compression": [str(share) for share in options.compression],
        "full_table": full,
        "test_auc": aucs,
    }
    write(figures, options.output)
    print(markdown(figures))
    print(json.dumps(figures))


def auc(
    hashed: dict[str, Any] | None,
    seed: int,
    ids: int,
    train: Rows,
    test: Rows,
    options: argparse.Namespace,
) -> float:
    """Returns the test AUC over a `HashedEmbedding` of these arguments; over a table: `None`."""
    import keras

    import sok_embed

    def embedding() -> keras.layers.Layer:
        start = keras.initializers.RandomUniform(-START, START, seed)
        if hashed is None:
            return keras.layers.Embedding(ids, options.dim, start)
        return sok_embed.HashedEmbedding(ids, options.dim, weight=start, **hashed)

    return train_and_test(embedding, train, test, options, seed, shuffle=True)[1]


def markdown(figures: dict[str, Any]) -> str:
    """Makes the table of a run."""
    kinds = figures["test_auc"]
    lines = ["| Compression | Numbers kept |" + "".join(f" {kind} |" for kind in kinds)]
    lines.append("|---|---|" + "---|" * len(kinds))
    for row, share in enumerate(figures["compression"]):
        size = max(1, round(figures["ids"] * Fraction(share))) * figures["dim"]
        cells = "".join(f" {spread(aucs[row])} |" for aucs in kinds.values())
        lines.append(f"| {share} | {size:,} |{cells}")
    return "\n".join(
        [
            f"Test AUC, {figures['source']}, {figures['ids']:,} ids, dim {figures['dim']}, mean "
            f"and standard deviation of {figures['seeds']} seeds. Full table: "
            f"{spread(figures['full_table'])}.",
            "",
            *lines,
        ]
    )


def write(figures: dict[str, Any], output: Path) -> None:
    """Writes `compression-curve.png`, `.md` and `.json` into a folder."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "compression-curve.json").write_text(json.dumps(figures) + "\n", encoding="utf-8")
    (output / "compression-curve.md").write_text(markdown(figures) + "\n", encoding="utf-8")
    draw(figures, output / "compression-curve.png")
    note(f"written: {output}/compression-curve.png, .md, .json")


def draw(figures: dict[str, Any], path: Path) -> None:
    """Draws one line for each hash, its spread as a band, and the full table dashed."""
    from matplotlib.figure import Figure

    shares = [float(Fraction(share)) for share in figures["compression"]]
    figure = Figure(figsize=(7, 4.2), facecolor=_SURFACE, layout="tight")
    axes = figure.subplots()
    for (kind, aucs), colour in zip(figures["test_auc"].items(), _LINES, strict=True):
        axes.plot(shares, [mean(each) for each in aucs], "o-", color=colour, label=kind)
        low, high = ([pick(each) for each in aucs] for pick in (min, max))
        axes.fill_between(shares, low, high, color=colour, alpha=0.15, linewidth=0)
    full = mean(figures["full_table"])
    axes.axhline(full, color=_MUTED, linestyle="--", linewidth=1, label="full table")
    axes.set_xscale("log", base=2)
    axes.invert_xaxis()
    axes.set_xticks(shares, figures["compression"])
    axes.set_xlabel("compression: numbers kept of those of the full table", color=_MUTED)
    axes.set_ylabel("test AUC", color=_MUTED)
    title = f"{figures['source']}, {figures['ids']:,} ids, dim {figures['dim']}"
    axes.set_title(title, color=_INK, fontsize=11, loc="left")
    axes.legend(frameon=False, labelcolor=_MUTED, fontsize=8)
    axes.tick_params(colors=_MUTED, labelsize=8)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c9c9c9")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
