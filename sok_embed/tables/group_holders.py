"""Notes which layer or table has a group of a storage.

Two that took one group by mistake would share its rows.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np

from sok_embed import kv
from sok_embed.initializers import RowInitializer

_holders: weakref.WeakKeyDictionary[kv.Storage, dict[int, tuple[weakref.ref[Any], str]]] = (
    weakref.WeakKeyDictionary()
)


def hold(storage: kv.Storage, group: int, holder: Any, name: str) -> None:
    """Notes that an object has a group, for as long as it lives.

    Args:
        storage: The storage.
        group: The number of the group in the storage.
        holder: A layer or a table.
        name: The name of the object in messages, such as `"layer 'items'"`. An object of the same
            name may take over the group.
    """
    _holders.setdefault(storage, {})[group] = (weakref.ref(holder), name)


def stored_group(what: str, storage: kv.Storage, group: int, name: str) -> kv.Group | None:
    """Returns the storage's description of a group.

    Args:
        what: The beginning of the message.
        storage: The storage.
        group: The number of the group in the storage.
        name: The name of the object that wants it, as for `hold`.

    Raises:
        ValueError: If another object has the group.
    """
    if not _is_free(storage, group, name):
        gc.collect()  # a holder that only cycles of references keep
    if not _is_free(storage, group, name):
        _, taken = _holders[storage][group]
        raise ValueError(
            f"{what}: expected a group of its own in {storage!r}. Received: group={group}, which "
            f"{taken} has. Pass another group=, or call one layer in both places."
        )
    return {each.number: each for each in storage.groups()}.get(group)


def check_same_start(
    what: str, storage: kv.Storage, stored: kv.Group, initializer: RowInitializer, seed: int
) -> None:
    """Raises ValueError if a layer would change what new rows of a group start from.

    The core refuses that too, but the message here can name the layer.

    Args:
        what: The beginning of the message.
        storage: The storage.
        stored: The description of the group in the storage.
        initializer: The initializer of the layer.
        seed: The seed of the layer.
    """
    kept = stored.initializer
    if kept is None or storage.read_only or storage.reset_initializer:
        return
    own = (initializer.kind, np.float32(initializer.a), np.float32(initializer.b), seed % 2**63)
    theirs = (kept["kind"], np.float32(kept["a"]), np.float32(kept["b"]), kept["seed"] % 2**63)
    if own != theirs:
        number = stored.number
        raise ValueError(
            f"{what}: expected the initializer that group {number} of {storage!r} has, "
            f"{_shown(kept['kind'], kept['a'], kept['b'], kept['seed'])}. Received: "
            f"{_shown(initializer.kind, initializer.a, initializer.b, seed)}. Give the initializer "
            f"that it has; to look at rows or to remove rows, use storage.table({number}), which "
            "needs none. With storage.reset_initializer = True before, rows that are made from "
            "then on start from the other one."
        )


def _shown(kind: str, a: float, b: float, seed: int) -> str:
    """Returns the text of an initializer for messages, as the core writes it."""
    numbers = f"{a:.7g}" if kind == "constant" else f"{a:.7g}, {b:.7g}"
    return f"{kind} ({numbers}), seed {seed}"


def _is_free(storage: kv.Storage, group: int, name: str) -> bool:
    held = _holders.get(storage, {}).get(group)
    return held is None or held[0]() is None or held[1] == name
