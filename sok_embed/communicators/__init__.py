"""Communication between workers: one process alone, or many under Horovod."""

from sok_embed.communicators.base import Communicator
from sok_embed.communicators.current import current, init, rank, size
from sok_embed.communicators.local import LocalCommunicator

__all__ = ["Communicator", "LocalCommunicator", "current", "init", "rank", "size"]
