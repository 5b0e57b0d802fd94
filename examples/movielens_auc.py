"""Does a hash table that grows rank films as well as an embedding of a known vocabulary?

Trains the same model twice a seed on MovieLens 100k, `ua.base` against `ua.test`: once over
`sok_embed.DynamicEmbedding` and once over `keras.layers.Embedding`. The MLPs start from the same
weights and see the same rows in the same order; the start of the embeddings alone differs. Prints
the test AUC of each run and the difference of the means:

    python examples/movielens_auc.py --data ml-100k/ua.base
    python examples/movielens_auc.py --data ml-100k/ua.base --workers 2

With n workers each takes a batch of `--batch-size / n` rows.

The default is Adagrad because both embeddings then do the same arithmetic. Keras' Adam and RMSprop
also move rows that a batch does not touch, which a hash table does not: it is lazy, like the Adam
of other sparse libraries. That, not the table, makes a difference of its own:

    python examples/movielens_auc.py --data ml-100k/ua.base --optimizer adam \\
        --learning-rate 0.001 --epochs 4
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from ctr.command import exit_status
from ctr.options import add_training, positive_int
from ctr.sources import open_source
from ctr.workers import are_started, join, launch


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="PATH", help="ua.base, with ua.test beside it")
    add("--workers", type=positive_int, help="processes here, or those of a launcher")
    add("--seeds", type=positive_int, default=3, help="runs of each embedding")
    add_training(parser, epochs=6, batch_size=256, optimizer="adagrad", learning_rate=0.2)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the comparison; returns the exit status."""
    options = parse(arguments)

    def launch_or_run() -> int | None:
        if (options.workers or 1) > 1 and not are_started():
            return launch(Path(__file__).resolve(), arguments, options.workers)
        compare(options)
        return None

    return exit_status("movielens_auc.py", launch_or_run)


def compare(options: argparse.Namespace) -> None:
    """Trains both embeddings for every seed and prints the results."""
    sources = [open_source(options.data, None, seed) for seed in range(options.seeds)]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    workers = join(options.workers, needs_sok_embed=True)

    import keras
    from ctr.training import Plan, train

    def show(line: str) -> None:
        if workers.rank == 0:
            print(line, flush=True)

    aucs: dict[str, list[float]] = {"hash": [], "static": []}
    show(f"{'seed':>4}  {'hash':>8}  {'static':>8}  {'hash - static':>13}")
    for seed, source in enumerate(sources):
        for kind in ("hash", "static"):
            keras.backend.clear_session()
            plan = Plan(
                embedding=kind,
                epochs=options.epochs,
                batch_size=options.batch_size,
                dim=options.dim,
                optimizer=options.optimizer,
                learning_rate=options.learning_rate,
                seed=seed,
            )
            aucs[kind].append(train(plan, source, workers, show=False).test_auc)
        show(_line(str(seed), aucs["hash"][-1], aucs["static"][-1]))
    hashed, static = mean(aucs["hash"]), mean(aucs["static"])
    show(_line("mean", hashed, static))
    show(json.dumps({"workers": workers.size, **aucs, "difference_of_the_means": hashed - static}))


def _line(name: str, hashed: float, static: float) -> str:
    return f"{name:>4}  {hashed:8.4f}  {static:8.4f}  {hashed - static:+13.4f}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
