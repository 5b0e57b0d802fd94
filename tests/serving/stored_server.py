"""Serves `live_models.telling` from a store, asks it all the time, and says which version answers.

Each line of the output is JSON: `version`, the number that the answers `told`, and how many
`answers` there were. It ends with an error at an answer that is not of one version, or is older
than the one before.

python stored_server.py URL LAST
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import live_models as live_tests  # noqa: E402
import numpy as np  # noqa: E402
from live_publisher import persist  # noqa: E402

from sok_embed.serving import load  # noqa: E402


def main(url: str, last: int) -> None:
    """Answers for ever; no version is greater than `last`."""
    versions = live_tests.versions_to(last)
    live = persist(lambda: load(url, follow=True, poll_seconds=0.2))
    random, told, answers, said = np.random.default_rng(), 0, 0, 0.0
    while True:
        ids = random.integers(0, live_tests.KEYS, [7, 3])
        version = live.version
        answer = live(ids=ids)["output_0"].numpy()
        number = live_tests.version_of(answer, ids, versions)
        if number < told:
            raise AssertionError(f"Expected version {told} or later. Received: {number}.")
        told, answers = number, answers + 1
        if time.monotonic() - said > 0.1:
            said = time.monotonic()
            print(json.dumps({"version": version, "told": told, "answers": answers}), flush=True)
        time.sleep(0.03)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
