"""Generates clicks with a planted signal: 13 dense columns, and fields with ever more ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.batches import Batch, InputError, Split, rebatch, take
from ctr.keys import field_keys, uniform

DENSE = 13
# Rows are drawn in chunks of this size from (seed, chunk number), so that row t is the same
# whatever the batch size, the number of workers and the number of rows asked for.
CHUNK = 8192

ZIPF_EXPONENT = 1.05
# Fields up to this size are closed sets, such as a weekday or a device type.
CLOSED_SET = 100


class Vocabulary(NamedTuple):
    """The fields of the generated rows."""

    start_ids: NDArray[np.float64]  # (fields,) the number of ids with which each field starts
    growth_rows: int  # the number of rows after which a field has gained as many ids again
    pairs: tuple[tuple[int, int], ...]  # fields whose ids have an effect together
    id_scale: float  # the effect of an id is uniform in [-id_scale, id_scale)


CRITEO_LIKE = Vocabulary(
    np.geomspace(8, 40_000, 26), 100_000, pairs=((0, 5), (2, 8), (4, 10), (7, 12)), id_scale=0.35
)
# These are fields of users, pages or search terms, of whose ids most come once. The 8 fields
# together have as much to say as the 26: the variance of the sum of their effects is the same.
LARGE = Vocabulary(
    np.geomspace(100, 4_000_000, 8),
    250_000,
    pairs=((0, 1), (0, 2), (1, 3), (2, 3)),
    id_scale=0.35 * (26 / 8) ** 0.5,
)

# The planted logit: bias + dense part + an effect of each id + products of two fields' signs.
BIAS = -1.2
DENSE_SCALE = 0.15
PAIR_SCALE = 0.35


class Generated:
    """`samples` training rows and a tenth as many test rows, which follow them in time.

    The first of them is row `start` of an endless stream.

    The id of a field at row t is Zipf-distributed over 1 .. ids(t), and ids(t) grows with t, so
    that new ids arrive for as long as one trains. Nothing is stored: the effect of an id is a
    function of its key and the seed.
    """

    dense_width = DENSE

    def __init__(
        self,
        samples: int,
        seed: int = 0,
        vocabulary: Vocabulary = CRITEO_LIKE,
        start: int = 0,
    ) -> None:
        self.name = "generated clicks"
        self.fields = len(vocabulary.start_ids)
        self._vocabulary = vocabulary
        self._seed = seed
        self._first: dict[Split, int] = {"train": start, "test": start + samples}
        self._rows: dict[Split, int] = {"train": samples, "test": max(1, samples // 10)}
        signs = np.random.default_rng([seed, 0]).choice([-1.0, 1.0], DENSE)
        self._dense_weights = DENSE_SCALE * signs

    def rows(self, split: Split) -> int:
        """Returns the rows of a split over all workers."""
        return self._rows[split]

    def batches(
        self, split: Split, batch_size: int, rank: int = 0, size: int = 1, epoch: int = 0
    ) -> Iterator[Batch]:
        """Yields the batches of a split in the order of time, the same in every epoch."""
        for batch in rebatch(self._chunks(split), batch_size):
            yield take(batch, rank, size)

    def keys_of(self, field: int, ids: Sequence[str]) -> NDArray[np.int64]:
        """Returns the key of each id of a field, from its decimal digits."""
        try:
            numbers = np.array([int(each) for each in ids], np.int64)
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"Expected ids of generated clicks, which are integers. Received: {error}."
            ) from error
        return field_keys(np.repeat(numbers[:, None], self.fields, axis=1))[:, field]

    def id_effects(self, keys: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the planted effect of each key on the logit, in the shape of `keys`."""
        return self._vocabulary.id_scale * (2.0 * uniform(keys, self._seed) - 1.0)

    def pair_effects(self, keys: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns planted effects of pairs of ids, `[rows, pairs]`, from keys `[rows, fields]`."""
        signs = np.where(uniform(keys, self._seed + 1) < 0.5, -1.0, 1.0)
        pairs = self._vocabulary.pairs
        return np.stack([PAIR_SCALE * signs[:, a] * signs[:, b] for a, b in pairs], axis=1)

    def true_logits(self, batch: Batch) -> NDArray[np.float64]:
        """Returns the logits that labels were drawn from: no model can rank better on average."""
        return (
            BIAS
            + batch.dense.astype(np.float64) @ self._dense_weights
            + self.id_effects(batch.keys).sum(axis=1)
            + self.pair_effects(batch.keys).sum(axis=1)
        )

    def _chunks(self, split: Split) -> Iterator[Batch]:
        first = self._first[split]
        stop = first + self._rows[split]
        for number in range(first // CHUNK, -(-stop // CHUNK)):
            chunk = self._chunk(number)
            start = number * CHUNK
            part = slice(max(first - start, 0), min(stop - start, CHUNK))
            labels = chunk.labels[part]
            yield Batch(chunk.dense[part], chunk.keys[part], labels, len(labels))

    def _chunk(self, number: int) -> Batch:
        rng = np.random.default_rng([self._seed, 1, number])
        row_numbers = np.arange(number * CHUNK, (number + 1) * CHUNK)
        ids = ids_at(row_numbers, self._vocabulary)
        keys = field_keys(_zipf(rng.random((CHUNK, self.fields)), ids))
        dense = rng.standard_normal((CHUNK, DENSE)).astype(np.float32)
        unlabelled = Batch(dense, keys, np.zeros(CHUNK, np.float32), CHUNK)
        probability = 1.0 / (1.0 + np.exp(-self.true_logits(unlabelled)))
        labels = (rng.random(CHUNK) < probability).astype(np.float32)
        return Batch(dense, keys, labels, CHUNK)


def ids_at(
    row_numbers: NDArray[np.int64], vocabulary: Vocabulary = CRITEO_LIKE
) -> NDArray[np.float64]:
    """Returns how many ids each field has when a row is drawn, `[rows, fields]`."""
    start = vocabulary.start_ids
    growth = np.where(start > CLOSED_SET, start / vocabulary.growth_rows, 0.0)
    return start + row_numbers[:, None] * growth


def _zipf(u: NDArray[np.float64], ids: NDArray[np.float64]) -> NDArray[np.int64]:
    """Inverts the distribution function of the density x**-s on [1, ids + 1), rounded down."""
    power = 1.0 - ZIPF_EXPONENT
    tail = (ids + 1.0) ** power
    return ((1.0 + u * (tail - 1.0)) ** (1.0 / power)).astype(np.int64)
