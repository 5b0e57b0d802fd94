"""An exported model that is loaded, and runs at any version of its rows and weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sok_embed.files.forks import check_process
from sok_embed.serving import rows as rows_files
from sok_embed.serving.adapted_layers import Adapted
from sok_embed.serving.delta_files import Base, ExportedTable
from sok_embed.serving.layers import State
from sok_embed.serving.safetensors import WeightSpec
from sok_embed.serving.versions import Version, identity_of


class Snapshot:
    """A model at one version, with all of its rows and dense weights.

    Its answers do not change while it is kept, whatever is published meanwhile.

    Attributes:
        version: The version.
        step: The step of the training; -1 for the export, whose step is not known.
        inputs: The `tf.TensorSpec` of each dense part of the inputs, by name.
        outputs: The `tf.TensorSpec` of each dense part of the outputs, by name.
        base: The export behind it.
        state: The files and bytes behind it.
    """

    def __init__(
        self, export: LoadedExport, state: State, tables: list[Any], weights: dict[str, Any]
    ) -> None:
        self.version = Version(export.number, state.number)
        self.step = state.step
        self.inputs = export.inputs
        self.outputs = export.outputs
        self._export = export
        self.base = export.base
        self.state = state
        self._tables = tables
        self._weights = weights
        own = {id(each.handle): weights[name].handle for name, each in export.weights.items()}
        for before, table in zip(export.tables, tables, strict=True):
            own[id(before)] = before if table is before else table.resource_handle
        self._captures = [own.get(id(each), each) for each in export.captures]

    def __call__(self, **inputs: Any) -> dict[str, tf.Tensor]:
        """Returns what the model answers, as the signature of the SavedModel does.

        Args:
            **inputs: The dense parts of the inputs, as `sok_embed.serving.export` names them.

        Raises:
            TypeError: For inputs of other names, and for values that their dtypes do not hold.
        """
        return self._export.run(inputs, self._captures)


class LoadedExport:
    """A SavedModel of `sok_embed.serving.export`, which is loaded once and runs at any version.

    Raises:
        ValueError: For a SavedModel that `serving.export` has not written with `ops="native"`.
        OSError: From the file system and from TensorFlow.
    """

    def __init__(self, folder: str) -> None:
        # The ops must be known before the SavedModel is loaded.
        from sok_embed.serving import served_table

        self._layered = served_table.LayeredRows
        self.folder = folder
        self._process = os.getpid()
        self.number = int(os.path.basename(folder))
        self._loaded = tf.saved_model.load(folder)
        signatures = getattr(self._loaded, "signatures", {})
        variables = getattr(self._loaded, "weights", None)
        if "serving_default" not in signatures or variables is None:
            raise ValueError(
                f"Expected a SavedModel of sok_embed.serving.export in '{folder}'. Received: "
                "another SavedModel. Export the model with sok_embed.serving.export."
            )
        function = signatures["serving_default"]
        self.captures = list(function.captured_inputs)
        found = {}
        for each in tf.train.TrackableView(self._loaded).descendants():
            if hasattr(each, "_rows") and hasattr(each, "_file"):
                name = os.path.basename(each._file.asset_path.numpy().decode())
                found[name] = each._rows.resource_handle
        if not found and len(self._loaded.tables):
            raise ValueError(
                f"Expected an export with ops='native' in '{folder}', whose rows lie in files. "
                "Received: an export with other ops, to which deltas cannot be applied. Export "
                "the model with ops='native', or load this one with tf.saved_model.load."
            )
        self.weights = _named(variables, folder)
        # Exports of earlier versions of this library do not say what layers had learned.
        self.adapted: list[Adapted] | None = None
        if hasattr(self._loaded, "adapted"):
            self.adapted = [Adapted(*each) for each in json.loads(self._loaded.adapted().numpy())]
        self.tables = [found[name] for name in sorted(found)]
        self.base = Base(
            folder,
            identity_of(folder),
            [
                ExportedTable(name, rows_files.open(os.path.join(folder, "assets", name)))
                for name in sorted(found)
            ],
            {
                name: WeightSpec(each.dtype.name, tuple(each.shape))
                for name, each in self.weights.items()
            },
        )
        (_, self.inputs) = function.structured_input_signature
        self.outputs = function.structured_outputs
        self._run = _runner(function, self.captures)

    def check_process(self) -> None:
        """Raises RuntimeError in a process that was forked after the export was loaded."""
        check_process(
            self._process,
            "a served model",
            "Load the model in each process: under gunicorn without preload_app, or in a function "
            "post_fork; with multiprocessing use the start method 'spawn'.",
        )

    def run(self, inputs: Mapping[str, Any], captures: list[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Runs the signature with the given captures instead of its own.

        Raises:
            TypeError: For inputs of other names, and for values that their dtypes do not hold.
            RuntimeError: In a process that was forked after the model was loaded.
        """
        self.check_process()
        if set(inputs) != set(self.inputs):
            raise TypeError(
                f"Expected the inputs {', '.join(sorted(self.inputs))}. Received: "
                f"{', '.join(sorted(inputs)) or 'none'}."
            )
        tensors = {
            name: _tensor(name, inputs[name], spec.dtype) for name, spec in self.inputs.items()
        }
        return dict(zip(sorted(self.outputs), self._run(tensors, captures), strict=True))

    def snapshot(self, state: State, before: Snapshot | None = None) -> Snapshot:
        """Returns the model at a version; takes over unchanged tables of the one `before`."""
        tables = []
        for i, (base, table) in enumerate(zip(self.tables, state.tables, strict=True)):
            if not table.layers:
                tables.append(base)
            elif before is not None and before.state.tables[i] is table:
                tables.append(before._tables[i])
            else:
                gone, rows = (
                    ["" if file is None else file.path for file in files]
                    for files in zip(
                        *((each.gone, each.rows) for each in table.layers), strict=True
                    )
                )
                tables.append(self._layered(base, gone, rows))
        if state.weights is None:
            return Snapshot(self, state, tables, dict(self.weights))
        weights = {}
        for name, values in state.weights.items():
            if before is not None and before.state.weights and before.state.weights[name] == values:
                weights[name] = before._weights[name]
                continue
            like = self.weights[name]
            array = np.frombuffer(values, like.dtype.as_numpy_dtype).reshape(like.shape)
            weights[name] = tf.Variable(array, trainable=False, dtype=like.dtype)
        return Snapshot(self, state, tables, weights)


