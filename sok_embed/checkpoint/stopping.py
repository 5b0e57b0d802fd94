"""Stops a training before its end, or saves it, at a batch that all workers agree on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from sok_embed.communicators.agreement import Agreement

# The exit status of a process that wants to be started again: EX_TEMPFAIL of sysexits.h.
TRY_AGAIN = getattr(os, "EX_TEMPFAIL", 75)
_SECONDS, _MOST_BATCHES = 1.0, 16  # between two questions


class Stopped(SystemExit):
    """Training has stopped before its end, and its place is saved.

    Where nobody catches it, the process ends with status 75, `EX_TEMPFAIL`: whoever has started it
    may start it again.

    Args:
        folder: The folder of the checkpoint from which the same call goes on.

    Attributes:
        folder: The same.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(TRY_AGAIN)
        self.folder = folder

    def __str__(self) -> str:
        return f"training was stopped before its end; it goes on from '{self.folder}'"


def stop_on(*signals: int) -> Callable[[], bool]:
    """Notes signals instead of ending the process. Returns what tells whether one has come.

    The first signal is noted. A second one of the same kind does what it did before any call, such
    as ending the process. Python takes signals between two steps of training: a worker that waits
    for a lost one takes them when it gives up, after the timeout of `sok_embed.init`.

    Example:
    >>> import signal
    >>> from sok_embed.checkpoint import stop_on
    >>> stop = stop_on(signal.SIGUSR1)
    >>> stop()
    False

    Args:
        *signals: The signals. None: SIGTERM, which Kubernetes, Ray and `docker stop` send some
            time before they end a process. Slurm sends one of your choice by `--signal`.

    Returns:
        A function for `stop_when` of `fit`.

    Raises:
        ValueError: In another thread than the main one, and for a signal that cannot be noted.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ValueError(
            "Expected stop_on in the main thread, which alone can take signals. Received: "
            f"{threading.current_thread().name}."
        )
    noted = _Noted()
    for number in signals or (signal.SIGTERM,):
        try:
            noted.take(number)
        except (OSError, ValueError) as error:
            noted.give_back()
            raise ValueError(
                f"Expected a signal that can be noted. Received: {number!r}."
            ) from error
    return noted.arrived.is_set


class _Noted:
    """Signals that are noted, and what handled them before."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self._before: dict[int, Any] = {}

    def take(self, number: int) -> None:
        previous = signal.signal(number, self._note)
        owner = getattr(previous, "__self__", None)
        if isinstance(owner, _Noted):  # of an earlier call
            previous = owner._before.get(number, signal.SIG_DFL)
        # One that C code handles is not known to Python.
        self._before[number] = signal.SIG_DFL if previous is None else previous

    def give_back(self) -> None:
        for number, previous in self._before.items():
            signal.signal(number, previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.arrived.set()
        signal.signal(number, self._before[number])


class Wishes:
    """Asks all workers about once a second whether one of them wants to stop, or to save at once.

    Args:
        stop_when: The question to this worker whether to stop; `None`: it never does.
        save_when: The question whether to save and go on; `None`: it never wants to. There is
            either question on all workers or on none.
        agreement: The agreement of the workers.

    Attributes:
        stop: True from the moment at which a worker wanted to stop.
        save: True once a worker wants a checkpoint; whoever has saved it sets it to False.
    """

    def __init__(
        self,
        stop_when: Callable[[], bool] | None,
        save_when: Callable[[], bool] | None,
        agreement: Agreement,
    ) -> None:
        self._questions = (stop_when, save_when)
        self._agreement = agreement
        self.stop = self.save = False
        self._since = time.monotonic()
        self._batches = 0  # since then
        self._next = 1  # how many there are until the next question

    def ask(self, batches: int) -> None:
        """Asks after more batches, if it is time. Collective.

        All workers ask after equally many batches, by the pace of the slowest.
        """
        self._batches += batches
        if self._batches >= self._next:
            self.ask_now()

    def ask_now(self) -> None:
        """Asks. Collective."""
        if self.stop or not any(self._questions):
            return
        now = time.monotonic()
        pace = int(1e9 * (now - self._since) / max(1, self._batches))
        _, told = self._agreement.gather_together(
            "ask whether to stop or to save",
            self._answers,
            lambda wishes: [*wishes, pace],
        )
        stops, saves, paces = zip(*told, strict=True)
        self.stop, self.save = any(stops), self.save or any(saves)
        # The next batches may be slower.
        self._next = max(1, min(_MOST_BATCHES, int(_SECONDS / max(1e-9 * max(paces), 1e-6))))
        self._since, self._batches = now, 0

    def _answers(self) -> list[int]:
        """Returns this worker's answers to both questions, 0 or 1."""
        stop_when, save_when = self._questions
        try:
            stop = bool(stop_when and stop_when())
        finally:  # an engine's answer may wait for all workers
            save = bool(save_when and save_when())
        return [int(stop), int(save)]
