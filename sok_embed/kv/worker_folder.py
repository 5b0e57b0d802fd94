"""The folders of several workers, each with its part of a storage."""

from __future__ import annotations

import os
import re
import shutil

from sok_embed import communicators
from sok_embed.binding import _core

# The file, in the folder of one of several workers, with the rule by which keys of each group were
# given to workers.
OWNERS_NOTE = "sok-owners.json"
_WORKER_FOLDER = re.compile(r"worker-\d+-of-(?P<size>\d+)")


def worker_folder(path: str) -> str:
    """Returns the folder of this worker: `path`, or a folder in it if there are several workers."""
    communicator = communicators.current()
    rank, size = communicator.rank, communicator.size
    try:
        names = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        names = []
    for name in names:
        found = _WORKER_FOLDER.fullmatch(name)
        if found is not None and int(found["size"]) != size:
            raise ValueError(
                f"Expected the storage '{path}' of {size} worker{'s'[: size > 1]}. Received: "
                f"'{name}', which {found['size']} workers made. Start as many again; or dump each "
                "worker's folder, and load all of them into a new folder for one worker. To look "
                "at the rows of one of them, open its folder."
            )
    if size > 1 and _core.holds_storage(path):
        raise ValueError(
            f"Expected the storage '{path}' of {size} workers. Received: a storage that 1 worker "
            "made. Start one worker, or give the workers a folder of their own."
        )
    return path if size == 1 else os.path.join(path, f"worker-{rank}-of-{size}")


def copy_owners_note(source: str, target: str) -> None:
    """Copies the note of owners from a worker's folder into a checkpoint of it, if there is one."""
    note = os.path.join(source, OWNERS_NOTE)
    if os.path.exists(note):
        shutil.copyfile(note, os.path.join(target, OWNERS_NOTE))
