"""Refuses arguments that a layer does not have, and says what to use instead."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras

from sok_embed.arguments import described, shown

_SECOND_LAYER = (
    "To adapt a trained table cheaply, freeze it with trainable=False, and add the outputs of a "
    "small second layer."
)
_REMEDIES = {
    "input_dim": "Any integer is a key: leave it out.",
    "input_length": "Keras 3 has none either: give the shape to keras.Input(shape, dtype='int64').",
    "weights": "Make the layer, and put rows in with layer.table.assign(keys, embeddings).",
    "lora_rank": _SECOND_LAYER,
    "lora_alpha": _SECOND_LAYER,
    "quantization_config": "Rows are float32; dtype='mixed_bfloat16' makes the outputs smaller.",
    "mask_zero": "To leave padding out, pass ragged or sparse keys, or mask the outputs.",
    "embedding_initializer": "It is called embeddings_initializer= here.",
    "embeddings_initializer": "It is called embedding_initializer= here.",
}


def refuse_unknown_arguments(
    layer: type, arguments: Mapping[str, Any], remedies: Mapping[str, str] | None = None
) -> None:
    """Raises for arguments that neither a layer nor `keras.layers.Layer` has.

    A base class of several layers may have arguments that one of them does not have, and would take
    them from its `**kwargs`. `remedies` replace the usual ones for arguments of
    `keras.layers.Embedding`, by their names.

    Raises:
        ValueError: With what to do, or the argument of the nearest name.
    """
    own = _names_of(layer)
    accepted = {*_names_of(keras.layers.Layer), "input_shape"}
    known = {**_REMEDIES, **(remedies or {})}
    for name, value in arguments.items():
        if name in accepted or name in own:
            continue
        if name in known:
            remedy = known[name]
        elif near := difflib.get_close_matches(name, [*own, *accepted], 1):
            remedy = f"Did you mean {near[0]}=?"
        else:
            remedy = f"It has {', '.join(own)} and the arguments of keras.layers.Layer."
        raise ValueError(
            f"Expected {layer.__name__} without {name}, an argument that it does not have. "
            f"Received: {name}={shown(value)}. {remedy}"
        )


def function_of_rows(kind: str, get: Callable[[Any], Any], identifier: Any) -> Any:
    """Returns an argument of a layer as a function of rows `[n, dim]`, or `None`.

    Args:
        kind: `"Regularizer"` or `"Constraint"`, the class of Keras.
        get: The function of Keras that makes one.
        identifier: An object of the class, its name or config, a function of rows, or `None`.

    Raises:
        ValueError: For anything else; also for the config of a lambda, which Keras does not read.
    """
    try:
        return get(identifier)
    except (TypeError, ValueError) as error:
        low = kind.lower()
        reason = ""
        if isinstance(identifier, Mapping) and identifier.get("class_name") == "__lambda__":
            reason = (
                " Use a named function, with @keras.saving.register_keras_serializable(), in place "
                "of a lambda."
            )
        raise ValueError(
            f"Expected a {low}: None, a keras.{low}s.{kind}, its name or config, or a function of "
            f"rows. Received: {described(identifier)}.{reason}"
        ) from error


def _names_of(layer: type) -> list[str]:
    """Returns the arguments of a constructor that have names."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(layer.__init__).parameters  # type: ignore[misc]
    return [name for name, each in parameters.items() if name != "self" and each.kind not in kinds]
