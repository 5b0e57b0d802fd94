"""The native module by itself, without TensorFlow: a process that loads it starts at once."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from types import ModuleType

# The library is taken as it was built in this tree.
CORE_PATH = Path(__file__).resolve().parents[2] / "sok_embed" / "binding" / "_core.so"


@functools.cache
def load_core(path: str | os.PathLike[str] = CORE_PATH) -> ModuleType:
    """Loads `_core` from its library, which a process can do once; the same object each time."""
    spec = importlib.util.spec_from_file_location("_core", path)
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    return core
