"""Publishes versions of `live_models.telling` until it is killed, from the one that is there on.

Before the first one it prints "publishes", the number of the export and of the delta that it begins
at, and the number that the model's answers tell there.

python live_publisher.py PATH    # or a URL of a store, which may fail now and then
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import live_models as live_tests  # noqa: E402
import numpy as np  # noqa: E402

from sok_embed.files.object_store import StoreError  # noqa: E402
from sok_embed.serving import Publisher, export, load, prune  # noqa: E402

_Result = TypeVar("_Result")

# A publisher that starts reads all deltas of the newest export, so that there are few.
MOST_DELTAS = 25


def persist(call: Callable[[], _Result]) -> _Result:
    """Returns what a function returns, as soon as the store does not fail."""
    while True:
        try:
            return call()
        except StoreError:
            time.sleep(0.05)


def main(path: str) -> None:
    """Publishes one version after another, to a new export where the newest has many deltas."""
    model = live_tests.telling()
    for _ in range(200):
        try:
            publisher = persist(lambda: Publisher(model, path))
            break
        except BlockingIOError:  # the one that was killed ends
            time.sleep(0.05)
    served = persist(lambda: load(path))
    told = live_tests.Told()
    for _ in range(int(served(ids=np.zeros([1, 3], np.int64))["output_0"][0, -1])):
        told.advance()
    told.put(model)
    exported, number = served.version
    if number >= MOST_DELTAS:
        exported, number = int(Path(persist(lambda: export(model, path))).name), 0
        if persist(publisher.publish) != 0:
            raise RuntimeError(f"Expected export {exported} to have everything.")
        if "://" in path:
            persist(lambda: prune(path))
    print("publishes", exported, number, told.number, flush=True)
    while True:
        number += 1
        told.advance(model)
        if persist(publisher.publish) != number:
            raise RuntimeError(f"Expected delta {number}. Received: {publisher.number}.")


if __name__ == "__main__":
    main(sys.argv[1])
