"""Folders for work in progress, which are removed even if their process was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import weakref

from sok_embed.files.forks import HeldFile

_SUFFIX = ".saving"


def work_folder(folder: str, name: str, number: int) -> str:
    """Returns the path of the folder that `locked_folder` makes for the same arguments."""
    return os.path.join(folder, f".{name}.{number:016x}{_SUFFIX}")


def locked_folder(folder: str, name: str, number: int | None = None) -> tuple[str, HeldFile]:
    """Makes a folder that is locked while this process lives.

    Its name is a dot, `name`, and a number that belongs to no other work.

    Returns:
        The path of the folder, and the open folder that holds the lock.
    """
    while True:
        work = work_folder(folder, name, secrets.randbits(62) if number is None else number)
        os.mkdir(work, 0o700)
        # Another process may remove it as a leftover before it is locked.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
            # On a file system without locks leftovers are not removed either.
            if _try_lock(lock) is not False and os.path.exists(work):
                return work, HeldFile(lock)
            os.close(lock)
            os.rmdir(work)


def remove_leftovers(folder: str, name: str) -> None:
    """Removes folders that `locked_folder` has made, of killed processes: the others are locked."""
    for entry in os.listdir(folder):
        if not (entry.startswith(f".{name}.") and entry.endswith(_SUFFIX)):
            continue
        path = os.path.join(folder, entry)
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _try_lock(lock):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _try_lock(descriptor: int) -> bool | None:
    """Locks an open folder. Returns False if another process has it, `None` if nothing can lock it.

    The lock belongs to the open folder: opening or closing the folder elsewhere does not release
    it. NFS refuses such a lock, since a folder cannot be opened for writing.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class ScratchFolder:
    """A folder of temporary files.

    It is removed when nothing refers to it any more, or when the process ends. Folders of killed
    processes are removed when the next one is made.

    Args:
        name: The beginning of its own name, after a dot.
        parent: The folder in which it is made; `None`: the system's folder of temporary files.

    Attributes:
        path: The path of the folder.
    """

    def __init__(self, name: str, parent: str | None = None) -> None:
        parent = parent or tempfile.gettempdir()
        remove_leftovers(parent, name)
        self.path, lock = locked_folder(parent, name)
        self._end = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def end(self) -> None:
        """Removes the folder."""
        self._end()


def _remove(path: str, lock: HeldFile, process: int) -> None:
    if os.getpid() == process:  # a forked child leaves the folder to its parent
        shutil.rmtree(path, ignore_errors=True)
    lock.close()
