"""Datasets of several workers."""

from sok_embed.data.joining import join

__all__ = ["join"]
