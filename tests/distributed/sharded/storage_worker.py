"""One worker of the scenarios of storages."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[2]))

from sharded import storing, worker

if __name__ == "__main__":
    worker.main(
        Path(sys.argv[1]), [storing.storing.__name__, storing.updating_without_layers.__name__]
    )
