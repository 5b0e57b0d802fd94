"""Checkpoints of models with rows, which any number of workers write and any number read."""

from sok_embed.checkpoint.checkpoint import Checkpoint
from sok_embed.checkpoint.manager import CheckpointManager, set_copy_budget

__all__ = ["Checkpoint", "CheckpointManager", "set_copy_budget"]
