"""Trains a click model whose ids nobody counted beforehand.

Without arguments it generates Criteo-like clicks in which new ids keep arriving, trains a
DLRM-style Keras model over a hash embedding table for each field under `model.fit`, and reports
test AUC, growth of the tables, speed and memory:

    python examples/train_ctr.py
    python examples/train_ctr.py --data train.txt              # Criteo, tabs or commas
    python examples/train_ctr.py --data ml-100k/ua.base --batch-size 256
    python examples/train_ctr.py --workers 2                   # tables sharded over both
    python examples/train_ctr.py --workers 2 --engine ray      # started by Ray Train
    python examples/train_ctr.py --embedding static            # the rival: a fixed vocabulary
    python examples/train_ctr.py --save ctr.keras              # the model too, to export it:
    PYTHONPATH=examples sok-embed export ctr.keras served --import ctr.model
    python examples/train_ctr.py --publish served              # served models follow the training
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ctr.command import exit_status
from ctr.on_ray import launch_on_ray
from ctr.options import add_source, add_training, keras_file, positive_int, seed
from ctr.sources import DEFAULT_SAMPLES, open_source
from ctr.workers import are_started, join, launch


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add_source(parser, DEFAULT_SAMPLES)
    add("--embedding", choices=("hash", "static"), default="hash", help="growing tables or rival")
    add("--workers", type=positive_int, help="processes here, or those of a launcher")
    add("--engine", choices=("run", "ray"), default="run", help="starts them: sok-embed run or Ray")
    add_training(parser)
    add("--seed", type=seed, default=0, help="of the clicks, the shuffling and the start weights")
    add("--output", type=Path, default=Path("runs/ctr"), metavar="DIR", help="for the report")
    add("--save", type=keras_file, metavar="FILE.keras", help="write the trained model")
    add("--publish", type=Path, metavar="DIR", help="export there first, then publish deltas")
    add("--quiet", action="store_true", help="print the JSON line only")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the example; returns the exit status."""
    options = parse(arguments)

    def launch_or_run() -> int | None:
        if options.engine == "ray":
            return launch_on_ray(run, options, options.workers or 1)
        if (options.workers or 1) > 1 and not are_started():
            return launch(Path(__file__).resolve(), arguments, options.workers)
        run(options)
        return None

    return exit_status("train_ctr.py", launch_or_run)


def run(options: argparse.Namespace) -> None:
    """Trains, tests and reports on this worker."""
    source = open_source(options.data, getattr(options, "samples", None), options.seed)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    workers = join(options.workers, options.embedding == "hash", options.engine)

    from ctr import report
    from ctr.ceiling import best_possible_auc
    from ctr.training import Plan, train

    plan = Plan(
        embedding=options.embedding,
        epochs=options.epochs,
        batch_size=options.batch_size,
        dim=options.dim,
        optimizer=options.optimizer,
        learning_rate=options.learning_rate,
        seed=options.seed,
    )
    outcome = train(
        plan, source, workers, not options.quiet, save_to=options.save, publish_to=options.publish
    )
    memory = int(workers.total(report.peak_memory_bytes()))
    if workers.rank != 0:
        return
    figures = report.figures(
        plan, outcome, source.name, workers.size, memory, best_possible_auc(source)
    )
    paths = report.write(figures, outcome, options.output)
    if options.save:
        paths = (*paths, options.save)
    if not options.quiet:
        print(report.text(figures))
        print(f"{'written:':22}{', '.join(str(path) for path in paths)}")
    print(json.dumps(figures))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
