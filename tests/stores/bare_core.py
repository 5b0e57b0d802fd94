"""The native module by itself, without TensorFlow: a process that loads it starts at once."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

_IN_THE_TREE = Path(__file__).resolve().parents[2] / "tf_ops" / "_core.so"


def load_core(path: str | os.PathLike[str] | None = None) -> ModuleType:
    """Loads `_core`.

    Args:
        path: Of the library; `None`: the one that was built in this tree.
    """
    spec = importlib.util.spec_from_file_location("_core", path or _IN_THE_TREE)
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    return core
