"""Defines the tables of a plan, and computes their costs on a worker in each placement."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sok_embed.kv.table_spec import RowTypes

KEY, WORKER, REPLICATED = "key", "worker", "replicated"
PLACED = (KEY, WORKER, REPLICATED)  # all placements except "auto"
# The bytes of each number of a row that is sent to another worker, by exchange_dtype.
EXCHANGED = {"float32": 4, "bfloat16": 2}

# Who chose a placement.
BY_CONFIG, BY_PLAN, BY_HAND = "config", "plan", "hand"

# The bytes of a row in addition to its floats: its counters, and the most that its place in the
# hash index takes.
_COUNTERS = 8
_INDEX = 45
_ROUNDED = 16  # a row of float32 is rounded up to so many bytes
# A table takes memory in blocks: the bytes that it has with its first row, and the number of rows
# for which its unfilled blocks have room.
_TABLE = 64 << 10
_BEGUN_ROWS = 2048
# From so many bytes on a table has huge pages, the last of which may have only one row.
_HUGE_FROM = 8 << 20
_HUGE_PAGE = 2 << 20


class Cost(NamedTuple):
    """The costs of a table for one worker.

    Attributes:
        sent: The bytes that the worker sends to other workers in a step.
        received: The bytes that the worker receives from other workers in a step.
        touched: The bytes of rows that the worker reads and writes in its memory in a step.
        memory: The bytes of rows that the worker keeps; 0 if the number of rows is unknown.
    """

    sent: int
    received: int
    touched: int
    memory: int


@dataclass(frozen=True)
class PlannedFeature:
    """A feature of a table, as a plan knows it.

    Attributes:
        name: The name of the feature.
        keys: The number of keys in a worker's batch, on average.
        pooled: True if the vectors of each bag become one: the feature has a combiner.
        weighted: True if keys have weights. Then rows of its table are sent, since gradients of
            weights are made of them.
    """

    name: str
    keys: int
    pooled: bool
    weighted: bool = False


@dataclass(frozen=True)
class PlannedTable(RowTypes):
    """A table, the place of its rows, and the figures from which its costs are computed.

    Attributes:
        name: The name of the table.
        dim: The length of a vector.
        rule: The rule that trains rows, such as `adam`; it decides the slots.
        slot_floats: The number of float32 slots that the rule keeps for a row.
        vocabulary_size: The vocabulary size in the table's config. `None`: any 64-bit integer is a
            key.
        rows: The number of rows of the table, on all workers together. `None`: unknown.
        max_rows: The most rows on each worker. `None`: no limit.
        trainable: True if steps change rows.
        storage: The folder of the storage that has the rows. `None`: rows are in memory.
        features: The features that look keys up in the table.
        distinct: The number of distinct keys in a worker's batch.
        distinct_of_all: The number of distinct keys in the batches of all workers together.
        placement: `"key"`, `"worker"` or `"replicated"`.
        worker: The rank of the worker that holds the table, with `"worker"`; otherwise `None`.
        decided_by: `"plan"`; `"config"`, which asked for the placement; or `"hand"`, an edit.
        exchange_dtype: The dtype in which rows go to the workers that asked for them: `"float32"`
            or `"bfloat16"`. Their gradients come back in float32.
    """

    name: str
    dim: int
    rule: str
    slot_floats: int
    vocabulary_size: int | None
    rows: int | None
    max_rows: int | None
    trainable: bool
    storage: str | None
    features: tuple[PlannedFeature, ...]
    distinct: int
    distinct_of_all: int
    placement: str = KEY
    worker: int | None = None
    decided_by: str = BY_PLAN
    exchange_dtype: str = "float32"

    @property
    def row_bytes(self) -> int:
        """The most bytes of memory that a row takes: counters, floats and index."""
        rounded = _ROUNDED if self.has_float32_rows else 1
        return _COUNTERS + math.ceil(self._stored / rounded) * rounded + _INDEX

    def rows_on(self, workers: int, placement: str) -> int | None:
        """Returns the mean number of rows on a worker that has such rows. `None`: unknown."""
        if self.rows is None:
            return self.max_rows
        rows = math.ceil(self.rows / workers) if placement == KEY else self.rows
        return rows if self.max_rows is None else min(rows, self.max_rows)

    def memory(self, workers: int, placement: str) -> int | None:
        """Returns the bytes of memory on a worker that has rows of the table.

        Rows of a table in a storage are in the storage's cache, which is not counted here: 0.

        Returns:
            The number of bytes. `None`: the number of rows is unknown.
        """
        if self.storage is not None:
            return 0
        rows = self.rows_on(workers, placement)
        if rows is None:
            return None
        taken = (rows + min(rows, _BEGUN_ROWS)) * self.row_bytes + _TABLE
        return taken + (_HUGE_PAGE if taken >= _HUGE_FROM else 0)

    def cost(self, workers: int, batch_size: int, placement: str) -> tuple[Cost, Cost]:
        """Returns the costs of the table in a placement.

        Args:
            workers: The number of workers.
            batch_size: The number of examples that each worker has in a step.
            placement: One of `PLACED`.

        Returns:
            The `Cost` of every worker except the holder, and the `Cost` of the holder. Only the
            placement `"worker"` has a holder: otherwise both are the same.
        """
        memory = self.memory(workers, placement) or 0
        if placement == KEY:
            cost = self._cost_by_key(workers, memory)
            return cost, cost
        if placement == REPLICATED:
            cost = self._cost_replicated(workers, memory)
            return cost, cost
        return self._cost_by_worker(workers, batch_size, memory)

    def mean_sent(self, workers: int, batch_size: int, placement: str) -> float:
        """Returns the bytes a step that a worker sends for the table, averaged over the workers."""
        other, holder = self.cost(workers, batch_size, placement)
        return (other.sent * (workers - 1) + holder.sent) / workers

    def pools_at_holder(self, batch_size: int) -> bool:
        """Returns whether the holder of the whole table receives bags instead of distinct keys.

        This is the rule of `tf_ops.CollectionPlan.pools`: no feature has weights, and a feature has
        bags of more than one key.
        """
        return not any(feature.weighted for feature in self.features) and any(
            feature.pooled and feature.keys > batch_size for feature in self.features
        )

    @property
    def _vector(self) -> int:
        return 4 * self.dim

    @property
    def _answer(self) -> int:
        """The bytes of a vector in a message to another worker."""
        return EXCHANGED[self.exchange_dtype] * self.dim

    @property
    def _pooling(self) -> int:
        """The bytes that a worker reads for one key of a bag: its vector, in training twice."""
        return self._vector * (1 + self.trainable)

    @property
    def _update(self) -> int:
        """The bytes of a row that a commit reads and writes."""
        return 2 * self._stored if self.trainable else 0

    @property
    def _stored(self) -> int:
        """The bytes of the vector and the slots of a row in memory."""
        return self.stored_bytes(self.dim, self.slot_floats)

    def _keys(self, features: Iterable[PlannedFeature]) -> int:
        return sum(feature.keys for feature in features)

    def _cost_by_key(self, workers: int, memory: int) -> Cost:
        share = (workers - 1) * self.distinct * (8 + self._answer + self._vector) // workers
        touched = (
            self._keys(self.features) * self._pooling
            + self.distinct * self._vector
            + math.ceil(self.distinct_of_all / workers) * self._update
        )
        return Cost(share, share, touched, memory)

    def _cost_replicated(self, workers: int, memory: int) -> Cost:
        share = (workers - 1) * self.distinct * (8 + self._vector)
        touched = self._keys(self.features) * self._pooling + self.distinct_of_all * self._update
        return Cost(share, share, touched, memory)

    def _cost_by_worker(self, workers: int, batch_size: int, memory: int) -> tuple[Cost, Cost]:
        keys = bags = rows = 0
        apart: tuple[PlannedFeature, ...] = ()
        if self.pools_at_holder(batch_size):
            keys = self._keys(self.features)
            bags = sum(batch_size if each.pooled else each.keys for each in self.features)
        else:
            # All features share the rows of their distinct keys.
            rows, apart = self.distinct, self.features
        there = 8 * keys + 4 * bags + self._vector * bags + (8 + self._vector) * rows
        back = self._answer * (bags + rows)
        # The worker that asked for the rows lays them out, or pools them with weights.
        laid_out = self._keys(apart) * self._pooling
        others = workers - 1
        return (
            Cost(there, back, laid_out, 0) if others else Cost(0, 0, 0, 0),
            Cost(
                others * back,
                others * there,
                laid_out
                + workers * (keys * self._pooling + rows * self._vector)
                + self.distinct_of_all * self._update,
                memory,
            ),
        )


def expected_distinct(keys: int, rows: int | None) -> int:
    """Returns the mean number of distinct keys among keys that are drawn uniformly.

    The formula is `V * (1 - (1 - 1 / V) ** k)` for k draws of V keys: each key is left out by all
    draws with the probability `(1 - 1 / V) ** k`. Real keys are rarely uniform, and then fewer of
    them are distinct.

    Example:
    >>> expected_distinct(100, 100)
    63

    With an unknown number of rows (`None`) all draws count as distinct.

    Returns:
        The number, rounded.
    """
    if rows is None or keys == 0:
        return keys
    if rows == 1:
        return 1
    return min(round(-rows * math.expm1(keys * math.log1p(-1 / rows))), keys, rows)
