"""Tells which tensors the code that runs or is traced now may use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_BRANCHES = ("CondBranchFuncGraph", "WhileBodyFuncGraph")


def is_in_reach(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor is of the function that is traced now, or eager as the present code.

    A branch of a `tf.cond` and the body of a loop are parts of their function. Any other function
    would keep the tensor of the first call that it was traced in.
    """
    if tf.executing_eagerly() or not tf.is_symbolic_tensor(tensor):
        return tf.executing_eagerly() and not tf.is_symbolic_tensor(tensor)
    return any(graph is tensor.graph for graph in graphs_in_reach())


def graphs_in_reach() -> Iterator[Any]:
    """Yields the graph that is traced now, and those of which it is a branch or the body."""
    graph: Any = tf.compat.v1.get_default_graph()
    yield graph
    while type(graph).__name__ in _BRANCHES:
        graph = graph.outer_graph
        yield graph
