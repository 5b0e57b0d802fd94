"""Has TensorFlow forget gradient functions, and with them the graphs that they keep.

In a graph each call of a `tf.custom_gradient` notes its gradient function for as long as the
process lives, and the function refers to the graph. Keras sums gradients over replicas by such a
call.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

_LABEL = "_sok_embed_noted_gradients"


def forget_with(owner: Any, tensor: tf.Tensor) -> None:
    """Has the gradient functions of a tensor's graph forgotten when an object goes.

    Only ops of that graph can ask for them, and none of its functions can be run without the
    object.

    Args:
        owner: An object without which the graph cannot be run, such as the commit of a table.
        tensor: A tensor of the graph, made behind the calls whose functions are meant. One that
            was computed eagerly has none.
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
    """Returns the names under which gradient functions of a graph are noted."""
    names = []
    for operation in graph.get_operations():
        if operation.type != "IdentityN":
            continue
        name = operation.node_def.attr["_gradient_op_type"].s.decode()
        if name.startswith("CustomGradient-"):
            names.append(name)
    return names


def _forget(names: list[str]) -> None:
    # The registry has no way to take something out. A release of TensorFlow that keeps its notes
    # elsewhere keeps graphs, too.
    registry = getattr(ops.gradient_registry, "_registry", {})
    for name in names:
        registry.pop(name, None)
