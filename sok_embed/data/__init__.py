"""Datasets of several workers, and of tables on disk."""

from sok_embed.data.joining import join
from sok_embed.data.looking_ahead import look_ahead

__all__ = ["join", "look_ahead"]
