"""Tells which keys the lookups of a model ask tables for, while the model is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import tensorflow as tf


class SeenKeys(NamedTuple):
    """The keys of one lookup.

    Attributes:
        table: The table on this worker.
        keys: int64 of any shape.
    """

    table: Any
    keys: tf.Tensor


_seen: ContextVar[list[SeenKeys] | None] = ContextVar("seen_keys", default=None)


@contextlib.contextmanager
def seen_keys() -> Iterator[list[SeenKeys]]:
    """Yields a list, to which each lookup within adds its keys."""
    seen: list[SeenKeys] = []
    token = _seen.set(seen)
    try:
        yield seen
    finally:
        _seen.reset(token)


def note_keys(table: Any, keys: tf.Tensor) -> None:
    """Adds the keys of a lookup to the list of `seen_keys`, if there is one."""
    seen = _seen.get()
    if seen is not None:
        seen.append(SeenKeys(table, keys))
