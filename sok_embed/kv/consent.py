"""Checks that a config may open its storages, since a loaded file can name any path."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

from sok_embed.arguments import check_path

_roots: ContextVar[tuple[str, ...]] = ContextVar("sok_embed_storage_roots", default=())


@contextlib.contextmanager
def allow_storages(*roots: str | os.PathLike[str]) -> Iterator[None]:
    """Allows configs in loaded files to open the storages under these folders.

    Without it, a config can only open a storage that this process has open already, or one with a
    relative path that leads into the working directory, even through symbolic links; in the root
    directory, none.

    Example:
    >>> import os
    >>> from sok_embed import kv
    >>> kv.Storage("rows").close()
    >>> config = {"path": os.path.abspath("rows")}
    >>> with kv.allow_storages(os.getcwd()):
    ...     kv.Storage.from_config(config).close()

    Args:
        *roots: Folders of storages, or folders above them.

    Raises:
        ValueError: Without a folder.
    """
    if not roots:
        raise ValueError(
            "Expected the folders of storages that may be opened. Received: none. Name them, as in "
            "allow_storages('/data/rows')."
        )
    folders = tuple(os.path.realpath(check_path(root)) for root in roots)
    token = _roots.set((*_roots.get(), *folders))
    try:
        yield
    finally:
        _roots.reset(token)


def check_consent(path: str, folder: str) -> None:
    """Raises unless a config may open a folder."""
    real = os.path.realpath(folder)
    roots = list(_roots.get())
    working = os.path.realpath(os.getcwd())
    # If the working directory is the root, everything lies in it.
    if not os.path.isabs(path) and os.path.dirname(working) != working:
        roots.append(working)
    if not any(os.path.commonpath([real, root]) == root for root in roots):
        raise PermissionError(
            f"Expected permission to open the storage '{real}', which a config names as '{path}' "
            "and which does not lie in the working directory. Received: no permission. If you "
            "trust the file, open the storage first, with sok_embed.Storage, or load in `with "
            "sok_embed.kv.allow_storages(folder):`."
        )
