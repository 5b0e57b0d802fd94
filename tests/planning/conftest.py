"""What the tests of sharding plans share."""

import sys
from pathlib import Path

# The helpers beside the tests, and the models beside the benchmarks: pytest's importlib mode
# leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
