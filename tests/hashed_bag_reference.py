"""Bags of hashed embeddings in plain Python and NumPy, entry by entry, for tests to compare with.

Nothing here uses the library. Integers are Python's, reduced modulo 2**64 where the hashes wrap.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_WRAP = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_SIGN = 0xD1B54A32D192ED03


def mix64(x: int) -> int:
    """Is the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    x &= _WRAP
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WRAP
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WRAP
    return x ^ (x >> 31)


def original_hash(a: int, b: int) -> int:
    """Is the hash of the PyTorch project; sums and products wrap before they are divided."""
    return ((a * 9824516537 + b * 57857966300227 + 104729) & _WRAP) % 117130198221199


@functools.cache
def slot_and_sign(
    row: int, d: int, size: int, dim: int, hash: str, seed: int, sign: bool, block_size: int
) -> tuple[int, int]:
    """Returns where element `d` of row `row` lies in a weight, and its factor, 1 or -1."""
    key = mix64(row ^ mix64(seed + _GOLDEN))
    block, place = divmod(d, block_size)
    if hash == "mixed":
        base = (mix64(key + (block + 1) * _GOLDEN) * size) >> 64
    elif hash == "original":
        base = original_hash(row, block) % size
    else:
        assert hash == "modulo"
        base = (row * dim + block * block_size) % size
    word, bit = divmod(d, 64)
    minus = sign and (mix64((key ^ _SIGN) + (word + 1) * _GOLDEN) >> bit) & 1
    return (base + place) % size, -1 if minus else 1


def slots_and_signs(
    rows: Sequence[int],
    size: int,
    dim: int,
    hash: str = "mixed",
    seed: int = 0,
    sign: bool = False,
    block_size: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Slots, int64, and signs, int8, of all elements of the rows, `[n, dim]` each."""
    pairs = [
        slot_and_sign(int(row), d, size, dim, hash, seed, sign, block_size)
        for row in rows
        for d in range(dim)
    ]
    slots, signs = np.array(pairs, np.int64).reshape(len(rows), dim, 2).transpose(2, 0, 1)
    return slots, signs.astype(np.int8)


@dataclass
class Bags:
    """Bags of ids with their options, and what comes out of them.

    Attributes:
        weight: `[size]`, float32 or float64; the results have its dtype.
        ids: `[n]`, or `[B, N]` without offsets.
        dim: Of an embedding.
        offsets: `[B]`, or `[B + 1]` with `include_last_offset`.
        per_sample_weights: The shape of `ids`.
        spec: Of the hash: `hash`, `seed`, `sign`, `block_size`.
    """

    weight: np.ndarray
    ids: np.ndarray
    dim: int
    offsets: np.ndarray | None = None
    per_sample_weights: np.ndarray | None = None
    mode: str = "sum"
    padding_idx: int | None = None
    include_last_offset: bool = False
    spec: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._flat = self.ids.reshape(-1)
        slots, signs = slots_and_signs(
            self._flat.tolist(), len(self.weight), self.dim, **(self.spec or {})
        )
        self._slots, self._signs = slots, signs.astype(self.weight.dtype)
        self.rows = self.weight[slots] * self._signs

    def bags(self) -> Iterator[list[int]]:
        """Yields the places in the flat ids of each bag, without padding."""
        if self.offsets is None:
            splits = np.arange(len(self.ids) + 1) * self.ids.shape[1]
        elif self.include_last_offset:
            splits = self.offsets
        else:
            splits = [*self.offsets, self._flat.size]
        for first, end in zip(splits[:-1], splits[1:], strict=True):
            yield [i for i in range(first, end) if self._flat[i] != self.padding_idx]

    def _factor(self, i: int) -> Any:
        if self.per_sample_weights is None:
            return self.weight.dtype.type(1)
        return self.per_sample_weights.reshape(-1)[i].astype(self.weight.dtype)

    def _winners(self, bag: list[int]) -> list[int]:
        """Returns for each dimension the place of the greatest value, the first of equal ones."""
        return [bag[int(np.argmax(self.rows[bag, d]))] for d in range(self.dim)]

    def forward(self) -> np.ndarray:
        """Returns the output, `[B, dim]`."""
        outputs = []
        for bag in self.bags():
            total = np.zeros(self.dim, self.weight.dtype)
            if self.mode == "max" and bag:
                total = self.rows[self._winners(bag), np.arange(self.dim)]
            elif self.mode != "max":
                for i in bag:
                    total = total + self._factor(i) * self.rows[i]
            if self.mode == "mean" and bag:
                total = total / self.weight.dtype.type(len(bag))
            outputs.append(total)
        return np.array(outputs, self.weight.dtype).reshape(-1, self.dim)

    def gradients(self, upstream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradients of sum(upstream * output): of the weight `[size]`, of per_sample_weights."""
        of_weight = np.zeros_like(self.weight)
        of_factors = np.zeros(self._flat.size, self.weight.dtype)
        for bag, above in zip(self.bags(), upstream, strict=True):
            if self.mode == "max":
                for d, i in enumerate(self._winners(bag) if bag else []):
                    of_weight[self._slots[i, d]] += self._signs[i, d] * above[d]
                continue
            share = above / len(bag) if self.mode == "mean" and bag else above
            for i in bag:
                # add.at is needed, since one entry may use a slot twice.
                np.add.at(of_weight, self._slots[i], self._factor(i) * self._signs[i] * share)
                of_factors[i] = np.dot(above, self.rows[i])
        return of_weight, of_factors.reshape(self.ids.shape)
