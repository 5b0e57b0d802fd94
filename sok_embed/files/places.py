"""The places of checkpoint files: folders of a file system, or an object store.

`place_of` makes a `Place` for a path. Code that lists, reads, writes and removes files by its
methods need not know which kind it is.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import io
import os
import resource
import shutil
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from sok_embed.files.records import (
    CHECKPOINT,
    PIECE_BYTES,
    FileChecksum,
    FileRecord,
    check_digest,
    check_most,
    damaged,
    opened,
)
from sok_embed.files.scratch import ScratchFolder
from sok_embed.files.whole_files import remove_if_there, sync, write_whole

SCRATCH_NAME = "sok-embed-checkpoint"  # begins the names of local folders of files
_OTHER_FILES = 64  # other files that may be open at the same time


class Readable(Protocol):
    """A file that is read from the place that `seek` has set."""

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes, less than `size` at the end of the file."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fills the buffer with the next bytes, and returns how many; 0 at the end of the file."""

    def seek(self, offset: int, /) -> int:
        """Goes to a byte, counted from the beginning, and returns it."""

    def __enter__(self) -> Readable: ...
    def __exit__(self, *error: Any) -> None: ...


class Work(Protocol):
    """The folder in which a save writes its files before they are in their place.

    Attributes:
        folder: The path of a local folder.
    """

    folder: str

    def put(self, names: Sequence[str]) -> None:
        """Brings files of the folder to their place, where they survive a failure of the machine.

        Raises:
            OSError: If one of them could not be brought there.
        """

    def end(self) -> None:
        """Removes files that were not brought to their place."""


class Place(abc.ABC):
    """A folder of files, and of other folders.

    Names are plain ones: see `files.is_plain_name`.

    Attributes:
        path: The path for users and messages: absolute, or a URL.
    """

    path: str

    def file(self, name: str) -> str:
        """Returns the path of a file for messages."""
        return os.path.join(self.path, name)

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Returns the names of all files and folders; none if there is no such folder.

        Raises:
            OSError: If they cannot be listed.
        """

    @abc.abstractmethod
    def folders(self) -> list[str]:
        """Returns the names of the folders; see `names`."""

    @abc.abstractmethod
    def has(self, name: str) -> bool:
        """Returns whether the name exists; it need not be a regular file."""

    @abc.abstractmethod
    def length(self, name: str) -> int:
        """Returns the length of a file in bytes.

        Raises:
            FileNotFoundError: If there is none.
        """

    @abc.abstractmethod
    def open(self, name: str) -> Readable:
        """Opens a file for reading.

        Raises:
            CorruptionError: For something other than a regular file.
            FileNotFoundError: If there is none, now or when it is read.
        """

    @abc.abstractmethod
    def read(self, name: str, most: int) -> bytes:
        """Returns all bytes of a file that has at most so many.

        Raises:
            CorruptionError: For a longer file, and for something other than a regular file.
            FileNotFoundError: If there is none.
        """

    @abc.abstractmethod
    def write(self, name: str, data: bytes, temporary: str) -> None:
        """Writes a file so that it exists completely or not at all, and replaces an old one.

        Args:
            name: The name of the file.
            data: The content of the file.
            temporary: A name that it may have until it is complete.
        """

    @abc.abstractmethod
    def make(self) -> None:
        """Makes the folder and missing parents of it."""

    @abc.abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Removes files and folders in it; missing ones are not an error."""

    @abc.abstractmethod
    def remove_all(self, first: str) -> None:
        """Removes the folder with all that is in it; a missing one is not an error.

        Args:
            first: The file that is removed durably before all others.
        """

    @abc.abstractmethod
    def remove_if_empty(self) -> None:
        """Removes the folder if it is empty."""

    @abc.abstractmethod
    def work(self) -> Work:
        """Begins to write files."""

    @abc.abstractmethod
    def fetch(self, names: Iterable[str]) -> Fetched:
        """Makes files available in a local folder; missing files are left out.

        Args:
            names: The names of the files.

        Raises:
            CorruptionError: For something other than a regular file.
            OSError: From the file system or the store, and for more files than may be open.
        """


