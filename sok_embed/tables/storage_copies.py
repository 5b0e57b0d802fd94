"""Copies of storages beside the file of a model, with the rows at the moment of saving.

The rows of a storage go on changing after a model was saved. A file that is to keep its rows has
them beside it: `best.keras` in `best.keras.rows/<number>/<id of the storage>`, which RocksDB makes
of hard links. The file names the number, so that it has the old rows until it is replaced as a
whole, and the new ones from then on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

from sok_embed import communicators, kv
from sok_embed.files.forks import HeldFile
from sok_embed.files.whole_files import sync
from sok_embed.keras_bridge import callers
from sok_embed.kv.open_storages import open_copy

_ENDING = ".rows"
_COPY = "copy"  # the field of a storage's config with the number
_NAME = re.compile("[0-9a-f]{16}")

# The storages that are copied for the file that is being written, with the number of their copies.
_copied: ContextVar[Mapping[kv.Storage, str]] = ContextVar(
    "sok_embed_storage_copies", default=MappingProxyType({})
)


class CopyName(NamedTuple):
    """The name of a copy in the file that it lies beside.

    Attributes:
        number: The number of the save.
        id: The id of the storage.
    """

    number: str
    id: str


def name_of(storage: kv.Storage) -> CopyName | None:
    """Returns the name of a storage's copy for the file that is being written, if it has one."""
    number = _copied.get().get(storage)
    return None if number is None else CopyName(number, _id_of(storage))


def config_of(storage: kv.Storage | None) -> dict[str, Any] | None:
    """Returns the config of a storage, with the copy that the file refers to, if it has one."""
    if storage is None:
        return None
    name = name_of(storage)
    copy = {} if name is None else {_COPY: name.number}
    return {**storage.get_config(), **copy}


def storage_of(config: Mapping[str, Any]) -> kv.Storage:
    """Returns the storage of a config: the copy beside the file that is loaded, if it names one.

    Raises:
        ValueError: For a config with a copy that was not loaded from a file.
        Exception: As `Storage.from_config`, and as `open_beside_file`.
    """
    if _COPY not in config:
        return kv.Storage.from_config(config)
    plain = {name: value for name, value in config.items() if name != _COPY}
    return open_beside_file(CopyName(str(config[_COPY]), str(config.get("id") or "0" * 16)), plain)


@contextlib.contextmanager
def kept_beside(file: str, storages: Iterable[kv.Storage]) -> Iterator[None]:
    """Copies storages for a file that is written within the block, and replaced at its end.

    Afterwards it removes copies of earlier files of the path, unless a process has them open. If
    the old file stays because of an error, it removes the new copies.
    """
    number = f"{secrets.randbits(64):016x}"
    copied = dict.fromkeys(storages, number)
    all_of_file = f"{file}{_ENDING}"
    folder = os.path.join(all_of_file, number)
    before = _identity(file)
    try:
        if copied:
            os.makedirs(folder)
            for storage in copied:
                storage.checkpoint(os.path.join(folder, _id_of(storage)))
            sync(folder)
            sync(all_of_file)
        token = _copied.set(copied)
        try:
            yield
        finally:
            _copied.reset(token)
    except BaseException:
        # An interrupt may come after the new file, which needs its copies, has replaced the old
        # one.
        if _identity(file) == before:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    _remove_others(all_of_file, number)


def open_beside_file(name: CopyName, config: Mapping[str, Any] | None = None) -> kv.Storage:
    """Opens the copy of a storage that the file that Keras is loading refers to, read-only.

    Raises:
        ValueError: If no file is being loaded, for several workers, and for a text that is not such
            a name.
        FileNotFoundError: If the copy is not beside the file.
    """
    file = callers.loading_file()
    if file is None or not all(_NAME.fullmatch(part) for part in name):
        raise ValueError(
            "Expected a model with rows beside its file to be loaded by its path, as in "
            "keras.saving.load_model('best.keras') or model.load_weights('best.keras'). Received: "
            f"{'no path' if file is None else f'{file!r}, with the copy {tuple(name)}'}."
        )
    size = communicators.size()
    if size > 1:
        raise ValueError(
            f"Expected one worker, to load '{file}', whose rows lie in a storage of one worker "
            f"beside it. Received: {size} workers. Load it in one process, and save a "
            "sok_embed.checkpoint.Checkpoint of it, which any number of workers restores."
        )
    save = os.path.join(f"{os.path.realpath(file)}{_ENDING}", name.number)
    lock = _shared_lock(save)
    folder = os.path.join(save, name.id)
    if lock is None or not os.path.isdir(folder):
        if lock is not None:
            lock.close()
        raise FileNotFoundError(
            f"Expected the rows of '{file}' beside it, in '{folder}'. Received: no such folder. "
            f"Bring '{os.path.basename(file)}{_ENDING}' along wherever the file goes; where a "
            "training replaces the file just now, load it again."
        )
    storage = open_copy(kv.Storage, folder, config or {})
    weakref.finalize(storage, lock.close)
    return storage


def _id_of(storage: kv.Storage) -> str:
    return storage.id or "0" * 16  # a storage that was made before storages had ids


def _identity(file: str) -> tuple[int, int] | None:
    """Returns what identifies a file, until another one replaces it; `None` without a file."""
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _shared_lock(folder: str) -> HeldFile | None:
    """Locks a folder that is read, so that it is not removed; `None` if it does not exist."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):  # some network file systems have no locks
        fcntl.flock(lock, fcntl.LOCK_SH)
    return HeldFile(lock)


def _remove_others(folder: str, kept: str) -> None:
    """Removes the copies of replaced files, unless a process reads them."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if name == kept or not _NAME.fullmatch(name):
            continue
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(lock)
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # succeeds if the folder is empty
