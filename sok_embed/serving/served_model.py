"""Exports of models for serving: rows of tables without anything that only training needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators
from sok_embed.arguments import check_integer, is_among, shown
from sok_embed.keras_bridge.private_state import takes_training
from sok_embed.serving.exporting import serving_function
from sok_embed.serving.held_rows import HeldRows
from sok_embed.serving.stock_rows import StockAdaptiveRows, stock_rows
from sok_embed.serving.versions import write_version
from sok_embed.tables.adaptive_table import AdaptiveTable
from sok_embed.tables.owned_resource import OwnedResource
from sok_embed.tables.table import Table
from sok_embed.tf_ops.served import served_by

_DTYPES = ("float32",)
_MISSING = ("initializer", "zeros")
_OPS = ("stock",)


def export(
    model: keras.Model | str | os.PathLike[str],
    path: str | os.PathLike[str],
    dtype: str = "float32",
    min_count: int = 0,
    missing: str = "initializer",
    ops: str = "stock",
    *,
    input_signature: Any = None,
    progress: Callable[[int, int], Any] | None = None,
) -> str:
    """Writes a model as a SavedModel that only serves, into the next numbered folder of a path.

    Optimizer slots, counts, times and the tables themselves stay behind: what is written has dense
    weights and rows, which ops find by key. Its outputs are those of `model.predict`, bit for bit
    in float32. Nothing in it is of sok-embed with `ops="stock"`, so that any TensorFlow loads it,
    and an unmodified model server serves it.

    A folder has its number once it is whole and on the device: a model server that watches `path`
    takes it up then, and passes over what an export that was killed has left, whose name begins
    with `.export-`.

    Example:
    >>> import numpy as np
    >>> from sok_embed import DynamicEmbedding
    >>> model = keras.Sequential([keras.Input((2,), dtype="int64", name="items"),
    ...                           DynamicEmbedding(4, "zeros"), keras.layers.Flatten()])
    >>> folder = export(model, "versions")
    >>> os.path.basename(folder)
    '1'
    >>> serve = tf.saved_model.load(folder).signatures["serving_default"]
    >>> keys = np.array([[7, -1]])
    >>> (vectors,) = serve(items=tf.constant(keys)).values()
    >>> bool(np.array_equal(vectors, model.predict(keys, verbose=0)))
    True

    Args:
        model: A Keras model that is built, or the path of a `.keras` file.
        path: The folder of all versions of the model, which is made if there is none.
        dtype: The type of rows in the files: `"float32"`.
        min_count: Rows that fewer commits have updated are left out, and their keys are unknown.
        missing: The vectors of unknown keys: `"initializer"`, those that training would start from,
            as `model.predict` has them; or `"zeros"`. A `default_vector=` of a layer goes first.
        ops: `"stock"`: TensorFlow's own ops find rows, in variables. Initializers of tables have
            to be constant then, or `missing="zeros"`.
        input_signature: The signature of the inputs, as for `sok_embed.export_model`, which says
            what the names of ragged and sparse inputs are too.
        progress: A function of the rows so far and of all rows, which is called now and then.

    Returns:
        The path of the folder, such as `"versions/1"`. The endpoint is `serve`, and
        `serving_default`.

    Raises:
        ValueError: For an argument that is none of these, several workers, an initializer that is
            not constant where it would have to be, and what `sok_embed.export_model` refuses.
    """
    if not is_among(dtype, _DTYPES):
        raise ValueError(f"Expected dtype to be one of {_DTYPES}. Received: {shown(dtype)}.")
    if not is_among(missing, _MISSING):
        raise ValueError(f"Expected missing to be one of {_MISSING}. Received: {shown(missing)}.")
    if not is_among(ops, _OPS):
        raise ValueError(f"Expected ops to be one of {_OPS}. Received: {shown(ops)}.")
    least = check_integer("min_count", min_count, 0, named=True)
    size = communicators.size()
    if size > 1:
        raise ValueError(
            "Expected one worker, which has all rows. Received: "
            f"{size} workers. Save a sok_embed.checkpoint.Checkpoint, or a .keras file by "
            "sok_embed.save_model, and export in one process."
        )
    built = _model(model)
    tables = _Tables(built, least, missing, progress)

    def write(folder: str) -> None:
        with served_by(tables):
            served = _served(built, input_signature, tables)
            tf.saved_model.save(served, folder, signatures=served.serve)

    return write_version(path, write)


def _model(model: Any) -> keras.Model:
    if isinstance(model, keras.Model):
        return model
    if not isinstance(model, (str, os.PathLike)):
        raise ValueError(
            "Expected a Keras model, or the path of a .keras file. "
            f"Received: {shown(model)} (of type {type(model).__name__})."
        )
    return keras.models.load_model(os.fspath(model), compile=False)


class _Tables:
    """Makes what stands in for tables, once for each.

    Args:
        model: The model that has the tables.
        min_count: Rows that were updated less often are left out.
        missing: The vectors of keys without a row.
        progress: The function that is told of rows.
    """

    def __init__(
        self,
        model: keras.Model,
        min_count: int,
        missing: str,
        progress: Callable[[int, int], Any] | None,
    ) -> None:
        found = tf.train.TrackableView(model).descendants()
        self._rows = sum(each.size() for each in found if isinstance(each, (Table, AdaptiveTable)))
        self._done = 0
        self._min_count = min_count
        self._missing = missing
        self._progress = progress
        self._made: dict[int, tuple[Any, Any]] = {}

    def __call__(self, table: Any) -> Any:
        """Returns what stands in for a table; `None` for a resource that has no rows."""
        if not isinstance(table, (Table, AdaptiveTable)):
            return None
        if id(table) not in self._made:
            # The graph that serves is being traced.
            with tf.init_scope():
                self._made[id(table)] = (table, self._stand_in(table))
        return self._made[id(table)][1]

    def _taken(self, rows: int) -> None:
        self._done += rows
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._rows))

    def _stand_in(self, table: Table | AdaptiveTable) -> Any:
        parts = [HeldRows(part, self._min_count, self._taken) for part in table.parts]
        if isinstance(table, Table):
            return stock_rows(parts[0], self._missing)
        own, static = parts
        return StockAdaptiveRows(stock_rows(own, "zeros"), static, table.static_buckets)


def _served(model: keras.Model, input_signature: Any, tables: _Tables) -> Any:
    """Returns the module that is saved: the function, and what it reads."""
    options = {"training": False} if takes_training(model) else {}
    serve, parts = serving_function(model, input_signature, **options)
    served = tf.Module(name=model.name)
    served.serve = tf.function(
        serve, input_signature=[{part.name: part for part in parts}], autograph=False
    )
    graph = served.serve.get_concrete_function().graph
    # This is all that the graph has of the model: no anchors, slots or tables.
    served.weights = list(graph.variables)
    handles = {id(handle) for handle, _ in graph.captures}
    served.resources = [
        each
        for each in tf.train.TrackableView(model).descendants()
        if isinstance(each, tf.saved_model.experimental.TrackableResource)
        and not isinstance(each, OwnedResource)
        and id(each.resource_handle) in handles
    ]
    return served
