"""Notes paths that a served model could not take up, and when to try each again."""

from __future__ import annotations

import logging
import os
import time
from typing import Any, NamedTuple

from sok_embed.serving.delta_files import FOLDER

_log = logging.getLogger("sok_embed.serving")

_MOST_SECONDS = 60.0


class _Skipped(NamedTuple):
    signature: Any
    error: tuple[str, int | None]
    seconds: float
    end: float


class SkippedPaths:
    """Paths that could not be taken up.

    Each is tried again as soon as its files are others. Since the error may have been a passing
    one, such as a full disk, it is tried again without that too: after `seconds`, then after twice
    that, and so on, at least once a minute.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._skipped: dict[str, _Skipped] = {}

    def is_waiting(self, path: str, signature: Any) -> bool:
        """Returns whether a path need not be tried again yet."""
        before = self._skipped.get(path)
        return (
            before is not None and before.signature == signature and time.monotonic() < before.end
        )

    def skip(self, path: str, error: Exception, signature: Any, version: tuple[int, int]) -> None:
        """Notes that a path could not be taken up, and logs it if the reason is new.

        The signature changes when the path may have become valid.
        """
        kind = (type(error).__name__, getattr(error, "errno", None))
        before = self._skipped.get(path)
        seconds = self._seconds
        is_new = before is None or (before.signature, before.error) != (signature, kind)
        if before is not None and not is_new:
            seconds = max(seconds, min(2 * before.seconds, _MOST_SECONDS))
        self._skipped[path] = _Skipped(signature, kind, seconds, time.monotonic() + seconds)
        if is_new:
            text = " ".join(str(error).split())
            _log.warning("%s is left alone, version %s goes on: %s", path, tuple(version), text)

    def taken(self, path: str) -> None:
        """Notes that a path was taken up."""
        self._skipped.pop(path, None)


def signature_of(folder: str) -> Any:
    """Returns a value that changes when files of a folder are replaced, added or written to.

    Folders in it count too, except the deltas of an export.
    """
    found = []

    def look(path: str) -> None:
        with os.scandir(path) as entries:
            for each in entries:
                status = each.stat(follow_symlinks=False)
                found.append((each.path, status.st_ino, status.st_size, status.st_mtime_ns))
                if each.is_dir(follow_symlinks=False) and each.name != FOLDER:
                    look(each.path)

    try:
        look(folder)
    except OSError:
        return None  # it is gone, or changes at this moment
    return sorted(found)
