"""A NumPy model, in float64, of two tables under FTRL: static rows by bucket, own rows by id."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from graph_model import bucket_of


@dataclass
class Row:
    value: np.ndarray
    accumulator: np.ndarray
    linear: np.ndarray


class FtrlModel:
    """McMahan et al. 2013, as TensorFlow has it: l2 counts twice, accumulators start at 0.1."""

    def __init__(self, static, *, rate, l1, l2, slots="copy"):
        self.rate, self.l1, self.l2, self.slots = rate, l1, l2, slots
        self.static = [self._new(np.asarray(row, np.float64)) for row in static]
        self.rows: dict[int, Row] = {}

    @staticmethod
    def _new(value):
        return Row(value.copy(), np.full_like(value, 0.1), np.zeros_like(value))

    def _row(self, key, masked):
        static = self.static[bucket_of(key, len(self.static))]
        if not masked:
            return static
        if key not in self.rows:
            own = replace(static) if self.slots == "copy" else self._new(static.value)
            self.rows[key] = own
        return self.rows[key]

    def static_rows(self):
        return np.stack([row.value for row in self.static])

    def lookup(self, keys, mask):
        return np.stack([self._row(int(k), m).value for k, m in zip(keys, mask, strict=True)])

    def train(self, keys, mask, gradients):
        sums: dict[int, tuple[Row, np.ndarray]] = {}
        for key, masked, gradient in zip(keys, mask, gradients, strict=True):
            row = self._row(int(key), masked)
            _, total = sums.get(id(row), (row, np.zeros_like(row.value)))
            sums[id(row)] = (row, total + gradient)
        for row, gradient in sums.values():
            accumulator = row.accumulator + gradient**2
            sigma = (np.sqrt(accumulator) - np.sqrt(row.accumulator)) / self.rate
            row.linear = row.linear + gradient - sigma * row.value
            row.accumulator = accumulator
            curvature = np.sqrt(accumulator) / self.rate + 2 * self.l2
            shrunk = np.sign(row.linear) * self.l1 - row.linear
            row.value = np.where(np.abs(row.linear) > self.l1, shrunk / curvature, 0.0)
