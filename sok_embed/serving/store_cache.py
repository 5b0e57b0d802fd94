"""Versions of object stores on the disk of this host, which all its processes share."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import hashlib
import os
import re
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sok_embed.files.forks import HeldFile
from sok_embed.files.scratch import ScratchFolder
from sok_embed.files.whole_files import write_whole
from sok_embed.planning.sizes import size_in_bytes
from sok_embed.serving.delta_files import Base, read_current, write_current
from sok_embed.serving.store_versions import PULLED, StoredExport, StoreVersions
from sok_embed.serving.versions import export_numbers, identity_of

_FOLDER, _BYTES = "SOK_EMBED_CACHE", "SOK_EMBED_CACHE_BYTES"
_DEFAULT_BYTES = "64GiB"
_EVICTED = "evicted"  # begins the name of a folder in which versions lie that are being removed
_LOOKED = ".looked"  # has the number of the newest export; its time is when the store was asked


class StoreCache:
    """Versions under a URL of an object store, in a folder of this host.

    That is a folder of versions as any other. One process at a time copies into it, and holds a
    lock of the folder. Each process holds a shared lock of the versions that it uses, which are not
    removed to make room.

    Attributes:
        url: The URL under which all versions are.
        root: The folder of versions.
        has_newest: True once the export that the store has called its newest is in the folder.

    Raises:
        OSError: If the folder of the cache cannot be made.
        ValueError: For a size in the environment that is not one.
    """

    def __init__(self, versions: StoreVersions) -> None:
        self._versions = versions
        self.url = versions.url
        self._most = size_in_bytes(_BYTES, os.environ.get(_BYTES, _DEFAULT_BYTES))
        given = os.environ.get("XDG_CACHE_HOME")
        default = Path(given) if given else Path.home() / ".cache"
        self._all = os.environ.get(_FOLDER) or str(default / "sok-embed" / "served")
        self.root = os.path.join(self._all, hashlib.sha256(self.url.encode()).hexdigest()[:16])
        try:
            os.makedirs(self.root, 0o700, exist_ok=True)
        except OSError as error:
            raise type(error)(
                f"Expected a folder for versions of '{self.url}' that this process can write to. "
                f"Received: '{self.root}' ({error.strerror}). Set {_FOLDER} to another folder."
            ) from error
        self.has_newest = False
        self._known: dict[int, StoredExport] = {}
        self._release = weakref.finalize(self, _nothing)  # the lock of what was brought last

    def newest(self) -> int:
        """Returns the number of the newest export, as the store was asked for it last."""
        try:
            with open(os.path.join(self.root, _LOOKED)) as file:
                return int(file.read())
        except (FileNotFoundError, ValueError):
            return export_numbers(self.root)[-1]

    def has(self, number: int, delta: int) -> bool:
        """Returns whether an export, and its deltas up to a number, are on this host."""
        base = self._base(number)
        return os.path.isdir(base.folder) and read_current(base) >= delta

    def bring(self) -> None:
        """Copies the newest export and all its deltas, unless they are there.

        Raises:
            FileNotFoundError: If the store has no export.
            OSError: From the store, the file system, and if the cache has no room.
            sok_embed.kv.CorruptionError: For files that are not as they were written.
        """
        with _locked(self.root):
            self._bring_newest()

    def look(self, seconds: float) -> bool:
        """Does as `bring`, unless another process does so now, or has within so many seconds.

        Returns:
            True if the store was asked.
        """
        lock = _lock(self.root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock is None:
            return False
        with contextlib.closing(lock):
            if self._was_asked_within(seconds):
                return False
            self._bring_newest()
        return True

    def bring_version(self, number: int, delta: int) -> None:
        """Copies an export and its deltas up to a number, unless they are there.

        The store is not asked for what this process has brought before.

        Raises:
            FileNotFoundError: If neither the store nor this host has that version.
        """
        if number in self._known and self.has(number, delta):
            return
        with _locked(self.root):
            export = self._bring_export(number)
            if not self.has(number, delta):
                there = export.current()
                if there < delta:
                    raise FileNotFoundError(
                        f"Expected delta {delta} of export {number} in '{self.url}'. Received: "
                        f"{there} as the newest."
                    )
                export.bring_deltas(self.root, delta, self._make_room)

    def current(self, number: int) -> int:
        """Returns the number of the newest delta of an export in the store."""
        return (self._known.get(number) or self._versions.export(number)).current()

    def hold(self, number: int) -> HeldFile:
        """Returns a lock that keeps an export on this host until it is closed."""
        folder = os.path.join(self.root, str(number))
        lock = _lock(folder, fcntl.LOCK_SH)
        assert lock is not None
        os.utime(folder)  # those that were not used for longest go first
        return lock

    def drop_delta(self, number: int, delta: int) -> None:
        """Removes a delta that cannot be read, so that it is copied once more.

        It does nothing while a process copies versions.
        """
        base = self._base(number)
        lock = _lock(self.root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock is None:
            return
        with contextlib.closing(lock):
            if read_current(base) >= delta:
                write_current(base, delta - 1)
            if os.path.isdir(base.delta(delta)):
                _remove(base.deltas, base.delta(delta))

    def _base(self, number: int) -> Base:
        return Base(os.path.join(self.root, str(number)), "", (), {})

    def _was_asked_within(self, seconds: float) -> bool:
        try:
            asked = os.stat(os.path.join(self.root, _LOOKED)).st_mtime
        except FileNotFoundError:
            return False
        # Two processes that look as often must not both find that it is a moment too early.
        is_recent = 0 <= time.time() - asked < 0.9 * seconds
        return is_recent and os.path.isdir(os.path.join(self.root, str(self.newest())))

    def _bring_newest(self) -> None:
        number = self._versions.newest()
        export = self._bring_export(number)
        path = os.path.join(self.root, _LOOKED)
        write_whole(path, str(number).encode(), f"{path}.tmp", synced=False)
        self.has_newest = True
        export.bring_deltas(self.root, export.current(), self._make_room)

    def _bring_export(self, number: int) -> StoredExport:
        """Copies an export without its deltas, unless it is there, and keeps it there."""
        folder = os.path.join(self.root, str(number))
        export = self._known.get(number)
        if export is None:
            export = self._versions.export(number)
            # Somebody may have removed everything in the store, and have begun anew.
            if os.path.isdir(folder) and not _has_identity(folder, export.identity):
                _remove(self.root, folder)
        if not os.path.isdir(folder):
            self._remove_staged(export)
            self._make_room(export.bytes - _bytes_below(export.staged_in(self.root)))
            export.bring(self.root)
        self._known[number] = export
        lock = self.hold(number)
        self._release()
        self._release = weakref.finalize(self, lock.close)
        return export

    def _remove_staged(self, export: StoredExport) -> None:
        """Removes the parts of other exports, which a process has copied that was killed."""
        for name in os.listdir(self.root):
            path = os.path.join(self.root, name)
            if name.startswith(f".{PULLED}-") and path != export.staged_in(self.root):
                _remove(self.root, path)

    def _make_room(self, count: int) -> None:
        """Removes versions that nobody uses until there is room for so many bytes.

        Raises:
            OSError: If there is not enough room, since other versions are in use.
        """
        with _locked(self._all):
            excess = self._evict(count)
            if excess > 0:
                gc.collect()  # models of TensorFlow that nobody refers to any more hold versions
                excess = self._evict(count)
            if excess > 0:
                raise OSError(
                    errno.ENOSPC,
                    f"Expected room for {count} bytes of '{self.url}' in '{self._all}', which has "
                    f"at most {self._most} bytes. Received: {excess} bytes too few, without the "
                    f"versions that are in use. Set {_BYTES} to more, such as '200GiB'.",
                )

    def _evict(self, count: int) -> int:
        """Removes versions until there is room; returns by how many bytes it is too small."""
        there = _versions_in(self._all)
        excess = sum(each.bytes for each in there) + count - self._most
        for each in sorted(there, key=lambda each: each.used):
            if excess <= 0:
                break
            if _removed_if_free(each.folder):
                excess -= each.bytes
        return excess


class _Cached(NamedTuple):
    """A version in the cache, or the part of one that was copied."""

    folder: str
    bytes: int
    used: float  # the time when it was used last


def _nothing() -> None:
    """Does nothing, in place of the release of a lock."""


def _versions_in(cache: str) -> list[_Cached]:
    found = []
    for root in os.scandir(cache):
        for entry in os.scandir(root.path):
            with contextlib.suppress(FileNotFoundError):  # others remove some meanwhile
                if entry.is_dir():
                    found.append(
                        _Cached(entry.path, _bytes_below(entry.path), entry.stat().st_mtime)
                    )
    return found


def _has_identity(folder: str, identity: str) -> bool:
    try:
        return identity_of(folder) == identity
    except FileNotFoundError:
        return False


def _bytes_below(folder: str) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _removed_if_free(folder: str) -> bool:
    """Removes a folder of a cache and returns True, unless a process uses it or copies into it."""
    root, name = os.path.split(folder)
    if re.fullmatch("[0-9]+", name) is None:
        # The part of an export, or what is being removed, belongs to the process with this lock.
        folder = root
    try:
        lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    if lock is None:
        return False
    with contextlib.closing(lock):
        _remove(root, os.path.join(root, name))
    return True


def _remove(parent: str, folder: str) -> None:
    """Removes a folder, of which others see all or nothing."""
    work = ScratchFolder(_EVICTED, parent)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rename(folder, os.path.join(work.path, "removed"))
    finally:
        work.end()


def _lock(folder: str, how: int) -> HeldFile | None:
    """Locks a folder; returns `None` if another process has it and `how` does not wait.

    Raises:
        FileNotFoundError: If it is not there, or was removed while this waited.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    lock = HeldFile(descriptor)
    try:
        fcntl.flock(descriptor, how)
        if not os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    except BlockingIOError:
        lock.close()
        return None
    except BaseException:
        lock.close()
        raise
    return lock


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Holds the lock of a folder, and waits for it."""
    lock = _lock(folder, fcntl.LOCK_EX)
    assert lock is not None
    with contextlib.closing(lock):
        yield
