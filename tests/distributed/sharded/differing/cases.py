"""All cases, by their names."""

from __future__ import annotations

from collections.abc import Callable

from sharded.differing.columns import columns
from sharded.differing.kinds import Kind
from sharded.differing.layers import LAYERS
from sharded.differing.models import MODELS
from sharded.differing.optimizers import optimizers
from sharded.differing.others import OTHERS

KINDS: dict[str, Kind] = {**LAYERS, **dict(columns()), **dict(optimizers())}


def cases() -> dict[str, tuple[Callable[[bool], object], str]]:
    """Returns all cases: what a worker does, odd or not, and a part of the message."""
    found = {
        f"{name}.{argument}": (
            lambda odd, kind=kind, argument=argument: kind.run(argument, odd),
            kind.said.get(argument, argument),
        )
        for name, kind in KINDS.items()
        for argument in kind.changed
    }
    return {**found, **OTHERS, **MODELS}
