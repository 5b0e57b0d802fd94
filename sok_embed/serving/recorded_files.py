"""Reads files of a delta, and checks them against their recorded length and checksum.

Only regular files are opened, and no more bytes are read than a file may have.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from typing import Any

from sok_embed.checkpoint.files import schema
from sok_embed.checkpoint.files.records import PIECE_BYTES, FileChecksum
from sok_embed.kv import CorruptionError

_MOST_FILE = 2**50

RECORD = {
    "bytes": schema.integer(0, _MOST_FILE),
    "checksum": schema.text_like(lambda text: len(text) == 16, "16 hexadecimal digits"),
}


def record_of(path: str) -> dict[str, Any]:
    """Returns the length and the checksum of a file that is on the device."""
    found = FileChecksum()
    with open(path, "rb") as file:
        while data := file.read(PIECE_BYTES):
            found.update(data)
    return {"bytes": found.bytes, "checksum": found.digest()}


def read_recorded(path: str, record: Mapping[str, Any], take: Callable[[bytes], object]) -> None:
    """Passes the content of a file on in pieces; raises unless it fits its record."""
    found = FileChecksum()
    with _plain_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != record["bytes"]:
            raise damaged(path, f"{record['bytes']} bytes", f"{size}")
        left = size
        while left and (data := file.read(min(left, PIECE_BYTES))):
            left -= len(data)
            found.update(data)
            take(data)
    if found.digest() != record["checksum"] or left:
        raise damaged(path, f"the checksum {record['checksum']}", found.digest())


def read_bytes(path: str, most: int) -> bytes:
    """Returns the content of a file; raises if it is longer than `most` bytes."""
    with _plain_file(path) as file:
        data: bytes = file.read(most + 1)
    if len(data) > most:
        raise damaged(path, f"at most {most} bytes", "more")
    return data


def _plain_file(path: str) -> Any:
    """Opens a regular file; raises for a link, a pipe and other kinds."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"Expected a file '{path}'. Received: no such file. The delta is incomplete."
        ) from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise damaged(path, "a file", "a link") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise damaged(path, "a file", "something else")
    return os.fdopen(descriptor, "rb")


def parsed(path: str, data: bytes, check: schema.Check) -> Any:
    """Returns the JSON of a file, after its fields were checked."""
    try:
        content = schema.parsed(path, data)
    except CorruptionError:
        raise damaged(path, "JSON", "something else") from None
    check_fields(path, content, check)
    return content


def check_fields(path: str, content: Any, check: schema.Check) -> None:
    """Raises CorruptionError unless the content of a file passes a check."""
    try:
        check(content, "")
    except schema.Misfit as misfit:
        raise damaged(
            path, f"{misfit.expected} as {misfit.field or 'a whole'}", misfit.received
        ) from None


def damaged(path: str, expected: str, received: str) -> CorruptionError:
    """Returns the error of a file of a delta that is not as it was written."""
    return CorruptionError(
        f"Expected {expected} in '{path}'. Received: {received}. The delta is damaged or "
        "incomplete."
    )
