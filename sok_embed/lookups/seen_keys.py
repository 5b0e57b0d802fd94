"""Tells which keys the lookups of a model ask tables for, while the model is traced."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
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


class SeenRequest(NamedTuple):
    """A request of one lookup or of several, which a step takes.

    Attributes:
        tables: The tables on this worker.
        keys: The keys of each feature.
        asked: The variant of `tf_ops.collection_request`.
    """

    tables: Sequence[Any]
    keys: Sequence[tf.Tensor]
    asked: tf.Tensor


@dataclasses.dataclass
class Seen:
    """The keys and requests of lookups.

    Attributes:
        graph: The graph in which lookups look ahead. Those in functions of their own do not: other
            callers may have the same functions.
        ahead: The number of requests that are kept, as for `tf_ops.collection_request`.
        keys: The keys of each lookup.
        requests: The requests of lookups that send keys to several workers, or pool.
    """

    graph: tf.Graph
    ahead: int
    keys: list[SeenKeys] = dataclasses.field(default_factory=list)
    requests: list[SeenRequest] = dataclasses.field(default_factory=list)


_seen: ContextVar[Seen | None] = ContextVar("seen_keys", default=None)


@contextlib.contextmanager
def seen_keys(ahead: int) -> Iterator[Seen]:
    """Yields an object to which each lookup within adds what it asks for.

    Args:
        ahead: The number of requests that are kept, as for `tf_ops.collection_request`.
    """
    seen = Seen(tf.compat.v1.get_default_graph(), ahead)
    token = _seen.set(seen)
    try:
        yield seen
    finally:
        _seen.reset(token)


def note_keys(table: Any, keys: tf.Tensor) -> None:
    """Adds the keys of a lookup to those of `seen_keys`, if it is open."""
    seen = _seen.get()
    if seen is not None:
        seen.keys.append(SeenKeys(table, keys))


def requests_ahead() -> int:
    """Returns how many requests `seen_keys` keeps for steps; 0 unless it is open in this graph."""
    seen = _seen.get()
    if seen is None or tf.compat.v1.get_default_graph() is not seen.graph:
        return 0
    return seen.ahead


def note_request(tables: Sequence[Any], keys: Sequence[tf.Tensor], asked: tf.Tensor) -> None:
    """Adds a request to those of `seen_keys`, if it is open in this graph."""
    seen = _seen.get()
    if seen is not None and requests_ahead():
        seen.requests.append(SeenRequest(tables, keys, asked))


def is_on_disk(table: Any) -> bool:
    """Returns whether the rows of a table lie in a storage, from which they can be read ahead."""
    return getattr(table, "storage", None) is not None