def array_of(name: str, value: Any, dtype: tf.DType) -> npt.NDArray[Any]:
    """Returns numbers as an array of a dtype, as an input of a model takes them.

    Raises:
        TypeError: Where NumPy would truncate, or make keys of NaNs.
    """
    wanted = np.dtype(dtype.as_numpy_dtype)
    given = np.asarray(value)
    if {given.dtype, wanted} == {np.dtype(np.int64), np.dtype(np.uint64)}:
        return given.view(wanted)  # the same bits are the same key
    fits = given.size == 0 or (
        given.dtype.kind in "iufb"
        and np.can_cast(given.dtype, wanted, "same_kind")
        and (given.dtype.kind == "b") == (wanted.kind == "b")
    )
    if fits:
        cast = given.astype(wanted)
        if dtype.is_floating or np.array_equal(cast, given):
            return cast
    raise TypeError(
        f"Expected values of {dtype.name} for the input '{name}'. Received: {given.dtype}, such as "
        f"{given.ravel()[:1].tolist()}."
    )


def _tensor(name: str, value: Any, dtype: tf.DType) -> tf.Tensor:
    if tf.is_tensor(value) or np.dtype(dtype.as_numpy_dtype).kind not in "iufb":
        return tf.convert_to_tensor(value, dtype)
    return tf.convert_to_tensor(array_of(name, value, dtype))


def _named(variables: Any, folder: str) -> dict[str, tf.Variable]:
    """Returns the dense weights of an export by their names."""
    if isinstance(variables, Mapping):
        return dict(variables)
    # An earlier version of this library has written a list.
    named = {each.name.removesuffix(":0"): each for each in variables}
    if len(named) < len(variables):
        raise ValueError(
            f"Expected dense weights of different names in '{folder}'. Received: "
            f"{', '.join(sorted(each.name for each in variables))}, in an export of an earlier "
            "version of sok-embed. Export the model again."
        )
    return named


def _runner(function: Any, captures: list[tf.Tensor]) -> Any:
    """Returns a function of inputs by name and of captures, which is traced once.

    Captures are resources, and the constants of the model.
    """
    definition = function.graph.as_graph_def()
    _, specs = function.structured_input_signature
    placeholders = [each.name for each in function.inputs]
    inputs, handles = placeholders[: len(specs)], placeholders[len(specs) :]
    outputs = [each.name for each in function.outputs]

    def run(given: dict[str, tf.Tensor], captured: list[tf.Tensor]) -> list[tf.Tensor]:
        fed = dict(zip(inputs, (given[name] for name in sorted(specs)), strict=True))
        fed |= dict(zip(handles, captured, strict=True))
        return tf.graph_util.import_graph_def(definition, fed, outputs, name="")

    function_of = tf.function(run, autograph=False)
    # A concrete function takes a third of the time of a function that checks its arguments first.
    return function_of.get_concrete_function(
        {name: tf.TensorSpec(spec.shape, spec.dtype) for name, spec in specs.items()},
        [tf.TensorSpec(each.shape, each.dtype) for each in captures],
    )
