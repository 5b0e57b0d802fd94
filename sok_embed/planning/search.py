"""Searches for placements under which the step of the slowest worker is short.

The cost model is in `tables.py` and `hardware.py`. Spreading every table by key loads all
workers alike and takes least memory, so the search begins there. It then moves tables whose bags
are fewer bytes than their distinct rows to workers that hold them as a whole: tables that gain most
for the load on their holder come first, each goes to the worker that is then the least loaded. The
number of tables by which the step becomes shortest is moved, if any. At last single tables are
moved away from the hottest worker.

Replicas are never chosen: for two workers and more they send more than spread rows, whatever the
table, since `n * (8 + 4 * D) > 8 + 8 * D`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sok_embed.planning.hardware import Hardware
from sok_embed.planning.sizes import shown_size
from sok_embed.planning.tables import BY_PLAN, KEY, REPLICATED, WORKER, PlannedTable

_Floats = npt.NDArray[np.float64]

_SENT, _MEMORY = 0, 3  # places in a Cost
_MOVES = 400  # the most moves away from the hottest worker
# A move must shorten the step by more than rounding errors.
_SHORTER = 1 - 1e-9


class _Costs(NamedTuple):
    """A table's costs, each `[4]` with the fields of `Cost`.

    Attributes:
        key: The costs of every worker, if the table is spread.
        other: The costs of every worker except the holder.
        more: The costs that the holder has in addition to `other`.
    """

    key: _Floats
    other: _Floats
    more: _Floats


class _Workers:
    """The load of each worker.

    Attributes:
        base: `[4]`, the load that all workers have.
        extra: `[workers, 4]`, the load that each worker has in addition.
    """

    def __init__(self, workers: int, hardware: Hardware, memory: int | None) -> None:
        self.base = np.zeros(4)
        self.extra = np.zeros((workers, 4))
        self._hardware = hardware
        self._memory = np.inf if memory is None else float(memory)

    def copy(self) -> _Workers:
        made = _Workers(len(self.extra), self._hardware, None)
        made.base, made.extra, made._memory = self.base.copy(), self.extra.copy(), self._memory
        return made

    def spread(self, costs: _Costs, sign: int = 1) -> None:
        """Adds or removes a table that lies on all workers alike."""
        self.base += sign * costs.key

    def hold(self, costs: _Costs, worker: int, sign: int = 1) -> None:
        """Adds or removes a table that one worker holds."""
        self.base += sign * costs.other
        self.extra[worker] += sign * costs.more

    def seconds(self, more: _Floats | None = None) -> _Floats:
        """Returns the time of each worker's step, with `more` on each of them alone."""
        loads = self.base + self.extra if more is None else self.base + more + self.extra
        return np.asarray(self._hardware.step_seconds(loads[:, 0], loads[:, 1], loads[:, 2]))

    def slowest(self) -> float:
        return float(self.seconds().max())

    def hottest(self) -> int:
        return int(self.seconds().argmax())

    def memory(self) -> _Floats:
        memory: _Floats = self.base[_MEMORY] + self.extra[:, _MEMORY]
        return memory

    def fits(self) -> bool:
        return bool(self.memory().max() <= self._memory)

    def best_holder(self, costs: _Costs, not_on: int | None = None) -> int | None:
        """Returns the worker whose step is shortest with a table on it; `None`: it fits on none."""
        seconds = self.seconds(costs.other + costs.more)
        memory = self.memory() + (costs.other + costs.more)[_MEMORY]
        allowed = memory <= self._memory
        if not_on is not None:
            allowed[not_on] = False
        if not allowed.any():
            return None
        order = np.lexsort((np.arange(len(memory)), memory, seconds, ~allowed))
        return int(order[0])


