"""Defines evictions, which remove rows of a table to make room or because they are useless.

A row is trained by a step whose batch has its key. Looking it up in evaluation changes nothing. A
key whose row was removed is like a key that was never seen: it has the vector that training starts
from, and gets a new row when training meets it again; with an admission, once the admission allows
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

from sok_embed.arguments import check_integer, described

__all__ = [
    "Eviction",
    "LeastFrequentlyUsed",
    "LeastRecentlyUsed",
    "MaxAge",
    "MinNorm",
    "from_config",
    "get",
]

_UINT32 = 2**32
_LEAST_FLOAT32 = 2.0**-149  # above 0


@dataclass(frozen=True)
class LeastRecentlyUsed:
    """A full table evicts the rows that were trained least recently, exactly as many as it needs.

    A row that was not trained yet counts as trained when it was made. Of rows with the same time,
    the rows with the least keys, as unsigned numbers, are removed first. In memory times are steps
    of the table, in a storage they are seconds.

    Example:
    >>> LeastRecentlyUsed().get_config()
    {'kind': 'lru'}
    """

    kind: ClassVar[str] = "lru"
    needs_max_rows: ClassVar[bool] = True
    counts_seconds: ClassVar[bool] = False

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments and the kind, as JSON can hold them; see `from_config`."""
        return {"kind": self.kind}


@dataclass(frozen=True)
class LeastFrequentlyUsed:
    """A full table evicts the rows that were trained least often, exactly as many as it needs.

    Of rows that were trained equally often, the least recently trained are removed first, as by
    `LeastRecentlyUsed`. Counts are never halved: a row that was frequent once stays for long.

    Example:
    >>> LeastFrequentlyUsed().get_config()
    {'kind': 'lfu'}
    """

    kind: ClassVar[str] = "lfu"
    needs_max_rows: ClassVar[bool] = True
    counts_seconds: ClassVar[bool] = False

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments and the kind, as JSON can hold them; see `from_config`."""
        return {"kind": self.kind}


@dataclass(frozen=True)
class MaxAge:
    """Removes rows a given time after they were last trained, or made.

    A table looks for such rows after steps, at most 16 times in that span, so a row may stay a
    sixteenth longer. A full table removes the oldest of them at once, as many as new rows need.

    Example:
    >>> MaxAge(steps=1000).get_config()
    {'kind': 'max_age', 'seconds': None, 'steps': 1000}

    Attributes:
        seconds: The age at which rows are removed, at least 1. Give either `seconds` or `steps`.
        steps: The same age in steps of the table, which are the steps that train some of its rows.
            Not for rows in a storage, whose times are seconds.

    Raises:
        ValueError: For both arguments or neither, or a value out of [1, 2**32).
    """

    seconds: int | None = None
    steps: int | None = None

    kind: ClassVar[str] = "max_age"
    needs_max_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.steps is None):
            raise ValueError(
                "Expected either seconds or steps. Received: "
                f"MaxAge(seconds={self.seconds!r}, steps={self.steps!r})."
            )
        name, age = self._age()
        object.__setattr__(self, name, check_integer(name, age, 1, _UINT32))

    def _age(self) -> tuple[str, Any]:
        return ("steps", self.steps) if self.seconds is None else ("seconds", self.seconds)

    @property
    def ticks(self) -> int:
        """The age in ticks of the table's clock."""
        return int(self._age()[1])

    @property
    def counts_seconds(self) -> bool:
        """True if times of rows must be seconds."""
        return self.seconds is not None

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments and the kind, as JSON can hold them; see `from_config`."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class MinNorm:
    """Removes rows whose vector is nearly zero.

    A table looks for such rows once in `every` steps. A full table removes them at once, as many as
    new rows need; it looks at every row each time that all rows found before are removed.

    Example:
    >>> MinNorm(1e-3).get_config()
    {'kind': 'min_norm', 'l2': 0.001, 'every': 100}

    Attributes:
        l2: Rows of a smaller Euclidean norm are removed; above 0. It is rounded to float32.
        every: The number of the table's steps in which all rows are looked through once.

    Raises:
        ValueError: For a value out of its range.
    """

    l2: float
    every: int = 100

    kind: ClassVar[str] = "min_norm"
    needs_max_rows: ClassVar[bool] = False
    counts_seconds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        l2 = self.l2
        is_number = isinstance(l2, int | float) and not isinstance(l2, bool)
        if not is_number or not l2 >= _LEAST_FLOAT32:
            raise ValueError(
                f"Expected l2 to be a number above 0. Received: {l2!r}. Rows of a smaller norm are "
                "removed, so with 0 no row ever is."
            )
        object.__setattr__(self, "every", check_integer("every", self.every, 1, _UINT32))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments and the kind, as JSON can hold them; see `from_config`."""
        return {"kind": self.kind, **asdict(self)}


Eviction: TypeAlias = LeastRecentlyUsed | LeastFrequentlyUsed | MaxAge | MinNorm
"""The type of any eviction."""

_KINDS: dict[str, type[Eviction]] = {
    cls.kind: cls for cls in (LeastRecentlyUsed, LeastFrequentlyUsed, MaxAge, MinNorm)
}


def from_config(config: Mapping[str, Any]) -> Eviction:
    """Makes an eviction from the result of `get_config`.

    Example:
    >>> from_config({"kind": "max_age", "steps": 1000})
    MaxAge(seconds=None, steps=1000)

    Args:
        config: The config, as returned by `get_config`.

    Raises:
        ValueError: For an unknown kind or a value out of its range.
        TypeError: For an argument that the kind does not have.
    """
    arguments = dict(config)
    kind = arguments.pop("kind", None)
    if kind not in _KINDS:
        raise ValueError(f"Expected an eviction kind of {', '.join(_KINDS)}. Received: {kind!r}.")
    return _KINDS[kind](**arguments)


def get(eviction: Eviction | str | Mapping[str, Any] | None) -> Eviction | None:
    """Makes an eviction from its name or config; returns evictions and `None` unchanged.

    Example:
    >>> get("lru")
    LeastRecentlyUsed()

    Args:
        eviction: An eviction, its config, `None`, or a name: `"lru"` or `"lfu"`.

    Raises:
        ValueError: For anything else.
    """
    if eviction is None or isinstance(eviction, Eviction):
        return eviction
    if isinstance(eviction, Mapping):
        return from_config(eviction)
    if isinstance(eviction, str) and eviction in ("lru", "lfu"):
        return from_config({"kind": eviction})
    raise ValueError(
        'Expected eviction to be "lru", "lfu", an eviction of sok_embed.eviction '
        f"({', '.join(cls.__name__ for cls in _KINDS.values())}) or None. Received: "
        f"{described(eviction)}."
    )


def core_arguments(eviction: Eviction) -> dict[str, Any]:
    """Returns the core's arguments for an eviction: kind, max_age, min_l2 and every."""
    return {
        "kind": eviction.kind,
        "max_age": eviction.ticks if isinstance(eviction, MaxAge) else 0,
        "min_l2": float(eviction.l2) if isinstance(eviction, MinNorm) else 0.0,
        "every": eviction.every if isinstance(eviction, MinNorm) else 100,
    }
