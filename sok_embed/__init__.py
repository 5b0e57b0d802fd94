"""Embedding tables for TensorFlow and Keras 3 that outgrow the model.

Importing this package imports neither TensorFlow nor Keras, which take seconds: `sok_embed.kv`,
`sok_embed.damo` and the command do without them. What needs them is imported when it is first
asked for, or as soon as both this package and one of them are imported, in either order: loading a
model or a SavedModel then knows the layers and the ops.
"""

from __future__ import annotations

import importlib as _importlib
import importlib.util as _util
import os as _os
from typing import TYPE_CHECKING, Any

# The wheel puts tf_ops into this package; in the sources it lies beside it, and only an editable
# install leads there. Without this check Python would speak of a circular import.
if _util.find_spec("sok_embed.tf_ops") is None:
    raise ImportError(
        "Expected an installed sok_embed, with sok_embed.tf_ops. Received: "
        f"{_os.path.dirname(__file__)!r}, its source folder, which hides the installed one. Start "
        "Python in another folder; or run `make` there, and use its .venv/bin/python."
    )

from sok_embed import binding as _binding  # noqa: F401  (it looks whether the processor will do)
from sok_embed import import_watch as _import_watch

if TYPE_CHECKING:
    from sok_embed import (
        admission,
        callbacks,
        checkpoint,
        communicators,
        data,
        eviction,
        initializers,
        kv,
        optimizers,
        planning,
    )
    from sok_embed.checkpoint.saving import save_model
    from sok_embed.communicators import init, rank, size
    from sok_embed.configs.configs import FeatureConfig, TableConfig
    from sok_embed.fingerprints import fingerprint
    from sok_embed.keras_bridge.layer_with_rows import dense_only
    from sok_embed.kv import Storage
    from sok_embed.layers import (
        AdaptiveEmbedding,
        All2AllDenseEmbedding,
        DistributedEmbedding,
        DynamicEmbedding,
        HashedEmbedding,
        HashedEmbeddingBag,
    )
    from sok_embed.planning import Plan, plan
    from sok_embed.serving.exporting import export_model
    from sok_embed.tables.adaptive_table import AdaptiveTable
    from sok_embed.tables.contents import whole_saved_models
    from sok_embed.tables.table import Table
    from sok_embed.training.distributed_optimizer import DistributedOptimizer

__version__ = "0.2.0"

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveTable",
    "All2AllDenseEmbedding",
    "DistributedEmbedding",
    "DistributedOptimizer",
    "DynamicEmbedding",
    "FeatureConfig",
    "HashedEmbedding",
    "HashedEmbeddingBag",
    "Plan",
    "Storage",
    "Table",
    "TableConfig",
    "admission",
    "callbacks",
    "checkpoint",
    "communicators",
    "data",
    "dense_only",
    "eviction",
    "export_model",
    "fingerprint",
    "init",
    "initializers",
    "kv",
    "optimizers",
    "plan",
    "planning",
    "rank",
    "save_model",
    "size",
    "whole_saved_models",
]

# Says in which module each of these names is, for those that are not modules themselves.
_HOMES = {
    "AdaptiveEmbedding": "layers",
    "AdaptiveTable": "tables.adaptive_table",
    "All2AllDenseEmbedding": "layers",
    "DistributedEmbedding": "layers",
    "DistributedOptimizer": "training.distributed_optimizer",
    "DynamicEmbedding": "layers",
    "FeatureConfig": "configs.configs",
    "HashedEmbedding": "layers",
    "HashedEmbeddingBag": "layers",
    "Plan": "planning",
    "Storage": "kv",
    "Table": "tables.table",
    "TableConfig": "configs.configs",
    "dense_only": "keras_bridge.layer_with_rows",
    "export_model": "serving.exporting",
    "fingerprint": "fingerprints",
    "init": "communicators",
    "plan": "planning",
    "rank": "communicators",
    "save_model": "checkpoint.saving",
    "size": "communicators",
    "whole_saved_models": "tables.contents",
}


# Names of SparseOperationKit that have no twin here, and what takes their place.
_OF_SPARSE_OPERATION_KIT = {
    "DynamicVariable": "DynamicEmbedding, or a TableConfig of a DistributedEmbedding",
    "Init": "sok_embed.init(), without a batch size",
    "OptimizerWrapper": "the Keras optimizer itself, in DistributedOptimizer",
    "Saver": "layer.table.export(slots=True) and layer.table.restore, or sok_embed.save_model",
    "Variable": "DynamicEmbedding, or a TableConfig with vocabulary_size",
    "dump": "layer.table.export(slots=True) on each worker, or sok_embed.save_model",
    "load": "layer.table.restore, layer.table.assign or keras.saving.load_model",
    "lookup_sparse": "one call of a DistributedEmbedding, for all tables and features",
    "split_embedding_variable_from_others": "nothing: one optimizer trains dense weights and rows",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(_importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif not name.startswith("_") and _util.find_spec(f"{__name__}.{name}") is not None:
        value = _importlib.import_module(f"{__name__}.{name}")
    else:
        instead = _OF_SPARSE_OPERATION_KIT.get(name)
        pointer = f". SparseOperationKit has it; here use {instead}" if instead else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{pointer}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    hidden = {"Any", "TYPE_CHECKING", "annotations"}  # of this file alone
    return sorted({*globals(), *__all__} - hidden)


def _import_all() -> None:
    _importlib.import_module("sok_embed.tf_ops")  # this refuses another backend of Keras
    for name in __all__:
        __getattr__(name)


_import_watch.call_with_tensorflow(_import_all)
