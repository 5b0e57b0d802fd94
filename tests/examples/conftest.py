"""Lets the tests import the examples, as Python does when it runs one of them, and `running`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).parent))
