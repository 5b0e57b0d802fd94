"""Lets the tests import the examples the way Python does when it runs one of them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
