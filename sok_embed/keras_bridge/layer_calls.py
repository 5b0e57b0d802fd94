"""Checks what Keras hands to the `call` of a layer of ids: casts, placeholders, made-up signatures.

A functional or sequential model casts its inputs to the dtype of its `keras.Input`, and `fit` casts
float64 arrays to float32 before that. So ids may change before a layer sees them: in float32 those
above 2**24 are rounded, NaN becomes -2**63, and in an int32 input int64 ids from 2**31 on become
other ids. Such casts are refused.

Keras records the shapes with which a subclassed model was called, but not the dtypes. From the
shapes it makes `serving_default` for every model in a SavedModel, even if the user gives
signatures, and the endpoint of `model.export(path)` without `input_signature`. These signatures
take the compute dtype of the model, even for ids. Refusing their placeholders would refuse every
export, so they are cast, and ids that are served through them are checked, since floats round ids.
They are dense for every input: a layer that pools ragged or sparse ids would pool padding with the
keys, and refuses them. Keras also accepts an array for a ragged input, which may be padded or not:
the layer warns of it.

If a `call` is a `tf.function`, it is refused if it is traced before the weights have values.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from sok_embed.arguments import FLOATS_ROUND
from sok_embed.keras_bridge import callers

# Maps float types to the bound below which they hold each integer, so that none rounds to another.
EXACT_BELOW = {tf.bfloat16: 2**8, tf.float16: 2**11, tf.float32: 2**24, tf.float64: 2**53}

# The models that were refused. Keras passes over the first error and calls the model again.
_refused: weakref.WeakSet[Any] = weakref.WeakSet()
# The forms of the ids with which layers were called, by feature; subclassed models have no such
# record.
_seen: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()
# The features of layers for which a warning was given.
_warned: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


class LayerOfIds(keras.layers.Layer):
    """Base of layers that look integers up. Not for use by itself."""

    # True if the first input of the layer is a tensor of integers.
    _takes_ids = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.autocast = False
        # Keras would turn lists of integers into float32 or int32.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.supports_jit = False

    @property
    def compute_dtype(self) -> Any:
        """Returns the dtype of vectors; to a `Sequential` that makes its own input, int64.

        Keras would make an input of floats, which round ids above 2**24.
        """
        if self._takes_ids and callers.making_input_of_sequential():
            return "int64"
        return super().compute_dtype


def refuse_call_without_values(what: str) -> None:
    """Raises if a model is being traced in a way that leaves its dense weights untrained.

    Keras runs a `call` without values to build the layers in it. If it is a `tf.function`, the
    trace stays, and computes with the start values of the weights from then on.
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


def refuse_casts(layer: keras.layers.Layer, chosen: Callable[[Any], Any] | None = None) -> None:
    """Raises if a model that calls the layer has cast ids so that they changed.

    Must be called inside of the layer's `call`. Only inputs of the model from which the layer's
    first argument is computed are checked. `chosen` takes the layer's first argument and returns
    the part with the ids; without it all of it are ids.
    """
    if callers.computing_shapes():
        return  # under MirroredStrategy placeholders may have any dtype
    for call in callers.functional_calls(layer):
        for tensor, leaf in given_to(call):
            dtype = keras.backend.standardize_dtype(leaf.dtype) if hasattr(leaf, "dtype") else None
            if dtype in (None, tensor.dtype) or not keras.backend.is_int_dtype(tensor.dtype):
                continue
            if keras.backend.is_int_dtype(dtype):
                changes = not keeps_ids(dtype, tensor.dtype)
            else:
                changes = dtype == "bool" or "float" in dtype
            if changes and any(tensor is each for each in sources(call.layer, call.model, chosen)):
                _refuse_cast(layer, call.model, tensor, leaf, dtype)
        chosen = None  # an outer model calls another layer, the inner model


