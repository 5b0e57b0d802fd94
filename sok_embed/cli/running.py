"""The workers of `sok-embed run`: processes of this machine that start, print and end together."""

from __future__ import annotations

import ctypes
import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

from sok_embed.communicators.launchers import without_launchers
from sok_embed.communicators.secret import SECRET_VARIABLE, new_secret

_HOST = "127.0.0.1"
# Linux takes ports above these for outgoing connections. If such a connection had the workers' port
# when worker 0 begins to listen, the job would end.
_PORTS = range(20000, 30000)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)
_TIMED_OUT = 124  # as timeout(1) of coreutils has it
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SHOWN_LINES, _SHOWN_BYTES = 20, 2000  # of each line
_LONGEST_LINE = 1 << 20  # bytes; what is longer is printed in parts
_CHUNK = 64 << 10  # bytes
_LOOK_S = 0.1  # seconds between looks at signals, times, and processes that keep their output open
_DRAIN_S = 1.0  # seconds for output of processes that have left their worker's group


def as_program(command: Sequence[str]) -> list[str]:
    """Returns a command whose first word is a program; Python runs what is a script of it.

    Raises:
        FileNotFoundError: If there is neither a program nor a script of that name.
    """
    first = command[0]
    if first.endswith(".py") and os.path.isfile(first):
        return [sys.executable, *command]
    if shutil.which(first) is None:
        if os.path.isfile(first):
            why = "a file that may not be executed"
        elif os.path.isdir(first):
            why = "which is a folder"
        elif first.endswith(".py"):
            why = f"a script that is not in {os.getcwd()}"
            if os.path.dirname(first):
                why = "a script that is not there"
        else:
            why = "which is not a program on the PATH"
        raise FileNotFoundError(f"Expected a program to run. Received: {first!r}, {why}.")
    return list(command)


def run_workers(
    command: Sequence[str],
    size: int,
    timeout: float | None = None,
    grace: float = 10.0,
    restarts: int = 0,
    min_workers: int | None = None,
) -> int:
    """Runs a command once for each of several workers, until all have ended.

    Each line that a worker prints is printed here, after its rank. When one fails, the others are
    ended; with `restarts` all are started again, and `SOK_EMBED_RESTART` tells them how often that
    has happened. Call it from the main thread, on which it receives signals and passes them to the
    workers.

    Args:
        command: A program and its arguments.
        size: The number of workers.
        timeout: Seconds after which the workers are ended, restarts included; `None`: never.
        grace: Seconds between SIGTERM and SIGKILL.
        restarts: The largest number of times that workers are started again.
        min_workers: Each restart has one worker less than before, but at least this many; `None`:
            as many as before.

    Returns:
        The exit status: 0, or that of the worker that failed first in the last run, 128 and the
        number of a signal that ended it, or 124 after the timeout.

    Raises:
        OSError: If the command cannot be started.
        ValueError: For more than `size` as `min_workers`.
    """
    least = size if min_workers is None else min_workers
    if least > size:
        raise ValueError(
            f"Expected min_workers to be at most the {size} workers. Received: {min_workers}."
        )
    end = None if timeout is None else time.monotonic() + timeout
    with _signals() as received:
        for restart in range(restarts + 1):
            job = _Job(grace, timeout)
            try:
                job.start(command, size, restart)
                status = job.wait(received, end)
            finally:
                job.close()
            if restart == restarts or not job.has_failed:
                break
            size = max(least, size - 1)
            _report(f"restart {restart + 1} of {restarts}, with {size} workers.")
    return status


@dataclass
class _Worker:
    """A process, with the last lines that it has printed."""

    rank: int
    process: subprocess.Popen[bytes]
    last_lines: deque[bytes] = field(default_factory=lambda: deque(maxlen=_SHOWN_LINES))
    status: int | None = None  # the exit status, or the negative number of a signal

    def look(self) -> bool:
        """Returns whether the worker has ended since the last look."""
        if self.status is not None:
            return False
        # The process stays a zombie, so that no other process gets its number, which is also the
        # number of its group, while signals may still be sent.
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        self.status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return True

    def tail(self) -> list[bytes]:
        """Returns the ends of the last lines: their beginnings may be progress bars."""
        return [self.prefixed(line[-_SHOWN_BYTES:]) for line in self.last_lines]

    def prefixed(self, line: bytes) -> bytes:
        return b"[%d] %s" % (self.rank, line)


@dataclass
class _Stream:
    """One of a worker's two output streams, and the stream to which this process prints it."""

    worker: _Worker
    source: IO[bytes]
    target: IO[bytes]
    begun: bytes = b""

    def print(self, chunk: bytes) -> None:
        """Prints the lines that are complete now; at the end, which is `b""`, prints the rest."""
        *lines, self.begun = (self.begun + chunk).split(b"\n")
        if self.begun and (not chunk or len(self.begun) > _LONGEST_LINE):
            lines.append(self.begun)
            self.begun = b""
        if lines:
            self.worker.last_lines.extend(lines)
            self.target.write(b"".join(self.worker.prefixed(line) + b"\n" for line in lines))
            self.target.flush()


