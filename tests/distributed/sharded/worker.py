"""One worker: runs all scenarios in one order and saves what each returns."""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[2]))

import keras
import numpy as np

import sok_embed
from sharded.registry import SCENARIOS, Here

MODULES = (
    "adapting",
    "collecting",
    "communication",
    "counting",
    "failing",
    "feature_columns",
    "fitting",
    "hashing",
    "joining",
    "loops",
    "many_columns",
    "mapping",
    "messages",
    "normalizing",
    "optimizing",
    "rows",
)


def main(folder: Path, wanted: list[str]) -> None:
    sok_embed.init()
    run(folder, wanted)


def run(folder: Path, wanted: list[str]) -> None:
    """Runs scenarios; all of them if none is named."""
    here = Here(sok_embed.rank(), sok_embed.size())
    for module in MODULES:
        importlib.import_module(f"sharded.{module}")
    for name, scenario in SCENARIOS.items():
        if wanted and name not in wanted:
            continue
        keras.utils.clear_session()
        keras.utils.set_random_seed(7)
        start = time.perf_counter()
        try:
            arrays = scenario(here)
        except Exception:
            # The others go on, up to the next call that needs this worker.
            arrays = {"error": traceback.format_exc()}
        np.savez(folder / f"{name}.{here.rank}.npz", **arrays)
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
