"""Exports as ONNX, made of graphs of TensorFlow's own ops by tf2onnx."""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

# Ops of TensorFlow that give the same in onnxruntime, but for the last bits of float32. Tests
# compare those of our layers and of usual ones of Keras. tf2onnx converts further ops, some only
# right for small numbers.
_EXACT = frozenset(
    """
    AddV2 All Any ArgMax BitwiseAnd BitwiseOr BitwiseXor BroadcastTo Cast ConcatV2 Const Cumsum
    EnsureShape Equal ExpandDims Fill GatherNd GatherV2 GreaterEqual HashTableV2
    Identity IdentityN If StatelessIf LessEqual LogicalAnd LogicalNot LogicalOr
    LookupTableFindV2 Maximum Minimum Mul NoOp NotEqual OnesLike Pack Pad PadV2 Placeholder
    Range Reshape ReverseV2 RightShift SelectV2 Shape Size Slice Split SplitV Squeeze
    StopGradient StridedSlice Sub TensorListFromTensor TensorListGetItem TensorListReserve
    TensorListSetItem TensorListStack Tile Transpose Unpack UnsortedSegmentMax UnsortedSegmentSum
    Where While StatelessWhile ZerosLike
    """.split()
)
_FLOAT = frozenset(
    """
    Abs AvgPool BatchMatMulV2 BiasAdd Conv2D DivNoNan Einsum Elu Erf Exp FusedBatchNormV3 LeakyRelu
    Log LogSoftmax MatMul MaxPool Mean Neg Pow RealDiv Reciprocal Relu Relu6 Rsqrt Selu Sigmoid
    Softmax Softplus Softsign Sqrt Square SquaredDifference Sum Tanh
    """.split()
)

_TYPES = ("SrcT", "T", "DstT")
# tf2onnx divides integers towards zero, and takes products with 0 and 1 for a choice, of which inf
# makes NaN.
_SAME = {"SelectV2": "Where", "FloorMod": "Mod"}

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
        converted = process_tf_graph(
            imported,
            continue_on_error=True,
            opset=_OPSET,
            input_names=inputs,
            output_names=outputs,
            tensors_to_rename=names,
            initialized_tables=tables,
            custom_op_handlers={name: (_renamed, [op]) for name, op in _SAME.items()},
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


def _renamed(_: Any, node: Any, name: str, arguments: list[str]) -> None:
    """Makes an op of ONNX of one of TensorFlow with the same inputs."""
    node.type, node.domain = arguments[0], ""


def _check_exact(graph: tf.compat.v1.GraphDef, name: str) -> None:
    """Raises for ops that ONNX would compute otherwise in silence."""
    nodes = itertools.chain(graph.node, *(each.node_def for each in graph.library.function))
    named = {node.name: node for node in graph.node}
    for node in nodes:
        if not _is_exact(node, named):
            kinds = " to ".join(each.name for each in _types_of(node))
            raise ValueError(
                f"Model '{name}': expected ops that are the same in ONNX. Received: {node.op} "
                f"({kinds}) at '{node.name}'. Move what this layer does out of the model, or "
                "export it with ops='stock'."
            )


def _types_of(node: Any) -> list[tf.DType]:
    return [tf.as_dtype(node.attr[each].type) for each in _TYPES if node.attr[each].type]


def _is_of_shapes(node: Any, named: Mapping[str, Any]) -> bool:
    """Returns whether a node computes with nothing but shapes and constants."""
    inputs = [named.get(each.lstrip("^").split(":")[0]) for each in node.input]
    return all(
        each is not None and (each.op in ("Const", "Shape", "Size") or _is_of_shapes(each, named))
        for each in inputs
    ) and bool(inputs)


def _is_exact(node: Any, named: Mapping[str, Any]) -> bool:
    types = _types_of(node)
    if node.op == "Cast":
        # tf2onnx drops casts there and back, and so what they round.
        given, wanted = types
        rounds = given.is_floating and wanted.is_integer
        return not rounds and wanted not in (tf.float16, tf.bfloat16)
    if node.op in _FLOAT:
        return types[0] in (tf.float32, tf.float64)
    if node.op == "FloorMod":
        return types[0].is_integer
    if node.op in ("Less", "Greater"):  # tf2onnx compares these as float32
        return types[0] not in (tf.int64, tf.uint64)
    if node.op in ("Prod", "Max", "Min"):
        return types[0] != tf.int64 or _is_of_shapes(node, named)
    return node.op in _EXACT


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
