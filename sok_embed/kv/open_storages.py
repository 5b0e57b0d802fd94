"""The storages that this process has open, and the one that a config stands for."""

from __future__ import annotations

import gc
import os
import threading
import warnings
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sok_embed.arguments import UINT64, check_integer
from sok_embed.binding import _core
from sok_embed.binding._core import StorageLockedError
from sok_embed.kv.consent import check_consent
from sok_embed.kv.worker_folder import worker_folder

if TYPE_CHECKING:
    from sok_embed.kv.storage import Storage

_CONFIG = ("path", "cache_bytes", "durability", "read_only")
_NOT_ARGUMENTS = ("ttl", "id")  # fields of configs that are not arguments

# By the real path of the folder.
_open: weakref.WeakValueDictionary[str, Storage] = weakref.WeakValueDictionary()
# Copies beside files of models: they have the id of the storage that was copied.
_copies: weakref.WeakSet[Storage] = weakref.WeakSet()
lock = threading.RLock()


def register(storage: Storage) -> None:
    """Makes a storage known that was opened, by a caller that holds the lock."""
    _open[os.path.realpath(storage.path)] = storage


def _opened_in(folder: str) -> Storage | None:
    storage = _open.get(os.path.realpath(folder))
    return None if storage is None or storage.closed else storage


def open_folder(path: str, *arguments: Any, **options: Any) -> _core.Storage:
    """Opens a folder; models of this process that nothing refers to any more let it go."""
    for _ in range(2):
        try:
            return _core.Storage(*arguments, **options)
        except StorageLockedError:
            if _opened_in(path) is None:
                raise
        gc.collect()  # a model is kept by cycles of references alone
    raise StorageLockedError(
        f"Expected a folder that this process does not have open. Received: '{path}', "
        "which it opened before, perhaps in another run of a notebook's cell. Close it first: "
        "storage.close(), or layer.storage.close() if a layer opened it, such as "
        "model.layers[0].storage.close(). Or use that storage again."
    )


def storage_of_config(kind: type[Storage], config: Mapping[str, Any]) -> Storage:
    """Returns the storage that `Storage.from_config` describes; `kind` is the class."""
    arguments = _checked_config(config)
    path, wanted = arguments["path"], config.get("id")
    with lock:
        folder = worker_folder(path)
        storage = _opened_in(folder)
        if storage is not None and _may_have_id(storage, wanted):
            return storage
        holds = _core.holds_storage(folder)
        elsewhere = _open_elsewhere(path, wanted, at_any_path=not holds and storage is None)
        if elsewhere is not None and (storage is not None or not holds):
            return elsewhere
        if storage is not None:
            warn_of_another(storage, wanted, stacklevel=4)
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
        storage = kind(**arguments)
        if not _may_have_id(storage, wanted):
            storage.close()
            raise ValueError(
                f"Expected the storage {wanted} in '{folder}', as it was saved with the model. "
                f"Received: the storage {storage.id}. Put the first storage back, or one of "
                "its checkpoints. If this storage has the rows of the model, from a dump, "
                "say, open it first, with sok_embed.Storage."
            )
        return storage


def open_copy(kind: type[Storage], folder: str, config: Mapping[str, Any]) -> Storage:
    """Opens the copy of a storage read-only, or returns it if this process has it open.

    The caller may open the folder. Of the config of the storage that was copied, only the size of
    the cache is used.
    """
    arguments = _checked_config({**config, "path": folder})
    cache = {name: arguments[name] for name in ("cache_bytes",) if name in arguments}
    with lock:
        storage = _opened_in(folder)
        if storage is None:
            storage = kind(folder, read_only=True, **cache)
            _copies.add(storage)
        return storage


def is_copy(storage: Storage) -> bool:
    """Returns whether it is a copy beside the file of a model, with the id of another storage."""
    return storage in _copies


def warn_of_another(storage: Storage, id: str | None, stacklevel: int = 3) -> None:
    """Warns if a storage is not the one of that id, which was saved with a model."""
    if not _may_have_id(storage, id):
        warnings.warn(
            f"The model was saved with the storage {id}, and '{storage.path}' is another, "
            f"{storage.id}. Its rows should be those of the model, as a dump has them.",
            stacklevel=stacklevel,
        )


def _may_have_id(storage: Storage, id: str | None) -> bool:
    """Returns true if this may be the storage `id` of saved rows."""
    return not id or not storage.id or id == storage.id


def _open_elsewhere(path: str, id: str | None, at_any_path: bool) -> Storage | None:
    """Returns the storage of that id which is open in another folder than the one at `path` now.

    It may have been opened by the same relative path before the working directory changed. Without
    `at_any_path` only such a storage is found: a checkpoint has the id of its storage, and must not
    be trained instead of it.
    """
    writers = [s for s in _open.values() if s not in _copies and not s.closed]
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


def _leave_to_parent() -> None:
    """Makes a forked child forget what its parent has open."""
    global lock
    lock = threading.RLock()  # a thread of the parent may hold the old lock
    _open.clear()
    _copies.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
