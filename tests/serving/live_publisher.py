"""Publishes versions of `live_models.telling` until it is killed, from the one that is there on.

python live_publisher.py PATH
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import live_models as live_tests  # noqa: E402

from sok_embed.serving import Publisher  # noqa: E402


def main(path: str) -> None:
    """Publishes one version after another."""
    model = live_tests.telling()
    for _ in range(200):
        try:
            publisher = Publisher(model, path)
            break
        except BlockingIOError:  # the one that was killed ends
            time.sleep(0.05)
    told = live_tests.Told()
    for _ in range(publisher.number):
        told.advance()
    told.put(model)
    print("publishes", publisher.number, flush=True)
    while True:
        told.advance(model)
        if publisher.publish() != told.number:
            raise RuntimeError(f"Expected delta {told.number}. Received: {publisher.number}.")


if __name__ == "__main__":
    main(sys.argv[1])
