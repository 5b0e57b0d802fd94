"""Refuses ids that were floats on their way into a model.

A layer refuses floats itself. But a functional or sequential model casts what it is given to the
dtype of its `keras.Input`, and `fit` casts float64 arrays to float32 before: ids above 2**24 come
out as others, and NaN as -2**63, before a layer sees them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
from keras import tree

from sok_embed import callers
from sok_embed.kv.arguments import FLOATS_ROUND
from sok_embed.layers.default_signatures import check_exact


def refuse_cast_floats(layer: keras.layers.Layer) -> None:
    """Raises if a model that calls the layer makes integers of the floats it was given.

    Only inputs of the model count from which the layer's first argument is computed. To be called
    inside of the layer's `call`.

    Raises:
        ValueError: Naming the model, its input and the dtype that it was given.
    """
    if callers.computing_shapes():
        return  # under MirroredStrategy placeholders may have any dtype
    for call in callers.functional_calls(layer):
        _check(layer, call)


def _check(layer: Any, call: callers.FunctionalCall) -> None:
    inputs, functional = call.inputs, call.model
    names = [tensor.name for tensor in functional.inputs]
    if isinstance(inputs, dict) and not isinstance(functional.input, dict):
        leaves = [inputs.get(name) for name in names]
    else:
        leaves = tree.flatten(inputs)
    for tensor, leaf in zip(functional.inputs, leaves, strict=False):
        dtype = keras.backend.standardize_dtype(getattr(leaf, "dtype", None) or "int64")
        if "float" not in dtype or not keras.backend.is_int_dtype(tensor.dtype):
            continue
        if any(tensor is source for source in _sources(call.layer, functional)):
            if callers.tracing_default_signature():
                check_exact(leaf)
                continue
            raise ValueError(
                f"Layer '{layer.name}': expected integer ids in input '{tensor.name}' of model "
                f"'{functional.name}', which is {tensor.dtype}. Received: {dtype}, which Keras "
                f"casts, float64 by way of float32. {FLOATS_ROUND}."
            )


def _sources(called: Any, functional: Any) -> Iterator[Any]:
    """Returns the inputs of a functional model that a layer's first argument comes from."""
    own = {id(node) for nodes in functional._nodes_by_depth.values() for node in nodes}
    waiting = [
        tensor
        for node in called._inbound_nodes
        if id(node) in own and node.arguments.args
        for tensor in tree.flatten(node.arguments.args[0])
    ]
    seen: set[int] = set()
    while waiting:
        tensor = waiting.pop()
        history = getattr(tensor, "_keras_history", None)
        if history is None or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        yield tensor
        waiting += history.operation._inbound_nodes[history.node_index].input_tensors
