"""Rounds rows as tables with rows in fewer bytes do, in NumPy alone.

The decision "rows are rounded at random" says what is computed here: to nearest where a vector is
assigned, loaded or drawn, and at random after a step, by draws of the seed, the key and the number
of the row's updates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PLAIN = ("float32", "float32")
# Types of rows and slots, those that have most of their own first.
TYPES = (
    ("int8", "bfloat16"),
    ("float16", "bfloat16"),
    PLAIN,
    ("bfloat16", "float32"),
    ("int8", "float32"),
    ("float8_e4m3", "bfloat16"),
    ("float32", "bfloat16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
)
_GOLDEN = 0x9E3779B97F4A7C15
_SCALE_PLACE = np.uint32(0xFFFFFFFF)
_LEAST_SCALE = np.float32(2.0**-100)


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer with Stafford's constants, of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _u64(number: int) -> np.ndarray:
    return np.array([number % 2**64], np.uint64)


class _Draws:
    """The random numbers of some rows, uint32 [n, places]."""

    def __init__(self, states: np.ndarray) -> None:
        self._low = states.astype(np.uint32)[:, None]
        self._high = (states >> np.uint64(32)).astype(np.uint32)[:, None]

    def at(self, places: np.ndarray) -> np.ndarray:
        x = self._low + places.astype(np.uint32) * np.uint32(0x9E3779B9)
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD) ^ self._high
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x735A2D97)
        return x ^ (x >> np.uint32(15))


def _bfloat16(x: np.ndarray, draws: np.ndarray | None) -> np.ndarray:
    bits = x.view(np.uint32)
    if draws is None:
        added = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    else:
        added = draws >> np.uint32(16)
    return ((bits + added) & np.uint32(0xFFFF0000)).view(np.float32)


def _float16(x: np.ndarray, draws: np.ndarray | None) -> np.ndarray:
    if draws is None:
        return x.astype(np.float16).astype(np.float32)
    size = np.abs(x)
    assert (size < 65504).all()
    share = (draws >> np.uint32(19)).astype(np.float64) / 2**13
    unit = 2.0 ** (np.floor(np.log2(np.maximum(size, 2.0**-14).astype(np.float64))) - 10)
    normal = np.floor(size / unit + share) * unit
    units = size * np.float32(2**24) + (share + 0.5 / 2**13).astype(np.float32)
    rounded = np.where(size < 2.0**-14, np.floor(units) / 2**24, normal)
    return np.copysign(rounded, x).astype(np.float32)


def _int8(x: np.ndarray, draws: np.ndarray | None, scale_draws: np.ndarray | None) -> np.ndarray:
    most = np.abs(x).max(1, initial=0, keepdims=True)
    bits = (most / np.float32(127)).view(np.uint32)
    if scale_draws is None:
        bits = bits + np.uint32(0x7F) + ((bits >> np.uint32(8)) & np.uint32(1))
    else:
        bits = bits + (scale_draws >> np.uint32(24))
    scale = (bits & np.uint32(0xFFFFFF00)).view(np.float32)
    scale = np.where(scale < _LEAST_SCALE, np.float32(0), scale)
    parts = x / np.where(scale > 0, scale, np.float32(1))
    if draws is None:
        whole = np.rint(parts)
    else:
        share = (draws >> np.uint32(16)).astype(np.float32) + np.float32(0.5)
        whole = np.floor(parts + share * np.float32(2**-16))
    least = np.where(np.abs(x) == most, np.float32(127), np.float32(0))
    size = np.minimum(np.maximum(np.abs(whole), least), np.float32(127))
    return np.where(scale > 0, np.copysign(size, x), np.float32(0)) * scale


def _float8(x: np.ndarray, draws: np.ndarray | None) -> np.ndarray:
    most = np.abs(x).max(1, initial=0, keepdims=True).astype(np.float64)
    scale = np.exp2(np.floor(np.log2(np.where(most > 0, most, 1))) - 7)
    scale = np.where((most > 0) & (scale >= _LEAST_SCALE), scale, 0)
    for_division = np.where(scale > 0, scale, 1)
    rounded = []
    for factor in (1, 2):
        parts = x / (factor * for_division)
        size = np.maximum(np.abs(parts), 2.0**-6)
        unit = np.exp2(np.floor(np.log2(size)) - 3)
        steps = parts / unit
        if draws is None:
            whole = np.rint(steps)
        else:
            share = (draws >> np.uint32(16)).astype(np.float64) + 0.5
            whole = np.floor(steps.astype(np.float32) + (share * 2**-16).astype(np.float32))
        rounded.append(whole * unit * factor * scale)
    too_great = np.abs(rounded[0]).max(1, initial=0, keepdims=True) > 240 * scale
    return np.where(too_great, rounded[1], rounded[0]).astype(np.float32)


@dataclass(frozen=True)
class RowRounding:
    """The rounding of the rows of one table.

    Attributes:
        row_dtype, slot_dtype: The types of the embedding and of the slots.
        dim: The length of the embedding, which the slots follow.
        seed: That of the table.
    """

    row_dtype: str
    slot_dtype: str
    dim: int
    seed: int

    def nearest(self, floats: np.ndarray) -> np.ndarray:
        """Returns rows as they are once they were assigned or loaded: float32 [n, floats]."""
        return self._rounded(floats, None)

    def updated(self, floats: np.ndarray, keys: np.ndarray, updates: np.ndarray) -> np.ndarray:
        """Returns rows, float32 [n, floats], after the step that is their `updates`-th, [n]."""
        seed = _mix(_mix(_u64(self.seed + 2 * _GOLDEN)))
        numbers = _mix(updates.astype(np.uint64) << np.uint64(1))
        return self._rounded(floats, _Draws(_mix(seed + _mix(keys + numbers))))

    def _rounded(self, floats: np.ndarray, draws: _Draws | None) -> np.ndarray:
        rounded = np.array(floats, np.float32)
        for dtype, first, last in (
            (self.row_dtype, 0, self.dim),
            (self.slot_dtype, self.dim, floats.shape[1]),
        ):
            values = np.ascontiguousarray(rounded[:, first:last])
            of_values = None if draws is None else draws.at(np.arange(first, last))
            if dtype == "bfloat16":
                values = _bfloat16(values, of_values)
            elif dtype == "float16":
                values = _float16(values, of_values)
            elif dtype == "int8":
                of_scale = None if draws is None else draws.at(_SCALE_PLACE[None])
                values = _int8(values, of_values, of_scale)
            elif dtype == "float8_e4m3":
                values = _float8(values, of_values)
            rounded[:, first:last] = values
        return rounded
