"""Dumps: files of rows that storages write, load and describe."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from sok_embed.arguments import UINT32, check_integer, check_path, check_seconds
from sok_embed.binding import _core
from sok_embed.kv.group import GROUPS, Group, group_of

_Progress = Callable[[int, int], Any]


class Dump(NamedTuple):
    """A file of rows that `Storage.dump` wrote.

    Attributes:
        ttl: Seconds after its last update that a row was kept in the storage that it comes from; 0:
            no limit; `None`: the file does not say, since an older sok-embed wrote it or it has no
            groups.
        groups: The groups, ascending by number; `rows` is the number of rows in the file.
    """

    ttl: int | None
    groups: tuple[Group, ...]


def read_dump(path: str | bytes | os.PathLike[Any]) -> Dump:
    """Reads the description of a dump; its rows are neither read nor checked.

    Args:
        path: The path that `Storage.dump` wrote to.

    Raises:
        CorruptionError: For a damaged file.
        ValueError: For another kind of file.
        FileNotFoundError, PermissionError: From the file system.
    """
    ttl, groups = None, []
    for number, _, _, rows, text in _core.DumpReader(check_path(path)).groups():
        meta = json.loads(text)
        ttl = meta.get("ttl", ttl)
        groups.append(group_of(number, meta, rows))
    return Dump(ttl, tuple(groups))


class DumpedRows:
    """The part of a `Storage` that writes and loads dumps."""

    def __init__(self, *, ttl_by_default: bool) -> None:
        self._ttl_by_default = ttl_by_default

    def ready(self) -> _core.Storage:
        """Returns the core's storage."""
        raise NotImplementedError

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
        native = self.ready()
        rows = native.load(file, _watched(progress))
        theirs = read_dump(file).ttl
        if theirs and not native.ttl and self._ttl_by_default:
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


def _watched(progress: _Progress | None) -> Callable[[int, int], bool] | None:
    if progress is None:
        return None
    watch = progress
    return lambda done, total: watch(done, total) is not False
