"""Embedding tables for TensorFlow and Keras 3 that outgrow the model."""

import importlib.util as _util
import os as _os

# The wheel puts tf_ops into this package; in the sources it lies beside it, and only an editable
# install leads there. Without this check Python would speak of a circular import.
if _util.find_spec("sok_embed.tf_ops") is None:
    raise ImportError(
        "Expected an installed sok_embed, with sok_embed.tf_ops. Received: "
        f"{_os.path.dirname(__file__)!r}, its source folder, which hides the installed one. Start "
        "Python in another folder; or run `make` there, and use its .venv/bin/python."
    )

import keras as _keras

if _keras.backend.backend() != "tensorflow":
    raise ImportError(
        "sok_embed needs Keras with its TensorFlow backend. "
        f"Received: KERAS_BACKEND={_keras.backend.backend()}. Set KERAS_BACKEND=tensorflow before "
        "Keras is imported."
    )

from sok_embed import admission, callbacks, communicators, initializers, kv, optimizers
from sok_embed.adaptive_table import AdaptiveTable
from sok_embed.communicators import init, rank, size
from sok_embed.dense_alone import dense_only
from sok_embed.distributed_optimizer import DistributedOptimizer
from sok_embed.kv import Storage
from sok_embed.layers import (
    AdaptiveEmbedding,
    All2AllDenseEmbedding,
    DynamicEmbedding,
    HashedEmbedding,
    HashedEmbeddingBag,
)
from sok_embed.saving import save_model
from sok_embed.table import Table

__version__ = "0.1.0"

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveTable",
    "All2AllDenseEmbedding",
    "DistributedOptimizer",
    "DynamicEmbedding",
    "HashedEmbedding",
    "HashedEmbeddingBag",
    "Storage",
    "Table",
    "admission",
    "callbacks",
    "communicators",
    "dense_only",
    "init",
    "initializers",
    "kv",
    "optimizers",
    "rank",
    "save_model",
    "size",
]
