"""Object stores: files under a prefix of a bucket, through fsspec."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sok_embed.files.places import SCRATCH_NAME, Fetched, Place, Readable, Work
from sok_embed.files.records import check_most
from sok_embed.files.scratch import ScratchFolder

# File systems of fsspec that show a file before it is complete, or that can only read.
_NO_STORES = frozenset(
    "arrow_hdfs asyncwrapper blockcache cached dask data dbfs dir dropbox filecache ftp git github"
    " hdfs http https jlab jupyter libarchive reference sftp simplecache smb ssh tar webhdfs zip"
    .split()
)  # fmt: skip
_FETCHES = 4  # at a time


class StoreError(OSError):
    """An object store has failed to do what it was asked.

    The error does not concern its contents.
    """


class StoreFolder(Place):
    """The files of an object store under a prefix, through fsspec.

    The store promises that an object is complete as soon as it can be seen, and is listed from then
    on. So nothing is renamed, and files are written to a local folder first.

    Args:
        path: A URL, such as `s3://bucket/run7`.

    Raises:
        ImportError: Without fsspec, or what it needs for the store.
        ValueError: For a URL that does not lead to an object store.
    """

    def __init__(self, path: str) -> None:
        self.path = _checked(path)
        self._files, self._root = _file_system(self.path)

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _entries(self) -> list[dict[str, Any]]:
        """Returns the entries directly under the prefix: `name`, relative to it, and `type`."""
        with _asking(f"list '{self.path}'"):
            self._files.invalidate_cache(self._root)
            try:
                found = self._files.ls(self._root, detail=True)
            except FileNotFoundError:
                found = []
        if not found:
            self._check_bucket()
        entries = [{**each, "name": each["name"].rstrip("/")} for each in found]
        return [
            {**each, "name": each["name"].rpartition("/")[2]}
            for each in entries
            if each["name"].strip("/") != self._root.strip("/")  # the folder's own mark
        ]

    def names(self) -> list[str]:
        """See `Place`."""
        return [entry["name"] for entry in self._entries()]

    def folders(self) -> list[str]:
        """See `Place`."""
        return [entry["name"] for entry in self._entries() if entry["type"] == "directory"]

    def has(self, name: str) -> bool:
        """See `Place`."""
        try:
            self.length(name)
        except FileNotFoundError:
            return False
        return True

    def length(self, name: str) -> int:
        """See `Place`."""
        with _asking(f"find '{self.file(name)}'", answer=FileNotFoundError):
            self._files.invalidate_cache(self._root)
            found = self._files.info(self._at(name))
        if found["type"] == "directory":
            raise FileNotFoundError(f"Expected a file at '{self.file(name)}'. Received: a folder.")
        return int(found["size"])

    def open(self, name: str) -> Readable:
        """See `Place`."""
        return _StoreFile(self, name)

    def read(self, name: str, most: int) -> bytes:
        """See `Place`."""
        with contextlib.suppress(FileNotFoundError):  # the next line raises a clearer error
            check_most(self.file(name), self.length(name), most)
        return self.read_range(name, None, None)

    def read_range(self, name: str, begin: int | None, end: int | None) -> bytes:
        """Returns the bytes of a file from `begin` to before `end`; `None`: from or to its end."""
        try:
            with _asking(f"read '{self.file(name)}'", answer=FileNotFoundError):
                return self._files.cat_file(self._at(name), start=begin, end=end)
        except FileNotFoundError:
            self._check_bucket()
            raise

    def write(self, name: str, data: bytes, temporary: str) -> None:
        """See `Place`."""
        with _asking(f"write '{self.file(name)}'"):
            self._files.pipe_file(self._at(name), data)

    def create(self, name: str, data: bytes) -> None:
        """Writes a file that is not there yet; of several that try at once one succeeds.

        Raises:
            FileExistsError: If it is there.
        """
        with _asking(f"write '{self.file(name)}'", answer=FileExistsError):
            self._files.pipe_file(self._at(name), data, mode="create")

    def put(self, name: str, source: str) -> None:
        """Writes a local file into the store."""
        with _asking(f"write '{self.file(name)}'"):
            self._files.put_file(source, self._at(name))

    def get(self, name: str, goal: str) -> None:
        """Writes a file of the store into a local file.

        Raises:
            FileNotFoundError: If there is none.
        """
        what = f"copy '{self.file(name)}' to '{goal}', on a disk with room for it,"
        with _asking(what, answer=FileNotFoundError):
            self._files.get_file(self._at(name), goal)

    def make(self) -> None:
        """See `Place`."""
        pass  # a prefix exists once an object is under it

    def remove(self, names: Iterable[str]) -> None:
        """See `Place`."""
        self._remove([self._at(name) for name in names])

    def remove_all(self, first: str) -> None:
        """See `Place`."""
        with _asking(f"remove '{self.file(first)}'"), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._at(first))
        self._remove(list(self._below()))

    def lengths(self) -> dict[str, int]:
        """Returns the length of each file under the prefix, also in folders, by its name there."""
        root = self._root.strip("/")
        return {
            path.strip("/").removeprefix(f"{root}/"): int(each["size"])
            for path, each in self._below().items()
        }

    def _below(self) -> dict[str, Any]:
        """Returns the entries of all files under the prefix, by their paths."""
        with _asking(f"list '{self.path}'"):
            self._files.invalidate_cache(self._root)
            return dict(self._files.find(self._root, detail=True))

    def _remove(self, paths: list[str]) -> None:
        if not paths:
            return
        with _asking(f"remove files of '{self.path}'"), contextlib.suppress(FileNotFoundError):
            self._files.rm(paths)
        # A store may silently fail to remove some of many objects.
        for path in set(paths).intersection(self._below()):
            with _asking(f"remove '{path}'"), contextlib.suppress(FileNotFoundError):
                self._files.rm_file(path)

    def remove_if_empty(self) -> None:
        """See `Place`."""
        pass

    def work(self) -> Work:
        """See `Place`."""
        return _Scratch(self)

    def fetch(self, names: Iterable[str]) -> Fetched:
        """See `Place`."""
        fetched = Fetched(self.path)
        try:
            with ThreadPoolExecutor(_FETCHES) as pool:
                for _ in pool.map(lambda name: self._fetch(name, fetched.local), names):
                    pass
        except BaseException:
            fetched.end()
            raise
        return fetched

    def _fetch(self, name: str, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.get(name, os.path.join(folder, name))

    def _check_bucket(self) -> None:
        """Raises unless the bucket exists, after nothing was found in it."""
        bucket = self._root.partition("/")[0]
        try:
            with _asking(f"find the bucket of '{self.path}'", answer=FileNotFoundError):
                self._files.info(bucket)
        except FileNotFoundError:
            raise StoreError(
                f"Expected a bucket for '{self.path}'. Received: no bucket of the name {bucket!r}. "
                "Make it, or give another path."
            ) from None
        except StoreError:
            pass  # if buckets may not be listed, the next call reports the error


class _StoreFile:
    """Reads exactly the bytes that it is asked for, without reading ahead."""

    def __init__(self, folder: StoreFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._offset = 0

    def read(self, size: int, /) -> bytes:
        if size <= 0:
            return b""
        begin = self._offset
        data = self._folder.read_range(self._name, begin, begin + size)
        self._offset += len(data)
        return data

    def readinto(self, buffer: memoryview, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, /) -> int:
        self._offset = offset
        return offset

    def __enter__(self) -> _StoreFile:
        return self

    def __exit__(self, *error: Any) -> None:
        pass


class _Scratch:
    """A local folder of files that will be uploaded to a store."""

    def __init__(self, place: StoreFolder) -> None:
        self._place = place
        self._scratch = ScratchFolder(SCRATCH_NAME)
        self.folder = self._scratch.path

    def put(self, names: Sequence[str]) -> None:
        for name in names:
            path = os.path.join(self.folder, name)
            self._place.put(name, path)
            os.remove(path)

    def end(self) -> None:
        self._scratch.end()


def _checked(url: str) -> str:
    """Returns the URL without a slash at its end; raises unless it leads to an object store."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() in _NO_STORES:
        raise ValueError(
            f"Expected an object store, where a file is there as a whole or not at all. Received: "
            f"{url!r}. Save to a folder that is mounted, or to a store such as s3:// or gs://."
        )
    segments = rest.rstrip("/").split("/")
    # fsspec reads *, ? and [ as patterns, and :: as several file systems in one.
    if re.search(r"[*?\[\]#]|::", url) or any(each in ("", ".", "..") for each in segments):
        raise ValueError(
            "Expected a URL of a bucket and names, without empty ones, . and .., and without "
            f"*, ?, [, ], # and ::. Received: {url!r}."
        )
    return f"{scheme}://{'/'.join(segments)}"


