"""Finds out which layers of a functional model are called with the outputs of which others."""

from __future__ import annotations

from typing import Any

import keras


def inputs_of_layers(model: keras.Model) -> dict[str, list[list[str]]]:
    """Returns the names of the layers whose outputs each layer of a model takes.

    Example:
    >>> first = keras.Input((2,), name="first")
    >>> inputs_of_layers(keras.Model(first, keras.layers.ReLU(name="relu")(first)))
    {'first': [[]], 'relu': [['first']]}

    Returns:
        A list for each call of a layer. Empty for a subclass of `keras.Model` without such a graph.
    """
    functional: Any = getattr(model, "_functional", None) or model
    by_depth: dict[int, list[Any]] = getattr(functional, "_nodes_by_depth", {})
    calls = [
        (node.operation.name, node.operation._inbound_nodes.index(node), node)
        for nodes in by_depth.values()
        for node in nodes
    ]
    found: dict[str, list[list[str]]] = {}
    for name, _, node in sorted(calls, key=lambda call: call[:2]):
        makers = [tensor._keras_history.operation for tensor in node.input_tensors]
        found.setdefault(name, []).append([each.name for each in makers if each is not None])
    return found
