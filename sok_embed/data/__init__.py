"""Datasets of frames and files, of several workers and of tables on disk; strings of keys."""

from sok_embed.data.joining import join
from sok_embed.data.looking_ahead import look_ahead
from sok_embed.data.sources import from_arrow, from_huggingface, from_pandas, from_parquet
from sok_embed.data.vocabulary import Vocabulary

__all__ = [
    "Vocabulary",
    "from_arrow",
    "from_huggingface",
    "from_pandas",
    "from_parquet",
    "join",
    "look_ahead",
]
