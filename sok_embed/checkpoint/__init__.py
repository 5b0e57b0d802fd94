"""Checkpoints of models with rows, which any number of workers write and any number read.

Importing this package imports no TensorFlow: the command does without it.
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sok_embed.checkpoint.checkpoint import Checkpoint
    from sok_embed.checkpoint.fitting import fit
    from sok_embed.checkpoint.manager import CheckpointManager, set_copy_budget
    from sok_embed.checkpoint.stopping import Stopped, stop_on
    from sok_embed.checkpoint.tools.compaction import compact

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "Stopped",
    "compact",
    "fit",
    "set_copy_budget",
    "stop_on",
]

# The module of each public name.
_HOMES = {
    "Checkpoint": "checkpoint",
    "CheckpointManager": "manager",
    "Stopped": "stopping",
    "compact": "tools.compaction",
    "fit": "fitting",
    "set_copy_budget": "manager",
    "stop_on": "stopping",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    hidden = {"Any", "TYPE_CHECKING", "annotations"}  # of this file alone
    return sorted({*globals(), *__all__} - hidden)
