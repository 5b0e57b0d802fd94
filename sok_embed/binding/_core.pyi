"""The core of sok_embed for Python, without TensorFlow.

Arrays are one-dimensional and contiguous, of exactly the dtype named; others raise TypeError, and
so do read-only ones where a call writes. `keys` is uint64 of shape (n,), embeddings and gradients
are float32 of shape (n * dim,), flags (0 or 1) and counts have shape (n,). All calls but those of
writers of files may be made from several threads at once, and work without the GIL. Paths are what
open() takes: str, bytes or os.PathLike, of any name.

Errors: ValueError and RuntimeError; FileNotFoundError, PermissionError and those below.

A progress callback gets how far the work is and how far it goes, and returns False to stop,
which raises RuntimeError. What it raises stops the work too and comes out of the call. It must not
use storages or tables.
"""

import os
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

_Keys: TypeAlias = NDArray[np.uint64]
_Floats: TypeAlias = NDArray[np.float32]
_Flags: TypeAlias = NDArray[np.uint8]
_Counts: TypeAlias = NDArray[np.int64]
_Numbers: TypeAlias = Sequence[tuple[str, float]]
_Progress: TypeAlias = Callable[[int, int], bool]
_Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

class StorageError(OSError):
    """The disk is full or fails, `max_rows` is reached, or RocksDB failed."""

class StorageLockedError(StorageError):
    """The folder of a storage is open elsewhere; the message names the process."""

class CorruptionError(StorageError):
    """Files are damaged. A device that fails to read or write is a `StorageError`."""

class _Survey(TypedDict):
    rows: int
    expired: int
    bytes: int
    ages: list[int]  # 7: rows below each of age_limits, and above
    age_limits: list[int]  # 6, in seconds
    updates: list[int]  # 33: rows with 0, 1, 2 to 3, 4 to 7, ... updates

class _Row(TypedDict):
    update_num: int
    update_time: int
    floats: _Floats  # the embedding, then the slots

class Storage:
    def __init__(
        self,
        path: _Path,
        ttl: int | None,
        cache_bytes: int,
        write_through: bool,
        read_only: bool,
        reset_slots: bool = False,
        spill_rows: int | None = None,  # that may wait in the spill; None: by cache_bytes
        ttl_with_load: bool = False,  # a folder that is there has another TTL only once rows came
        sync: bool = False,  # with write_through: calls survive the machine
        reset_initializer: bool = False,
        batch_bytes: int | None = None,  # a flush of no more is one batch; None: 16 MiB
        now: int | None = None,  # the time until set_now; None: the system's clock
    ) -> None: ...
    @staticmethod
    def find_open(path: _Path) -> Storage | None: ...
    @property
    def path(self) -> str: ...
    @property
    def id(self) -> int: ...
    @property
    def ttl(self) -> int: ...
    @property
    def cache_bytes(self) -> int: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def reset_slots(self) -> bool: ...
    @reset_slots.setter
    def reset_slots(self, reset: bool) -> None: ...
    @property
    def reset_initializer(self) -> bool: ...
    @reset_initializer.setter
    def reset_initializer(self, reset: bool) -> None: ...
    @property
    def closed(self) -> bool: ...
    def flush(self, wait: bool = True) -> None: ...
    @property
    def flushing(self) -> bool: ...
    def close(self) -> None: ...
    def checkpoint(self, path: _Path) -> None: ...
    def compact(self) -> None: ...
    def set_now(self, now: int) -> None: ...
    def dump(
        self,
        path: _Path,
        group: int = -1,
        min_count: int = 0,
        newer: int | None = None,
        progress: _Progress | None = None,
    ) -> int: ...
    def load(self, path: _Path, progress: _Progress | None = None) -> int: ...
    def load_damo(self, path: _Path, progress: _Progress | None = None) -> int: ...
    def groups(self) -> list[tuple[int, str]]: ...
    def survey(self, group: int) -> _Survey: ...
    def get(self, group: int, key: int) -> _Row | None: ...
    # Of a group whose table may be open or not; nothing is opened.
    def describe(self, group: int) -> str: ...
    def read_rows(self, group: int, keys: _Keys, out: _Floats, exists: _Flags) -> None: ...
    def read_row_meta(
        self, group: int, keys: _Keys, exists: _Flags, update_nums: _Counts, update_times: _Counts
    ) -> None: ...
    def remove_rows(self, group: int, keys: _Keys) -> int: ...
    def row_stats(self, group: int) -> dict[str, int]: ...
    # Keys, ascending from `start` on, their embeddings, and whether none come after them.
    def read_page(self, group: int, start: int, most: int) -> tuple[_Keys, _Floats, bool]: ...
    def disk_use(self) -> dict[str, int]: ...
    def open_table(
        self,
        spec: str,
        *,
        rule: str = "",
        hypers: _Numbers = ...,
        reset_slots: bool = False,
        reset_initializer: bool = False,
    ) -> Table: ...

