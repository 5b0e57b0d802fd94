"""The environment variables of a launcher, read and checked."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sok_embed.communicators.workers import Workers

# Ports of workers for which none is given lie below those that Linux gives to outgoing connections.
_FIRST_PORT, _PORTS = 20000, 10000
_START_ALL = (
    "Unset what an earlier launcher has left in the environment, or start the workers with a "
    "launcher that sets all of it, such as `sok-embed run`."
)


@dataclass(frozen=True)
class Variables:
    """The environment of a process, as the variables of one launcher.

    Attributes:
        environ: The environment. A variable that is empty counts as not set.
        launcher: The name of the launcher, for messages.
        remedy: The last sentence of an error for missing variables, which says what to do.
        meeting: The variables of the host and the port at which workers meet.
    """

    environ: Mapping[str, str]
    launcher: str
    remedy: str = _START_ALL
    meeting: tuple[str, str] = ("MASTER_ADDR", "MASTER_PORT")

    def text(self, *names: str) -> str | None:
        """Returns the text of the first variable that is set."""
        texts = (self.environ.get(name, "").strip() for name in names)
        return next((text for text in texts if text), None)

    def number(self, *names: str) -> int | None:
        """Returns the number in the first variable that is set."""
        for name in names:
            text = self.text(name)
            if text is not None:
                if not text.isdecimal():
                    raise self.error(f"{name} to be a number from 0 on", repr(text))
                return int(text)
        return None

    def rank_and_size(self, rank_names: Iterable[str], size_name: str) -> tuple[int, int] | None:
        """Returns the rank and the number of workers; `None` for one worker alone."""
        names = list(rank_names)
        rank_name = next((name for name in names if self.text(name) is not None), names[0])
        rank, size = self.number(rank_name), self.number(size_name)
        if size == 1 and not rank:
            return None
        if rank is None or size is None:
            missing, there = rank_name, f"{size_name}={size}"
            if size is None:
                missing, there = size_name, f"{rank_name}={rank}"
            raise self.error(f"{missing} to be set too", f"{there} without it")
        if rank >= size:
            raise self.error(
                f"{rank_name} to be less than {size_name}",
                f"{rank_name}={rank} and {size_name}={size}",
            )
        return rank, size

    def workers(
        self,
        rank: int,
        size: int,
        local_rank: int,
        local_size: int | None,
        address: tuple[str, int] | None = None,
    ) -> Workers:
        """Returns the worker of that place.

        Args:
            rank: The number of this worker.
            size: The number of workers.
            local_rank: The number of this worker on its host.
            local_size: The number of workers on that host. `None`: the least number possible.
            address: The address at which all meet, if it is known.
        """
        if local_size is None:
            local_size = local_rank + 1
        if not local_rank < local_size <= size:
            raise self.error(
                "the rank on this host to be less than the number of workers on this host, and "
                "that number to be at most the number of all",
                f"rank {local_rank} of {local_size} on this host, of {size} in all",
            )
        return Workers(rank, size, local_rank, local_size, address, self.launcher)

    def address(self, size: int, local_size: int, job: str, host: str | None) -> tuple[str, int]:
        """Returns the address at which all workers meet.

        Args:
            size: The number of workers.
            local_size: The number of workers on this host.
            job: A text that all workers of the job share, and that differs in other jobs.
            host: The host of worker 0, if the launcher names it.
        """
        given = self.given_address()
        if given is not None:
            return given
        host = "127.0.0.1" if local_size == size else host
        if host is None:
            host_name, port_name = self.meeting
            raise ValueError(
                f"Expected {host_name} and {port_name} to say where workers on several hosts meet. "
                f"Received: {size} workers, of which {local_size} on this host, by "
                f"{self.launcher}, and neither. Set {host_name} to the host of worker 0, by a name "
                f"that all hosts know, and {port_name} to a free port there, alike on all."
            )
        return host, self.port_of(job)

    def given_address(self) -> tuple[str, int] | None:
        """Returns the address that the variables name, if they do."""
        host_name, port_name = self.meeting
        host, port = self.text(host_name), self.text(port_name)
        if host is None and port is None:
            return None
        if host is None or port is None:
            there, missing = (port_name, host_name)[:: 1 if host is None else -1]
            raise self.error(
                f"{missing} to be set too", f"{there}={self.environ[there]} without it"
            )
        return host.strip("[]"), self.checked_port(port_name, port)

    def port_of(self, job: str, taken: Iterable[int] = ()) -> int:
        """Returns a port for a job, the same on all of its workers."""
        first = zlib.crc32(f"{self.launcher} {job}".encode()) % _PORTS
        places = (_FIRST_PORT + (first + more) % _PORTS for more in range(_PORTS))
        return next(port for port in places if port not in taken)

    def checked_port(self, what: str, text: str) -> int:
        """Returns the port in a text."""
        if not (text.isdecimal() and 0 < int(text) < 65536):
            raise self.error(f"a port from 1 to 65535 of {what}", repr(text))
        return int(text)

    def error(self, expected: str, received: str) -> ValueError:
        """Returns the error for variables that contradict each other or are not all there."""
        return ValueError(
            f"Expected {expected}. Received: {received}, as if by {self.launcher}. {self.remedy}"
        )
