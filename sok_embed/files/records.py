"""Records of files: their checksums, and errors for damaged ones."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sok_embed.binding import _core
from sok_embed.binding._core import CorruptionError

# A message about a damaged file ends with one of these.
CHECKPOINT = "The checkpoint is damaged or incomplete: take another one, or a copy of it."
DELTA = "The delta is damaged or incomplete."
EXPORT = "The export is damaged or incomplete: export the model again, or take another copy of it."

# A file's checksum is made of the checksums of its pieces, so that its writer need not read it
# again.
PIECE_BYTES = 1 << 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")  # file systems have no longer ones


class FileRecord(NamedTuple):
    """The record of a file in a manifest."""

    name: str  # the name in the folder of the manifest
    bytes: int  # the length of the file
    checksum: str  # see `FileChecksum`: 16 hexadecimal digits

    def numbers(self) -> list[int]:
        """Returns everything but the name as int64 numbers, to be sent to other workers."""
        bits = int(self.checksum, 16)
        return [self.bytes, bits >> 32, bits & 0xFFFFFFFF]

    @classmethod
    def of_numbers(cls, name: str, numbers: Sequence[int]) -> FileRecord:
        """Returns the record of a file from its name and its `numbers`."""
        length, high, low = numbers
        return cls(name, length, f"{high << 32 | low:016x}")


def checksum(data: Any, offset: int) -> int:
    """Returns XXH3-64 of bytes, seeded with the offset in the file of the first one."""
    return _core.checksum(np.frombuffer(data, np.uint8), offset)


def checksum_of_json(content: Mapping[str, Any]) -> str:
    """Returns the checksum of JSON as one text: sorted by names, without spaces."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{checksum(text.encode(), 0):016x}"


class FileChecksum:
    """The checksum of a file that is written or read from its beginning to its end.

    The file is cut into pieces of `PIECE_BYTES`. Each has its `checksum`; those numbers, as
    little-endian u64 one after the other, have the checksum of the file, with its length as seed.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._waiting = bytearray()  # bytes at the end, less than a piece
        self._pieces = bytearray()

    def update(self, data: Any) -> None:
        """Adds the next bytes of the file."""
        view = memoryview(data).cast("B")
        self.bytes += len(view)
        while len(view):
            taken = view[: PIECE_BYTES - len(self._waiting)]
            view = view[len(taken) :]
            if not self._waiting and len(taken) == PIECE_BYTES:
                self._add_piece(taken)
                continue
            self._waiting += taken
            if len(self._waiting) == PIECE_BYTES:
                self._add_piece(self._waiting)
                self._waiting = bytearray()

    def _add_piece(self, piece: Any) -> None:
        offset = len(self._pieces) // 8 * PIECE_BYTES
        self._pieces += checksum(piece, offset).to_bytes(8, "little")

    def digest(self) -> str:
        """Returns the checksum of all bytes so far."""
        pieces = bytes(self._pieces)
        if self._waiting:
            offset = len(pieces) // 8 * PIECE_BYTES
            pieces += checksum(self._waiting, offset).to_bytes(8, "little")
        return f"{checksum(pieces, self.bytes):016x}"


def record_of(folder: str, name: str) -> FileRecord:
    """Syncs a file that another library has written, and reads it to make its record."""
    found = FileChecksum()
    with open(os.path.join(folder, name), "rb") as file:
        while data := file.read(PIECE_BYTES):
            found.update(data)
        os.fsync(file.fileno())
    return FileRecord(name, found.bytes, found.digest())


def check_most(path: str, length: int, most: int) -> None:
    """Raises CorruptionError for a file that is longer than files of its kind can be."""
    if length > most:
        raise damaged(path, f"at most {most} bytes", f"{length}")


def check_digest(path: str, record: FileRecord, found: FileChecksum, of: str = CHECKPOINT) -> None:
    """Raises CorruptionError for a file that has another checksum than its record."""
    if found.digest() != record.checksum:
        raise damaged(path, f"the checksum {record.checksum}", found.digest(), of)


def damaged(path: str, expected: str, received: str, of: str = CHECKPOINT) -> CorruptionError:
    """Returns the error for a file that is not as it was written.

    `of` is `CHECKPOINT`, `DELTA` or `EXPORT`.
    """
    return CorruptionError(f"Expected {expected} in '{path}'. Received: {received}. {of}")


def is_plain_name(name: Any) -> bool:
    """Returns whether a name can only lead to a file directly in its folder."""
    return isinstance(name, str) and _PLAIN_NAME.fullmatch(name) is not None


def local_path(path: str | os.PathLike[str]) -> str:
    """Returns the absolute path of a folder.

    Raises:
        ValueError: For a URL, which does not lead to a mounted file system.
    """
    text = os.fspath(path)
    if "://" in text:
        raise ValueError(
            f"Expected a folder of a file system that is mounted. Received: {text!r}. Copy its "
            "files to a local or a shared folder, and give the path of that folder."
        )
    return os.path.abspath(text)


def opened(path: str, of: str = CHECKPOINT, links: bool = True) -> io.BufferedReader:
    """Opens a file for reading, without waiting if it is not a regular file.

    `of` is `CHECKPOINT` or `DELTA`. Without `links` a link to a file is refused.

    Raises:
        CorruptionError: For a FIFO, a device, a folder, and links that lead to each other.
        OSError: From the file system.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags if links else flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # ENXIO is the error for a socket
            is_link = error.errno == errno.ELOOP and not links
            raise damaged(
                path, "a file", "a link" if is_link else str(error.strerror), of
            ) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise damaged(path, "a file", f"something else, of the mode {stat.filemode(mode)}", of)
    return open(descriptor, "rb")
