"""Checks of ids that are combined, and the outputs of symbolic calls."""

from __future__ import annotations

from typing import Any

import keras

from sok_embed.keras_bridge.private_state import mask_of
from sok_embed.lookups.input_forms import Form, shape_text

COMBINERS = ("sum", "mean", "sqrtn")


def check_ids(layer: str, combiner: str | None, ids: Form) -> None:
    """Raises ValueError for ids of a form that no embedding can be made of."""
    rank = None if ids.shape is None else len(ids.shape)
    if ids.kind == "sparse" and combiner is None:
        raise ValueError(
            f"Layer '{layer}': expected a dense or a ragged tensor without a combiner. Received: a "
            "sparse tensor. Give the layer a combiner, or make the tensor ragged with "
            "tf.RaggedTensor.from_sparse."
        )
    if ids.kind == "sparse" and rank != 2:
        raise ValueError(
            f"Layer '{layer}': expected a sparse tensor [B, N]. Received: shape "
            f"{shape_text(ids.shape)}."
        )
    if rank == 0 and combiner is not None:
        raise ValueError(
            f"Layer '{layer}': expected keys of shape [..., n], with a combiner. Received: "
            "shape []."
        )


def refuse_padding_mask(layer: str, ids: Any) -> None:
    """Raises ValueError for ids with a Keras mask, in a layer with a combiner."""
    if mask_of(ids) is not None:
        raise ValueError(
            f"Layer '{layer}': expected inputs without a Keras mask, with a combiner. Received: "
            "inputs with a mask. Leave padding out: pass a ragged or a sparse tensor."
        )


def output_spec(
    ids: Any, shape: tuple[int | None, ...], dtype: str, combiner: str | None
) -> keras.KerasTensor:
    """Returns the output of a symbolic call, ragged if ids are ragged before their pooled axis."""
    ragged_rank = getattr(ids, "ragged_rank", None)
    ragged = Form.of(ids).kind == "ragged"
    if ragged and combiner is not None:
        ragged_rank = ragged_rank or 1
        if len(shape) - 1 <= ragged_rank:  # the pooled axis is ragged itself
            ragged_rank -= 1
        ragged = ragged_rank > 0
    return keras.KerasTensor(shape, dtype=dtype, ragged=ragged, ragged_rank=ragged_rank)
