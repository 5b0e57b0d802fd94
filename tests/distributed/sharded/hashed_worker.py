"""One worker of the scenarios of hashed weights."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sharded import hashing, registry, worker

if __name__ == "__main__":
    own = [name for name, run in registry.SCENARIOS.items() if run.__module__ == hashing.__name__]
    worker.main(Path(sys.argv[1]), own)
