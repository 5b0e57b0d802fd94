"""Embeddings of 64-bit keys on disk, trained from NumPy arrays, without Keras.

A `Storage` is a folder of up to 256 groups. An `Embedding` is one group: its vectors, and what its
`Optimizer` keeps of each of them.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from sok_embed import communicators
from sok_embed.admission import Admission, CountingBloomAdmission, FrequencyAdmission
from sok_embed.tf_ops import _core
from sok_embed.tf_ops._core import CorruptionError, StorageError, StorageLockedError

__all__ = [
    "CorruptionError",
    "CountingBloomAdmission",
    "Embedding",
    "FrequencyAdmission",
    "Group",
    "Initializer",
    "Optimizer",
    "Schedule",
    "Storage",
    "StorageError",
    "StorageLockedError",
]

GROUPS = 256

_MOST_DIMENSION = 2**20
_UINT32 = 2**32
_UINT64 = 2**64
_WORKER_FOLDER = re.compile(r"worker-\d+-of-(?P<size>\d+)")
_PREFIX = "kv_"  # of the core's names for the rules of this module
_DURABILITIES = ("checkpoint", "update")

_Result = TypeVar("_Result")
_Progress = Callable[[int, int], Any]


# --- what an embedding is made of -------------------------------------------------------------


class Initializer:
    """What vectors start from: a function of the seed, the group and the key.

    | name | parameters |
    |---|---|
    | `zeros`, `ones` | |
    | `uniform` | `min=-1`, `max=1` (exclusive) |
    | `normal` | `mean=0`, `stddev=1` |
    | `truncated_normal` | `mean=0`, `stddev=1`; nothing beyond two standard deviations |
    | `xavier` | uniform within `sqrt(6 / dimension)` on either side |

    This `xavier` is Damo-Embedding's. Keras', with the fans of a square, has `sqrt(3 / dimension)`.

    Example:
    >>> Initializer("uniform", min=-0.1, max=0.1)
    Initializer('uniform', seed=0, min=-0.1, max=0.1)

    Args:
        name: One of the table.
        seed: Any integer; counted modulo 2**64.
        **parameters: Those of the table.

    Raises:
        ValueError: For an unknown name or parameter, or a value that cannot be drawn with.
    """

    _DEFAULTS: dict[str, dict[str, float]] = {
        "zeros": {},
        "ones": {},
        "uniform": {"min": -1.0, "max": 1.0},
        "normal": {"mean": 0.0, "stddev": 1.0},
        "truncated_normal": {"mean": 0.0, "stddev": 1.0},
        "xavier": {},
    }

    def __init__(self, name: str, *, seed: int = 0, **parameters: float) -> None:
        if name not in self._DEFAULTS:
            raise _unknown("an initializer", self._DEFAULTS, name)
        self.name = name
        self.seed = _integer("seed", seed)
        self.parameters = dict(self._DEFAULTS[name])
        for parameter, value in parameters.items():
            if parameter not in self.parameters:
                raise _unknown(f"parameters of initializer '{name}'", self.parameters, parameter)
            self.parameters[parameter] = _number(f"initializer '{name}': {parameter}", value)
        self.draw(0, dimension=1)

    def bounds(self, dimension: int) -> tuple[str, float, float]:
        """The distribution for vectors of a length.

        Args:
            dimension: The length of a vector.

        Returns:
            `(kind, a, b)`: `"constant"` with its value, `"uniform"` with its bounds, `"normal"` or
            `"truncated_normal"` with mean and standard deviation.
        """
        if self.name in ("zeros", "ones"):
            return "constant", float(self.name == "ones"), 0.0
        if self.name == "xavier":
            limit = math.sqrt(6.0 / dimension)
            return "uniform", -limit, limit
        a, b = self.parameters.values()
        return self.name, a, b

    def draw(self, key: int, *, dimension: int, group: int = 0) -> npt.NDArray[np.float32]:
        """The vector that a key starts from.

        Args:
            key: Of 64 bits, signed or not.
            dimension: The length of the vector.
            group: The group that the key is in.

        Returns:
            float32 `[dimension]`.
        """
        vector = np.empty(_integer("dimension", dimension, 1, _MOST_DIMENSION + 1), np.float32)
        stream = (self.seed % _UINT64, _integer("group", group, 0, GROUPS))
        _call(_core.Initializer, *self.bounds(dimension), *stream).fill(key % _UINT64, vector)
        return vector

    def __repr__(self) -> str:
        return f"Initializer({_arguments(self.name, {'seed': self.seed, **self.parameters})})"


class Schedule:
    """A learning rate that changes with the number of updates of a row.

    Names, parameters and formulas are those of Keras' classes and, for
    `natural_exponential_decay` and `linear_cosine_decay`, of `tf.compat.v1.train`:

    | name | parameters |
    |---|---|
    | `exponential_decay` | `decay_steps`, `decay_rate`, `staircase=False` |
    | `natural_exponential_decay` | `decay_steps`, `decay_rate`, `staircase=False` |
    | `inverse_time_decay` | `decay_steps`, `decay_rate`, `staircase=False` |
    | `polynomial_decay` | `decay_steps`, `end_learning_rate=1e-4`, `power=1`, `cycle=False` |
    | `cosine_decay` | `decay_steps`, `alpha=0`, `warmup_target`, `warmup_steps=0` |
    | `linear_cosine_decay` | `decay_steps`, `num_periods=0.5`, `alpha=0`, `beta=1e-3` |

    Example:
    >>> schedule = Schedule("exponential_decay", decay_steps=10, decay_rate=0.5)
    >>> schedule(0.1, step=20)
    0.025

    Args:
        name: One of the table.
        parameters: Those of the table, as a mapping.
        **more: The same, by name.

    Raises:
        ValueError: For an unknown name or parameter, one that is missing, or a value that the
            schedule cannot work with.
    """

    def __init__(
        self, name: str, parameters: Mapping[str, float] | None = None, /, **more: float
    ) -> None:
        names = _core.schedule_names()
        if name not in names:
            raise _unknown("a schedule", names, name)
        self.name = name
        self.parameters = _parameters(f"schedule '{name}'", parameters, more, flags=True)
        self(1.0, 0)

    def __call__(self, initial: float, step: int) -> float:
        """The learning rate of an update.

        Args:
            initial: The learning rate that the schedule starts from.
            step: 0 for the first update.
        """
        return _call(
            _core.schedule_value, self.name, list(self.parameters.items()), float(initial), step
        )

    def __repr__(self) -> str:
        return f"Schedule({_arguments(self.name, self.parameters)})"


class Optimizer:
    """How gradients move vectors. Each row counts its own updates.

    | name | parameters and defaults |
    |---|---|
    | `sgd` | `gamma` 1e-3, `lambda` 0 |
    | `ftrl` | `alpha` 5e-3, `beta` 0, `lambda1` 0, `lambda2` 0 |
    | `adagrad` | `gamma` 1e-2, `lambda` 0, `eta` 0, `epsilon` 1e-10 |
    | `adam`, `amsgrad` | `gamma` 1e-3, `beta1` 0.9, `beta2` 0.999, `lambda` 0, `epsilon` 1e-8 |
    | `adamw` | as `adam`, with `lambda` 1e-2 |
    | `lion` | `eta` 3e-4, `beta1` 0.9, `beta2` 0.99, `lambda` 1e-2 |

    The learning rate is `gamma`, `alpha` or `eta` (of lion). `lambda` is an L2 penalty, which is
    added to the gradient; in `adamw` and `lion` it is decoupled weight decay.

    Example:
    >>> Optimizer("sgd", gamma=0.1, lambda_=0.01)
    Optimizer('sgd', gamma=0.1, lambda=0.01)

    Args:
        name: One of the table.
        schedule: What becomes of the learning rate; `None`: it stays.
        parameters: Those of the table, as a mapping.
        **more: The same, by name. `lambda` is a word of Python's own: write `lambda_`.

    Raises:
        ValueError: For an unknown name or parameter, or a value that the rule cannot work with.
    """

    def __init__(
        self,
        name: str,
        schedule: Schedule | None = None,
        parameters: Mapping[str, float] | None = None,
        **more: float,
    ) -> None:
        names = [r.removeprefix(_PREFIX) for r in _core.rule_names() if r.startswith(_PREFIX)]
        if name not in names:
            raise _unknown("an optimizer", names, name)
        if schedule is not None and not isinstance(schedule, Schedule):
            raise TypeError(
                f"Expected a sok_embed.kv.Schedule or None. Received: {_described(schedule)}."
            )
        self.name = name
        self.schedule = schedule
        self.rule = _PREFIX + name
        given = _parameters(f"optimizer '{name}'", parameters, more)
        self._native = _call(
            _core.Optimizer,
            self.rule,
            list(given.items()),
            *((schedule.name, list(schedule.parameters.items())) if schedule else ()),
        )
        self.parameters = {**dict(_core.rule_defaults(self.rule)), **given}

    def slot_floats(self, dimension: int) -> int:
        """How many float32 the optimizer keeps of a row, beside its vector of `dimension`."""
        return self._native.slot_floats(_integer("dimension", dimension, 1, _MOST_DIMENSION + 1))

    def apply(
        self, row: npt.NDArray[np.float32], gradient: npt.NDArray[np.float32], number: int = 1
    ) -> None:
        """Applies one update to one row, in place.

        Args:
            row: float32 `[dimension + slot_floats(dimension)]`: the vector, then what the
                optimizer keeps, 0 at first.
            gradient: float32 `[dimension]`.
            number: 1 for the first update of the row.

        Raises:
            TypeError: For another dtype.
            ValueError: For another size, or a row that cannot be written to.
        """
        gradients = _floats("gradient", gradient, None)
        dimension = gradients.size
        rows = _floats("row", row, dimension + self.slot_floats(dimension), writable=True)
        self._native.apply(rows, gradients, _integer("number", number, 1, _UINT32))

    def __repr__(self) -> str:
        parameters: dict[str, Any] = dict(self.parameters)
        if self.schedule is not None:
            parameters["schedule"] = self.schedule
        return f"Optimizer({_arguments(self.name, parameters)})"


# --- the storage ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """One group of a storage.

    Attributes:
        number: In [0, 256).
        dimension: The length of its vectors.
        optimizer: The name of the rule that trains it, such as `"adam"`; `"keras.adam"` for the
            form that layers use; `None` before the first.
        rows: How many there are; with a TTL, some that have expired may be among them.
        steps: How many updates there were, of any number of rows each.
        initializer: `kind`, `a`, `b` and `seed`; see `Initializer.bounds`.
        slots: Name and number of float32 of each vector that the optimizer keeps of a row.
    """

    number: int
    dimension: int
    optimizer: str | None
    rows: int
    steps: int
    initializer: dict[str, Any]
    slots: tuple[tuple[str, int], ...]


_open_storages: weakref.WeakValueDictionary[str, Storage] = weakref.WeakValueDictionary()
_open_lock = threading.RLock()


class Storage:
    """A folder of embeddings. One process at a time has it open; its threads may share it.

    It is flushed and closed by `close`, at the end of a `with` block, when nothing refers to it any
    more, and when the interpreter ends.

    Example:
    >>> with Storage("rows", ttl=90 * 86400) as storage:
    ...     embedding = Embedding(storage, Optimizer("adam"), Initializer("zeros"), dimension=4)
    ...     len(embedding)
    0

    Args:
        path: The folder. It is made if there is none, unless `read_only`. With several Horovod
            workers, after `sok_embed.init()`, each has `worker-<rank>-of-<size>` in there to
            itself.
        ttl: Seconds after its last update that a row is kept. 0: for ever. `None`: as the folder
            was opened for writing last, for ever if it is new.
        cache_bytes: Of the rows that are kept in memory, at least 1 MiB. Their index, about 20
            bytes for each, and up to 128 MiB of RocksDB's own come on top.
        durability: What survives when the process is killed: `"checkpoint"`, everything up to the
            last `flush`, `checkpoint` or `close` that returned; `"update"`, also every update that
            returned, which takes a write to the log each.
        read_only: Nothing in the folder changes, and lookups make no rows.
        clock: For tests: called before each operation, for the seconds since 1970.

    Raises:
        StorageLockedError: If this or another process has the folder open; the message names the
            lock.
        CorruptionError: For damaged files.
        FileNotFoundError, PermissionError, StorageError: From the file system.
        ValueError: For arguments out of their range, or a folder with other things in it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        ttl: int | None = 0,
        cache_bytes: int = 256 << 20,
        durability: Literal["checkpoint", "update"] = "checkpoint",
        read_only: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._given = _path(path)
        self.path = _worker_folder(self._given)
        if durability not in _DURABILITIES:
            raise ValueError(
                f"Expected durability to be 'checkpoint' or 'update'. Received: {durability!r}."
            )
        self.durability = durability
        self._clock = clock
        self._process = os.getpid()
        with _open_lock:
            self._native = _call(
                _core.Storage,
                self.path,
                None if ttl is None else _integer("ttl", ttl, 0, _UINT32),
                _integer("cache_bytes", cache_bytes, 0, _UINT64),
                durability == "update",
                bool(read_only),
            )
            _open_storages[os.path.realpath(self.path)] = self
        self._finalizer = weakref.finalize(self, _finish, self._native, self._process)

    @property
    def ttl(self) -> int:
        """Seconds after its last update that a row is kept; 0: for ever."""
        return self._native.ttl

    @property
    def cache_bytes(self) -> int:
        """The most bytes of rows that are kept in memory."""
        return self._native.cache_bytes

    @property
    def read_only(self) -> bool:
        """Whether it was opened without leave to write."""
        return self._native.read_only

    @property
    def closed(self) -> bool:
        """Whether it was closed. Its embeddings raise RuntimeError then."""
        return self._native.closed

    def flush(self) -> None:
        """Writes everything so far, in one step that happens as a whole or not at all."""
        _call(self.ready().flush)

    def close(self) -> None:
        """Flushes and closes. If that fails, the storage stays open. Another call does nothing."""
        _call(self.ready().close)
        self._finalizer.detach()

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Flushes and makes a folder which can be opened like this one.

        Files are linked where the file system can do that, so it takes no time and little space.

        Args:
            path: The new folder.

        Raises:
            ValueError: If there is something at `path`.
        """
        _call(self.ready().checkpoint, _path(path))

    def compact(self) -> None:
        """Flushes and rewrites the files, without expired and superseded rows."""
        _call(self.ready().compact)

    def dump(
        self,
        path: str | os.PathLike[str],
        group: int | None = None,
        min_count: int = 0,
        newer_than: float | datetime | None = None,
        progress: _Progress | None = None,
    ) -> int:
        """Writes rows with what their optimizer keeps into one file, to move them elsewhere.

        The file gets its name once it is complete. Expired rows are left out.

        Args:
            path: The file; one that is there is replaced.
            group: The only group to write; `None`: all.
            min_count: The least number of updates of a row.
            newer_than: Rows updated after this time, in seconds since 1970 or as a datetime, which
                is local time unless it says otherwise; `None`: all.
            progress: Called now and then as `progress(done, total)`. The dump is given up if it
                returns False. It must not use the storage.

        Returns:
            The number of rows.

        Raises:
            FileNotFoundError: If there is no such group.
            RuntimeError: If `progress` gave it up.
        """
        return _call(
            self.ready().dump,
            _path(path),
            -1 if group is None else _integer("group", group, 0, GROUPS),
            _integer("min_count", min_count, 0, _UINT32),
            None if newer_than is None else _seconds("newer_than", newer_than),
            _watched(progress),
        )

    def load(self, path: str | os.PathLike[str], progress: _Progress | None = None) -> int:
        """Takes the rows of a dump in and flushes; all of them or, on an error, none.

        A key that is there already gets the file's row. Groups that are new come as they were.

        Args:
            path: What `dump` wrote.
            progress: As for `dump`.

        Returns:
            The number of rows.

        Raises:
            CorruptionError: For a damaged file.
            ValueError: For another kind of file, or if a group has another dimension or optimizer.
            RuntimeError: If `progress` gave it up.
        """
        return _call(self.ready().load, _path(path), _watched(progress))

    def load_damo(self, path: str | os.PathLike[str], progress: _Progress | None = None) -> int:
        """The same as `load` for what `dump` of Damo-Embedding wrote: vectors alone.

        What the optimizer keeps starts anew, as do the counts of updates. The rows count as updated
        now.

        Args:
            path: The file.
            progress: As for `dump`.

        Returns:
            The number of rows.

        Raises:
            CorruptionError, ValueError, RuntimeError: As `load`.
        """
        return _call(self.ready().load_damo, _path(path), _watched(progress))

    def groups(self) -> list[Group]:
        """The groups, ascending by number."""
        groups = []
        for number, text in _call(self.ready().groups):
            meta = json.loads(text)
            groups.append(
                Group(
                    number=number,
                    dimension=meta["dim"],
                    optimizer=_shown(meta["rule"]) if meta["rule"] else None,
                    rows=meta["rows"],
                    steps=meta["steps"],
                    initializer=meta["initializer"],
                    slots=tuple((slot["name"], slot["width"]) for slot in meta["slots"]),
                )
            )
        return groups

    def ready(self) -> _core.Storage:
        """The core's storage, with its clock set; for embeddings, layers and tools.

        Raises:
            RuntimeError: In a process that was forked after the storage was opened.
        """
        process = os.getpid()
        if process != self._process:
            raise RuntimeError(
                f"Expected storage '{self.path}' in the process that opened it, {self._process}. "
                f"Received: a call in process {process}, forked from it. Start processes with "
                "multiprocessing's 'spawn', and open the storage in one of them."
            )
        if self._clock is not None:
            self._native.set_now(int(self._clock()))
        return self._native

    def get_config(self) -> dict[str, Any]:
        """The arguments, as JSON can hold them, but for the clock."""
        return {
            "path": self._given,
            "ttl": self.ttl,
            "cache_bytes": self.cache_bytes,
            "durability": self.durability,
            "read_only": self.read_only,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Storage:
        """The storage that this process has open in the folder, or else a new one.

        Args:
            config: What `get_config` returned. Only the path counts for a storage that is open.

        Raises:
            StorageLockedError, StorageError, ValueError: As the constructor.
        """
        with _open_lock:
            folder = _worker_folder(_path(config["path"]))
            storage = _open_storages.get(os.path.realpath(folder))
            if storage is not None and not storage.closed:
                return storage
            return cls(**config)

    def __enter__(self) -> Storage:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ", read-only" if self.read_only else ""
        return f"<Storage '{self.path}'{state}>"


def _finish(native: _core.Storage, process: int) -> None:
    if os.getpid() == process:
        native.close()


def _leave_to_parent() -> None:
    """In a forked child: what the parent has open is neither flushed nor freed here."""
    global _open_lock
    _open_lock = threading.RLock()  # another thread of the parent may have held the old one
    for storage in list(_open_storages.values()):
        # Freeing would close the database, whose files and lock are the parent's.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(storage._native))
    _open_storages.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


# --- the embedding ----------------------------------------------------------------------------


class Embedding:
    """One group of a storage: vectors by 64-bit key.

    Keys are 1-D arrays of uint64, or of int64 with the same bits. Vectors and gradients are
    float32, `[n * dimension]` or `[n, dimension]`. All arrays are C-contiguous.

    Threads may share an embedding; the work is done without Python's lock. Lookups run beside
    lookups, updates one at a time.

    Example:
    >>> import numpy as np
    >>> embedding = Embedding(Storage("sums"), Optimizer("sgd", gamma=1), Initializer("zeros"), 2)
    >>> keys = np.array([7, 8, 7], np.uint64)
    >>> embedding.apply_gradients(keys, np.ones([3, 2], np.float32))
    >>> embedding.lookup(keys)
    array([[-2., -2.],
           [-1., -1.],
           [-2., -2.]], dtype=float32)

    Args:
        storage: Where the rows are. The embedding keeps it open.
        optimizer: What trains them.
        initializer: What they start from.
        dimension: The length of a vector, in [1, 2**20].
        group: In [0, 256).
        admission: Which keys get a row; `None`: all.
        duplicates: What becomes of equal keys in one call of `apply_gradients`: `"sum"`, one update
            with the sum of their gradients; `"sequential"`, one update after another, in order.
        max_rows: The most rows; `None`: as many as the disk holds.

    Raises:
        ValueError: For arguments out of their range, or if the group was made with another
            dimension or optimizer, or is open with another initializer or admission.
        TypeError: For other objects than those of this module.
        FileNotFoundError: If there is no such group in a storage that is read-only.
    """

    def __init__(
        self,
        storage: Storage,
        optimizer: Optimizer,
        initializer: Initializer,
        dimension: int,
        group: int = 0,
        *,
        admission: Admission | None = None,
        duplicates: Literal["sum", "sequential"] = "sum",
        max_rows: int | None = None,
    ) -> None:
        _check_type("storage", storage, Storage)
        _check_type("optimizer", optimizer, Optimizer)
        _check_type("initializer", initializer, Initializer)
        if admission is not None:
            _check_type("admission", admission, FrequencyAdmission, CountingBloomAdmission)
        if duplicates not in ("sum", "sequential"):
            raise ValueError(
                f"Expected duplicates to be 'sum' or 'sequential'. Received: {duplicates!r}."
            )
        self.storage = storage
        self.optimizer = optimizer
        self.initializer = initializer
        self.dimension = _integer("dimension", dimension, 1, _MOST_DIMENSION + 1)
        self.group = _integer("group", group, 0, GROUPS)
        self.admission = admission
        self.duplicates = duplicates
        kind, a, b = initializer.bounds(self.dimension)
        self._table = _call(
            storage.ready().open_table,
            group=self.group,
            dim=self.dimension,
            initializer=kind,
            a=a,
            b=b,
            seed=initializer.seed % _UINT64,
            rule=optimizer.rule,
            hypers=list(optimizer.parameters.items()),
            admission=_admission_arguments(admission),
            max_rows=0 if max_rows is None else _integer("max_rows", max_rows, 1, _UINT64),
        )

    @overload
    def lookup(
        self,
        keys: npt.NDArray[np.uint64] | npt.NDArray[np.int64],
        weights: None = None,
        train: bool = True,
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def lookup(
        self,
        keys: npt.NDArray[np.uint64] | npt.NDArray[np.int64],
        weights: npt.NDArray[np.float32],
        train: bool = True,
    ) -> None: ...

    def lookup(
        self,
        keys: npt.NDArray[np.uint64] | npt.NDArray[np.int64],
        weights: npt.NDArray[np.float32] | None = None,
        train: bool = True,
    ) -> npt.NDArray[np.float32] | None:
        """Reads vectors. A key without a row gets the one that training would start from.

        Args:
            keys: uint64 or int64 `[n]`.
            weights: float32 `[n * dimension]` or `[n, dimension]` to read into; `None`: a new
                array.
            train: Whether keys without a row get one, if the admission lets them. Counts for the
                admission too. Of no effect in a storage that is read-only.

        Returns:
            float32 `[n, dimension]`, or `None` if there is `weights`.

        Raises:
            TypeError: If `keys` or `weights` is no array of its dtype.
            ValueError: For another size or shape, an array that is not contiguous, or `weights`
                that cannot be written to.
            StorageError: If `max_rows` were exceeded; no row has been made then.
        """
        wanted = _keys(keys)
        if weights is None:
            found = np.empty((wanted.size, self.dimension), np.float32)
            flat = found.reshape(-1)
        else:
            found = None
            flat = self._vectors("weights", weights, wanted.size, writable=True)
        native = self.storage.ready()
        _call(self._table.lookup, wanted, flat, train and not native.read_only)
        return found

    def apply_gradients(
        self,
        keys: npt.NDArray[np.uint64] | npt.NDArray[np.int64],
        gradients: npt.NDArray[np.float32],
    ) -> None:
        """Updates the rows of keys. A key without a row gets one, if the admission lets it.

        Admission counts in lookups and not here; gradients of keys that wait are dropped.

        Args:
            keys: uint64 or int64 `[n]`.
            gradients: float32 `[n * dimension]` or `[n, dimension]`.

        Raises:
            TypeError, ValueError: As `lookup`.
            PermissionError: If the storage is read-only.
            StorageError: If `max_rows` were exceeded.
        """
        wanted = _keys(keys)
        flat = self._vectors("gradients", gradients, wanted.size)
        self.storage.ready()
        _call(
            self._table.update,
            wanted,
            flat,
            self.optimizer._native,
            self.duplicates == "sequential",
        )

    def assign(
        self,
        keys: npt.NDArray[np.uint64] | npt.NDArray[np.int64],
        weights: npt.NDArray[np.float32],
    ) -> None:
        """Sets vectors, making rows. What the optimizer keeps of old rows stays.

        Args:
            keys: uint64 or int64 `[n]`. Of equal ones the last counts.
            weights: float32 `[n * dimension]` or `[n, dimension]`.

        Raises:
            TypeError, ValueError, PermissionError, StorageError: As `apply_gradients`.
        """
        wanted = _keys(keys)
        flat = self._vectors("weights", weights, wanted.size)
        self.storage.ready()
        _call(self._table.assign, wanted, flat)

    def remove(self, keys: npt.NDArray[np.uint64] | npt.NDArray[np.int64]) -> int:
        """Removes rows.

        Args:
            keys: uint64 or int64 `[n]`. Those without a row are ignored.

        Returns:
            How many rows there were to remove.

        Raises:
            TypeError, ValueError, PermissionError: As `apply_gradients`.
        """
        wanted = _keys(keys)
        self.storage.ready()
        return _call(self._table.remove, wanted)

    def stats(self) -> dict[str, int]:
        """Figures: `rows`, bytes in memory, `steps` and others of `sok_embed.Table.stats`."""
        self.storage.ready()
        return _call(self._table.stats)

    def __len__(self) -> int:
        """The number of rows; with a TTL, some that have expired may be among them."""
        self.storage.ready()
        return _call(self._table.size)

    def __bool__(self) -> bool:
        return True  # also without rows

    def __repr__(self) -> str:
        return f"<Embedding of {self.dimension}, group {self.group} of '{self.storage.path}'>"

    def _vectors(
        self, name: str, values: Any, n: int, writable: bool = False
    ) -> npt.NDArray[np.float32]:
        shape = (n, self.dimension)
        if isinstance(values, np.ndarray) and values.ndim != 1 and values.shape != shape:
            raise ValueError(
                f"Expected {name} of shape {list(shape)} or [{n * self.dimension}], a vector for "
                f"each key. Received: shape {list(values.shape)}."
            )
        return _floats(name, values, n * self.dimension, writable)


# --- arguments and messages -------------------------------------------------------------------


def _call(function: Callable[..., _Result], *arguments: Any, **named: Any) -> _Result:
    """Calls the core, and has its errors name optimizers as users do."""
    try:
        return function(*arguments, **named)
    except (ValueError, RuntimeError, OSError) as error:
        message = str(error)
        shown = _RULE.sub(lambda found: found[1] + found[2] + _shown(found[3]) + found[2], message)
        if shown == message:
            raise
        raise type(error)(shown) from None


_RULE = re.compile(r"((?:optimizer|trained with|got|one of|it has) )(['\"])(\w+)\2")


def _shown(rule: str) -> str:
    """The name of one of the core's rules in messages and in `Group`; others as they are."""
    if rule.startswith(_PREFIX):
        return rule.removeprefix(_PREFIX)
    return f"keras.{rule}" if rule in _core.rule_names() else rule


