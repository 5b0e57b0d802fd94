"""Refuses exports whose signature is dense where a layer takes ragged or sparse ids.

Keras and TensorFlow make up dense signatures for every input. Who calls one of them pads, and
padding would be pooled with the keys.
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
    """Raises if ids are dense only because Keras has made up a signature.

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
        return
    if padded or form != "dense":
        return
    expected = _expected(layer, pools, feature, chosen)
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


def _expected(layer: Any, pools: bool, feature: str, chosen: Any) -> str:
    """Returns the form of ids that the model was made for."""
    calls = list(callers.functional_calls(layer))
    for call in calls:
        origins = list(sources(call.layer, call.model, chosen))
        chosen = None
        for tensor, leaf in given_to(call):
            form = Form.of(tensor).kind
            is_source = any(tensor is source for source in origins)
            if form != "dense" and is_source and Form.of(leaf).kind == "dense":
                return form
    if calls:
        return "dense"
    # A model from a file was called with placeholders alone, which tell nothing.
    return _seen.get(layer, {}).get(feature, "other" if pools else "dense")
