"""Exports as ONNX, made of graphs of TensorFlow's own ops by tf2onnx."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

MODEL, ARRAYS = "model.onnx", "model.onnx.data"
_OPSET = 18  # the first that has bitwise operations, which hashes of keys take
_OWN_FILE = 1024  # bytes from which on an array lies beside the graph, where it can be mapped


def write_onnx(served: tf.Module, folder: str) -> None:
    """Writes the function `serve` of a module as `model.onnx`, and large arrays beside it.

    Raises:
        ImportError: Without tf2onnx and onnxruntime.
        ValueError: For a graph with ops that ONNX or onnxruntime does not have, or of 2 GiB.
    """
    _check_installed()
    import onnx
    from tf2onnx import convert, optimizer, tf_loader
    from tf2onnx.tfonnx import process_tf_graph

    function = served.serve.get_concrete_function()
    captured = {
        inside.op.name: outside
        for outside, inside in function.graph.captures
        if outside.dtype != tf.resource
    }
    inputs = [
        each.name
        for each in function.inputs
        if each.dtype != tf.resource and each.op.name not in captured
    ]
    outputs = [each.name for each in function.outputs]
    names = convert.tensor_names_from_structed(function, inputs, outputs)
    try:
        graph, tables = tf_loader.from_trackable(served, function, inputs, outputs, False)
    except ValueError as error:
        if "2GB" not in str(error):
            raise
        raise ValueError(
            f"Model '{served.name}': expected rows and weights of less than 2 GiB, which a graph "
            "of ONNX takes. Received: more. Export it with ops='native', and look rows up "
            "before the graph by sok_embed.serving.rows, or pass dtype='int8' or a min_count."
        ) from error
    _set_constants(graph, captured)
    with _silent("tf2onnx"), tf.Graph().as_default() as imported:
        tf.import_graph_def(graph, name="")
        converted = process_tf_graph(
            imported,
            continue_on_error=True,
            opset=_OPSET,
            input_names=inputs,
            output_names=outputs,
            tensors_to_rename=names,
            initialized_tables=tables,
            custom_op_handlers={"SelectV2": (_as_where, [])},
        )
        model = optimizer.optimize_graph(converted).make_model(served.name)
    _check_ops(model, served.name)
    path = os.path.join(folder, MODEL)
    onnx.save_model(
        model, path, save_as_external_data=True, location=ARRAYS, size_threshold=_OWN_FILE
    )
    _check_runs(path, served.name)


def _check_installed() -> None:
    try:
        import onnxruntime
        import tf2onnx
    except ImportError as error:
        raise ImportError(
            "Expected tf2onnx and onnxruntime, which write ONNX and check it. Received: "
            f"{error}. Run pip install 'sok-embed[onnx]'."
        ) from error
    del onnxruntime, tf2onnx


def _as_where(_: Any, node: Any, *arguments: Any, **options: Any) -> None:
    """Makes `Where` of `SelectV2`: tf2onnx takes products with 0 and 1, of which inf makes NaN."""
    node.type, node.domain = "Where", ""


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Keeps a logger quiet: what cannot be converted is raised here."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _set_constants(graph: tf.compat.v1.GraphDef, values: Mapping[str, tf.Tensor]) -> None:
    """Makes constants of the placeholders by which a function captures tensors."""
    for node in graph.node:
        if node.name in values:
            value = values[node.name]
            node.op = "Const"
            node.attr.clear()
            node.attr["dtype"].type = value.dtype.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))


def _check_ops(model: Any, name: str) -> None:
    import onnx

    versions = {each.domain: each.version for each in model.opset_import}
    unknown: dict[str, list[str]] = collections.defaultdict(list)
    for node in _nodes(model.graph):
        if not onnx.defs.has(node.op_type, versions.get(node.domain, 1), node.domain):
            unknown[node.op_type].append(node.name)
    if unknown:
        found = "; ".join(f"{op} at '{places[0]}'" for op, places in sorted(unknown.items()))
        raise ValueError(
            f"Model '{name}': expected ops that ONNX has. Received: {found}. Move what these "
            "layers do out of the model, or export it with ops='stock'."
        )


def _nodes(graph: Any) -> Iterator[Any]:
    """Returns the nodes of a graph, and those of the graphs inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _check_runs(path: str, name: str) -> None:
    import onnxruntime

    try:
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes have no name of their own
        raise ValueError(
            f"Model '{name}': expected a graph that onnxruntime {onnxruntime.__version__} loads. "
            f"Received: {error}. Export it with ops='stock'."
        ) from error
