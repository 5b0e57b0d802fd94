"""Callbacks by their names in TFRA: those of this package."""

from sok_embed.callbacks import BroadcastVariables as DEHvdBroadcastGlobalVariablesCallback
from sok_embed.callbacks import ModelCheckpoint

__all__ = ["DEHvdBroadcastGlobalVariablesCallback", "ModelCheckpoint"]
