"""Exports as ONNX, made of graphs of TensorFlow's own ops by tf2onnx."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from sok_embed.serving import onnx_ops

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
    if not isinstance(function.structured_outputs, dict):
        names.update((each, f"output_{number}") for number, each in enumerate(outputs))
    try:
        graph, tables = tf_loader.from_trackable(served, function, inputs, outputs, False)
    except ValueError as error:
        if "2GB" not in str(error) and "Invalid GraphDef" not in str(error):
            raise
        raise ValueError(
            f"Model '{served.name}': expected rows and weights of less than 2 GiB, which a graph "
            "of ONNX takes. Received: more. Export it with ops='native', and look rows up "
            "before the graph by sok_embed.serving.rows, or pass dtype='int8' or a min_count."
        ) from error
    _set_constants(graph, captured)
    _check_exact(graph, served.name)
    with _silent("tf2onnx"), tf.Graph().as_default() as imported:
        tf.import_graph_def(graph, name="")
        try:
            converted = process_tf_graph(
                imported,
                opset=_OPSET,
                input_names=inputs,
                output_names=outputs,
                tensors_to_rename=names,
                initialized_tables=tables,
                custom_op_handlers=onnx_ops.handlers(tables),
            )
        except Exception as error:  # of any class
            raise ValueError(
                f"Model '{served.name}': expected a graph that tf2onnx converts. Received: "
                f"{error}. Export it with ops='stock'."
            ) from error
        # This one drops casts there and back, and so what they round.
        optimizers = {**optimizer._optimizers}
        del optimizers["remove_back_to_back"]
        optimized = optimizer.optimize_graph(converted, optimizers=optimizers)
        model = optimized.make_model(served.name)
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


def _named(bodies: Iterable[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Returns each node of graphs, with the nodes of its graph by their names."""
    for nodes in bodies:
        named = {node.name: node for node in nodes}
        yield from ((node, named) for node in nodes)


def _check_exact(graph: tf.compat.v1.GraphDef, name: str) -> None:
    """Raises for ops that ONNX would compute otherwise in silence."""
    bodies = [graph.node, *(each.node_def for each in graph.library.function)]
    for node, named in _named(bodies):
        if not onnx_ops.is_exact(node, named):
            kinds = " to ".join(each.name for each in onnx_ops.types_of(node))
            raise ValueError(
                f"Model '{name}': expected ops that are the same in ONNX. Received: {node.op} "
                f"({kinds}) at '{node.name}'. Move what this layer does out of the model, or "
                "export it with ops='stock'."
            )


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Keeps a logger quiet: what is wrong is raised here."""
    logger, root = logging.getLogger(name), logging.getLogger()
    level = logger.level
    # Its library also logs to the root, which would get a handler of its own that stays.
    none = logging.NullHandler()
    root.addHandler(none)
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
        root.removeHandler(none)


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
