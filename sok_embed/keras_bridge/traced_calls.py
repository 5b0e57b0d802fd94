"""Refuses a `call` that is a `tf.function` and is traced before the model's weights have values."""

from __future__ import annotations

import weakref
from typing import Any

from sok_embed.keras_bridge import callers

# The models that were refused. Keras passes over the first error and calls the model again.
_refused: weakref.WeakSet[Any] = weakref.WeakSet()


def refuse_call_without_values(what: str) -> None:
    """Raises if a model is being traced in a way that leaves its dense weights untrained.

    Keras runs a `call` without values to build the layers in it. If it is a `tf.function`, the
    trace stays, and computes with the start values of the weights from then on.

    Args:
        what: The beginning of the message.

    Raises:
        ValueError: With the name of the model.
    """
    building = callers.computing_shapes()
    if not building and not _refused:
        return
    for layer in callers.layers_of_traced_calls():
        if (building or layer in _refused) and _lacks_values(layer):
            _refused.add(layer)
            raise ValueError(
                f"{what}: expected a call without @tf.function, or a model whose layers are all "
                f"built. Received: the call of '{layer.name}', a tf.function, which Keras runs to "
                "build layers. It would compute with the start values of dense weights from then "
                "on, so that they are never trained. Take @tf.function off: fit compiles the step "
                "by itself."
            )


def _lacks_values(layer: Any) -> bool:
    others = layer._flatten_layers(include_self=False)
    return not all(other.built for other in others) or any(
        variable._value is None for variable in layer.variables
    )
