"""Makes TensorFlow forget gradient functions, and with them the graphs that they keep.

In a graph TensorFlow keeps the gradient function of each call of a `tf.custom_gradient` until the
process ends, and the function refers to the graph. Keras sums gradients over replicas by such a
call.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

_LABEL = "_sok_embed_noted_gradients"


def forget_with(owner: Any, tensor: tf.Tensor) -> None:
    """Forgets the gradient functions of a tensor's graph when an object is collected.

    Only ops of that graph can ask for them, and none of its functions can be run without the
    object.

    Args:
        owner: An object without which the graph cannot be run, such as the commit of a table.
        tensor: A tensor of the graph, made after the calls whose functions are to be forgotten. An
            eager tensor has none.
    """
    graph = None if tf.executing_eagerly() else tensor.graph
    while graph is not None:
        noted = getattr(graph, _LABEL, None)
        if noted is None:
            noted = _noted_in(graph)
            setattr(graph, _LABEL, noted)
        if noted:
            weakref.finalize(owner, _forget, noted).atexit = False
        graph = getattr(graph, "outer_graph", None)


def _noted_in(graph: tf.Graph) -> list[str]:
    """Returns the names under which TensorFlow keeps gradient functions of a graph."""
    names = []
    for operation in graph.get_operations():
        if operation.type != "IdentityN":
            continue
        name = operation.node_def.attr["_gradient_op_type"].s.decode()
        if name.startswith("CustomGradient-"):
            names.append(name)
    return names


def _forget(names: list[str]) -> None:
    # The registry has no public way to remove an entry. In a release of TensorFlow that keeps
    # entries elsewhere nothing is forgotten.
    registry = getattr(ops.gradient_registry, "_registry", {})
    for name in names:
        registry.pop(name, None)
