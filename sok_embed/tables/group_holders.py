"""Notes which layer or table has a group of a storage.

Two that took one group by mistake would share its rows.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sok_embed import kv
from sok_embed.kv.table_spec import TableSpec

_holders: weakref.WeakKeyDictionary[kv.Storage, dict[int, tuple[weakref.ref[Any], str]]] = (
    weakref.WeakKeyDictionary()
)


def hold(storage: kv.Storage, group: int, holder: Any, name: str) -> None:
    """Notes that an object has a group, for as long as it lives.

    Another object may take over the group if it has the same name, such as `"layer 'items'"`.
    """
    _holders.setdefault(storage, {})[group] = (weakref.ref(holder), name)


def with_seed(spec: TableSpec, name: str, choose: Callable[[], int]) -> TableSpec:
    """Returns a spec with its seed: the given one, that of its group in the storage, or a new one.

    Raises:
        ValueError: If another object has the group, and if new rows of the group start from another
            initializer or seed. The core refuses that too, but the message here can name the layer.
    """
    stored = None if spec.storage is None else _stored_group(spec, name)
    kept = None if stored is None else stored.initializer
    seed = spec.seed
    if seed is None:
        seed = choose() if kept is None else int(kept["seed"])
    spec = replace(spec, seed=seed % 2**63)
    if kept is not None and not (spec.storage.read_only or spec.storage.reset_initializer):
        _check_start(spec, kept)
    return spec


def _stored_group(spec: TableSpec, name: str) -> kv.Group | None:
    """Returns the storage's description of a group; raises if another object has it."""
    storage, group = spec.storage, spec.group
    if not _is_free(storage, group, name):
        gc.collect()  # a holder that only cycles of references keep
    if not _is_free(storage, group, name):
        _, taken = _holders[storage][group]
        raise ValueError(
            f"{spec.what}: expected a group of its own in {storage!r}. Received: group={group}, "
            f"which {taken} has. Pass another group=, or call one layer in both places."
        )
    return {each.number: each for each in storage.groups()}.get(group)


def _check_start(spec: TableSpec, kept: dict[str, Any]) -> None:
    """Raises unless a table starts new rows as its group does, by `kept`."""
    kind, a, b = spec.initializer
    own = (kind, np.float32(a), np.float32(b), spec.seed)
    theirs = (kept["kind"], np.float32(kept["a"]), np.float32(kept["b"]), kept["seed"] % 2**63)
    if own != theirs:
        raise ValueError(
            f"{spec.what}: expected the initializer that group {spec.group} of {spec.storage!r} "
            f"has, {_shown(kept['kind'], kept['a'], kept['b'], kept['seed'])}. Received: "
            f"{_shown(kind, a, b, spec.seed)}. Give the initializer that it has; to look at rows "
            f"or to remove rows, use storage.table({spec.group}), which needs none. With "
            "storage.reset_initializer = True before, rows that are made from then on start from "
            "the other one."
        )


def _shown(kind: str, a: float, b: float, seed: int | None) -> str:
    """Returns the text of an initializer for messages, as the core writes it."""
    numbers = f"{a:.7g}" if kind == "constant" else f"{a:.7g}, {b:.7g}"
    return f"{kind} ({numbers}), seed {seed}"


def _is_free(storage: kv.Storage, group: int, name: str) -> bool:
    held = _holders.get(storage, {}).get(group)
    return held is None or held[0]() is None or held[1] == name