def choose_placements(
    tables: Sequence[PlannedTable],
    *,
    workers: int,
    batch_size: int,
    memory: int | None,
    hardware: Hardware,
    limit: int | None,
) -> list[PlannedTable]:
    """Places tables.

    Args:
        tables: The tables. Tables with `decided_by="plan"` may be placed anywhere; all other tables
            keep their placement and, if they have it, their `worker`.
        workers: The number of workers.
        batch_size: The number of examples that each worker has in a step.
        memory: The bytes that each worker has for the rows of tables. `None`: no limit.
        hardware: The speed of the machines.
        limit: The limit for messages: `memory`, and the memory of storages in addition.

    Returns:
        The tables in the given order, with placements and workers.

    Raises:
        ValueError: If they do not fit.
    """
    costs = [_costs_of(table, workers, batch_size) for table in tables]
    state = _Workers(workers, hardware, memory)
    holders: dict[int, int] = {}  # by the number of the table
    for number, table in enumerate(tables):
        if table.placement == WORKER and table.worker is not None:
            holders[number] = table.worker
            state.hold(costs[number], table.worker)
        elif table.placement != WORKER:
            state.spread(costs[number])
    homeless = [n for n, each in enumerate(tables) if each.placement == WORKER and n not in holders]
    if not state.fits() or not _hold_all(state, costs, homeless, holders, hardware):
        raise _no_fit_error(tables, workers, memory, limit)
    free = {n for n, table in enumerate(tables) if table.decided_by == BY_PLAN}
    if workers > 1:
        movable = [n for n in free if _may_move(tables[n], workers)]
        state = _move_to_holders(state, costs, sorted(movable), holders, hardware)
        _anneal(state, costs, free | set(homeless), free, holders)
    if not state.fits():
        raise _no_fit_error(tables, workers, memory, limit)
    return [
        replace(table, placement=WORKER, worker=holders[number]) if number in holders else table
        for number, table in enumerate(tables)
    ]


def _may_move(table: PlannedTable, workers: int) -> bool:
    """Returns whether the plan may put a table on one worker.

    It may not if the number of its rows is unknown, if `max_rows`, which holds for each worker,
    would then allow fewer rows, or if its rows lie in the folders of the workers already.
    """
    known = table.memory(workers, WORKER) is not None
    return known and table.max_rows is None and table.storage is None


def _costs_of(table: PlannedTable, workers: int, batch_size: int) -> _Costs:
    spread = REPLICATED if table.placement == REPLICATED else KEY
    key = np.array(table.cost(workers, batch_size, spread)[0], np.float64)
    other, holder = np.array(table.cost(workers, batch_size, WORKER), np.float64)
    return _Costs(key, other, holder - other)


def _seconds(hardware: Hardware, cost: _Floats) -> float:
    """Returns the part of a step that a table's load takes, without latency."""
    empty = hardware.step_seconds(0, 0, 0)
    return float(hardware.step_seconds(cost[0], cost[1], cost[2]) - empty)


def _hold_all(
    state: _Workers,
    costs: Sequence[_Costs],
    numbers: Iterable[int],
    holders: dict[int, int],
    hardware: Hardware,
) -> bool:
    """Finds the holders of tables that need a holder, by load or, if that fails, by memory."""
    keys = (
        lambda n: (-_seconds(hardware, costs[n].more), -costs[n].more[_MEMORY], n),
        lambda n: (-costs[n].more[_MEMORY], n),
    )
    for key in keys:
        tried, found = state.copy(), dict[int, int]()
        for number in sorted(numbers, key=key):
            worker = tried.best_holder(costs[number])
            if worker is None:
                break
            found[number] = worker
            tried.hold(costs[number], worker)
        else:
            state.base, state.extra = tried.base, tried.extra
            holders.update(found)
            return True
    return False


def _move_to_holders(
    state: _Workers,
    costs: Sequence[_Costs],
    movable: Sequence[int],
    holders: dict[int, int],
    hardware: Hardware,
) -> _Workers:
    """Moves tables from all workers to single ones; returns the state, and extends `holders`."""
    workers = len(state.extra)
    gain, load = {}, {}
    for number in movable:
        each = costs[number]
        load[number] = _seconds(hardware, each.more)
        shared = _seconds(hardware, each.other) + load[number] / workers
        gain[number] = _seconds(hardware, each.key) - shared
    # A table that sends no less is not worth the memory of a whole table on a single worker.
    gaining = [
        number
        for number in movable
        if gain[number] > 0
        and costs[number].other[_SENT] + costs[number].more[_SENT] / workers
        < costs[number].key[_SENT]
    ]
    by_gain = sorted(gaining, key=lambda n: (-gain[n] / max(load[n], 1e-30), n))
    by_load = sorted(gaining, key=lambda n: (-load[n], n))
    best, moved = state.slowest(), {}  # at first, to move nothing
    chosen = state
    for order in (by_gain, by_load):
        count, slowest, _, _ = _move_in_order(state, costs, order)
        if slowest >= best * _SHORTER:
            continue
        # Once the tables are chosen, moving the largest first balances better.
        first = order[:count]
        for again in (first, sorted(first, key=lambda n: (-load[n], n))):
            count, slowest, found, after = _move_in_order(state, costs, again)
            if slowest < best * _SHORTER:
                best, moved, chosen = slowest, found, after
    holders.update(moved)
    return chosen