def _refuse_cast(layer: Any, functional: Any, tensor: Any, leaf: Any, dtype: str) -> None:
    """Raises for a value of a dtype that a model casts; casts for an export are checked instead."""
    name, is_float = functional.name, "float" in dtype
    if is_float and callers.tracing_default_signature():
        check_exact(leaf)
        return
    if keras.backend.is_int_dtype(dtype):
        raise ValueError(
            f"Layer '{layer.name}': expected ids in input '{tensor.name}' of model '{name}' that "
            f"its dtype holds, {tensor.dtype}. Received: {dtype}, which Keras casts, which changes "
            f"ids beyond its range. Make the input with keras.Input(…, dtype='{dtype}'), or feed "
            f"it ids of {tensor.dtype}."
        )
    way = "casts to 0 and 1. Pass integers"
    if is_float:
        way = f"casts, float64 by way of float32. {FLOATS_ROUND}"
    raise ValueError(
        f"Layer '{layer.name}': expected integer ids in input '{tensor.name}' of model '{name}', "
        f"which is {tensor.dtype}. Received: {dtype}, which Keras {way}."
    )


def keeps_ids(source: str, target: str) -> bool:
    """Returns whether a cast from one integer dtype to another leaves different keys different.

    Casts between 64-bit types keep them different: a uint64 key is the int64 key with the same
    bits.
    """
    given, cast = tf.as_dtype(source), tf.as_dtype(target)
    return cast.size == 8 or (cast.min <= given.min and given.max <= cast.max)


def given_to(call: callers.FunctionalCall) -> Iterator[tuple[Any, Any]]:
    """Returns the inputs of a functional model, each with the value that the caller passed."""
    inputs, functional = call.inputs, call.model
    if isinstance(inputs, dict) and not isinstance(functional.input, dict):
        leaves = [inputs.get(tensor.name) for tensor in functional.inputs]
    else:
        leaves = tree.flatten(inputs)
    return zip(functional.inputs, leaves, strict=False)


def sources(called: Any, functional: Any, chosen: Any = None) -> Iterator[Any]:
    """Yields the inputs of a functional model from which a layer's first argument comes."""
    waiting: list[Any] = []
    for given in first_arguments(called, functional):
        waiting += tree.flatten(given if chosen is None else chosen(given))
    seen: set[int] = set()
    while waiting:
        tensor = waiting.pop()
        history = getattr(tensor, "_keras_history", None)
        if history is None or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        yield tensor
        waiting += history.operation._inbound_nodes[history.node_index].input_tensors


def first_arguments(called: Any, functional: Any) -> Iterator[Any]:
    """Yields the first argument of each call of a layer in a functional model, symbolic."""
    own = {id(node) for nodes in functional._nodes_by_depth.values() for node in nodes}
    for node in called._inbound_nodes:
        if id(node) in own:
            given = node.arguments
            yield given.args[0] if given.args else next(iter(given.kwargs.values()), None)


def true_ids(inputs: Any, dtype: tf.DType = tf.int64) -> Any:
    """Returns the inputs; a placeholder of floats that stands for integers, as integers."""
    if not tf.is_tensor(inputs) or not inputs.dtype.is_floating:
        return inputs
    if callers.building_from_file():
        return tf.cast(inputs, dtype)
    if callers.tracing_default_signature():
        return tf.cast(check_exact(inputs), dtype)
    return inputs


def check_exact(floats: tf.Tensor) -> tf.Tensor:
    """Checks that floats are whole and small enough to be ids; others fail when they are served.

    Raises:
        tf.errors.InvalidArgumentError: When the graph runs, with what to do.
    """
    limit = EXACT_BELOW[floats.dtype]
    # Both comparisons are false for a NaN.
    exact = tf.logical_and(tf.abs(floats) < limit, tf.equal(floats, tf.round(floats)))
    expected = (
        f"Expected ids of which {floats.dtype.name} has each, whole numbers within ±{limit}. "
        "Received:"
    )
    advice = (
        "Keras made the signature from shapes; export the model with a signature of integers: "
        "model.export(path, input_signature=[tf.TensorSpec(shape, tf.int64)])."
    )
    data = [expected, floats, advice]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(exact), data)]):
        return tf.identity(floats)


def refuse_when_served(message: str) -> None:
    """Adds an op to the graph that fails with the message when it runs."""
    tf.debugging.Assert(tf.constant(False), [message])


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
    form = "dense"
    if isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
        form = "ragged" if isinstance(ids, tf.RaggedTensor) else "sparse"
    if not callers.tracing_default_signature():
        # A layer that does not pool takes dense ids, unless it was called with others.
        if form != "dense" or (pools and not callers.building_from_file()):
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
                is_dense = not isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor))
                if form != "dense" and is_dense and hasattr(leaf, "dtype"):
                    odd.append((tensor, form))
        found.append((call, odd))
    return found
