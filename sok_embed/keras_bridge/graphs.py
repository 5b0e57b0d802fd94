"""Tells which tensors the code that runs or is traced now may use."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_BRANCHES = ("CondBranchFuncGraph", "WhileBodyFuncGraph")


def is_in_reach(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor is of the function that is traced now, or eager as the present code.

    A branch of a `tf.cond` and the body of a loop are parts of their function. Any other function
    would keep the tensor of the first call that it was traced in.
    """
    if tf.executing_eagerly():
        return not tf.is_symbolic_tensor(tensor)
    graph: Any = tf.compat.v1.get_default_graph()
    owner = getattr(tensor, "graph", None) if tf.is_symbolic_tensor(tensor) else None
    while graph is not owner:
        if type(graph).__name__ not in _BRANCHES:
            return False
        graph = graph.outer_graph
    return True
