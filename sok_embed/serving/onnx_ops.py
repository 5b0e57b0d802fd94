"""Ops of TensorFlow as ONNX: which of them give the same, and conversions of some."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# Ops of TensorFlow that give the same in onnxruntime, but for the last bits of float32. Tests
# compare those of our layers and of usual ones of Keras. tf2onnx converts further ops, some only
# right for small numbers.
_EXACT = frozenset(
    """
    AddV2 All Any ArgMax BitwiseAnd BitwiseOr BitwiseXor BroadcastTo ConcatV2 Const Cumsum
    EnsureShape Equal ExpandDims Fill GatherNd GatherV2 Greater GreaterEqual HashTableV2
    Identity IdentityN If StatelessIf Less LessEqual LogicalAnd LogicalNot LogicalOr
    LookupTableFindV2 Max Maximum Min Minimum Mul NoOp NotEqual OnesLike Pack Pad PadV2 Placeholder
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
_FLOATS = (tf.float32, tf.float64)
_TYPES = ("SrcT", "T", "DstT", "type", "Tin", "Tout")


def types_of(node: Any) -> list[tf.DType]:
    """Returns the types that a node of a graph of TensorFlow names."""
    return [tf.as_dtype(node.attr[each].type) for each in _TYPES if node.attr[each].type]


def is_exact(node: Any, named: Mapping[str, Any]) -> bool:
    """Returns whether a node of a graph of TensorFlow gives the same in ONNX.

    Args:
        node: The node.
        named: The nodes of its graph by their names.
    """
    types = types_of(node)
    if node.op == "Cast":
        return types[-1] not in (tf.float16, tf.bfloat16)
    if node.op == "Bitcast":
        return {*types} <= {tf.int64, tf.uint64}
    if node.op == "Conv2D" and max(node.attr["dilations"].list.i, default=1) > 1:
        # With SAME, onnxruntime loads it, and fails as it runs.
        return types[0] in _FLOATS and node.attr["padding"].s != b"SAME"
    if node.op in _FLOAT:
        return types[0] in _FLOATS
    if node.op == "FloorMod":
        return types[0].is_integer
    if node.op == "FloorDiv":
        return types[0].is_integer and _divides(named.get(node.input[1].split(":")[0]))
    if node.op == "OneHot":
        return node.attr["axis"].i == -1
    if node.op == "Prod":  # onnxruntime multiplies integers as float64
        return types[0] in _FLOATS or _is_of_shapes(node, named)
    return node.op in _EXACT


def _divides(node: Any) -> bool:
    """Returns whether a node is a number that onnxruntime divides every integer by."""
    if node is None or node.op != "Const":
        return False
    return not np.isin(tf.make_ndarray(node.attr["value"].tensor), [0, -1]).any()


def _is_of_shapes(node: Any, named: Mapping[str, Any]) -> bool:
    """Returns whether a node computes with nothing but shapes and constants."""
    inputs = [named.get(each.lstrip("^").split(":")[0]) for each in node.input]
    return all(
        each is not None and (each.op in ("Const", "Shape", "Size") or _is_of_shapes(each, named))
        for each in inputs
    ) and bool(inputs)


def handlers(tables: Mapping[str, Any]) -> dict[str, tuple[Callable[..., None], list[str]]]:
    """Returns conversions that replace those of tf2onnx, by ops of TensorFlow.

    Args:
        tables: The keys and values of tables that ops look up, by the names that these share.
    """
    functions: dict[str, Callable[[Any, _Nodes], None]] = {
        "Bitcast": _cast,
        "FloorDiv": _divide,
        "FloorMod": lambda node, make: make.last("Mod", *node.input),
        "Greater": lambda node, make: _compare("Greater", node, make),
        "Less": lambda node, make: _compare("Less", node, make),
        "LookupTableFindV2": lambda node, make: _look_up(tables, node, make),
        "Mean": _mean,
        "OneHot": _one_hot,
        "Reshape": _reshape,
        # tf2onnx chooses by products with 0 and 1, in which inf makes NaN.
        "SelectV2": lambda node, make: make.last("Where", *node.input),
        "UnsortedSegmentMax": _reduce_segments,
        "UnsortedSegmentSum": _reduce_segments,
    }

    def handler(function: Callable[[Any, _Nodes], None]) -> Callable[..., None]:
        return lambda graph, node, *_: function(node, _Nodes(graph, node))

    return {op: (handler(function), []) for op, function in functions.items()}


