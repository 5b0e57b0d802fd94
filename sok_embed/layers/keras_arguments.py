"""Arguments of `keras.layers.Embedding` that layers do not have, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SECOND_LAYER = (
    "To adapt a trained table cheaply, freeze it with trainable=False, and add the outputs of a "
    "small second layer."
)
_REMEDIES = {
    "input_dim": "Any integer is a key: leave it out.",
    "input_length": "Keras 3 has none either: give the shape to keras.Input(shape, dtype='int64').",
    "embeddings_regularizer": "Use an optimizer with weight_decay, such as "
    "keras.optimizers.AdamW, or activity_regularizer=, which sees the outputs.",
    "embeddings_constraint": "Constrain the outputs, as with keras.layers.UnitNormalization().",
    "weights": "Make the layer, and put rows in with layer.table.assign(keys, embeddings).",
    "lora_rank": _SECOND_LAYER,
    "lora_alpha": _SECOND_LAYER,
    "quantization_config": "Rows are float32; dtype='mixed_bfloat16' makes the outputs smaller.",
    "mask_zero": "To leave padding out, pass ragged or sparse keys, or mask the outputs.",
    "embedding_initializer": "It is called embeddings_initializer= here.",
    "embeddings_initializer": "It is called embedding_initializer= here.",
}


def refuse_keras_arguments(
    layer: str, arguments: Mapping[str, Any], remedies: Mapping[str, str] | None = None
) -> None:
    """Raises for arguments that Keras' embedding has and a layer has not.

    Args:
        layer: The name of its class.
        arguments: Those that the class does not know.
        remedies: Of this layer, where they are others.

    Raises:
        ValueError: With what to do.
    """
    known = {**_REMEDIES, **(remedies or {})}
    for name, value in arguments.items():
        if name in known:
            raise ValueError(
                f"Expected {layer} without {name}, an argument that it has not. Received: "
                f"{name}={value!r}. {known[name]}"
            )
