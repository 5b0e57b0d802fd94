"""Stops a training before its end, at a batch that all workers agree on."""

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


class Stop:
    """Asks all workers about once a second whether one of them is to stop.

    Args:
        when: The question to this worker; `None`: it never stops. Alike on all workers.
        agreement: The agreement of the workers.
    """

    def __init__(self, when: Callable[[], bool] | None, agreement: Agreement) -> None:
        self._when = when
        self._agreement = agreement
        self._is_asked = False  # a worker is to stop
        self._since = time.monotonic()
        self._batches = 0  # since then
        self._next = 1  # how many there are until the next question

    def asked(self, batches: int) -> bool:
        """Returns whether the run is to stop, after more batches. Collective.

        All workers ask after equally many batches, by the pace of the slowest.
        """
        self._batches += batches
        if self._when is None or (self._batches < self._next and not self._is_asked):
            return self._is_asked
        return self.asked_now()

    def asked_now(self) -> bool:
        """Returns whether the run is to stop. Collective."""
        if self._when is None or self._is_asked:
            return self._is_asked
        now = time.monotonic()
        pace = int(1e9 * (now - self._since) / max(1, self._batches))
        _, told = self._agreement.gather_together(
            "ask whether to stop", self._when, lambda stops: [int(bool(stops)), pace]
        )
        self._is_asked = any(stops for stops, _ in told)
        slowest = 1e-9 * max(pace for _, pace in told)
        # The next batches may be slower.
        self._next = max(1, min(_MOST_BATCHES, int(_SECONDS / max(slowest, 1e-6))))
        self._since, self._batches = now, 0
        return self._is_asked
