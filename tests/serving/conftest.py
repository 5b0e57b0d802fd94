"""Models and checks that the tests of serving share."""

import sys
from pathlib import Path

# The helpers beside the tests: pytest's importlib mode leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).resolve().parent))
