"""Lets the tests import the helpers beside them: pytest's importlib mode leaves sys.path alone."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
