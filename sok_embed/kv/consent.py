"""Checks that a config may open its storages: a file that is loaded names any path it likes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

from sok_embed.kv.arguments import check_path

_roots: ContextVar[tuple[str, ...]] = ContextVar("sok_embed_storage_roots", default=())


@contextlib.contextmanager
def allow_storages(*roots: str | os.PathLike[str]) -> Iterator[None]:
    """Lets the configs in files that are loaded open the storages under these folders.

    Without it, a config opens a storage that this process has open already, or one that it names
    by a relative path which leads into the working directory, also through symbolic links.

    Example:
    >>> import os
    >>> from sok_embed import kv
    >>> kv.Storage("rows").close()
    >>> config = {"path": os.path.abspath("rows")}
    >>> with kv.allow_storages(os.getcwd()):
    ...     kv.Storage.from_config(config).close()

    Args:
        *roots: Folders, each of a storage or above some.

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
    """Raises unless a config may open a folder.

    Args:
        path: The path as the config has it.
        folder: The folder that is opened.

    Raises:
        PermissionError: With what to do.
    """
    real = os.path.realpath(folder)
    roots = list(_roots.get())
    working = os.path.realpath(os.getcwd())
    # Everything lies in the root.
    if not os.path.isabs(path) and os.path.dirname(working) != working:
        roots.append(working)
    if not any(os.path.commonpath([real, root]) == root for root in roots):
        raise PermissionError(
            f"Expected leave to open the storage '{real}', which a config names as '{path}' and "
            "which does not lie in the working directory. Received: none. If you trust the file, "
            "open the storage first, with sok_embed.Storage, or load in `with "
            "sok_embed.kv.allow_storages(folder):`."
        )
