"""Runs Damo-Embedding 1.1.12 as a rival: `pip install damo-embedding==1.1.12`, for Python 3.11."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def has_damo() -> bool:
    """Returns whether the rival is installed."""
    return importlib.util.find_spec("damo") is not None


def open_damo(
    folder: str, dim: int, optimizer: dict[str, Any], initializer: dict[str, Any]
) -> tuple[Callable[[Any, Any], None], Callable[[Any, Any], None]]:
    """Makes a table of one group on disk.

    Args:
        folder: A new folder for its files; the settings are in a file beside it.
        dim: The number of floats of a vector.
        optimizer: The optimizer's name and parameters, by Damo-Embedding's names.
        initializer: The initializer's name and parameters, by Damo-Embedding's names.

    Returns:
        `lookup(keys, vectors)`, which makes absent rows and fills `vectors`, `[count, dim]`, and
        `update(keys, gradients)`. Keys are uint64; vectors and gradients are float32.
    """
    import damo

    group = {"group": 0, "dim": dim, "initializer": initializer, "optimizer": optimizer}
    settings = {"port": 0, "ttl": 86400 * 365, "dir": folder, "embeddings": [group]}
    path = Path(f"{folder}.json")
    path.write_text(json.dumps(settings))
    table = damo.PyDamo(str(path))
    step = 0

    def lookup(keys: Any, vectors: Any) -> None:
        table.pull(0, keys, vectors.reshape(-1))  # a view: the vectors lie one after another

    def update(keys: Any, gradients: Any) -> None:
        nonlocal step
        step += 1
        table.push((1 << 32) | step, 0, keys, gradients.reshape(-1))

    return lookup, update
