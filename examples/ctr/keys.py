"""Combines field and id into one 64-bit key, so that all fields can share one table."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The id that stands for a missing category. Any value that no field uses is right.
MISSING = -1

# Odd constant of splitmix64: 2**64 divided by the golden ratio.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix64(values: ArrayLike) -> NDArray[np.uint64]:
    """Returns splitmix64's finalizer: a bijection in which each input bit moves half the output.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, and
    Vigna's public-domain `splitmix64.c`.
    """
    z = np.array(values, np.uint64)  # a copy: the steps below work in place
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def field_keys(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Makes keys of a block of ids, `[rows, fields]`: `mix64(id ^ mix64((field + 1) * golden))`.

    Within a field the map is a bijection: two ids never share a key. Ids of different fields meet
    with a probability of 2**-64 a pair.

    Example:
        >>> field_keys(np.array([[7, 7]])).tolist()
        [[-6009577846904692150, -5229966250735154466]]
    """
    with np.errstate(over="ignore"):
        salts = mix64(_GOLDEN * np.arange(1, ids.shape[1] + 1, dtype=np.uint64))
        return mix64(ids.astype(np.int64, copy=False).view(np.uint64) ^ salts).view(np.int64)


def uniform(keys: NDArray[np.int64], salt: int) -> NDArray[np.float64]:
    """Returns a number in [0, 1) for each key, which depends only on key and salt."""
    salted = keys.view(np.uint64) ^ mix64(np.uint64(salt))
    return (mix64(salted) >> np.uint64(11)).astype(np.float64) * 2.0**-53
