"""Random work on two storages, each step compared with NumPy.

    python tests/stores/storage_model.py --operations 10000000
    python tests/stores/storage_model.py --seed 17              # one life again
    python tests/stores/storage_model.py --seed 17 --stop-at 95 # its first 95 steps
    python tests/stores/storage_model.py --seed 17 --shrink     # finds a short life that fails

A life is a process that makes a few hundred steps. What a step does depends on the seed and the
number of the step alone, so that steps can be left out. An operation, where they are counted, is
one key of one call.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from bare_core import CORE_PATH, load_core
from coded_rows import TYPES
from dump_rows import DumpedRows, read_dump
from table_model import GroupConfig, Rows, TableModel, gradients_of, key_at

KEYS = 12_000
# The time is later than the present: what the library does before it is told the time, finds no row
# expired.
START = 2_000_000_000
TTLS = (0, 100, 1_000)
SPILLS = (None, 0, 300, 3_000)  # rows that may wait in the spill; None: more than there are
STEPS = 250
BATCH_BYTES = 1 << 18  # a flush of more goes on beside other calls
CACHE_MIB = 1  # the least there is, a third of one group and less than a large batch


@dataclass
class Dump:
    """A file, and what it holds by group."""

    path: Path
    rows: dict[int, Rows]
    steps: dict[int, int]


class Side:
    """One storage and its groups, as they are and as they should be."""

    def __init__(
        self,
        core: ModuleType,
        folder: Path,
        groups: list[GroupConfig],
        spill_rows: int | None,
    ) -> None:
        self._core = core
        self._spill_rows = spill_rows
        self.folder = folder
        self.groups = groups
        self.starts = {g.number: g.starts(core, KEYS) for g in groups}
        self.optimizers = {g.number: core.Optimizer(g.rule, g.hypers) for g in groups}
        self.storage: Any = None
        self.tables: dict[int, Any] = {}
        self.ttl = 0
        self.read_only = False
        self.make_models()

    def make_models(self) -> None:
        self.models = {g.number: TableModel(g, self.starts[g.number]) for g in self.groups}

    def open(
        self, now: int, ttl: int | None, cache: int, through: bool, read_only: bool = False
    ) -> None:
        self.storage = self._core.Storage(
            str(self.folder),
            ttl,
            cache,
            through,
            read_only,
            spill_rows=self._spill_rows,
            batch_bytes=BATCH_BYTES,
        )
        self.storage.set_now(now)
        self.read_only = read_only
        if ttl is not None:
            self.ttl = ttl
        assert self.storage.ttl == self.ttl

    def open_tables(self) -> None:
        self.tables = {g.number: g.open_table(self.storage) for g in self.groups}

    def close(self) -> None:
        self.storage.close()
        self.tables = {}

    def live(self, group: int, now: int) -> np.ndarray:
        return self.models[group].live(now, self.ttl)


@dataclass
class Life:
    """What the steps of one seed have and count."""

    core: ModuleType
    folder: Path
    seed: int
    ttls: tuple[int, ...]
    cache: int
    operations: int = 0
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def __post_init__(self) -> None:
        random = np.random.default_rng([self.seed, 0])
        self.now = START
        limit = int(random.integers(2_000, KEYS)) if random.random() < 0.25 else 0
        min_count = 1 + int(random.random() < 0.3)
        ttl = int(random.choice(self.ttls))
        spill_rows = SPILLS[int(random.integers(len(SPILLS)))]
        # Both may have other types: rows that come from the other one are rounded anew.
        turns = itertools.count(self.seed)
        self.sides = []
        for name in ("a", "b"):
            groups = [
                GroupConfig(0, 64, max_rows=limit, types=TYPES[next(turns) % len(TYPES)]),
                GroupConfig(
                    5, 23, momentum=True, min_count=min_count, types=TYPES[next(turns) % len(TYPES)]
                ),
            ]
            self.sides.append(Side(self.core, self.folder / name, groups, spill_rows))
        for side in self.sides:
            side.open(self.now, ttl, self.cache, bool(random.random() < 0.4))
            side.open_tables()
        self.dumps: list[Dump] = []

    def step(self, number: int) -> str:
        """Makes a step. Returns what it was."""
        random = np.random.default_rng([self.seed, number])
        if random.random() < 0.4:
            # Seldom a step takes so long that everything expires.
            self._wait(int(random.integers(0, 60)) if random.random() < 0.95 else 1_000)
        side = self.sides[int(random.random() < 0.2)]
        name = random.choice(_NAMES, p=_CHANCES)
        self.counts[name] += 1
        said = STEPS_BY_NAME[name](self, side, random)
        return f"{number}: now {self.now - START} {side.folder.name} {name} {said or ''}"

    def end(self) -> None:
        for side in self.sides:
            check_all(self, side)
            side.close()

    def _wait(self, seconds: int) -> None:
        self.now += seconds
        for side in self.sides:
            side.storage.set_now(self.now)


def _pick(side: Side, random: np.random.Generator) -> tuple[GroupConfig, Any, TableModel]:
    group = side.groups[int(random.integers(len(side.groups)))]
    return group, side.tables[group.number], side.models[group.number]


def _positions(life: Life, random: np.random.Generator) -> np.ndarray:
    """Draws a batch of positions: some twice, from a window of the keys that may be all."""
    width = int(random.integers(1, KEYS + 1))
    first = int(random.integers(0, KEYS - width + 1))
    most = random.choice([10, 1_000, 6_000])
    positions = random.integers(first, first + width, random.integers(0, most))
    life.operations += positions.size
    return positions


@contextlib.contextmanager
def _refused(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}")


def _equal(found: np.ndarray, wanted: np.ndarray, what: str, positions: np.ndarray) -> None:
    if np.array_equal(found, wanted):
        return
    differ = np.flatnonzero((found != wanted).reshape(len(found), -1).any(1))
    shown = [
        f"position {positions[i]}: {np.ravel(found[i])[:4]}, should be {np.ravel(wanted[i])[:4]}"
        for i in differ[:3]
    ]
    raise AssertionError(f"{what}: {differ.size} of {len(found)} differ; " + "; ".join(shown))


def _within_limit(side: Side, model: TableModel, fresh: int, now: int) -> bool | None:
    """Returns whether so many new rows fit; None if that depends on rows that have expired."""
    limit = model.config.max_rows
    if limit == 0 or fresh + int(model.there.sum()) + model.outlived <= limit:
        return True
    if fresh > 0 and fresh + int(model.live(now, side.ttl).sum()) > limit:
        return False
    return None


def _try(call: Callable[[], Any], core: ModuleType, fits: bool | None) -> bool:
    """Calls; whether it was done must be as `fits` says."""
    try:
        call()
    except core.StorageError as error:
        assert fits is not True, error
        return False
    assert fits is not False, "the limit of rows was passed"
    return True


def look_up(life: Life, side: Side, random: np.random.Generator) -> str:
    """Reads, and makes rows or not."""
    group, table, model = _pick(side, random)
    positions = _positions(life, random)
    train = bool(random.random() < 0.5) and not side.read_only
    wanted = model.vectors(positions, life.now, side.ttl)
    found = np.full((positions.size, group.dim), np.nan, np.float32)
    call = lambda: table.lookup(key_at(positions), found.reshape(-1), train)  # noqa: E731
    if train:
        fresh = model.count_seen(positions, life.now, side.ttl)
        if _try(call, life.core, _within_limit(side, model, fresh.size, life.now)):
            model.make(fresh, life.now)
            _equal(found, wanted, "vectors", positions)
    else:
        call()
        _equal(found, wanted, "vectors", positions)
    return f"group {group.number} keys {positions.size} train {train}"


def update(life: Life, side: Side, random: np.random.Generator) -> str:
    """Applies gradients, of equal keys summed or in turn."""
    group, table, model = _pick(side, random)
    positions = _positions(life, random)
    gradients = gradients_of(random, positions.size, group.dim)
    in_turn = bool(random.random() < 0.3)
    optimizer = side.optimizers[group.number]
    call = lambda: table.update(key_at(positions), gradients.ravel(), optimizer, in_turn)  # noqa: E731
    if side.read_only:
        with _refused(PermissionError):
            call()
    else:
        fresh = model.to_update(positions, life.now, side.ttl)
        if _try(call, life.core, _within_limit(side, model, fresh.size, life.now)):
            model.make(fresh, life.now)
            model.update(positions, gradients, life.now, side.ttl, in_turn)
    assert table.steps() == model.steps
    return f"group {group.number} keys {positions.size} in turn {in_turn}"


def assign(life: Life, side: Side, random: np.random.Generator) -> str:
    """Sets vectors."""
    group, table, model = _pick(side, random)
    positions = _positions(life, random)
    vectors = random.integers(-99, 99, (positions.size, group.dim)).astype(np.float32)
    call = lambda: table.assign(key_at(positions), vectors.ravel())  # noqa: E731
    if side.read_only:
        with _refused(PermissionError):
            call()
    else:
        live = model.live(life.now, side.ttl)
        fresh = np.unique(positions[~live[positions]]).size
        if _try(call, life.core, _within_limit(side, model, fresh, life.now)):
            model.assign(positions, vectors, life.now, side.ttl)
    return f"group {group.number} keys {positions.size}"


def remove(life: Life, side: Side, random: np.random.Generator) -> str:
    """Removes rows."""
    group, table, model = _pick(side, random)
    positions = _positions(life, random)
    if side.read_only:
        with _refused(PermissionError):
            table.remove(key_at(positions))
    else:
        removed = table.remove(key_at(positions))
        assert removed == model.remove(positions, life.now, side.ttl), "another number was removed"
    return f"group {group.number} keys {positions.size}"


def flush(life: Life, side: Side, random: np.random.Generator) -> None:
    """Has everything so far survive, in this call or beside those that follow."""
    side.storage.flush(bool(random.random() < 0.5))


def compact(life: Life, side: Side, random: np.random.Generator) -> None:
    """Rewrites the files; expired rows are gone for good then."""
    if side.read_only:
        with _refused(PermissionError):
            side.storage.compact()
        return
    side.storage.compact()
    for group in side.groups:
        model = side.models[group.number]
        model.there &= model.live(life.now, side.ttl)
        model.outlived = 0
        if side.ttl:
            assert side.tables[group.number].size() == model.there.sum()


def count(life: Life, side: Side, random: np.random.Generator) -> None:
    """Compares what storages and tables say of themselves."""
    described = {number: json.loads(text) for number, text in side.storage.groups()}
    for group in side.groups:
        model, table = side.models[group.number], side.tables[group.number]
        live = side.live(group.number, life.now)
        for rows in (described[group.number]["rows"], table.size(), table.stats()["rows"]):
            assert live.sum() <= rows <= model.there.sum() + model.outlived, (
                f"group {group.number} counts {rows} rows: {live.sum()} are live, "
                f"{model.there.sum()} were made and not removed, {model.outlived} outlived"
            )
        assert described[group.number]["steps"] == model.steps


def survey(life: Life, side: Side, random: np.random.Generator) -> None:
    """Compares the rows of a group by age and updates."""
    group, _, model = _pick(side, random)
    said = side.storage.survey(group.number)
    live = side.live(group.number, life.now)
    assert said["rows"] == live.sum()
    assert said["expired"] <= model.there.sum() - live.sum()
    ages = np.searchsorted(said["age_limits"], life.now - model.times[live], side="right")
    assert said["ages"] == np.bincount(ages, minlength=7).tolist()
    buckets = np.ceil(np.log2(model.updates[live] + 1)).astype(int)
    assert said["updates"] == np.bincount(buckets, minlength=33).tolist()


def get(life: Life, side: Side, random: np.random.Generator) -> None:
    """Single rows, by key."""
    group, _, model = _pick(side, random)
    live = side.live(group.number, life.now)
    positions = random.integers(0, KEYS, 5)
    for position, key in zip(positions, key_at(positions).tolist(), strict=True):
        row = side.storage.get(group.number, key)
        assert (row is not None) == live[position]
        if row is not None:
            assert row["update_num"] == model.updates[position]
            assert row["update_time"] == model.times[position]
            assert (row["floats"] == model.floats[position]).all()
    life.operations += 5


def check_dump(
    life: Life, side: Side, path: Path, numbers: list[int], min_count: int = 0, newer: int = -1
) -> dict[int, Rows]:
    """Compares a file with the rows that should be in it, and returns these."""
    dumped, wanted = read_dump(path), {}
    for number in numbers:
        model = side.models[number]
        chosen = (model.updates >= min_count) & (model.times > newer)
        rows = wanted[number] = model.rows(chosen & side.live(number, life.now))
        empty = np.empty(0, np.uint64)
        found = dumped.pop(number, None) or DumpedRows(
            empty, empty, empty, np.empty((0, model.config.floats), np.float32)
        )
        positions = model.positions(found.keys)
        order = np.argsort(positions)
        missing = np.setdiff1d(rows.positions, positions)
        more = np.setdiff1d(positions, rows.positions)
        assert not missing.size and not more.size and positions.size == rows.positions.size, (
            f"group {number}: {missing.size} rows are missing, {more.size} should not be there"
        )
        _equal(found.floats[order], rows.floats, "dumped floats", rows.positions)
        _equal(found.updates[order], rows.updates, "dumped counts", rows.positions)
        _equal(found.times[order], rows.times, "dumped times", rows.positions)
    assert not dumped, f"there are groups {list(dumped)} in the dump"
    return wanted


def dump(life: Life, side: Side, random: np.random.Generator) -> str:
    """Writes a file of all rows or some, which a later step may load."""
    path = life.folder / f"dump-{random.integers(2**32)}"
    if random.random() < 0.1:
        with _refused(RuntimeError):
            side.storage.dump(str(path), progress=lambda done, total: False)
        assert not path.exists()
        return "given up"
    number, min_count, newer = -1, 0, None
    if random.random() < 0.5:
        number = int(random.choice([g.number for g in side.groups]))
        min_count = int(random.integers(0, 4))
        newer = life.now - int(random.integers(1, 200))
    written = side.storage.dump(str(path), number, min_count, newer)
    numbers = [number] if number >= 0 else [g.number for g in side.groups]
    rows = check_dump(life, side, path, numbers, min_count, -1 if newer is None else newer)
    assert written == sum(some.positions.size for some in rows.values())
    life.dumps.append(Dump(path, rows, {n: side.models[n].steps for n in numbers}))
    if len(life.dumps) > 3:
        life.dumps.pop(0).path.unlink()
    return f"group {number} min_count {min_count} newer {newer}: {written} rows"


def rows_after(source: Dump, side: Side, number: int, now: int) -> int:
    """Returns how many rows a group has once it has taken in those of a dump."""
    model = side.models[number].copy()
    model.take(source.rows[number], now, side.ttl)
    return int(model.live(now, side.ttl).sum())


def exceeds_limit(source: Dump, side: Side, now: int) -> bool:
    """Returns whether a group with a limit would have more rows."""
    return any(
        0 < side.models[number].config.max_rows < rows_after(source, side, number, now)
        for number in source.rows
    )


def load(life: Life, side: Side, random: np.random.Generator) -> str:
    """Takes a file in, with the tables open or not."""
    if not life.dumps:
        return "nothing"
    source = life.dumps[int(random.integers(len(life.dumps)))]
    if side.read_only:
        with _refused(PermissionError):
            side.storage.load(str(source.path))
        return "refused"
    kind = random.choice(["given up", "open", "not open"], p=[0.1, 0.6, 0.3])
    calls = itertools.count()
    last = int(random.integers(0, 4)) if kind == "given up" else sys.maxsize
    if kind == "not open":
        through = bool(random.random() < 0.4)
        side.close()
        side.open(life.now, None, life.cache, through)
    try:
        taken = side.storage.load(str(source.path), lambda done, total: next(calls) < last)
    except RuntimeError:
        assert kind == "given up"
        return kind
    except life.core.StorageError as error:
        assert "with a limit of" in str(error) and kind != "not open", error
        assert exceeds_limit(source, side, life.now), error
        return "more than a limit"
    # A group may hold more than its limit before; rows that have expired may count among those.
    if kind == "open" and not side.ttl and exceeds_limit(source, side, life.now):
        for number in source.rows:
            model = side.models[number]
            before = int(model.live(life.now, side.ttl).sum())
            most = max(before, model.config.max_rows)
            assert not model.config.max_rows or rows_after(source, side, number, life.now) <= most
    wanted = 0
    for number, rows in source.rows.items():
        model = side.models[number]
        wanted += model.take(rows, life.now, side.ttl, is_open=kind == "open")
        if kind == "not open":
            model.steps = max(model.steps, source.steps[number])
    assert taken == wanted
    if kind == "not open":
        side.open_tables()
    life.operations += taken
    return f"{source.path.name}: {taken} rows, tables {kind}"


def checkpoint(life: Life, side: Side, random: np.random.Generator) -> None:
    """Makes another folder, and looks at what is in there."""
    folder = life.folder / "checkpoint"
    side.storage.checkpoint(str(folder))
    copy = life.core.Storage(str(folder), None, life.cache, False, bool(random.random() < 0.5))
    copy.set_now(life.now)
    assert copy.ttl == side.ttl
    path = life.folder / "of-checkpoint"
    copy.dump(str(path))
    check_dump(life, side, path, [g.number for g in side.groups])
    steps = {number: json.loads(text)["steps"] for number, text in copy.groups()}
    assert steps == {g.number: side.models[g.number].steps for g in side.groups}
    copy.close()
    shutil.rmtree(folder)


def reopen(life: Life, side: Side, random: np.random.Generator) -> str:
    """Closes, and opens as before or in another way."""
    read_only = bool(random.random() < 0.2) and not side.read_only
    cache = life.cache << int(random.random() < 0.2)
    through = bool(random.random() < 0.4)
    before = side.ttl
    ttl = int(random.choice(life.ttls)) if random.random() < 0.3 and not read_only else None
    side.close()
    side.open(life.now, ttl, cache, through, read_only)
    if ttl is not None and ttl != before:
        _meet_old_rows(life, side, before)
    side.open_tables()
    return f"cache {cache >> 20} MiB through {through} read-only {read_only} ttl {side.ttl}"


def _meet_old_rows(life: Life, side: Side, before: int) -> None:
    """Rows that had expired are seen again under another TTL, if they are still there."""
    path = life.folder / "all"
    side.storage.dump(str(path))
    dumped = read_dump(path)
    for group in side.groups:
        model = side.models[group.number]
        doubtful = side.live(group.number, life.now) & ~model.live(life.now, before)
        found = np.zeros(KEYS, bool)
        if group.number in dumped:
            found[model.positions(dumped[group.number].keys)] = True
        model.there &= found | ~doubtful
    check_dump(life, side, path, [g.number for g in side.groups])


def begin_anew(life: Life, side: Side, random: np.random.Generator) -> str:
    """The second of the storages is thrown away."""
    if side is life.sides[0]:
        return "not this one"
    side.close()
    shutil.rmtree(side.folder)
    side.make_models()
    side.open(life.now, int(random.choice(life.ttls)), life.cache, bool(random.random() < 0.4))
    side.open_tables()
    return f"ttl {side.ttl}"


def check_all(life: Life, side: Side, random: np.random.Generator | None = None) -> None:
    """Every vector by lookups, then every row by a dump, then the counts."""
    everything = np.arange(KEYS)
    for group in side.groups:
        found = np.empty((KEYS, group.dim), np.float32)
        side.tables[group.number].lookup(key_at(everything), found.reshape(-1), False)
        wanted = side.models[group.number].vectors(everything, life.now, side.ttl)
        _equal(found, wanted, f"group {group.number}: vectors", everything)
    path = life.folder / "all"
    side.storage.dump(str(path))
    check_dump(life, side, path, [g.number for g in side.groups])
    count(life, side, np.random.default_rng(0))


_SHARES: dict[Callable[[Life, Side, np.random.Generator], str | None], int] = {
    update: 28,
    look_up: 26,
    assign: 8,
    remove: 6,
    flush: 3,
    check_all: 3,
    dump: 4,
    load: 4,
    reopen: 4,
    count: 3,
    survey: 2,
    get: 2,
    compact: 2,
    checkpoint: 2,
    begin_anew: 2,
}
STEPS_BY_NAME = {made.__name__: made for made in _SHARES}
_NAMES = list(STEPS_BY_NAME)
_CHANCES = np.array(list(_SHARES.values())) / sum(_SHARES.values())


def live_through(
    core: ModuleType, arguments: argparse.Namespace, seed: int, without: set[int]
) -> Life:
    """One life in this process. Its steps go to stderr, which says the last one in a crash too."""
    with tempfile.TemporaryDirectory(prefix="sok-model-") as folder:
        life = Life(core, Path(folder), seed, tuple(arguments.ttls), arguments.cache << 20)
        try:
            for number in range(1, arguments.steps + 1):
                if number not in without:
                    os.write(2, f"{number}: begins\n".encode())
                    os.write(2, f"{life.step(number)}\n".encode())
            life.end()
        except Exception:
            # The storages would be closed in a folder that is gone.
            traceback.print_exc()
            shutil.rmtree(folder)
            os._exit(1)
    return life


def child(arguments: argparse.Namespace, seed: int, steps: int, without: set[int]) -> Any:
    """One life in a process of its own, which may crash."""
    command = [sys.executable, __file__, "--life", "--seed", seed, "--steps", steps]
    command += ["--core", arguments.core, "--ttls", *arguments.ttls, "--cache", arguments.cache]
    command += ["--without", ",".join(map(str, sorted(without)))]
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=1800
    )


def failing_step(done: Any) -> int:
    """Returns the last step that a life began."""
    begun = [line for line in done.stderr.splitlines() if line.endswith(": begins")]
    return int(begun[-1].split(":")[0]) if begun else 0


def shrink(arguments: argparse.Namespace, seed: int) -> set[int]:
    """Leaves out steps as long as the life still fails. Returns those that are needed."""
    done = child(arguments, seed, arguments.steps, set())
    if done.returncode == 0:
        return set()
    last = failing_step(done)
    needed = list(range(1, last + 1))
    size = max(1, last // 2)
    while size >= 1:
        for begin in range(0, len(needed), size):
            fewer = needed[:begin] + needed[begin + size :]
            without = set(range(1, last + 1)) - set(fewer)
            if child(arguments, seed, last, without).returncode != 0:
                needed = fewer
                break
        else:
            size //= 2
    return set(needed)


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=0, help="live until there were so many")
    parser.add_argument("--seed", type=int, default=None, help="of the first life")
    parser.add_argument("--steps", "--stop-at", type=int, default=STEPS, help="of a life")
    parser.add_argument("--shrink", action="store_true", help="find the steps that are needed")
    parser.add_argument("--ttls", type=int, nargs="+", default=TTLS, help="0: rows stay for ever")
    parser.add_argument("--cache", type=int, default=CACHE_MIB, help="in MiB")
    parser.add_argument("--core", default=CORE_PATH, help="the native module")
    parser.add_argument("--life", action="store_true", help="live in this process")
    parser.add_argument("--without", default="", help="numbers of steps to leave out")
    return parser.parse_args(given)


def main(arguments: argparse.Namespace) -> int:
    """Returns how many lives have failed."""
    seed = arguments.seed
    if seed is None:
        seed = int(np.random.SeedSequence().entropy % 2**32)
    without = {int(number) for number in arguments.without.split(",") if number}
    if arguments.life:
        faulthandler.enable()
        core = load_core(arguments.core)
        life = live_through(core, arguments, seed, without)
        print(json.dumps({"operations": life.operations, **life.counts}))
        return 0
    if arguments.shrink:
        needed = shrink(arguments, seed)
        done = child(
            arguments, seed, max(needed, default=0), set(range(max(needed, default=0))) - needed
        )
        print(done.stderr)
        return int(bool(needed))
    total: collections.Counter[str] = collections.Counter()
    failures = 0
    while True:
        done = child(arguments, seed, arguments.steps, without)
        if done.returncode == 0:
            total.update(json.loads(done.stdout))
            total["lives"] += 1
        else:
            failures += 1
            total["operations"] += 1 + 5_000_000 // 20  # a run of failures ends, too
            lines = done.stderr.splitlines()
            print(f"seed {seed} failed with {done.returncode}, step {failing_step(done)}:")
            print("\n".join(lines[-12:]), flush=True)
        if total["operations"] >= arguments.operations:
            break
        seed += 1
    print(f"last seed {seed}, {failures} failed, {dict(total)}")
    return failures


if __name__ == "__main__":
    sys.exit(min(main(parse()), 1))