class _Nodes:
    """Makes nodes of ONNX in place of a node of TensorFlow."""

    def __init__(self, graph: Any, node: Any) -> None:
        self._graph, self._node = graph, node

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Returns the output of a new node."""
        return str(self._graph.make_node(op, list(inputs), attr=attributes).output[0])

    def of(self, numbers: Any, dtype: Any = np.int64) -> str:
        """Returns the output of a constant."""
        from tf2onnx import utils

        name = utils.make_name(self._node.name)
        return str(self._graph.make_const(name, np.array(numbers, dtype)).output[0])

    def type_of(self, name: str) -> Any:
        """Returns the type of an output, as ONNX counts types; `None`: it is not known."""
        return self._graph.get_dtype(name)

    def shape_of(self, name: str) -> Any:
        """Returns the sizes of an output, -1 for one that is not known; `None`: none is."""
        return self._graph.get_shape(name)

    def rank_of(self, name: str) -> Any:
        """Returns the rank of an output; `None`: it is not known."""
        return self._graph.get_rank(name)

    def last(self, op: str, *inputs: str, **options: Any) -> None:
        """Makes the node whose output is that of the node of TensorFlow."""
        graph, node = self._graph, self._node
        kept = {"name": node.name, "outputs": node.output}
        kept |= {"shapes": node.output_shapes, "dtypes": node.output_dtypes}
        graph.remove_node(node.name)
        graph.make_node(op, list(inputs), **kept, **options)


def _compare(op: str, node: Any, make: _Nodes) -> None:
    """Compares integers as they are, which tf2onnx rounds to float32."""
    from onnx import TensorProto

    inputs = node.input
    # In a loop tf2onnx takes int64 for the int32 of a counter.
    if {make.type_of(each) for each in inputs} <= {TensorProto.INT32, TensorProto.INT64}:
        inputs = [make("Cast", each, to=TensorProto.INT64) for each in inputs]
    make.last(op, *inputs)


def _cast(node: Any, make: _Nodes) -> None:
    """Keeps the bits of integers with and without signs, as casts of ONNX do."""
    make.last("Cast", *node.input, attr={"to": make.type_of(node.output[0])})


def _divide(node: Any, make: _Nodes) -> None:
    """Divides integers, rounding down."""
    some, by = node.input
    quotient = make("Div", some, by)  # rounds towards zero
    whole = make("Add", make("Mul", quotient, by), make("Mod", some, by))
    above = make("Cast", make("Not", make("Equal", whole, some)), to=make.type_of(some))
    make.last("Sub", quotient, above)


def _look_up(tables: Mapping[str, Any], node: Any, make: _Nodes) -> None:
    """Looks integers or strings up in a table."""
    from onnx import TensorProto

    kinds = {TensorProto.INT64: "int64s", TensorProto.STRING: "strings"}
    kind, of_values = (kinds[make.type_of(each)] for each in (node.input[1], node.output[0]))
    table = node.inputs[0]
    while table.type == "Identity":
        table = table.inputs[0]
    keys, values = tables[table.get_attr_value("shared_name")]
    attributes = {
        f"keys_{kind}": keys,
        f"values_{of_values}": values,
        f"default_{of_values[:-1]}": node.inputs[2].get_tensor_value(),
    }
    make.last("LabelEncoder", node.input[1], attr=attributes, domain="ai.onnx.ml")


def _mean(node: Any, make: _Nodes) -> None:
    """Divides by the count, where it may be 0: onnxruntime's own op gives 0 then, not NaN."""
    from onnx import TensorProto

    values, axes = node.input
    options = {"keepdims": int(node.get_attr_value("keep_dims", 0)), "noop_with_empty_axes": 1}
    sizes, over = make.shape_of(values), node.inputs[1]
    axes = make("Reshape", make("Cast", axes, to=TensorProto.INT64), make.of([-1]))
    if sizes and over.is_const():
        reduced = np.array(sizes)[over.get_tensor_value(as_list=False)]
        if np.all(reduced > 0):  # known, which fits with what onnxruntime makes of layers
            make.last("ReduceMean", values, axes, attr=options)
            return
    count = make("ReduceProd", make("Gather", make("Shape", values), axes), keepdims=0)
    count = make("Cast", count, to=make.type_of(values))
    make.last("Div", make("ReduceSum", values, axes, **options), count)


def _one_hot(node: Any, make: _Nodes) -> None:
    """Compares with all numbers, since for ONNX's own op -1 is the last one."""
    from onnx import TensorProto

    numbers, depth, on, off = node.input
    depth = make("Cast", depth, to=TensorProto.INT64)
    every = make("Range", make.of(0), depth, make.of(1))
    numbers = make("Unsqueeze", make("Cast", numbers, to=TensorProto.INT64), make.of([-1]))
    make.last("Where", make("Equal", numbers, every), on, off)


def _reshape(node: Any, make: _Nodes) -> None:
    """Takes a size of 0 as it is: ONNX's own op would keep the size that was there."""
    from onnx import TensorProto

    values, shape = node.input
    shape = make("Cast", shape, to=TensorProto.INT64)
    make.last("Reshape", values, shape, attr={"allowzero": 1})


def _reduce_segments(node: Any, make: _Nodes) -> None:
    """Reduces values in their order, also if there are none, which tf2onnx does not."""
    from onnx import TensorProto, helper

    values, segments, count = node.input
    dtype, rank = make.type_of(values), make.rank_of(values)
    if rank is None or make.rank_of(segments) != 1:
        raise ValueError(f"'{node.name}' has values of an unknown rank, or segments of another.")
    first, reduction = 0, "add"
    if node.type == "UnsortedSegmentMax":
        numbers = helper.tensor_dtype_to_np_dtype(dtype)
        limits = np.finfo(numbers) if np.issubdtype(numbers, np.floating) else np.iinfo(numbers)
        first, reduction = limits.min, "max"
    # Values of negative segments are left out: they come to a row of their own, the first.
    segments = make("Max", make("Cast", segments, to=TensorProto.INT64), make.of(-1))
    segments = make("Add", segments, make.of(1))
    if rank > 1:
        segments = make("Unsqueeze", segments, make.of(range(1, rank)))
    shape, one, end = make("Shape", values), make.of([1]), make.of([2**63 - 1])
    count = make("Reshape", make("Cast", count, to=TensorProto.INT64), one)
    rows = make("Concat", make("Add", count, one), make("Slice", shape, one, end), axis=0)
    start = make("ConstantOfShape", rows, value=helper.make_tensor("value", dtype, [1], [first]))
    segments = make("Expand", segments, shape)
    reduced = make("ScatterElements", start, segments, values, axis=0, reduction=reduction)
    make.last("Slice", reduced, one, end, make.of([0]))
