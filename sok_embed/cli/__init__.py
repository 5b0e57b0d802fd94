"""The command `sok-embed`: storages, checkpoints, plans, workers. It needs no TensorFlow."""

from sok_embed.cli.commands import main

__all__ = ["main"]
