"""Exports models for serving, with rows of tables and without what only training needs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from sok_embed import communicators
from sok_embed.arguments import check_choice, check_integer, described
from sok_embed.communicators.agreement import Agreement
from sok_embed.keras_bridge.private_state import takes_training
from sok_embed.serving.adapted_layers import adapted_layers
from sok_embed.serving.adaptive_rows import AdaptiveRows
from sok_embed.serving.checkpoint_rows import CheckpointRows
from sok_embed.serving.exporting import serving_function
from sok_embed.serving.held_rows import HeldRows
from sok_embed.serving.moments import Moment
from sok_embed.serving.pushing import write_to_store
from sok_embed.serving.stock_rows import DenseRows, stock_rows
from sok_embed.serving.store_versions import stored_at
from sok_embed.serving.table_files import TableFiles
from sok_embed.serving.versions import write_version
from sok_embed.serving.weight_names import names_of
from sok_embed.serving.workers_export import (
    WrittenTables,
    export_of_workers,
    written_by_first,
)
from sok_embed.tables.adaptive_table import AdaptiveTable
from sok_embed.tables.base_table import OwnedResource
from sok_embed.tables.table import Table
from sok_embed.tf_ops.served import Pool, ServedRows, served_by

_DTYPES = ("float32", "float16", "int8", "int4")
_MISSING = ("initializer", "zeros")
_OPS = ("native", "stock", "onnx")


class _Options(NamedTuple):
    """The arguments of `export`, which have been checked."""

    dtype: str
    min_count: int
    missing: str
    ops: str
    progress: Callable[[int, int], Any] | None


def export(
    model: keras.Model | str | os.PathLike[str],
    path: str | os.PathLike[str],
    dtype: str = "float32",
    min_count: int = 0,
    missing: str = "initializer",
    ops: str = "native",
    source: str | os.PathLike[str] | None = None,
    *,
    input_signature: Any = None,
    progress: Callable[[int, int], Any] | None = None,
) -> str:
    """Writes a model as a SavedModel that only serves, into the next numbered folder of a path.

    The SavedModel has dense weights and rows, which ops find by key, but no optimizer slots,
    counts, times and tables. Its outputs are those of `model.predict`, bit for bit in float32. With
    `ops="stock"` it has no ops of sok-embed, so that any TensorFlow loads it, and an unmodified
    model server serves it.

    With several workers this is collective: all of them call it, with the same arguments, for a
    folder that all of them share. Each writes its rows there, and worker 0 makes the one model. An
    error of one worker is an error of all. A checkpoint is read by worker 0 alone.

    A folder gets its number once it is complete and on the device. A model server that watches
    `path` loads it then. The folder in which it is made goes with its process or, if that was
    killed, with the next export. For an object store it is made in the system's folder for
    temporary files, and copied; several workers can do so with `source=`.

    Example:
    >>> import numpy as np
    >>> from sok_embed import DynamicEmbedding
    >>> model = keras.Sequential([keras.Input((2,), dtype="int64", name="items"),
    ...                           DynamicEmbedding(4, "zeros"), keras.layers.Flatten()])
    >>> folder = export(model, "versions")
    >>> os.path.basename(folder)
    '1'
    >>> loaded = tf.saved_model.load(folder)  # rows can be read as long as this object lives
    >>> serve = loaded.signatures["serving_default"]
    >>> keys = np.array([[7, -1]])
    >>> (vectors,) = serve(items=tf.constant(keys)).values()
    >>> bool(np.array_equal(vectors, model.predict(keys, verbose=0)))
    True

    Args:
        model: A Keras model that is built, or the path of a `.keras` file.
        path: The folder of all versions of the model, which is made if there is none, or a URL of
            an object store, such as `s3://bucket/served`. The export gets the number after the
            greatest there.
        dtype: The type of rows: `"float32"`, `"float16"`, `"int8"` or `"int4"`, as
            `sok_embed.serving.rows.write` has them.
        min_count: The least number of updates; rows with fewer are left out, and their keys are
            unknown. Of an `AdaptiveEmbedding` own rows, whose keys have their static rows then.
        missing: The vectors of unknown keys: `"initializer"`, those that training would start from,
            as `model.predict` has them; or `"zeros"`. A `default_vector=` of a layer comes before
            both.
        ops: `"native"`: rows lie in files, which the ops of `libsok_serving` map and find keys in.
            `"stock"`: rows lie in variables, and TensorFlow's own ops find them. Initializers of
            tables have to be constant then, or `missing="zeros"`; those of an `AdaptiveEmbedding`,
            of feature columns and of tables without a hash may be any. `"onnx"`: the same, written
            as `model.onnx`, which takes the extra `onnx`; sums of rows differ in the last bits.
        source: The folder of a `sok_embed.checkpoint.Checkpoint(model)`, or its URL, whose rows and
            dense weights are exported instead of the model's own. The model must be made and
            compiled like the saved one, and is not changed. Any number of workers may have saved
            the checkpoint; rows are read some at a time, and with `ops="native"` no table is in
            memory as a whole. `None`: the model's own are exported.
        input_signature: The signature of the inputs, as for `sok_embed.export_model`, which says
            what the names of ragged and sparse inputs are too.
        progress: A function that is called now and then with the number of rows so far and of all
            rows.

    Returns:
        The path of the folder, such as `"versions/1"`, or its URL. The endpoint is `serve`, and
        `serving_default`.

    Raises:
        ValueError: For an argument that is none of these, rows that are not finite, a path that is
            a file, a URL with several workers and no `source`, an initializer that is not constant
            where it would have to be, the checkpoint of another model, workers that have different
            models, steps or arguments, and what `sok_embed.export_model` refuses; with `ops="onnx"`
            also for ops that ONNX or onnxruntime does not have, and for 2 GiB or more.
        ImportError: With `ops="onnx"`, without tf2onnx and onnxruntime, and for a URL, without
            fsspec or what it needs for the store.
        FileNotFoundError: If `source` has no complete checkpoint.
        OSError: If nothing can be written to `path`, or copied there.
        sok_embed.kv.CorruptionError: For a checkpoint with files that are not as they were written.
        RuntimeError: If another thread changes the model meanwhile, and if another worker has
            failed.
    """
    check_choice("dtype", dtype, _DTYPES, remedy="Pass the name, as in dtype='float16'.")
    check_choice("missing", missing, _MISSING)
    check_choice("ops", ops, _OPS)
    options = _Options(dtype, check_integer("min_count", min_count, 0), missing, ops, progress)
    agreement = Agreement(communicators.current())
    store = stored_at(path)
    if store is not None and ops == "onnx":
        raise ValueError(
            f"Expected a folder for an export with ops='onnx'. Received: '{os.fsdecode(path)}', a "
            "URL, where versions are those that sok_embed.serving.load follows. Export to a "
            "folder, and copy its files."
        )
    # A checkpoint has the optimizer too, which is compared.
    compiled = source is not None
    built = agreement.together("load the model", lambda: _model(model, compiled))

    def written(rows: CheckpointRows | WrittenTables | None, moment: Moment) -> str:
        def write(folder: str) -> None:
            work = os.path.join(folder, "rows")
            os.mkdir(work)
            tables = _Tables(built, options, work, rows)
            with served_by(tables, tables.pool, ops != "onnx"), _errors_as_they_are():
                served = _served(built, input_signature, tables)
                if ops == "onnx":
                    # This imports tf2onnx, which no other export needs.
                    from sok_embed.serving.onnx_files import write_onnx

                    write_onnx(served, tables.made, folder)
                else:
                    with tables.files.set_aside(os.path.join(folder, "assets")):
                        tf.saved_model.save(served, folder, signatures=served.serve)
            moment.check()
            shutil.rmtree(work)

        return write_version(path, write) if store is None else write_to_store(store, write)

    def of_checkpoint() -> str:
        assert source is not None
        checkpoint = CheckpointRows(built, source)
        with contextlib.closing(checkpoint), checkpoint.dense_weights():
            return written(checkpoint, Moment(built))

    if agreement.size == 1:
        return of_checkpoint() if source is not None else written(None, Moment(built))
    if source is not None:
        return written_by_first(agreement, os.fsdecode(path), of_checkpoint)
    arguments = repr((dtype, min_count, missing, ops))
    return export_of_workers(agreement, built, path, arguments, options.min_count, written)


@contextlib.contextmanager
def _errors_as_they_are() -> Iterator[None]:
    """Shows errors of layers without Keras' additions on the calls that the export makes."""
    filters = keras.config.is_traceback_filtering_enabled()
    keras.config.disable_traceback_filtering()
    try:
        yield
    finally:
        if filters:
            keras.config.enable_traceback_filtering()


