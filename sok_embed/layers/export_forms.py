"""Finds dense ids where a model takes ragged or sparse ids: padding would be pooled with the keys.

Keras and TensorFlow invent a dense signature for every input, whose callers would pad ids: this
module refuses such signatures. Keras also accepts an array for a ragged input, which may be padded
or not: this module warns of it.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

from sok_embed.keras_bridge import callers
from sok_embed.keras_bridge.cast_ids import given_to, sources
from sok_embed.keras_bridge.default_signatures import refuse_when_served
from sok_embed.lookups.input_forms import Form

# The forms of the ids with which layers were called, by feature; subclassed models have no such
# record.
_seen: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()
# The features of layers for which a warning was given.
_warned: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def refuse_dense_signature(
    layer: Any,
    ids: Any,
    *,
    padded: bool,
    pools: bool,
    feature: str = "",
    chosen: Callable[[Any], Any] | None = None,
    calls: Any = None,
) -> None:
    """Raises an error if ids are dense only because Keras has invented a signature.

    Must be called inside the layer's `call`. If a model has other signatures too, only requests
    through the invented one fail.

    Args:
        layer: The layer.
        ids: The ids that the layer received.
        padded: True if the layer leaves padding out when it pools. A mask is not enough: layers
            after ragged vectors need not use one.
        pools: True if it makes one vector from several keys.
        feature: The name of the ids' feature, in a layer of several features.
        chosen: The function that takes the layer's first argument and returns the part of this
            feature.
        calls: `functional_inputs(layer)`, if the caller has it for several features.

    Raises:
        ValueError: With advice what to do.

    Warns:
        UserWarning: Once, if a functional model was given dense ids for an input that is ragged or
            sparse, and the layer pools them.
    """
    if callers.computing_shapes():
        return
    form = Form.of(ids).kind if hasattr(ids, "dtype") else "dense"  # a list
    if not callers.tracing_default_signature():
        if form != "dense" or not callers.building_from_file():
            forms = _seen.setdefault(layer, {})
            forms[feature] = form if form != "dense" else forms.get(feature, form)
            if form == "dense" and pools and not padded and not callers.tracing_own_signature():
                _warn_of_dense_ids(layer, feature, chosen, calls)
        return
    if padded or form != "dense":
        return
    expected = _form_of_input(layer, chosen, calls)
    if expected is None:
        # A model from a file was called with placeholders alone, which have no values.
        expected = _seen.get(layer, {}).get(feature, "other" if pools else "dense")
    if expected == "dense":
        return
    message = (
        f"Layer '{layer.name}': expected {expected} ids, as the model was called with. Received: a "
        "dense signature, which Keras makes up for an export; padding in it would be taken for "
        "keys. Use sok_embed.export_model(model, path), whose signature has what ragged and sparse "
        "inputs consist of; or give the layer a padding_value=, and pad with it."
    )
    if callers.only_default_signature():
        raise ValueError(message)
    refuse_when_served(message)


_MADE_BY = {
    "ragged": "tf.RaggedTensor.from_tensor(ids, padding=0), where 0 is the padding, or without "
    "padding= for examples of one length",
    "sparse": "tf.sparse.from_dense(ids)",
}


def _warn_of_dense_ids(layer: Any, feature: str, chosen: Any, calls: Any) -> None:
    """Warns if a functional model was given dense ids for an input that is not dense."""
    form = _form_of_input(layer, chosen, calls)
    warned = _warned.setdefault(layer, set())
    if form in _MADE_BY and feature not in warned:
        warned.add(feature)
        of_feature = f"feature '{feature}': " if feature else ""
        warnings.warn(
            f"Layer '{layer.name}': {of_feature}expected {form} ids, as the keras.Input of the "
            "model is. Received: a dense array, all of whose ids are pooled, padding as well. "
            f"Pass {_MADE_BY[form]}; or give the layer a padding_value=, which it leaves out.",
            stacklevel=2,
        )


def _form_of_input(layer: Any, chosen: Any, calls: Any = None) -> str | None:
    """Returns the form of a functional model's input that was given dense ids, else "dense".

    `None`: the layer is not called by a functional model.
    """
    calls = functional_inputs(layer) if calls is None else calls
    for call, odd in calls:
        origins = list(sources(call.layer, call.model, chosen)) if odd else []
        chosen = None
        for tensor, form in odd:
            if any(tensor is source for source in origins):
                return form
    return "dense" if calls else None


def functional_inputs(layer: Any) -> list[tuple[callers.FunctionalCall, list[tuple[Any, str]]]]:
    """Returns the functional models that run, each with its inputs that wrongly get dense ids."""
    found = []
    for call in callers.functional_calls(layer):
        odd = []
        if any(tensor.ragged or tensor.sparse for tensor in call.model.inputs):
            for tensor, leaf in given_to(call):
                form = "ragged" if tensor.ragged else "sparse" if tensor.sparse else "dense"
                if form != "dense" and hasattr(leaf, "dtype") and Form.of(leaf).kind == "dense":
                    odd.append((tensor, form))
        found.append((call, odd))
    return found
