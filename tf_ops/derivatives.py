"""Second derivatives: zeros where nobody asks for them, and errors where rows do not have them.

The gradient of a function, or of a branch, that looks rows up deposits their gradients, whichever
gradients were asked for. In its own gradient those of the deposit are zeros, unless the gradient of
the anchor was used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_MESSAGE = (
    "Expected second derivatives by way of the vectors that the layer returns. Received: one by "
    "way of a gradient of layer.anchor, whose elements are not those of the rows, or of the "
    "weights of keys. Watch the vectors with the inner tape and take its gradient by them: "
    "inner.watch(vectors), inner.gradient(loss, vectors)."
)


def _zeros_by(place: int) -> Callable[..., list[tf.Tensor | None]]:
    """Returns the gradient of an op that takes gradients: zeros, if those of its outputs are.

    Args:
        place: The number of the input with the gradients that the op takes.
    """

    def gradient(op: Any, *upstream: Any) -> list[tf.Tensor | None]:
        zeros: list[tf.Tensor | None] = [None] * len(op.inputs)
        given = [tf.convert_to_tensor(each) for each in upstream if each is not None]
        floats = [each for each in given if each.dtype.is_floating]
        if tf.executing_eagerly():
            if any(bool(tf.reduce_any(each != 0)) for each in floats):
                raise ValueError(_MESSAGE)
            return zeros
        if op.outputs[0].graph is tf.compat.v1.get_default_graph():
            raise ValueError(_MESSAGE)  # the caller has asked for what the op computes
        # The gradient of a function, or of a branch, does not know what its caller asks for.
        checks = [tf.debugging.Assert(tf.reduce_all(each == 0), [_MESSAGE]) for each in floats]
        of_variants = [each for each in given if not each.dtype.is_floating]
        with tf.control_dependencies([*checks, *of_variants]):
            taken = op.inputs[place]
            # A variant stands for its zeros, so that the op that made it waits for the checks.
            is_float = taken.dtype.is_floating
            zeros[place] = tf.zeros_like(taken) if is_float else tf.identity(taken)
        return zeros

    return gradient


for _name, _place in {
    "Deposit": 1,
    "CollectionOutputGradient": 0,
    "CollectionPoolGradient": 0,
    "PooledGradients": 0,
}.items():
    tf.RegisterGradient(f"SokEmbed>{_name}")(_zeros_by(_place))
