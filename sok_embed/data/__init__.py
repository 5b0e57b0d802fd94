"""Datasets of several workers and of tables on disk, and the strings of their keys."""

from sok_embed.data.joining import join
from sok_embed.data.looking_ahead import look_ahead
from sok_embed.data.vocabulary import Vocabulary

__all__ = ["Vocabulary", "join", "look_ahead"]
