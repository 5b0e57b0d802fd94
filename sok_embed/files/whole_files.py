"""Writes files so that they exist completely or not at all, and syncs them."""

from __future__ import annotations

import contextlib
import os


def write_whole(path: str, data: bytes, temporary: str, *, synced: bool = True) -> None:
    """Writes a file so that it exists completely or not at all, and syncs it.

    It is called `temporary`, in the same folder, until it is complete. A file that is not `synced`
    may be lost, or empty, if the machine fails; if the process is killed it is complete all the
    same.
    """
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        remove_if_there(temporary)
        raise
    if synced:
        sync(os.path.dirname(path))


def sync(path: str) -> None:
    """Syncs a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_if_there(path: str) -> None:
    """Removes a file; a missing one is not an error."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
