"""Offers the callbacks of this package under their names in TFRA."""

from sok_embed.callbacks import BroadcastVariables as DEHvdBroadcastGlobalVariablesCallback
from sok_embed.callbacks import ModelCheckpoint

__all__ = ["DEHvdBroadcastGlobalVariablesCallback", "ModelCheckpoint"]
