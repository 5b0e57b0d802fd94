"""Checkpoints of models with rows, which any number of workers write and any number read."""

from sok_embed.checkpoint.checkpoint import Checkpoint
from sok_embed.checkpoint.fitting import fit
from sok_embed.checkpoint.manager import CheckpointManager

__all__ = ["Checkpoint", "CheckpointManager", "fit"]