def _move_in_order(
    state: _Workers, costs: Sequence[_Costs], order: Sequence[int]
) -> tuple[int, float, dict[int, int], _Workers]:
    """Moves one table after another.

    Returns:
        The number of tables of the order whose move makes the step shortest, the time of that step,
        the new place of each of them, and the state.
    """
    tried = state.copy()
    best = (0, tried.slowest(), dict[int, int](), tried.copy())
    found: dict[int, int] = {}
    for count, number in enumerate(order, 1):
        tried.spread(costs[number], -1)
        worker = tried.best_holder(costs[number])
        if worker is None:
            tried.spread(costs[number])
            continue
        tried.hold(costs[number], worker)
        found[number] = worker
        slowest = tried.slowest()
        if slowest < best[1] * _SHORTER:
            best = (count, slowest, dict(found), tried.copy())
    return best


def _anneal(
    state: _Workers,
    costs: Sequence[_Costs],
    movable: set[int],
    spreadable: set[int],
    holders: dict[int, int],
) -> None:
    """Moves tables away from the hottest worker as long as that shortens the step."""
    for _ in range(_MOVES):
        hottest = state.hottest()
        now = state.slowest()
        best = now * _SHORTER
        move: tuple[int, int | None] | None = None
        for number in sorted(movable):
            if holders.get(number) != hottest:
                continue
            each = costs[number]
            state.hold(each, hottest, -1)
            if number in spreadable:
                state.spread(each)
                if state.slowest() < best and state.fits():
                    best, move = state.slowest(), (number, None)
                state.spread(each, -1)
            worker = state.best_holder(each, not_on=hottest)
            if worker is not None:
                state.hold(each, worker)
                if state.slowest() < best:
                    best, move = state.slowest(), (number, worker)
                state.hold(each, worker, -1)
            state.hold(each, hottest)
        if move is None:
            return
        number, to = move
        state.hold(costs[number], hottest, -1)
        if to is None:
            state.spread(costs[number])
            del holders[number]
        else:
            state.hold(costs[number], to)
            holders[number] = to


def _no_fit_error(
    tables: Sequence[PlannedTable], workers: int, memory: int | None, limit: int | None
) -> ValueError:
    """Returns the error that names the tables that do not fit, and how much memory is missing."""
    assert memory is not None and limit is not None
    needs = []
    for table in tables:
        needs.append((table.memory(workers, table.placement) or 0, table))
    needs.sort(key=lambda need: (-need[0], need[1].name))
    on_all = [(need, each) for need, each in needs if each.placement != WORKER]
    on_one = [(need, each) for need, each in needs if each.placement == WORKER]
    spread = sum(need for need, _ in on_all)
    parts = [f"{shown_size(spread)} a worker for {_shown_needs(on_all)}"] if on_all else []
    if on_one:
        parts.append(f"whole tables on single workers: {_shown_needs(on_one)}")
    if limit != memory:
        parts.append(f"{shown_size(limit - memory)} a worker for the caches of storages")
    total = spread * workers + sum(need for need, _ in on_one)
    missing = total - workers * memory
    if missing > 0:
        lacking = f"{shown_size(missing)} are missing, {shown_size(missing / workers)} a worker"
    else:
        lacking = "On no worker is there room for the whole tables beside the others"
    return ValueError(
        f"Expected tables that fit into {shown_size(limit)} on each of {workers} workers. "
        f"Received: {'; '.join(parts)}. {lacking}. Take more workers or memory, a rule with fewer "
        "slots, max_rows, a storage, or place whole tables by key."
    )


def _shown_needs(needs: Sequence[tuple[int, PlannedTable]], most: int = 6) -> str:
    shown = [f"{table.name} ({shown_size(need)})" for need, table in needs[:most]]
    more = f" and {len(needs) - most} more" if len(needs) > most else ""
    return ", ".join(shown) + more