def _watched(progress: _Progress | None) -> Callable[[int, int], bool] | None:
    if progress is None:
        return None
    watch = progress
    return lambda done, total: watch(done, total) is not False


def _admission_arguments(admission: Admission | None) -> tuple[str, int, int, float, int] | None:
    if admission is None:
        return None
    if isinstance(admission, FrequencyAdmission):
        return admission.kind, admission.min_count, 1, 0.01, 4
    return (
        admission.kind,
        admission.min_count,
        admission.capacity,
        admission.false_positive_rate,
        admission.counter_bits,
    )


def _keys(keys: Any) -> npt.NDArray[np.uint64]:
    if not isinstance(keys, np.ndarray) or keys.dtype not in (np.uint64, np.int64):
        raise TypeError(
            "Expected keys to be a NumPy array of uint64 or int64. "
            f"Received: {_described(keys)}. Convert them: np.asarray(keys, np.uint64)."
        )
    if keys.ndim != 1:
        raise ValueError(
            f"Expected keys of shape [n]. Received: shape {list(keys.shape)}. "
            "Pass keys.reshape(-1)."
        )
    _check_contiguous("keys", keys)
    return keys.view(np.uint64)


def _floats(
    name: str, values: Any, size: int | None, writable: bool = False
) -> npt.NDArray[np.float32]:
    """The values as a view [size]."""
    if not isinstance(values, np.ndarray) or values.dtype != np.float32:
        raise TypeError(
            f"Expected {name} to be a NumPy array of float32. Received: {_described(values)}. "
            "Convert it: np.asarray(values, np.float32)."
        )
    if size is not None and values.size != size:
        raise ValueError(f"Expected {name} of size {size}. Received: size {values.size}.")
    _check_contiguous(name, values)
    if writable and not values.flags.writeable:
        raise ValueError(
            f"Expected {name} that can be written to. Received: a read-only array. Pass a copy."
        )
    return values.reshape(-1)


