"""Refuses dense ids where a layer takes ragged or sparse ids.

Keras takes a padded array for an input that is ragged, and Keras and TensorFlow make up dense
signatures for every input, whose callers pad. Padding would be pooled with the keys.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from sok_embed import callers
from sok_embed.input_forms import Form
from sok_embed.layers.cast_ids import given_to, sources
from sok_embed.layers.default_signatures import refuse_when_served

# The forms of the ids that layers were called with, by feature; subclassed models know of none.
_seen: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()


def refuse_dense_signature(
    layer: Any,
    ids: Any,
    *,
    padded: bool,
    pools: bool,
    feature: str = "",
    chosen: Callable[[Any], Any] | None = None,
) -> None:
    """Raises if ids are dense where a model's input is not, or by a signature of Keras' own.

    To be called inside of the layer's `call`. Where that signature is one among others, what is
    served through it fails.

    Args:
        layer: The layer.
        ids: What it was given.
        padded: True if the layer leaves padding out of what it pools. A mask does not do: what
            comes after ragged vectors need not look for one.
        pools: True if it makes one vector of several keys.
        feature: The name of the feature that the ids are of, in a layer of several.
        chosen: Takes the layer's first argument and returns the part that is this feature's.

    Raises:
        ValueError: With what to do.
    """
    if callers.computing_shapes():
        return
    form = Form.of(ids).kind if hasattr(ids, "dtype") else "dense"  # a list
    if not callers.tracing_default_signature():
        if form != "dense" or not callers.building_from_file():
            forms = _seen.setdefault(layer, {})
            forms[feature] = form if form != "dense" else forms.get(feature, form)
            if form == "dense" and not padded:
                _refuse_dense_ids(layer, chosen)
        return
    if padded or form != "dense":
        return
    expected = _form_of_input(layer, chosen)
    if expected is None:
        # A model from a file was called with placeholders alone, which tell nothing.
        expected = _seen.get(layer, {}).get(feature, "other" if pools else "dense")
    if expected == "dense":
        return
    message = (
        f"Layer '{layer.name}': expected {expected} ids, as the model was called with. Received: a "
        "dense signature, which Keras makes up for an export; padding in it would be taken for "
        "keys. Use sok_embed.export_model(model, path), whose signature has what ragged and sparse "
        "inputs consist of; or give the layer a padding_value=, and pad with it."
    )
    if callers.made_up_signature_is_the_only_one():
        raise ValueError(message)
    refuse_when_served(message)


_MADE_BY = {
    "ragged": "tf.RaggedTensor.from_tensor(ids, padding=0), where 0 is the padding, or without "
    "padding= for examples of one length",
    "sparse": "tf.sparse.from_dense(ids)",
}


def _refuse_dense_ids(layer: Any, chosen: Any) -> None:
    """Raises where a functional model was given dense ids for an input that is not dense."""
    form = _form_of_input(layer, chosen)
    if form in _MADE_BY:
        raise ValueError(
            f"Layer '{layer.name}': expected {form} ids, as the keras.Input of the model is. "
            "Received: a dense array, whose padding would be taken for keys. Pass "
            f"{_MADE_BY[form]}; or make the keras.Input dense and give the layer a padding_value=."
        )


def _form_of_input(layer: Any, chosen: Any) -> str | None:
    """Returns the form of a functional model's input that was given dense ids, else "dense".

    `None`: the layer is not called by a functional model.
    """
    calls = list(callers.functional_calls(layer))
    for call in calls:
        origins = list(sources(call.layer, call.model, chosen))
        chosen = None
        for tensor, leaf in given_to(call):
            form = Form.of(tensor).kind
            is_source = any(tensor is source for source in origins)
            is_dense = hasattr(leaf, "dtype") and Form.of(leaf).kind == "dense"
            if form != "dense" and is_source and is_dense:
                return form
    return "dense" if calls else None
