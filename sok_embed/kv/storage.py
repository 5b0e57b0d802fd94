"""A folder of groups: opened and closed, dumped and loaded."""

from __future__ import annotations

import gc
import json
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

from sok_embed.arguments import (
    UINT32,
    UINT64,
    check_choice,
    check_flag,
    check_integer,
    check_path,
    check_seconds,
)
from sok_embed.binding import _core
from sok_embed.binding._core import StorageLockedError
from sok_embed.kv.consent import check_consent
from sok_embed.kv.dump import read_dump
from sok_embed.kv.group import GROUPS, Group, group_of
from sok_embed.kv.stored_table import StoredTable
from sok_embed.kv.worker_folder import copy_owners_note, worker_folder

_DURABILITIES = ("checkpoint", "update", "sync")
_CONFIG = ("path", "cache_bytes", "durability", "read_only")
_NOT_ARGUMENTS = ("ttl", "id")  # fields of configs that are not arguments

_Progress = Callable[[int, int], Any]

_open_storages: weakref.WeakValueDictionary[str, Storage] = weakref.WeakValueDictionary()
_open_lock = threading.RLock()


class Storage:
    """A folder of embeddings. One process at a time has it open; its threads may share it.

    It is flushed and closed by `close`, at the end of a `with` block, when nothing refers to it any
    more, and when the interpreter ends. A process that was forked from one that had opened storages
    can neither use nor open storages; when it ends, nothing is flushed or closed.

    Example:
    >>> from sok_embed.kv import Embedding, Initializer, Optimizer
    >>> with Storage("rows", ttl=90 * 86400) as storage:
    ...     embedding = Embedding(storage, Optimizer("adam"), Initializer("zeros"), dimension=4)
    ...     len(embedding)
    0

    Args:
        path: The folder. It is made if there is none, unless `read_only`. With several
            workers, after `sok_embed.init()`, each has `worker-<rank>-of-<size>` in there to
            itself.
        ttl: The seconds that a row is kept after its last update. 0: no limit. `None`: the TTL with
            which the folder was last opened for writing, or no limit if it is new.
        cache_bytes: The memory for rows, at least 1 MiB. Their index, about 20 bytes for each, the
            places of rows that were written out lately, and the filters and indexes of files, about
            4 bytes for each row of the table, are part of it from 4 MiB on, and leave at least a
            quarter of it to rows. Up to 128 MiB of RocksDB's own come on top.
        durability: The changes that survive when the process is killed: `"checkpoint"`, everything
            up to the last `flush`, `checkpoint` or `close` that returned; `"update"`, also every
            update, assignment, removal, restore and load that returned, each as a whole, for which
            each of them writes to a journal. With `"sync"` they survive a crash of the machine,
            too: every call waits until the disk has its changes.
        read_only: Nothing in the folder changes, and lookups make no rows.
        reset_slots: True if an optimizer of another rule may take over trained rows: the slots of
            the rule before are then dropped for good. An optimizer of the same rule goes on with
            its slots in any case. It is not saved with a model.
        clock: A clock for tests: a function that returns the seconds since 1970, called before each
            operation.
        reset_initializer: True if a group may be opened with an initializer that differs from its
            own. Rows that are made from then on start from the new one; existing rows stay. It
            is not saved with a model.

    Raises:
        StorageLockedError: If this or another process has the folder open; the message names the
            process. A storage of this process that only models without a name have is closed.
        CorruptionError: For damaged files.
        FileNotFoundError, PermissionError, StorageError: From the file system.
        ValueError: For arguments out of their range, or a folder with other things in it.
        RuntimeError: In a process that was forked from one that had opened a storage before.
    """

    def __init__(
        self,
        path: str | bytes | os.PathLike[Any],
        ttl: int | None = None,
        cache_bytes: int = 256 << 20,
        durability: Literal["checkpoint", "update", "sync"] = "checkpoint",
        read_only: bool = False,
        reset_slots: bool = False,
        clock: Callable[[], float] | None = None,
        *,
        reset_initializer: bool = False,
    ) -> None:
        self._given = check_path(path)
        self.path = worker_folder(self._given)
        self.durability = check_choice("durability", durability, _DURABILITIES)
        self._ttl_by_default = ttl is None
        self._clock = clock
        # True if it is a copy beside the file of a model, with the id of the copied storage.
        self._is_copy = False
        self._process = os.getpid()
        with _open_lock:
            self._native = self._open(
                # The process may change its working directory while the storage is open.
                self.path and os.path.join(os.getcwd(), self.path),
                None if ttl is None else check_integer("ttl", ttl, 0, UINT32),
                check_integer("cache_bytes", cache_bytes, 0, UINT64),
                durability != "checkpoint",
                check_flag("read_only", read_only),
                check_flag("reset_slots", reset_slots),
                sync=durability == "sync",
                reset_initializer=check_flag("reset_initializer", reset_initializer),
                # Rows that have expired may be removed as soon as the folder is open.
                now=None if clock is None else int(clock()),
            )
            _open_storages[os.path.realpath(self.path)] = self
        self._finalizer = weakref.finalize(self, _finish, self._native, self._process)

    def _open(self, *arguments: Any, **options: Any) -> _core.Storage:
        """Opens the folder; models of this process that nothing refers to any more let it go."""
        try:
            return _core.Storage(*arguments, **options)
        except StorageLockedError:
            if not self._is_open_here():
                raise
        gc.collect()  # a model is kept by cycles of references alone
        try:
            return _core.Storage(*arguments, **options)
        except StorageLockedError:
            if not self._is_open_here():
                raise
        raise StorageLockedError(
            f"Expected a folder that this process does not have open. Received: '{self.path}', "
            "which it opened before, perhaps in another run of a notebook's cell. Close it first: "
            "storage.close(), or layer.storage.close() if a layer opened it, such as "
            "model.layers[0].storage.close(). Or use that storage again."
        )

    def _is_open_here(self) -> bool:
        """Returns whether this process has the folder open in another storage."""
        other = _open_storages.get(os.path.realpath(self.path))
        return other is not None and not other.closed

    @property
    def id(self) -> str:
        """16 hexadecimal digits that identify the rows; checkpoints of the storage have the same.

        Drawn at random when the storage was made. A storage that a dump was loaded into keeps its
        own. Empty of one that is read-only and was made before storages had ids.
        """
        return f"{self._native.id:016x}" if self._native.id else ""

    @property
    def ttl(self) -> int:
        """The seconds that a row is kept after its last update; 0: no limit."""
        return self._native.ttl

    @property
    def cache_bytes(self) -> int:
        """The most bytes of rows that are kept in memory."""
        return self._native.cache_bytes

    @property
    def read_only(self) -> bool:
        """True if the storage is read-only."""
        return self._native.read_only

    @property
    def reset_slots(self) -> bool:
        """True if another rule may take over trained rows.

        It can be set, and takes effect at once.
        """
        return self._native.reset_slots

    @reset_slots.setter
    def reset_slots(self, reset: bool) -> None:
        self._native.reset_slots = check_flag("reset_slots", reset)

    @property
    def reset_initializer(self) -> bool:
        """True if groups that are opened from now on may get another initializer; can be set."""
        return self._native.reset_initializer

    @reset_initializer.setter
    def reset_initializer(self, reset: bool) -> None:
        self._native.reset_initializer = check_flag("reset_initializer", reset)

    @property
    def closed(self) -> bool:
        """True after `close`, and in a process that was forked from the one that has it open.

        Its embeddings raise RuntimeError then.
        """
        # In a forked process a lock of the core may be held by a thread that does not exist there.
        return os.getpid() != self._process or self._native.closed

    def flush(self, wait: bool = True) -> None:
        """Writes everything so far, in one step that happens as a whole or not at all.

        Args:
            wait: False: return at once if there is more than 16 MiB to write, or rows that left
                memory. A thread writes the rows of one moment, at this call or a little later,
                while training goes on. They survive once `flushing` is False and
                `failed_flushes` of `stats()` is 0, or a `flush` that waits has returned. Where the
                thread has an earlier flush under way, it begins another after that, one for all
                such calls. `checkpoint`, `compact`, dumps, loads and `close` wait for the thread.
                If it fails, a line on stderr says so, and the next `flush` waits in either case:
                it writes the rows, or raises an error.

        Raises:
            ValueError: If `wait` is neither True nor False.
            StorageError: If the disk fails. The rows are kept in memory.
        """
        self.ready().flush(check_flag("wait", wait))

    @property
    def flushing(self) -> bool:
        """True while a flush of `flush(wait=False)` is under way or about to begin."""
        return self.ready().flushing

    def close(self) -> None:
        """Flushes and closes. If that fails, the storage stays open. Another call does nothing."""
        self.ready().close()
        self._finalizer.detach()

    def checkpoint(self, path: str | bytes | os.PathLike[Any]) -> None:
        """Flushes and makes a folder which can be opened like this one.

        Files are linked where the file system can do that, so it takes no time and little space.

        Args:
            path: The new folder, outside of the storage's own.

        Raises:
            ValueError: If there is something at `path`, or if it is in the storage's own folder.
                If `path` is on another file system, also if there is something at `<path>.tmp`,
                where the folder is made: a killed checkpoint leaves it.
        """
        target = check_path(path)
        self.ready().checkpoint(target)
        copy_owners_note(self.path, os.fsdecode(target))

    def compact(self) -> None:
        """Flushes and rewrites the files, without expired and superseded rows."""
        self.ready().compact()

    def dump(
        self,
        path: str | bytes | os.PathLike[Any],
        group: int | None = None,
        min_count: int = 0,
        newer_than: float | datetime | None = None,
        progress: _Progress | None = None,
    ) -> int:
        """Writes rows with the state of their optimizer into one file, to move them elsewhere.

        The file gets its name once it is complete. Expired rows are left out.

        Args:
            path: The file, outside of the storage's folder; one that is there is replaced. What a
                killed dump to the same path left beside it is removed.
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
            ValueError: For a path in the storage's own folder, or one that cannot be a file.
            RuntimeError: If `progress` gave it up.
        """
        return self.ready().dump(
            check_path(path),
            -1 if group is None else check_integer("group", group, 0, GROUPS),
            check_integer("min_count", min_count, 0, UINT32),
            None if newer_than is None else check_seconds("newer_than", newer_than),
            _watched(progress),
        )

    def load(self, path: str | bytes | os.PathLike[Any], progress: _Progress | None = None) -> int:
        """Loads the rows of a dump and flushes; all of them or, after an error, none.

        An existing key gets the file's row. Rows that were last updated longer ago than this
        storage's TTL are left out. New groups are made as they were. The storage keeps its own TTL;
        `read_dump` returns the TTL of the storage from which the rows come.

        Args:
            path: The path that `dump` wrote to.
            progress: The callback, as for `dump`.

        Returns:
            The number of rows that were loaded.

        Raises:
            CorruptionError: For a damaged file.
            ValueError: For another kind of file; if a group has another dimension or optimizer; or
                for rows that no training leaves: a key twice, absurd counts, negative or NaN sums
                of squares, slots of another rule.
            RuntimeError: If `progress` gave it up.

        Warns:
            UserWarning: If rows expire in the storage from which they come, and never do in this
                one, unless it was opened with `ttl=0`.
        """
        file = check_path(path)
        rows = self.ready().load(file, _watched(progress))
        theirs = read_dump(file).ttl
        if theirs and not self.ttl and self._ttl_by_default:
            warnings.warn(
                f"The rows of '{file}' expire {theirs} s after their last update where "
                f"they come from, and never in {self!r}. Open it with ttl={theirs}, or with ttl=0 "
                "to keep them without limit.",
                stacklevel=2,
            )
        return rows

    def load_damo(
        self, path: str | bytes | os.PathLike[Any], progress: _Progress | None = None
    ) -> int:
        """Does what `load` does for a dump of Damo-Embedding, which has only vectors.

        The optimizer's state and the counts of updates start anew. The rows count as updated now.

        Args:
            path: The file.
            progress: The callback, as for `dump`.

        Returns:
            The number of rows.

        Raises:
            CorruptionError, ValueError, RuntimeError: As `load`.
        """
        return self.ready().load_damo(check_path(path), _watched(progress))

    def stats(self) -> dict[str, int]:
        """Returns figures of the database below the cache, over all groups.

        | Name | |
        |---|---|
        | `file_bytes` | bytes of the files of flushed rows |
        | `memory_bytes` | all memory of the database |
        | `key_bytes` | the part of it that grows with the rows: filters and indexes |
        | `filter_bytes` | the part of that which is one filter over the keys of all rows |
        | `cached_row_bytes` | what cached rows take of `cache_bytes` |
        | `charged_bytes` | what else does: `key_bytes`, places of rows, and work of flushes |
        | `sorted_runs` | sorted runs of files; each has a filter that a search looks into |
        | `filtered_keys` | keys that were known to have no row there, without a search |
        | `searched_keys` | keys that were searched for in files |
        | `found_keys` | those of them that had a row |
        | `published_bytes` | bytes of rows that flushes have published |
        | `written_bytes` | bytes that these took with all merges of files |
        | `failed_flushes` | flushes of `flush(wait=False)` that failed since one has succeeded |

        Counts begin when the storage is opened. `written_bytes / published_bytes` is how often a
        row was written.

        Raises:
            RuntimeError: If the storage is closed.
        """
        return self.ready().disk_use()

    def groups(self) -> list[Group]:
        """Returns the groups, ascending by number."""
        return [group_of(number, json.loads(text)) for number, text in self.ready().groups()]

    def table(self, group: int) -> StoredTable:
        """Returns a group as it is, to look at its rows, copy or remove them.

        No arguments are needed and nothing changes: the group has its own dimension, initializer
        and optimizer.

        Args:
            group: The number of the group, in [0, 256).

        Raises:
            FileNotFoundError: If the storage lacks the group; the message lists the groups.
        """
        return StoredTable(self, group)

    def remove(self, group: int, keys: Any) -> int:
        """Removes rows of a group with all that is kept of their keys: see `StoredTable.remove`.

        Args:
            group: The number of the group, in [0, 256).
            keys: An array of uint64 or int64 of any shape, an integer, or several. Those without a
                row are ignored.

        Returns:
            The number of rows that were removed.

        Raises:
            FileNotFoundError: If the storage lacks the group; the message lists the groups.
            TypeError, ValueError: For other keys.
            PermissionError: If the storage is read-only.
        """
        return self.table(group).remove(keys)

    def ready(self) -> _core.Storage:
        """Returns the core's storage, with its clock set; for embeddings, layers and tools.

        Raises:
            RuntimeError: In a process that was forked after the storage was opened.
        """
        self.check_process()
        if self._clock is not None:
            self._native.set_now(int(self._clock()))
        return self._native

    def check_process(self) -> None:
        """Raises RuntimeError in a process that was forked after the storage was opened."""
        process = os.getpid()
        if process != self._process:
            raise RuntimeError(
                f"Expected storage '{self.path}' in the process that opened it, {self._process}. "
                f"Received: a call in process {process}, forked from it. Start processes with "
                "multiprocessing's 'spawn', and open the storage in one of them."
            )

    def get_config(self) -> dict[str, Any]:
        """Returns how the folder was opened, as JSON, without what the folder itself stores.

        So that a config changes nothing in a folder, there is no TTL, no `reset_slots` and no
        `reset_initializer`. A clock is not JSON.
        """
        return {
            "path": self._given,
            "cache_bytes": self.cache_bytes,
            "durability": self.durability,
            "read_only": self.read_only,
            "id": self.id,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Storage:
        """Returns the storage of a config, which this process may have open; or else opens it.

        The storage in the folder comes first. If there is none, it is the only open storage with
        that id, in whichever folder. If there is another one, it is the open storage with that id
        and the same relative path, opened before a change of the working directory.

        Args:
            config: The result of `get_config`. Only path and id count for a storage that is open. A
                `ttl`, which older configs have, never counts.

        Warns:
            UserWarning: If the storage that is open in the folder has another id.

        Raises:
            ValueError: If another storage has come to the folder, unless it is open.
            FileNotFoundError: If there is no storage in the folder.
            PermissionError: If the folder is neither in the working directory nor in one that
                `allow_storages` names.
            StorageLockedError, StorageError, ValueError: As the constructor; ValueError also for a
                config that none of this version wrote.
        """
        arguments = _checked_config(config)
        path, wanted = arguments["path"], config.get("id")
        with _open_lock:
            folder = worker_folder(path)
            storage = _open_storages.get(os.path.realpath(folder))
            is_open = storage is not None and not storage.closed
            if storage is not None and is_open and _may_have_id(storage, wanted):
                return storage
            holds = _core.holds_storage(folder)
            elsewhere = _open_elsewhere(path, wanted, at_any_path=not holds and not is_open)
            if elsewhere is not None and (is_open or not holds):
                return elsewhere
            if storage is not None and is_open:
                warn_of_another(storage, wanted)
                return storage
            check_consent(path, folder)
            if not holds:
                there = "no storage" if os.path.exists(folder) else "no such folder"
                raise FileNotFoundError(
                    f"Expected a storage in '{folder}'. Received: {there}. Move it there, "
                    "or open another there first, with sok_embed.Storage."
                )
            if elsewhere is not None and not _folder_holds(folder, wanted):
                return elsewhere
            storage = cls(**arguments)
            if not _may_have_id(storage, wanted):
                storage.close()
                raise ValueError(
                    f"Expected the storage {wanted} in '{folder}', as it was saved with the model. "
                    f"Received: the storage {storage.id}. Put the first storage back, or one of "
                    "its checkpoints. If this storage has the rows of the model, from a dump, "
                    "say, open it first, with sok_embed.Storage."
                )
            return storage

    def __enter__(self) -> Storage:
        return self

    def __exit__(self, *error: object) -> None:
        if os.getpid() == self._process:
            self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ", read-only" if self.read_only else ""
        return f"<Storage '{self.path}'{state}>"


def _watched(progress: _Progress | None) -> Callable[[int, int], bool] | None:
    if progress is None:
        return None
    watch = progress
    return lambda done, total: watch(done, total) is not False


def _may_have_id(storage: Storage, id: str | None) -> bool:
    """Returns true if this may be the storage `id` of saved rows."""
    return not id or not storage.id or id == storage.id


def _open_elsewhere(path: str, id: str | None, at_any_path: bool) -> Storage | None:
    """Returns the storage of that id which is open in another folder than the one at `path` now.

    It may have been opened by the same relative path before the working directory changed. Without
    `at_any_path` only such a storage is found: a checkpoint has the id of its storage, and must not
    be trained instead of it.
    """
    writers = [s for s in _open_storages.values() if not s._is_copy and not s.closed]
    same = [s for s in writers if id and s.id == id]
    moved = [s for s in same if s._given == path and not os.path.isabs(path)]
    found = same if at_any_path and not moved else moved
    return found[0] if len(found) == 1 else None


def _folder_holds(folder: str, id: str | None) -> bool:
    """Returns true if a folder that no process has open holds the storage of that id.

    Returns false for a storage that cannot be read, since its files are damaged or another process
    writes to it.
    """
    try:
        native = _core.Storage(os.path.abspath(folder), None, 1 << 20, False, True, False)
    except OSError:
        return False
    try:
        return f"{native.id:016x}" == id
    finally:
        native.close()


def open_copy(folder: str, config: Mapping[str, Any]) -> Storage:
    """Opens the copy of a storage read-only, or returns it if this process has it open.

    Args:
        folder: The path of the copy, which the caller may open.
        config: The config of the storage that was copied; only the size of the cache is used.

    Raises:
        Exception: As the constructor.
    """
    arguments = _checked_config({**config, "path": folder})
    cache = {name: arguments[name] for name in ("cache_bytes",) if name in arguments}
    with _open_lock:
        storage = _open_storages.get(os.path.realpath(folder))
        if storage is None or storage.closed:
            storage = Storage(folder, read_only=True, **cache)
            storage._is_copy = True
        return storage


def warn_of_another(storage: Storage, id: str | None) -> None:
    """Warns if a storage is not the one of that id, which was saved with a model."""
    if not _may_have_id(storage, id):
        warnings.warn(
            f"The model was saved with the storage {id}, and '{storage.path}' is another, "
            f"{storage.id}. Its rows should be those of the model, as a dump has them.",
            stacklevel=3,
        )


def _checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the constructor's arguments in a config."""
    unknown = sorted(set(config) - {*_CONFIG, *_NOT_ARGUMENTS})
    path = config.get("path")
    if unknown or not isinstance(path, str) or not path or "\0" in path:
        raise ValueError(
            f"Expected the config of a storage, with a path and any of {', '.join(_CONFIG[1:])}. "
            f"Received: {f'path={path!r}' if not unknown else ', '.join(map(repr, unknown))}."
        )
    if not isinstance(config.get("id", ""), str):
        raise ValueError(f"Expected the id of a storage, a string. Received: {config['id']!r}.")
    arguments = {name: config[name] for name in _CONFIG if name in config}
    if not isinstance(arguments.get("read_only", False), bool):
        raise ValueError(
            f"Expected read_only to be True or False. Received: {arguments['read_only']!r}."
        )
    if "cache_bytes" in arguments:
        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if check_integer("cache_bytes", arguments["cache_bytes"], 0, UINT64) > most:
            raise ValueError(
                f"Expected cache_bytes of at most {most}, the memory of this machine. Received: "
                f"{arguments['cache_bytes']} from a config. Open the storage first, with "
                "sok_embed.Storage and a cache that fits."
            )
    return arguments


def _finish(native: _core.Storage, process: int) -> None:
    if os.getpid() == process:
        native.close()


def _leave_to_parent() -> None:
    """Makes a forked child forget what its parent has open."""
    global _open_lock
    _open_lock = threading.RLock()  # a thread of the parent may hold the old lock
    _open_storages.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
