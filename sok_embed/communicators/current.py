"""The communicator of this process."""

from __future__ import annotations

import os

from sok_embed.communicators.base import Communicator
from sok_embed.communicators.local import LocalCommunicator

_current: Communicator | None = None


def _started_by_horovod() -> bool:
    return "HOROVOD_RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ


def init(communicator: str | Communicator = "auto") -> Communicator:
    """Chooses how this process talks to other workers. Call it before any layer is made.

    Without a call, the first layer does what `init("auto")` does.

    Args:
        communicator: `"auto"`: Horovod if `horovodrun` (or `mpirun`) has started this process, else
            one worker alone. `"horovod"`, `"local"`, or a `Communicator` of your own.

    Returns:
        The communicator.

    Raises:
        ValueError: For another name.
        ImportError: If Horovod is asked for and missing.
    """
    global _current
    if isinstance(communicator, Communicator):
        chosen = communicator
    elif communicator == "local" or (communicator == "auto" and not _started_by_horovod()):
        chosen = LocalCommunicator()
    elif communicator in ("auto", "horovod"):
        from sok_embed.communicators.horovod import HorovodCommunicator

        chosen = HorovodCommunicator()
    else:
        raise ValueError(
            'Expected communicator to be "auto", "horovod", "local" or a '
            f"sok_embed.communicators.Communicator. Received: {communicator!r}."
        )
    _current = chosen
    return chosen


def current() -> Communicator:
    """The communicator that `init` chose; calls `init("auto")` if nobody has."""
    return _current if _current is not None else init()


def rank() -> int:
    """The number of this worker, in `[0, size())`."""
    return current().rank


def size() -> int:
    """How many workers there are."""
    return current().size
