"""One worker: runs cases in which one worker differs, and saves what each raises."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[2]))

import keras

import sok_embed
from sharded.differing.cases import cases
from sharded.differing.models import ALIKE

ODD = 1  # the rank of the worker that differs


def main(folder: Path, wanted: list[str]) -> None:
    sok_embed.init(timeout=60)
    rank, raised = sok_embed.rank(), {}
    works = {name: work for name, (work, _) in cases().items()} | ALIKE
    for name in wanted or works:
        print(name, flush=True)
        keras.utils.set_random_seed(7)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                works[name](rank == ODD)
            raised[name] = "nothing"
        except Exception as error:
            raised[name] = f"{type(error).__name__}: {error}"
        sok_embed.communicators.current().barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps(raised))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