def _model(model: Any, compiled: bool) -> keras.Model:
    if isinstance(model, keras.Model):
        return model
    if not isinstance(model, (str, os.PathLike)):
        raise ValueError(
            f"Expected a Keras model, or the path of a .keras file. Received: {described(model)}."
        )
    return keras.models.load_model(os.fspath(model), compile=compiled)


class _Tables:
    """Makes the substitutes of tables for serving, one for each table.

    Without `rows`, from a checkpoint or from files of workers, the tables have the rows.
    """

    def __init__(
        self,
        model: keras.Model,
        options: _Options,
        folder: str,
        rows: CheckpointRows | WrittenTables | None,
    ) -> None:
        self._options = options
        self.files = TableFiles(folder, options.dtype)
        self._made: dict[int, tuple[Any, Any]] = {}
        if rows is None:
            found = tf.train.TrackableView(model).descendants()
            tables = [each for each in found if isinstance(each, (Table, AdaptiveTable))]
            self._rows = sum(table.size() for table in tables)
            self._held: Callable[..., HeldRows] = HeldRows
        else:
            self._rows, self._held = rows.size(), rows.held
        self._done = 0

    def __call__(self, table: Any) -> Any:
        """Returns the substitute of a table; `None` for a resource without rows."""
        if not isinstance(table, (Table, AdaptiveTable)):
            return None
        if id(table) not in self._made:
            # The graph that serves is being traced.
            with tf.init_scope():
                self._made[id(table)] = (table, self._stand_in(table))
        return self._made[id(table)][1]

    @property
    def pool(self) -> Pool | None:
        """The function that pools rows; `None`: TensorFlow's ops do."""
        if self._options.ops != "native":
            return None
        # This loads a library of ops, which not every process that exports needs.
        from sok_embed.serving.served_table import pool

        return pool

    @property
    def made(self) -> list[tuple[str, Any]]:
        """The names of tables, and the substitutes that have been made."""
        return [(table.name, stand_in) for table, stand_in in self._made.values()]

    def _taken(self, rows: int) -> None:
        self._done += rows
        if self._options.progress is not None:
            self._options.progress(self._done, max(self._done, self._rows))

    def _stand_in(self, table: Table | AdaptiveTable) -> Any:
        options = self._options
        own = self._held(table.parts[0], options.min_count, self._taken)
        if isinstance(table, Table):
            return self._rows_of(own, options.missing)
        # The first file has the name of the table, and keys are looked up in it.
        own_rows = self._rows_of(own, "zeros")
        static = self._held(table.parts[1])
        buckets = table.static_buckets
        if options.ops != "native":
            all_static: ServedRows = DenseRows(static, self.files, buckets, "initializer")
        else:
            all_static = self._rows_of(static, "initializer")
        return AdaptiveRows(own_rows, all_static, buckets)

    def _rows_of(self, held: HeldRows, missing: str) -> ServedRows:
        if self._options.ops != "native":
            return stock_rows(held, self.files, missing)
        # This loads a library of ops, which not every process that exports needs.
        from sok_embed.serving.native_rows import NativeRows

        return NativeRows(held, self.files, missing)


def _served(model: keras.Model, input_signature: Any, tables: _Tables) -> Any:
    """Returns the module that is saved: the function, and the objects that it reads."""
    options = {"training": False} if takes_training(model) else {}
    serve, parts = serving_function(model, input_signature, **options)
    served = tf.Module(name=model.name)
    served.serve = tf.function(
        serve, input_signature=[{part.name: part for part in parts}], autograph=False
    )
    graph = served.serve.get_concrete_function().graph
    # These are all variables of the graph: it has no anchors, slots or tables.
    read = {id(each) for each in graph.variables}
    named = names_of(model, graph.variables)
    served.weights = {name: each for name, each in named.items() if id(each) in read}
    served.tables = [stand_in for _, stand_in in tables.made]
    adapted = json.dumps(adapted_layers(model))
    served.adapted = tf.function(lambda: tf.constant(adapted), input_signature=[])
    handles = {id(handle) for handle, _ in graph.captures}
    served.resources = [
        each
        for each in tf.train.TrackableView(model).descendants()
        if isinstance(each, tf.saved_model.experimental.TrackableResource)
        and not isinstance(each, OwnedResource)
        and id(each.resource_handle) in handles
    ]
    return served
