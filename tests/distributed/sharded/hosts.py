"""Has the workers of a test be on hosts of their own, which are this machine."""

from __future__ import annotations

import sok_embed
from sok_embed.communicators import Communicator, connecting


def init_on_host(number: int, **options: object) -> Communicator:
    """Calls `init` as a worker of a numbered host does, which reaches other hosts by TCP alone."""
    connecting._system = lambda: f"host-{number}"  # type: ignore[assignment]
    return sok_embed.init(**options)  # type: ignore[arg-type]
