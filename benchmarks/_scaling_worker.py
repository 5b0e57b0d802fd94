"""Runs one worker of scaling.py, which times exchanges and steps and writes the results.

python _scaling_worker.py ASKED FOLDER    # started by sok-embed run
"""

from __future__ import annotations

import functools
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from _common import Keys, positions, use_threads
from exchange import step_of

import sok_embed
from sok_embed.communicators.tcp import TcpCommunicator

# So many exchanges, each of what came of the one before, make a call, whose own cost is shared.
CHAIN = 8
ROW_BYTES = 64

Call = Callable[[], object]


def ids_of(asked: Mapping[str, Any], workers: int, tables: int, batch: int) -> Keys:
    """Returns the ids of all workers, `[workers, batches, tables, batch]`: each knows all."""
    rng = np.random.default_rng(asked["seed"])
    shape = (workers, asked["batches"], tables, batch)
    return positions(asked["dist"], asked["keys"], shape, rng)


def timed(
    contenders: Mapping[str, Call], calls: int, repeats: int, barrier: Call
) -> dict[str, dict[str, float]]:
    """Times calls in turns, once all workers have come; one repeat more does not count.

    Returns:
        The medians, for each contender, of a call's seconds, of the processor's seconds in the
        program, `user_seconds`, and of these with those in the system, `cpu_seconds`.
    """
    seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, call in contenders.items():
            barrier()
            before = time.perf_counter(), *_processor_seconds()
            for _ in range(calls):
                call()
            after = time.perf_counter(), *_processor_seconds()
            if repeat:
                wall, user, cpu = ((b - a) / calls for a, b in zip(before, after, strict=True))
                seen[name].append((wall, user, cpu))
    names = ("seconds", "user_seconds", "cpu_seconds")
    return {
        contender: dict(
            zip(names, (statistics.median(each) for each in zip(*times, strict=True)), strict=True)
        )
        for contender, times in seen.items()
    }


def _processor_seconds() -> tuple[float, float]:
    """Returns the seconds of all threads of this process: in the program, and in the system too."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_utime + used.ru_stime


def exchange_of(communicator: TcpCommunicator, sent: int) -> Call:
    """Returns a chain of exchanges, each of which sends so many bytes to all others together."""
    size, rank = communicator.size, communicator.rank
    rows = sent // (ROW_BYTES * (size - 1))
    splits = tf.constant([0 if other == rank else rows for other in range(size)])
    tensor = tf.ones([rows * (size - 1), ROW_BYTES // 4])

    @tf.function
    def exchange() -> tf.Tensor:
        moved = tensor
        for number in range(CHAIN):
            moved, _ = communicator.all_to_all(moved, splits, f"{sent}.{number}")
        return moved

    return exchange


def exchanges(asked: Mapping[str, Any], communicator: TcpCommunicator) -> list[dict[str, Any]]:
    """Times exchanges of each size that is asked for."""
    contenders = {str(sent): exchange_of(communicator, sent) for sent in asked["exchanged"]}
    # On a busy machine the first exchanges after a long exchange wait for their turn.
    found = timed(contenders, 4, asked["repeats"], communicator.barrier)
    return [
        {"sent": int(sent), **{name: value / CHAIN for name, value in times.items()}}
        for sent, times in found.items()
    ]


def steps(asked: Mapping[str, Any], communicator: Any) -> list[dict[str, Any]]:
    """Times steps with each batch that is asked for, and counts what they send."""
    step = tf.function(step_of("key", asked["tables"], asked["dim"]), reduce_retracing=True)
    told = []
    for batch in asked["batches_of"]:
        ids = ids_of(asked, communicator.size, asked["tables"], batch)[communicator.rank]
        batches = [[tf.constant(table[:, None]) for table in each] for each in ids]

        epoch = functools.partial(_run, step, batches)
        epoch()  # makes the rows
        before = _sent(communicator)
        epoch()
        after = _sent(communicator)
        found = timed({"epoch": epoch}, 1, asked["repeats"], communicator.barrier)["epoch"]
        counted = {name: (after[name] - before[name]) / len(batches) for name in after}
        means = {name: value / len(batches) for name, value in found.items()}
        told.append({"batch": batch, **counted, **means})
    return told


def _run(step: Callable[[Any], object], batches: list[Any]) -> None:
    for batch in batches:
        step(batch)


def _sent(communicator: Any) -> dict[str, int]:
    if not isinstance(communicator, TcpCommunicator):
        return {"exchanges": 0, "bytes_sent": 0}
    return communicator.connections.stats()


def main() -> None:
    """Measures, and writes a file of this worker's rank."""
    asked, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    tf.get_logger().setLevel("ERROR")  # each chain is a function that is traced once
    use_threads(1)
    communicator = sok_embed.init()
    are_many = isinstance(communicator, TcpCommunicator)
    told = {
        "exchanges": exchanges(asked, communicator) if are_many else [],
        "steps": steps(asked, communicator),
    }
    (folder / f"{communicator.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