class Table:
    @property
    def dim(self) -> int: ...
    def lookup(
        self, keys: _Keys, out: _Floats, make_rows: bool, exists: _Flags | None = None
    ) -> None: ...
    def metadata(
        self, keys: _Keys, exists: _Flags, update_nums: _Counts, update_times: _Counts
    ) -> None: ...
    def prefetch(self, keys: _Keys) -> None: ...
    def update(
        self, keys: _Keys, gradients: _Floats, optimizer: Optimizer, sequential: bool
    ) -> None: ...
    def assign(self, keys: _Keys, embeddings: _Floats) -> None: ...
    def remove(self, keys: _Keys) -> int: ...
    # keys as uint64 bytes, and whether they are complete
    def removed_keys(self, limit: int) -> tuple[bytes, bool]: ...
    def size(self) -> int: ...
    def steps(self) -> int: ...
    def stats(self) -> dict[str, int]: ...

class Optimizer:
    def __init__(
        self,
        rule: str,
        hypers: _Numbers,
        schedule: str = "",
        schedule_parameters: _Numbers = ...,
    ) -> None: ...
    @property
    def rule(self) -> str: ...
    def slot_floats(self, dim: int) -> int: ...
    def slot_start(self, dim: int) -> _Floats: ...
    def apply(self, row: _Floats, gradient: _Floats, number: int) -> None: ...

class Initializer:
    def __init__(self, kind: str, a: float, b: float, seed: int, group: int) -> None: ...
    def fill(self, key: int, out: _Floats) -> None: ...

# what names of the rules of sok_embed.kv begin with, and how messages of this module call a rule
RULE_PREFIX: str

def shown_rule(rule: str) -> str: ...

# whether there is a storage in the folder, and the bytes of its rows there
def holds_storage(path: _Path) -> bool: ...
def file_bytes(path: _Path) -> int: ...
def rule_names() -> list[str]: ...
def rule_slots(rule: str) -> list[str]: ...
def rule_defaults(rule: str) -> list[tuple[str, float]]: ...
def schedule_names() -> list[str]: ...
def schedule_defaults(name: str) -> list[tuple[str, float]]: ...
def schedule_value(name: str, parameters: _Numbers, initial: float, step: int) -> float: ...

# XXH3-64 of the bytes, seeded with the offset in a file at which they start
def checksum(bytes: NDArray[np.uint8], file_offset: int) -> int: ...

# merges the counts of the admissions of several workers; a counter of frequency stays if its key is
# `mine`, and of counters of counting_bloom the greatest is taken
def merge_admissions(
    parts: Sequence[bytes], mine: Callable[[NDArray[np.int64]], NDArray[np.bool_]]
) -> bytes: ...

class _MeshStats(TypedDict):
    exchanges: int
    bytes_sent: int
    seconds: float

def watch_interrupts() -> None:
    """Has waits for workers end soon after a SIGINT, whose present handler must raise."""

class Mesh:
    """Exchanges of this worker with all others, over sockets that it takes over, even if it raises.

    `sockets` has a descriptor for each worker, -1 where there is no connection, with the place of
    its other end. `hosts` has the ranks of the workers of each host, for two levels, or nothing.
    """

    def __init__(
        self,
        rank: int,
        timeout: float,
        sockets: Sequence[tuple[int, str]],
        hosts: Sequence[Sequence[int]],
    ) -> None: ...
    @property
    def number(self) -> int: ...
    @property
    def broken(self) -> bool: ...
    def stats(self) -> _MeshStats: ...

