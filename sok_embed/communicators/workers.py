"""A process among the workers of a job."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Workers:
    """This process among the workers of a job.

    Attributes:
        rank: The number of this worker, in `[0, size)`.
        size: The number of workers, at least 2.
        local_rank: The number of this worker among those of its host, in `[0, local_size)`.
        local_size: The number of workers on this host, if the launcher says it.
        address: The host, by name or number, and the port at which worker 0 listens for the others.
            `None` under `horovodrun`, which brings a meeting place of its own.
        launcher: The name of the launcher, for messages.
        secret: The secret of the job, in hexadecimal digits, if the launcher hands one to workers.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: tuple[str, int] | None
    launcher: str
    secret: str | None = field(default=None, repr=False)

    @property
    def on_one_host(self) -> bool:
        """True if the launcher says that all workers are on this host."""
        return self.local_size == self.size