def _file_system(url: str) -> tuple[Any, str]:
    """Returns fsspec's file system for a URL, and the path in it."""
    scheme = url.partition("://")[0]
    try:
        import fsspec
    except ImportError as error:
        raise ImportError(
            f"Expected fsspec for '{url}'. Received: {error}. Install it with what it needs for "
            "the store: pip install fsspec s3fs for s3://, or fsspec gcsfs for gs://."
        ) from error
    try:
        # Other workers write too, so listings are not cached.
        files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise ImportError(
            f"Expected what fsspec needs for {scheme}:// of '{url}'. Received: {error}. Install "
            "it, as s3fs for s3:// or gcsfs for gs://."
        ) from error
    except ValueError as error:
        raise ValueError(
            f"Expected a scheme that fsspec knows, as s3:// or gs://. Received: '{url}': {error}."
        ) from error
    return files, root.rstrip("/")


@contextlib.contextmanager
def _asking(what: str, answer: type[OSError] | None = None) -> Iterator[None]:
    """Turns errors of a store into errors that name the work.

    Args:
        what: The work that the store is asked to do.
        answer: The class of errors that are an answer; `None`: there is none.

    Raises:
        StoreError: For any error of the store and its library.
    """
    try:
        yield
    except Exception as error:
        if answer is not None and isinstance(error, answer):
            raise
        raise StoreError(
            f"Expected to {what} in the object store. Received: {type(error).__name__}: {error} "
            "Look at the bucket, the credentials and the connection. What was whole before stays "
            "as it is: try again."
        ) from error
