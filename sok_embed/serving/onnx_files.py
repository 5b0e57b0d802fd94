"""Exports as ONNX, made of graphs of TensorFlow's own ops by tf2onnx."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from sok_embed.serving import onnx_ops
from sok_embed.serving.versions import ONNX_MODEL

_ARRAYS = f"{ONNX_MODEL}.data"
_OPSET = 18  # the first that has bitwise operations, which hashes of keys take
# Bytes of all arrays: a graph of TensorFlow, which tf2onnx reads, has less than 2 GiB with its ops.
_MOST = 2**31 - 2**24
_OWN_FILE = 1024  # bytes from which on an array lies beside the graph, where it can be mapped


def write_onnx(served: tf.Module, tables: Sequence[tuple[str, Any]], folder: str) -> None:
    """Writes the function `serve` of a module as `model.onnx`, and large arrays beside it.

    Args:
        served: The module.
        tables: The names of the tables that it reads, and the modules with their rows.
        folder: The folder in which the files are made.

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
    _check_size(served.name, function.graph.variables, captured.values(), tables)
    graph, tables_of_ids = tf_loader.from_trackable(served, function, inputs, outputs, False)
    _set_constants(graph, captured)
    _check_exact(graph, served.name)
    with _silent("tf2onnx"), tf.Graph().as_default() as imported:
        tf.import_graph_def(graph, name="")
        # The first drops casts there and back, and so what they round. The other writes 0 for a
        # size that stays, where ours say that it is 0.
        without = {"remove_back_to_back", "reshape_optimizer"}
        every = vars(optimizer)["_optimizers"]  # of tf2onnx, not of Keras
        optimizers = {name: every[name] for name in every if name not in without}
        try:
            converted = process_tf_graph(
                imported,
                opset=_OPSET,
                input_names=inputs,
                output_names=outputs,
                tensors_to_rename=names,
                initialized_tables=tables_of_ids,
                custom_op_handlers=onnx_ops.handlers(tables_of_ids),
            )
            # Without catching errors it makes no copies of all arrays.
            optimized = optimizer.optimize_graph(converted, False, optimizers)
            model = optimized.make_model(served.name)
        except Exception as error:  # of any class
            raise ValueError(
                f"Model '{served.name}': expected a graph that tf2onnx converts. Received: "
                f"{error}. Export it with ops='stock'."
            ) from error
    _check_ops(model, served.name)
    path = os.path.join(folder, ONNX_MODEL)
    onnx.save_model(
        model, path, save_as_external_data=True, location=_ARRAYS, size_threshold=_OWN_FILE
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


def _check_size(
    name: str,
    variables: Sequence[tf.Variable],
    captured: Iterable[tf.Tensor],
    tables: Sequence[tuple[str, Any]],
) -> None:
    """Raises for more bytes than a graph of TensorFlow takes."""
    everything = _bytes_of([*variables, *captured])
    if everything <= _MOST:
        return
    read = {id(each) for each in variables}
    sizes = [
        (_bytes_of(each for each in rows.variables if id(each) in read), f"table '{table}'")
        for table, rows in tables
    ]
    sizes.append((everything - sum(size for size, _ in sizes), "weights"))
    shown = ", ".join(f"{what} {size / 2**20:.1f} MiB" for size, what in sorted(sizes)[::-1])
    raise ValueError(
        f"Model '{name}': expected rows and weights of less than {_MOST >> 20} MiB, which a "
        f"graph of TensorFlow takes, from which ONNX is made. Received: {shown}. Export it with "
        "ops='native', and look rows up before the graph by sok_embed.serving.rows, or pass "
        "dtype='int8' or a min_count."
    )


def _bytes_of(arrays: Iterable[Any]) -> int:
    return sum(each.shape.num_elements() * each.dtype.size for each in arrays)


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
