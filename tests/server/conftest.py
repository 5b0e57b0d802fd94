"""Helpers that the tests of the model server share."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("kserve", reason="the extra serve is not installed")

# The helpers beside the tests: pytest's importlib mode leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serving"))