class LocalFolder(Place):
    """A folder of a file system, which all workers may share.

    Args:
        local: The absolute path of the folder.
        path: The path for messages, if it differs.
    """

    def __init__(self, local: str, path: str | None = None) -> None:
        self.local = local
        self.path = path or local

    def _at(self, name: str) -> str:
        return os.path.join(self.local, name)

    def names(self) -> list[str]:
        """See `Place`."""
        try:
            return os.listdir(self.local)
        except FileNotFoundError:
            return []

    def folders(self) -> list[str]:
        """See `Place`."""
        return [name for name in self.names() if os.path.isdir(self._at(name))]

    def has(self, name: str) -> bool:
        """See `Place`."""
        return os.path.exists(self._at(name))

    def length(self, name: str) -> int:
        """See `Place`."""
        return os.stat(self._at(name)).st_size

    def open(self, name: str) -> io.BufferedReader:
        """See `Place`."""
        return opened(self._at(name))

    def read(self, name: str, most: int) -> bytes:
        """See `Place`."""
        with self.open(name) as file:
            check_most(self.file(name), os.fstat(file.fileno()).st_size, most)
            data = file.read(most + 1)  # it may have grown
        check_most(self.file(name), len(data), most)
        return data

    def write(self, name: str, data: bytes, temporary: str) -> None:
        """See `Place`."""
        write_whole(self._at(name), data, self._at(temporary))

    def make(self) -> None:
        """See `Place`."""
        folder, made = self.local, []
        while not os.path.isdir(folder):
            made.append(folder)
            folder = os.path.dirname(folder)
        os.makedirs(self.local, exist_ok=True)
        for each in made:
            sync(os.path.dirname(each))

    def remove(self, names: Iterable[str]) -> None:
        """See `Place`."""
        for path in map(self._at, names):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                remove_if_there(path)

    def remove_all(self, first: str) -> None:
        """See `Place`."""
        if os.path.islink(self.local):
            return  # the target of a link does not belong to the checkpoint
        while os.path.isdir(self.local):
            with contextlib.suppress(FileNotFoundError):  # another process removes it too
                remove_if_there(self._at(first))
                sync(self.local)
                shutil.rmtree(self.local)
        sync(os.path.dirname(self.local))

    def remove_if_empty(self) -> None:
        """See `Place`."""
        if os.path.isdir(self.local) and not os.listdir(self.local):
            os.rmdir(self.local)

    def work(self) -> Work:
        """See `Place`."""
        return _InPlace(self.local)

    def fetch(self, names: Iterable[str]) -> Fetched:
        """See `Place`."""
        fetched = Fetched(self.path)
        wanted = list(names)
        _allow_open(len(wanted))
        try:
            for name in wanted:
                with contextlib.suppress(FileNotFoundError):
                    fetched.hold(name, self.open(name))
        except BaseException as error:
            fetched.end()
            if not isinstance(error, OSError) or error.errno != errno.EMFILE:
                raise
            raise OSError(
                f"Expected to keep {len(wanted)} files of '{self.path}' open, so that they can be "
                f"read where they are removed meanwhile. Received: {error}. Raise the limit: "
                "ulimit -n."
            ) from None
        return fetched


class Fetched(LocalFolder):
    """Files of a folder that stay readable while this object lives, or until its `end`.

    Files of a file system stay open, which keeps their bytes even if others remove them. In a local
    folder links lead to the open files, for libraries that open files by a path.

    Args:
        path: The path, for messages, of the folder that the files come from.
    """

    def __init__(self, path: str) -> None:
        self._scratch = ScratchFolder(SCRATCH_NAME)
        self._files: list[io.BufferedReader] = []
        super().__init__(self._scratch.path, path)

    def hold(self, name: str, file: io.BufferedReader) -> None:
        """Keeps a file open under a name."""
        self._files.append(file)
        os.symlink(f"/proc/self/fd/{file.fileno()}", self._at(name))

    def end(self) -> None:
        """Closes and removes everything."""
        for file in self._files:
            file.close()
        self._scratch.end()

    def __enter__(self) -> Fetched:
        return self

    def __exit__(self, *error: Any) -> None:
        self.end()


def _allow_open(more: int) -> None:
    """Raises the process' limit of open files for so many more, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + more + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and needed > soft:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


class _InPlace:
    """A save that writes files directly to their place."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def put(self, names: Sequence[str]) -> None:
        sync(self.folder)  # the writer has synced each file itself

    def end(self) -> None:
        pass


def check_record(place: Place, record: FileRecord, of: str = CHECKPOINT) -> None:
    """Raises CorruptionError for a file that is not as it was written.

    `of` is one of the texts that `damaged` takes.
    """
    check_length(place, record, of)
    found = FileChecksum()
    with place.open(record.name) as file:
        while data := file.read(PIECE_BYTES):
            found.update(data)
    check_digest(place.file(record.name), record, found, of)


def check_length(place: Place, record: FileRecord, of: str = CHECKPOINT) -> None:
    """Raises CorruptionError for a file of another length, or none."""
    path = place.file(record.name)
    try:
        length = place.length(record.name)
    except FileNotFoundError:
        raise damaged(path, f"a file of {record.bytes} bytes", "none", of) from None
    if length != record.bytes:
        raise damaged(path, f"{record.bytes} bytes", f"{length}", of)