def _check_contiguous(name: str, values: npt.NDArray[Any]) -> None:
    if not values.flags.c_contiguous:
        raise ValueError(
            f"Expected {name} to be C-contiguous. Received: strides {values.strides} for shape "
            f"{list(values.shape)}. Pass np.ascontiguousarray({name})."
        )


def _check_type(name: str, value: Any, *types: type[Any]) -> None:
    if not isinstance(value, types):
        known = " or ".join(f"sok_embed.kv.{cls.__name__}" for cls in types)
        raise TypeError(f"Expected {name} to be a {known}. Received: {_described(value)}.")


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return f"{value!r} of type {type(value).__name__}"


def _integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """The value as an int in [low, high)."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if whole and low is None:
        return int(value)
    if whole and low is not None and high is not None and low <= int(value) < high:
        return int(value)
    span = "" if low is None else f" in [{low}, {high})"
    raise ValueError(f"Expected {name} to be an integer{span}. Received: {value!r}.")


def _number(name: str, value: Any, flags: bool = False) -> float:
    is_flag = isinstance(value, bool | np.bool_)
    if isinstance(value, int | float | np.integer | np.floating | np.bool_):
        if flags or not is_flag:
            return float(value)
    raise ValueError(f"Expected {name} to be a number. Received: {value!r}.")


def _seconds(name: str, time: Any) -> int:
    """A time in whole seconds since 1970."""
    seconds = time.timestamp() if isinstance(time, datetime) else _number(name, time)
    if not 0 <= seconds < _UINT32:
        raise ValueError(f"Expected {name} between 1970 and 2106. Received: {time!r}.")
    return int(seconds)


def _parameters(
    owner: str,
    parameters: Mapping[str, float] | None,
    more: Mapping[str, float],
    flags: bool = False,
) -> dict[str, float]:
    given = {**(parameters or {}), **more}
    return {
        name.removesuffix("_"): _number(f"{owner}: {name.removesuffix('_')}", value, flags)
        for name, value in given.items()
    }


def _worker_folder(path: str) -> str:
    """The folder of this worker: `path`, or one in there if there are several workers."""
    communicator = communicators.current()
    rank, size = communicator.rank, communicator.size
    try:
        names = os.listdir(path)
    except OSError:
        names = []
    for name in names:
        found = _WORKER_FOLDER.fullmatch(name)
        if found is not None and int(found["size"]) != size:
            raise ValueError(
                f"Expected the storage '{path}' of {size} worker{'s'[: size > 1]}. Received: "
                f"'{name}', which {found['size']} workers made. Start as many again; or dump each "
                "worker's folder, and load all of them into a new folder for one worker."
            )
    return path if size == 1 else os.path.join(path, f"worker-{rank}-of-{size}")


def _path(path: str | os.PathLike[str]) -> str:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"Expected a path. Received: {_described(path)}.")
    return os.fsdecode(path)


def _unknown(what: str, known: Any, received: Any) -> ValueError:
    names = ", ".join(known) or "none"
    return ValueError(f"Expected {what} of {names}. Received: {received!r}.")


def _arguments(name: str, parameters: Mapping[str, Any]) -> str:
    return ", ".join([repr(name), *(f"{key}={value!r}" for key, value in parameters.items())])