class Capture:
    """Rows of a table as they were when `begin_capture` was called; the number is from there."""

    def __init__(self, number: int) -> None: ...
    @property
    def rows(self) -> int: ...  # that it has
    @property
    def size(self) -> int: ...  # rows of the table at its moment
    @property
    def removed(self) -> int: ...
    def removed_keys(self) -> bytes: ...  # uint64, in order
    # copies rows out that were not copied before, into arrays of as many as there is room for;
    # returns how many, fewer if these were the last
    def next(
        self, keys: NDArray[np.uint64], update_nums: NDArray[np.uint32], embeddings: _Floats
    ) -> int: ...
    def release(self) -> None: ...  # nothing more is written of it; another one may begin
    def keep(self) -> None: ...  # what was captured is safe; later captures may start from it
    def end(self) -> None: ...  # nothing else can be done with it then

class RowsFileWriter:
    """Writes a file of rows of a checkpoint, which must not be there."""

    def __init__(self, path: _Path, attempt: int, worker: int, workers: int) -> None: ...
    def put_rows(
        self,
        table: int,
        keys: _Keys,
        update_nums: _Counts,
        update_times: _Counts,
        embeddings: _Floats,
        slots: _Floats,
        dim: int,
        slot_floats: int,
    ) -> None: ...
    # the rows of a group as they are; returns how many
    def put_stored(self, table: int, storage: Storage, group: int) -> int: ...
    def put_captures(self, tables: Sequence[int], captures: Sequence[Capture]) -> None: ...
    def put_bytes(self, table: int, kind: int, bytes: NDArray[np.uint8]) -> None: ...
    def put_removed(self, table: int, keys: _Keys) -> None: ...
    # the length and the checksum of the file, which is on the device then
    def finish(self, index: bytes) -> tuple[int, int]: ...
    def close(self) -> None: ...

class DumpReader:
    """Reads a dump, whose ends are checked at once, and each block when it is read."""

    def __init__(self, path: _Path) -> None: ...
    # number, dim, slot floats, rows, meta as JSON
    def groups(self) -> list[tuple[int, int, int, int, str]]: ...
    def verify(self) -> None: ...  # checks all blocks
    # keys, embeddings, slots, update counts and times of the block that begins with a row, 0 or
    # where the one before has ended; the index is the place of the group in `groups`
    def read(self, index: int, begin: int) -> tuple[_Keys, _Floats, _Floats, _Counts, _Counts]: ...

class DumpWriter:
    """Writes a dump, which replaces an older one; without `finish` it leaves nothing behind."""

    def __init__(self, path: _Path) -> None: ...
    def begin_group(self, group: int, dim: int, slot_floats: int, meta: str) -> None: ...
    def put_rows(
        self,
        keys: _Keys,
        update_nums: _Counts,
        update_times: _Counts,
        embeddings: _Floats,
        slots: _Floats,
        dim: int,
        slot_floats: int,
    ) -> None: ...
    def finish(self) -> None: ...

class KeySet:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def add(self, keys: _Keys) -> None: ...
    def contains(self, keys: _Keys, out: _Flags) -> None: ...

class _CaptureFigures(TypedDict):
    limit: int  # bytes that all captures may keep copies of
    used: int
    peak: int  # since the limit was set
    waited_seconds: float  # that changes of rows have waited for room, since the limit was set

def set_capture_budget(bytes: int) -> None: ...
def capture_figures() -> _CaptureFigures: ...

class ServedRows:
    """A file of rows that are served, mapped. Calls that go on keep it when it is closed."""

    def __init__(self, path: _Path) -> None: ...
    @property
    def dim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def header(self) -> bytes: ...  # JSON
    def lookup(self, keys: _Keys, out: _Floats) -> None: ...
    def contains(self, keys: _Keys, out: _Flags) -> None: ...
    def read(self, begin: int, out: _Floats) -> None: ...  # as many rows as out has
    def keys(self) -> _Keys: ...  # of the file, which stays mapped as long as the array lives
    def verify(self) -> None: ...
    def close(self) -> None: ...

class ServedRowsWriter:
    """Writes a file of rows that are served; without `finish` it leaves nothing behind."""

    def __init__(
        self,
        path: _Path,
        dtype: str,
        dim: int,
        name: str,
        missing: tuple[str, float, float, int, int] | None,  # kind, a, b, seed, group
        extra: Sequence[tuple[str, str]],
        memory: int = ...,  # bytes; rows beyond it go to a temporary file
    ) -> None: ...
    def add(self, keys: _Keys, rows: _Floats, dim: int) -> None: ...
    def finish(self) -> tuple[int, int]: ...  # the rows, and the bytes of the file
    def close(self) -> None: ...
