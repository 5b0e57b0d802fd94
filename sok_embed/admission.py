"""Defines admissions, by which a key gets a row only once it has been seen often enough.

Most keys of a click log occur once or twice. Rows for them cost memory and disk, and learn nothing.
Each occurrence of a key in a training batch counts 1, in every layer and on all workers together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

from sok_embed.arguments import check_choice, check_integer, described, is_number

__all__ = ["Admission", "CountingBloomAdmission", "FrequencyAdmission", "from_config", "get"]

_COUNTER_BITS = (2, 4, 8, 16)
_UINT32 = 2**32
_UINT64 = 2**64


@dataclass(frozen=True)
class FrequencyAdmission:
    """Counts every key that has no row yet exactly.

    Example:
    >>> FrequencyAdmission(min_count=3).get_config()
    {'kind': 'frequency', 'min_count': 3}

    Attributes:
        min_count: A key is admitted when it is seen for the `min_count`-th time; with 1, at once.
            In [1, 2**32).

    Raises:
        ValueError: For a value out of its range.
    """

    min_count: int

    kind: ClassVar[str] = "frequency"

    def __post_init__(self) -> None:
        _set_integer(self, "min_count", 1, _UINT32)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments and the kind, as JSON can hold them; see `from_config`."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class CountingBloomAdmission:
    """Counts keys in a counting Bloom filter, whose memory is fixed from the start.

    It never misses a key that was seen `min_count` times, and admits a few too early.

    Example:
    >>> CountingBloomAdmission(min_count=3, capacity=1_000_000).counter_bits
    4

    Attributes:
        min_count: A key is admitted when it is seen for the `min_count`-th time. In
            [1, 2**counter_bits).
        capacity: The number of distinct keys that the filter is made for. With more keys it admits
            more and more keys too early.
        false_positive_rate: The share of the keys seen less often that are admitted nevertheless,
            once `capacity` distinct keys have been seen `min_count` times. In (0, 1).
        counter_bits: The bits of a counter: 2, 4, 8 or 16.

    Raises:
        ValueError: For a value out of its range.
    """

    min_count: int
    capacity: int
    false_positive_rate: float = 0.01
    counter_bits: int = 4

    kind: ClassVar[str] = "counting_bloom"

    def __post_init__(self) -> None:
        if isinstance(self.counter_bits, bool) or self.counter_bits not in _COUNTER_BITS:
            raise ValueError(
                f"Expected counter_bits to be one of 2, 4, 8, 16. Received: {self.counter_bits!r}."
            )
        _set_integer(self, "min_count", 1, _UINT32)
        if self.min_count >= 2**self.counter_bits:
            raise ValueError(
                f"Expected min_count to be at most {2**self.counter_bits - 1}, the most that "
                f"{self.counter_bits} bits count to. Received: {self.min_count}. Raise "
                "counter_bits."
            )
        _set_integer(self, "capacity", 1, _UINT64)
        rate = self.false_positive_rate
        if not is_number(rate) or not 0 < float(rate) < 1:
            raise ValueError(
                f"Expected false_positive_rate to be a number in (0, 1). Received: {rate!r}."
            )
        object.__setattr__(self, "false_positive_rate", float(rate))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments and the kind, as JSON can hold them; see `from_config`."""
        return {"kind": self.kind, **asdict(self)}


Admission: TypeAlias = FrequencyAdmission | CountingBloomAdmission
"""The type of either admission."""

_KINDS: dict[str, type[FrequencyAdmission] | type[CountingBloomAdmission]] = {
    cls.kind: cls for cls in (FrequencyAdmission, CountingBloomAdmission)
}


def from_config(config: Mapping[str, Any]) -> Admission:
    """Makes an admission from the result of `get_config`.

    Example:
    >>> from_config({"kind": "frequency", "min_count": 3})
    FrequencyAdmission(min_count=3)

    Args:
        config: The config, as returned by `get_config`.

    Raises:
        ValueError: For an unknown kind or a value out of its range.
        TypeError: For an argument that the kind does not have.
    """
    arguments = dict(config)
    kind = arguments.pop("kind", None)
    return _KINDS[check_choice("the kind of an admission", kind, _KINDS)](**arguments)


def get(admission: Admission | Mapping[str, Any] | None) -> Admission | None:
    """Makes an admission from its config; returns admissions and `None` unchanged.

    Raises:
        ValueError: For anything else.
    """
    if isinstance(admission, Mapping):
        return from_config(admission)
    if admission is None or isinstance(admission, tuple(_KINDS.values())):
        return admission
    raise ValueError(
        "Expected admission to be a FrequencyAdmission, a CountingBloomAdmission or None. "
        f"Received: {described(admission)}."
    )


def _set_integer(admission: Admission, name: str, low: int, high: int) -> None:
    """Checks a field, and makes it a Python integer, which JSON can hold."""
    value = check_integer(name, getattr(admission, name), low, high)
    object.__setattr__(admission, name, value)
