"""The native module by itself, without TensorFlow: a process that loads it starts at once."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
from pathlib import Path
from types import ModuleType

BINDING = Path(__file__).resolve().parents[2] / "sok_embed" / "binding"
# The library is taken as it was built in this tree, for this interpreter or for all from 3.12 on.
CORE_PATH = next(
    path
    for suffix in importlib.machinery.EXTENSION_SUFFIXES
    if (path := BINDING / f"_core{suffix}").exists()
)


@functools.cache
def load_core(path: str | os.PathLike[str] = CORE_PATH) -> ModuleType:
    """Loads `_core` from its library, which a process can do once; the same object each time."""
    spec = importlib.util.spec_from_file_location("_core", path)
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    return core
