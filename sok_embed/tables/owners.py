"""The rules by which keys of a table belong to workers, as in the core."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


def salt_of(table: str) -> int:
    """Returns an int64 made of the table's name.

    With it equal keys of two tables have different owners.
    """
    digest = hashlib.blake2b(table.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def mixed_owners(keys: npt.NDArray[np.int64], salt: int, owners: int) -> npt.NDArray[np.int64]:
    """Returns the workers of keys: SplitMix64's finalizer of key and salt, modulo `owners`.

    Example:
    >>> import numpy as np
    >>> mixed_owners(np.array([0, 1, 2, 3]), salt_of("items"), 2).tolist()
    [0, 0, 1, 0]

    Keys are int64 of any shape, which the result has too.

    Returns:
        int64 of the shape of the keys.
    """
    mixed = keys.astype(np.int64).view(np.uint64) ^ np.uint64(salt % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed = mixed ^ (mixed >> np.uint64(31))
    owner: npt.NDArray[np.int64] = (mixed % np.uint64(owners)).astype(np.int64)
    return owner


class OwnerRule(Protocol):
    """Says which workers hold the rows of keys."""

    @property
    def text(self) -> str:
        """The rule as text: an expression of `key` and `size`, the number of workers."""

    def owners(self, keys: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64] | None:
        """Returns the worker of each key, of the shape of the keys; `None`: every worker."""


@dataclass(frozen=True)
class ModuloRule:
    """Keys are spread by themselves modulo the number of workers, as SparseOperationKit does."""

    text: str = "key % size"

    def owners(self, keys: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
        """See `OwnerRule.owners`."""
        return keys % size


@dataclass(frozen=True)
class MixedRule:
    """Keys are spread by `mixed_owners`.

    Attributes:
        salt: The salt of the table.
    """

    salt: int

    @property
    def text(self) -> str:
        """See `OwnerRule.text`."""
        return f"mixed_owners(key, {self.salt}, size)"

    def owners(self, keys: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
        """See `OwnerRule.owners`."""
        return mixed_owners(keys, self.salt, size)


@dataclass(frozen=True)
class OneWorkerRule:
    """One worker holds every key.

    Attributes:
        worker: The number of the worker.
    """

    worker: int

    @property
    def text(self) -> str:
        """See `OwnerRule.text`."""
        return f"{self.worker}"

    def owners(self, keys: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
        """See `OwnerRule.owners`."""
        return np.full(keys.shape, self.worker, np.int64)


@dataclass(frozen=True)
class EveryWorkerRule:
    """Every worker holds every key."""

    text: str = "every worker"

    def owners(self, keys: npt.NDArray[np.int64], size: int) -> None:
        """See `OwnerRule.owners`."""


# The rules by which a number of a key modulo the number of workers is the key's worker.
_BY_REMAINDER = re.compile(r"key % size|mixed_owners\(key, -?\d+, size\)")


def former_owners(rule: str, workers: int, rank: int, size: int) -> set[int]:
    """Returns which of so many workers may have had rows of worker `rank` of `size`.

    A number with remainders w modulo `workers` and r modulo `size` exists where w and r have one
    remainder modulo the greatest common divisor of both (Chinese remainder theorem).

    Example:
    >>> former_owners("key % size", 8, 1, 4)
    {1, 5}

    The rule is the text of an `OwnerRule`, the same before and now.
    """
    if rule.isdecimal():
        return {int(rule)}
    common = math.gcd(workers, size) if _BY_REMAINDER.fullmatch(rule) else 1
    return set(range(rank % common, workers, common))
