"""Provides keys, interleaved timing and reports for the benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# This must be set before TensorFlow is imported, which prints much when it starts.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

import sok_embed

ZIPF_EXPONENT = 1.05
Keys = npt.NDArray[np.int64]


def options(description: str) -> argparse.ArgumentParser:
    """Returns the options that all benchmarks take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--dim", type=int, nargs="+", default=[16, 64], help="floats a row")
    parser.add_argument("--keys", type=int, default=1_000_000, help="rows in the table")
    parser.add_argument("--batch", type=int, default=65_536, help="keys a call")
    parser.add_argument(
        "--dist", nargs="+", choices=["uniform", "zipf"], default=["uniform", "zipf"]
    )
    parser.add_argument("--batches", type=int, default=16, help="distinct batches a repeat")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are cores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--check", action="store_true", help="exit with status 1 when a target is missed"
    )
    return parser


def use_threads(threads: int) -> None:
    """Limits TensorFlow to so many threads an op; call it before any op runs."""
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)


def distinct_keys(count: int, rng: np.random.Generator) -> Keys:
    """Returns different random keys of 63 bits, `[count]`."""
    keys = np.unique(rng.integers(0, 2**63 - 1, count + 16, dtype=np.int64))
    return rng.permutation(keys)[:count]


def positions(dist: str, count: int, shape: tuple[int, ...], rng: np.random.Generator) -> Keys:
    """Draws from `[0, count)`: uniformly, or by a Zipf law whose ranks are in random order."""
    if dist == "uniform":
        return rng.integers(0, count, shape, dtype=np.int64)
    weights = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
    ranks = np.searchsorted(weights, rng.random(shape) * weights[-1])
    return rng.permutation(count)[np.minimum(ranks, count - 1)]


def interleaved(
    contenders: Mapping[str, Callable[[int], object]], calls: int, repeats: int
) -> dict[str, float]:
    """Returns the median seconds of a call for each contender, timed in turns.

    Each repeat has another order: a contender that works through much memory leaves a cold cache to
    the one that follows it, which was 0.2 of a lookup's time.

    Args:
        contenders: Functions of the number of the call, in `[0, calls)`.
        calls: The number of calls of one repeat.
        repeats: The number of repeats of each contender, after a first repeat that is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    turns, order = list(contenders.items()), random.Random(0)
    for repeat in range(repeats + 1):
        order.shuffle(turns)
        for name, call in turns:
            start = time.perf_counter()
            for i in range(calls):
                call(i)
            elapsed = time.perf_counter() - start
            if repeat:
                seconds[name].append(elapsed / calls)
    return {name: statistics.median(times) for name, times in seconds.items()}


def rates(seconds: dict[str, float], batch: int) -> dict[str, float]:
    """Returns million keys a second."""
    return {name: round(batch / value / 1e6, 3) for name, value in seconds.items()}


def ratios(rate: dict[str, float], ours: str = "sok_embed") -> dict[str, float]:
    """Returns the ratio of our speed to the speed of each rival."""
    return {name: round(rate[ours] / value, 3) for name, value in rate.items() if name != ours}


def environment() -> dict[str, Any]:
    """Returns versions and cores, for the report."""
    return {
        "sok_embed": sok_embed.__version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()


def report(case: dict[str, Any], line: str) -> None:
    """Prints a case as one JSON line on stdout, and a line for people on stderr."""
    print(json.dumps({**case, **environment()}), flush=True)
    print(line, file=sys.stderr, flush=True)


def table_of(layer: Any, keys: Keys, rows: npt.NDArray[np.float32], chunk: int = 65_536) -> None:
    """Fills the table of a layer with rows of given values."""
    for first in range(0, len(keys), chunk):
        layer.table.assign(keys[first : first + chunk], rows[first : first + chunk])


def tensors(arrays: Sequence[npt.NDArray[Any]]) -> list[tf.Tensor]:
    """Returns each of the arrays as a tensor."""
    return [tf.constant(array) for array in arrays]
