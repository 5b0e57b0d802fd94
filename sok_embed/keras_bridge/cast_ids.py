"""Refuses ids that a model casts on their way to a layer, so that different ids become equal.

A functional or sequential model casts its inputs to the dtype of its `keras.Input`, and `fit` casts
float64 arrays to float32 before that. So ids may change before a layer sees them: in float32 those
above 2**24 are rounded, NaN becomes -2**63, and in an int32 input int64 ids from 2**31 on become
other ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from sok_embed.keras_bridge import callers
from sok_embed.keras_bridge.default_signatures import check_exact
from sok_embed.kv.arguments import FLOATS_ROUND


def refuse_casts(layer: keras.layers.Layer, chosen: Callable[[Any], Any] | None = None) -> None:
    """Raises if a model that calls the layer has cast ids so that they changed.

    Must be called inside of the layer's `call`. Only inputs of the model from which the layer's
    first argument is computed are checked.

    Args:
        layer: The layer that is running.
        chosen: A function that takes the layer's first argument and returns the part with the ids.
            `None`: all of it are ids.

    Raises:
        ValueError: With the model, its input, and the dtypes of both.
    """
    if callers.computing_shapes():
        return  # under MirroredStrategy placeholders may have any dtype
    for call in callers.functional_calls(layer):
        _check(layer, call, chosen)
        chosen = None  # an outer model calls another layer, the inner model


def keeps_ids(source: str, target: str) -> bool:
    """Returns whether a cast from one integer dtype to another leaves different keys different.

    Casts between 64-bit types keep them different: a uint64 key is the int64 key with the same
    bits.
    """
    given, cast = tf.as_dtype(source), tf.as_dtype(target)
    return cast.size == 8 or (cast.min <= given.min and given.max <= cast.max)


def given_to(call: callers.FunctionalCall) -> Iterator[tuple[Any, Any]]:
    """Yields the inputs of a functional model, each with the value that the caller passed."""
    inputs, functional = call.inputs, call.model
    names = [tensor.name for tensor in functional.inputs]
    if isinstance(inputs, dict) and not isinstance(functional.input, dict):
        leaves = [inputs.get(name) for name in names]
    else:
        leaves = tree.flatten(inputs)
    yield from zip(functional.inputs, leaves, strict=False)


def _check(layer: Any, call: callers.FunctionalCall, chosen: Any) -> None:
    functional = call.model
    for tensor, leaf in given_to(call):
        dtype = _dtype_of(leaf)
        if dtype is None or not keras.backend.is_int_dtype(tensor.dtype):
            continue
        is_float, is_flag = "float" in dtype, dtype == "bool"
        if not is_float and not is_flag and keeps_ids(dtype, tensor.dtype):
            continue
        if not any(tensor is source for source in sources(call.layer, functional, chosen)):
            continue
        if is_flag:
            raise ValueError(
                f"Layer '{layer.name}': expected integer ids in input '{tensor.name}' of model "
                f"'{functional.name}', which is {tensor.dtype}. Received: bool, which Keras casts "
                "to 0 and 1. Pass integers."
            )
        if not is_float:
            raise ValueError(
                f"Layer '{layer.name}': expected ids in input '{tensor.name}' of model "
                f"'{functional.name}' that its dtype holds, {tensor.dtype}. Received: {dtype}, "
                "which Keras casts, which changes ids beyond its range. Make the input with "
                f"keras.Input(…, dtype='{dtype}'), or feed it ids of {tensor.dtype}."
            )
        if callers.tracing_default_signature():
            check_exact(leaf)
            continue
        raise ValueError(
            f"Layer '{layer.name}': expected integer ids in input '{tensor.name}' of model "
            f"'{functional.name}', which is {tensor.dtype}. Received: {dtype}, which Keras "
            f"casts, float64 by way of float32. {FLOATS_ROUND}."
        )


def _dtype_of(leaf: Any) -> str | None:
    """Returns the name of a dtype of numbers or flags, or `None` for everything else."""
    if not hasattr(leaf, "dtype"):
        return None
    dtype: str = keras.backend.standardize_dtype(leaf.dtype)
    known = "float" in dtype or dtype == "bool" or keras.backend.is_int_dtype(dtype)
    return dtype if known else None


def sources(called: Any, functional: Any, chosen: Any = None) -> Iterator[Any]:
    """Yields the inputs of a functional model from which a layer's first argument comes."""
    own = {id(node) for nodes in functional._nodes_by_depth.values() for node in nodes}
    waiting: list[Any] = []
    for node in called._inbound_nodes:
        if id(node) in own:
            given = first_argument(node)
            waiting += tree.flatten(given if chosen is None else chosen(given))
    seen: set[int] = set()
    while waiting:
        tensor = waiting.pop()
        history = getattr(tensor, "_keras_history", None)
        if history is None or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        yield tensor
        waiting += history.operation._inbound_nodes[history.node_index].input_tensors


def first_argument(node: Any) -> Any:
    """Returns the first argument of a layer's call, from the record that Keras keeps."""
    arguments = node.arguments
    return arguments.args[0] if arguments.args else next(iter(arguments.kwargs.values()), None)
