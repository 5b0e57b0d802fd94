"""A folder of groups: opened, flushed and closed."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal

from sok_embed.arguments import (
    UINT32,
    UINT64,
    check_choice,
    check_flag,
    check_integer,
    check_path,
)
from sok_embed.binding import _core
from sok_embed.files.forks import check_process
from sok_embed.kv import open_storages
from sok_embed.kv.dump import DumpedRows
from sok_embed.kv.group import Group, group_of
from sok_embed.kv.stored_table import StoredTable
from sok_embed.kv.worker_folder import copy_owners_note, worker_folder

_DURABILITIES = ("checkpoint", "update", "sync")


class Storage(DumpedRows):
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
        read_only: Nothing in the folder changes, and lookups make no rows; all else that writes
            is a `PermissionError`.
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
        super().__init__(ttl_by_default=ttl is None)
        self._clock = clock
        self._process = os.getpid()
        with open_storages.lock:
            self._native = open_storages.open_folder(
                self.path,
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
            open_storages.register(self)
        self._finalizer = weakref.finalize(self, _finish, self._native, self._process)

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

        Files are linked where the file system can do that, so it takes no time and little space. An
        error leaves nothing at `path`. The checkpoint of a read-only storage has what the storage
        shows, the journal of a killed writer too; it grows at `<path>.tmp`.

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
        """Flushes and rewrites the files, without expired, removed and superseded rows."""
        self.ready().compact()

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
        check_process(
            self._process,
            f"storage '{self.path}'",
            "Start processes with multiprocessing's 'spawn', and open the storage in one of them.",
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
        return open_storages.storage_of_config(cls, config)

    def __enter__(self) -> Storage:
        return self

    def __exit__(self, *error: object) -> None:
        if os.getpid() == self._process:
            self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ", read-only" if self.read_only else ""
        return f"<Storage '{self.path}'{state}>"


def _finish(native: _core.Storage, process: int) -> None:
    if os.getpid() == process:
        native.close()
