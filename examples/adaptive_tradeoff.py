"""What do own rows for frequent ids only cost in test AUC, and what do they save in memory?

Trains one click model over `sok_embed.AdaptiveEmbedding` with several settings, over static rows
only, over own rows only (`sok_embed.DynamicEmbedding`), and over own rows behind an admission
filter, with several seeds. Prints a Markdown table, and writes it with a picture:

    python examples/adaptive_tradeoff.py
    python examples/adaptive_tradeoff.py --data ml-100k/ua.base --batch-size 256 \\
        --optimizer adagrad --learning-rate 0.2 --epochs 6 --static-buckets 100 400 \\
        --promote-after 30 60 180 --min-count 30 60 180 --max-rows 800 --capacity 3000

The generated clicks have more than a million ids in 1.5 million rows, of which two thirds come
once, and new ones until the end; the test rows follow the training rows in time. Each seed draws
clicks of its own.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ctr.arrays import Rows, collect, train_and_test
from ctr.batches import Source
from ctr.command import exit_status
from ctr.generated import LARGE, Generated
from ctr.options import add_source, add_training, positive_int
from ctr.seeds import note
from ctr.sources import open_source

SAMPLES = 1_500_000
# An exact counter's key and count take 12 bytes, and at most 3/4 of the places are taken.
COUNTER_BYTES = 16


class Setting(NamedTuple):
    """One way to hold the rows."""

    kind: str
    name: str
    make: Callable[[], Any]  # the layer
    admission: Any = None


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_source(parser, SAMPLES)
    add = parser.add_argument
    add(
        "--static-buckets",
        type=positive_int,
        nargs="+",
        default=(20_000, 100_000),
        help="static rows, alone and with own rows",
    )
    add(
        "--promote-after",
        type=positive_int,
        nargs="+",
        default=(3, 4, 10),
        help="occurrences from which on an id has its own row",
    )
    add(
        "--max-rows",
        type=positive_int,
        nargs="*",
        default=(50_000,),
        help="limits of own rows, with the most static rows and the first --promote-after",
    )
    add(
        "--min-count",
        type=positive_int,
        nargs="+",
        default=(2, 4, 10),
        help="occurrences from which on a filter admits an id",
    )
    add("--capacity", type=positive_int, default=1_000_000, help="ids that sketch and filter fit")
    add("--seeds", type=positive_int, default=5, help="runs of each")
    add_training(parser)
    add("--output", type=Path, default=Path("runs/adaptive"), metavar="DIR")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measures every setting; returns the exit status."""
    options = parse(arguments)
    return exit_status("adaptive_tradeoff.py", lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Trains every setting with every seed, then prints and writes the results."""
    sources = [open_clicks(options, seed) for seed in range(options.seeds)]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    from ctr import tradeoff
    from ctr.ceiling import best_possible_auc

    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    ids = []
    for seed, source in enumerate(sources):
        train, test = collect(source, "train"), collect(source, "test")
        ids.append(tradeoff.count_ids(train, test))
        note(f"seed {seed}: {len(train.labels):,} training rows, {ids[-1]['ids']:,} ids")
        for setting in settings(options):
            figures = measure(setting, train, test, ids[-1]["ids"], options, seed)
            runs.setdefault((setting.kind, setting.name), []).append(figures)
            note(
                f"seed {seed}, {setting.kind} {setting.name}: test AUC {figures['test_auc']:.4f}, "
                f"{figures['bytes'] / 1e6:.1f} MB"
            )
    report = {
        "source": sources[0].name,
        "training_rows": len(train.labels),
        "ids": ids,
        "dim": options.dim,
        "optimizer": options.optimizer,
        "learning_rate": options.learning_rate,
        "epochs": options.epochs,
        "best_possible_test_auc": [best_possible_auc(source) for source in sources],
        "settings": [
            {"kind": kind, "name": name, "runs": each} for (kind, name), each in runs.items()
        ],
    }
    tradeoff.write(report, options.output)


def open_clicks(options: argparse.Namespace, seed: int) -> Source:
    """Returns the file of `--data`; without it, clicks that this seed draws."""
    samples = getattr(options, "samples", None)
    if options.data is None:
        return Generated(SAMPLES if samples is None else samples, seed, LARGE)
    return open_source(options.data, samples, seed)


def settings(options: argparse.Namespace) -> Iterator[Setting]:
    """Yields the settings to compare; the setting with own rows only comes first."""
    import sok_embed
    from sok_embed.admission import CountingBloomAdmission, FrequencyAdmission

    def own(admission: Any = None) -> Callable[[], Any]:
        return lambda: sok_embed.DynamicEmbedding(options.dim, admission=admission)

    def adaptive(buckets: int, **arguments: Any) -> Callable[[], Any]:
        return lambda: sok_embed.AdaptiveEmbedding(
            options.dim, buckets, sketch_capacity=options.capacity, **arguments
        )

    yield Setting("own rows only", "", own())
    for buckets in options.static_buckets:
        yield Setting("static rows only", f"{buckets:,} rows", adaptive(buckets, mask=0))
    for count in options.min_count:
        exact = FrequencyAdmission(count)
        yield Setting("exact filter", f"from {count} on", own(exact), exact)
    for count in options.min_count:
        bits = next(bits for bits in (4, 8, 16) if count < 2**bits)
        bloom = CountingBloomAdmission(count, options.capacity, counter_bits=bits)
        yield Setting("Bloom filter", f"from {count} on", own(bloom), bloom)
    limited = [(max(options.static_buckets), options.promote_after[0], n) for n in options.max_rows]
    free = itertools.product(options.static_buckets, options.promote_after, [None])
    for buckets, count, limit in (*free, *limited):
        name = f"{buckets:,} static rows, own ones from {count} on"
        name += "" if limit is None else f", at most {limit:,}"
        bits = 8 if count < 2**8 else 16
        layer = adaptive(buckets, promote_after=count, max_rows=limit, counter_bits=bits)
        yield Setting("adaptive", name, layer)


def measure(
    setting: Setting, train: Rows, test: Rows, ids: int, options: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """Trains a setting; returns its test AUC, its rows and its bytes.

    `ids` are the distinct ids of the training rows.
    """
    shuffle = options.data is not None  # generated clicks come in the order of time
    layer, auc = train_and_test(setting.make, train, test, options, seed, shuffle)
    stats = layer.table.stats()
    if setting.kind == "static rows only":  # nothing is counted, so the sketch is not needed
        parts = {"static": stats["static_bytes"]}
    elif setting.kind == "adaptive":
        parts = {part: stats[f"{part}_bytes"] for part in ("own", "static", "sketch")}
    else:
        parts = {"own": stats["bytes"]}
    if setting.admission is not None:
        from ctr.tradeoff import filter_bytes

        parts["filter"] = filter_bytes(setting.admission, ids - stats["rows"], COUNTER_BYTES)
    return {
        "test_auc": auc,
        "own_rows": stats["rows"],
        "static_rows": stats.get("static_rows", 0),
        "bytes": sum(parts.values()),
        "parts": parts,
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
