"""Exports, loads and publishes models for serving."""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sok_embed.serving.live_model import LiveModel, load
    from sok_embed.serving.loaded_export import Snapshot
    from sok_embed.serving.publisher import Publisher
    from sok_embed.serving.pushing import prune, push
    from sok_embed.serving.served_model import export
    from sok_embed.serving.versions import Version

__all__ = ["LiveModel", "Publisher", "Snapshot", "Version", "export", "load", "prune", "push"]

# Says in which module each name is. `sok_embed.serving.rows` needs no TensorFlow, so that this
# imports none before it has to.
_HOMES = {
    "LiveModel": "live_model",
    "Publisher": "publisher",
    "Snapshot": "loaded_export",
    "Version": "versions",
    "export": "served_model",
    "load": "live_model",
    "prune": "pushing",
    "push": "pushing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    hidden = {"Any", "TYPE_CHECKING", "annotations"}  # of this file alone
    return sorted({*globals(), *__all__} - hidden)