class _Job:
    """Workers that end together."""

    def __init__(self, grace: float, timeout: float | None) -> None:
        self._grace = grace
        self._timeout = timeout  # for a message
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._failed: _Worker | None = None  # the first one
        self._was_interrupted = False  # by a signal that ends programs
        self._was_signalled = False
        self._timed_out = False
        self._kill_at: float | None = None

    @property
    def has_failed(self) -> bool:
        """True if a worker has failed by itself: without an interrupt and without a timeout."""
        return self._failed is not None and not self._was_interrupted and not self._timed_out

    def start(self, command: Sequence[str], size: int, restart: int) -> None:
        common = {
            **without_launchers(os.environ),
            "PYTHONUNBUFFERED": "1",
            "MASTER_ADDR": _HOST,
            "MASTER_PORT": str(_free_port()),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "SOK_EMBED_RESTART": str(restart),
            # The environment of a process can be read by its user alone, a command line by all.
            SECRET_VARIABLE: new_secret(),
        }
        prepare = _tied_to_this_process()
        for rank in range(size):
            environ = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ,
                preexec_fn=prepare,  # this process has one thread
            )
            worker = _Worker(rank, process)
            self._workers.append(worker)
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                assert source is not None
                stream = _Stream(worker, source, target.buffer)
                self._selector.register(source, selectors.EVENT_READ, stream)

    def wait(self, received: deque[int], end: float | None) -> int:
        """Waits until all workers have ended.

        Args:
            received: The signals that have come to this process; signal handlers add to it.
            end: The end of the timeout, on the monotonic clock.

        Returns:
            The exit status, as for `run_workers`.
        """
        while any(worker.status is None for worker in self._workers):
            self._print(_LOOK_S)
            while received:
                self._pass(received.popleft())
            self._look()
            if end is not None and time.monotonic() >= end and self._kill_at is None:
                self._timed_out = True
                self._stop(signal.SIGTERM)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._send(signal.SIGKILL)
        self._send(signal.SIGKILL)  # to children that have outlived their worker
        drained = time.monotonic() + _DRAIN_S
        while self._selector.get_map() and time.monotonic() < drained:
            self._print(_LOOK_S)
        return self._result()

    def close(self) -> None:
        """Ends the workers that still run."""
        self._selector.close()
        for worker in self._workers:
            for source in (worker.process.stdout, worker.process.stderr):
                if source is not None:
                    source.close()
        self._look()
        if any(worker.status is None for worker in self._workers):
            self._send(signal.SIGTERM)
            end = time.monotonic() + self._grace
            while any(each.status is None for each in self._workers) and time.monotonic() < end:
                time.sleep(_LOOK_S)
                self._look()
        self._send(signal.SIGKILL)
        for worker in self._workers:
            worker.process.wait()

    def _print(self, patience: float) -> None:
        """Waits for output of workers for at most `patience` seconds, and prints it."""
        for key, _ in self._selector.select(patience):
            stream: _Stream = key.data
            chunk = os.read(stream.source.fileno(), _CHUNK)
            stream.print(chunk)
            if not chunk:
                self._selector.unregister(stream.source)
                stream.source.close()

    def _pass(self, number: int) -> None:
        """Passes a signal on. After a second one that ends programs the wait is short."""
        self._send(number)
        if self._was_interrupted and number in _ENDING:
            self._stop()
        self._was_interrupted |= number in _ENDING
        self._was_signalled = True

    def _look(self) -> None:
        """Notes which workers have ended; if one has failed, ends the others too."""
        failed = [worker for worker in self._workers if worker.look() and worker.status]
        if failed and self._kill_at is None:
            # Several may have failed since the last look. A worker that was ended by a signal is
            # more likely to be the cause than one that exited by itself.
            self._failed = min(failed, key=lambda worker: (worker.status or 0) > 0)
            # Workers that got a signal may be saving what they have.
            self._stop(None if self._was_signalled else signal.SIGTERM)
        elif failed and self._failed is None and not self._timed_out:
            self._failed = failed[0]

    def _stop(self, number: int | None = None) -> None:
        """Gives the workers the time between SIGTERM and SIGKILL to end."""
        if number is not None:
            self._send(number)
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace

    def _send(self, number: int) -> None:
        """Sends a signal to all workers, and to their children."""
        for worker in self._workers:
            try:
                os.killpg(worker.process.pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # all of the group have ended, or belong to another user

    def _result(self) -> int:
        if self._timed_out:
            _report(f"error: the workers did not end within {self._timeout:g} seconds.")
            return _TIMED_OUT
        failed = self._failed
        if failed is None or failed.status is None:
            return 0
        if not self._was_interrupted:
            how = f"ended with exit status {failed.status}"
            if failed.status < 0:
                how = f"was ended by {_signal_name(-failed.status)}"
            _report(f"error: worker {failed.rank} {how}. Its last lines:", *failed.tail())
        return failed.status if failed.status > 0 else 128 - failed.status


def _report(*lines: str | bytes) -> None:
    sys.stdout.flush()
    text = b"".join(os.fsencode(line) + b"\n" for line in lines)
    sys.stderr.buffer.write(text)
    sys.stderr.flush()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _free_port() -> int:
    """Returns a port of this machine at which no process listens."""
    for port in random.sample(_PORTS, 100):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((_HOST, port))
            except OSError:
                continue
            return port
    raise OSError(
        f"Expected a free port from {_PORTS.start} to {_PORTS.stop - 1}, where the workers meet. "
        "Received: 100 ports that are taken. See which programs listen there."
    )


def _tied_to_this_process() -> Callable[[], None]:
    """Returns a function that a child calls before it becomes a worker.

    It gives the child a process group, so that signals reach its children too, and makes Linux kill
    it when this process ends for any reason.
    """
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        os.setpgid(0, 0)
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it has ended before Linux knew

    return prepare


@contextmanager
def _signals() -> Iterator[deque[int]]:
    """Collects the signals that are for workers, unless they were ignored before."""
    received: deque[int] = deque()

    def handle(number: int, _: FrameType | None) -> None:
        received.append(number)

    before = {
        number: signal.signal(number, handle)
        for number in _PASSED
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
