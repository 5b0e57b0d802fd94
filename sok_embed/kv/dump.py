"""Reads the description of a dump."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from sok_embed.arguments import check_path
from sok_embed.binding import _core
from sok_embed.kv.group import Group, group_of


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
