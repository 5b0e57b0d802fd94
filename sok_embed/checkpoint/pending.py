"""Saves that are being written, by a thread while training goes on, and the end of the process."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # see the end of this file
import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Callable

from sok_embed.checkpoint.transfer.saves import WRITER, Save
from sok_embed.files.forks import check_process

_NICENESS = 15  # the niceness of a thread that writes while training goes on


class PendingSave:
    """A save that is being written, by a thread if training goes on meanwhile.

    `complete` is called once this worker has written its part; it is collective.
    """

    def __init__(self, save: Save, complete: Callable[[], None]) -> None:
        self._save = save
        self._complete = complete
        self._alone = save.agreement.size == 1
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        try:
            if save.options.goes_on:
                _unfinished.add(self)
                self._thread = threading.Thread(target=self._write, name=WRITER)
                self._thread.start()
            else:
                self._write()
        except BaseException:
            _unfinished.discard(self)
            save.end()  # it was interrupted, or there are too many threads
            raise

    def _write(self) -> None:
        if self._thread is not None:
            _lower_priority()
        self._save.write()
        if self._alone:
            # No other worker must agree, so the checkpoint is completed as soon as possible.
            try:
                self._complete()
                _unfinished.discard(self)
            except Exception as error:
                self._error = error

    def is_written_everywhere(self) -> bool:
        """Returns true if all workers have written their parts; collective."""
        writing = self._thread is not None and self._thread.is_alive()
        return not any(self._save.agreement.gather(int(writing), "still writing"))

    def finish(self) -> None:
        """Waits for the thread, and completes the save; collective."""
        check_process(self._process, "a save in the background", "Wait for it there.")
        _unfinished.discard(self)
        if self._thread is not None:
            self._thread.join()
        if not self._alone:
            self._complete()
        if self._error is not None:
            raise self._error

    def end_with_process(self) -> None:
        """Waits for the thread, and logs if the save was not completed."""
        if self._process != os.getpid():
            return  # it goes on in the process from which this one was forked
        if self._thread is not None:
            self._thread.join()
        if self._error is not None or not self._alone:
            reason = self._error or "a save of several workers that none of them has waited for"
            warnings.warn(
                f"Expected a whole checkpoint in '{self._save.folder}' when the process ends. "
                f"Received: {reason}. Call wait after the last save.",
                RuntimeWarning,
                stacklevel=2,
            )


def _lower_priority() -> None:
    """Lowers the priority of this thread, so that it runs when training leaves a core idle."""
    if sys.platform == "linux":  # on other systems the priority would be that of the process
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


# Saves that threads are writing, until they are complete or were waited for.
_unfinished: set[PendingSave] = set()


def _end_with_process() -> None:
    for pending in list(_unfinished):
        pending.end_with_process()


# The interpreter waits for threads only after executors accept no more work, but clients of object
# stores need executors. The function that is registered last is called first, and so before the
# function of `concurrent.futures`, which closes the executors.
threading._register_atexit(_end_with_process)  # type: ignore[attr-defined]
