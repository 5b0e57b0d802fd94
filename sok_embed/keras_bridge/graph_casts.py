"""Checks ids that the model itself casts, from floats or longer integers.

`ops.cast(x[:, 0], "int64")` of a float32 tensor makes the ids 2**24 and 2**24 + 1 equal, and the
resulting integers do not show it. This module finds the cast in the graph: it goes back from the
ids of a layer over ops that move values without changing them, and from the cast back to an input
in the same way. Values that came through such a cast are checked in each step. Ids that are
computed from floats, as by buckets or a hash, come through other ops and are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import tree

from sok_embed.keras_bridge import callers
from sok_embed.keras_bridge.layer_calls import EXACT_BELOW, first_arguments, keeps_ids

# Ops that move values without changing them, with the numbers of the inputs that they move; `None`:
# all.
_MOVES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        (
            "Bitcast",
            "BroadcastTo",
            "EnsureShape",
            "ExpandDims",
            "Gather",
            "GatherNd",
            "GatherV2",
            "Identity",
            "Pad",
            "PadV2",
            "PlaceholderWithDefault",
            "Reshape",
            "Reverse",
            "ReverseV2",
            "Slice",
            "Snapshot",
            "Squeeze",
            "StopGradient",
            "StridedSlice",
            "Tile",
            "Transpose",
            "Unpack",
            "SplitV",
        ),
        (0,),
    ),
    "Split": (1,),
    "SelectV2": (1, 2),
    "ConcatV2": None,
    "IdentityN": None,
    "Pack": None,
}
# Ops that may drop some of their input values.
_CHOOSES = ("Gather", "GatherNd", "GatherV2", "Slice", "Split", "SplitV", "StridedSlice", "Unpack")
# Before a cast these ops only change fractions, and a large float has none.
_ROUNDS = ("Ceil", "Floor", "Rint", "Round")
# With a constant these ops keep different values different, except beyond a bound.
_SHIFTS = ("Add", "AddV2", "Sub")
_BOUNDS = ("Maximum", "Minimum")
_INPUTS = ("Arg", "IteratorGetNext", "Placeholder", "_Arg")
# The same for operations of Keras, by the names of their classes.
_KERAS_MOVES = (
    "BroadcastTo Concatenate ExpandDims Flatten GetItem Identity Permute Ravel RepeatVector "
    "Reshape Split Squeeze Stack Take Transpose Unstack Ceil Floor Round Clip Maximum Minimum"
).split()
_KERAS_SHIFTS = ("Add", "Subtract")


class _Through(NamedTuple):
    """Values that came through a cast.

    Attributes:
        values: The values to check, integers.
        source: The dtype before the cast.
        low: The values are at least this.
        high: The values are below this.
    """

    values: tf.Tensor
    source: tf.DType
    low: int
    high: int


def checked_ids(what: str, ids: Any, layer: keras.layers.Layer | None = None) -> Any:
    """Returns the ids, with a check that fails if a cast of the model has changed them.

    Args:
        what: The beginning of the message.
        ids: Integers; all else is returned as it is. A constant that was made outside of a graph
            has come through no cast in it.
        layer: The layer whose `call` is running, whose functional models are checked if they run
            eagerly.

    Raises:
        ValueError: For such ids of a functional model that runs eagerly.
        tf.errors.InvalidArgumentError: For such ids of a graph, when it runs.
    """
    if not isinstance(ids, tf.Tensor) or not ids.dtype.is_integer:
        return ids
    if not tf.is_symbolic_tensor(ids):
        if tf.executing_eagerly() and layer is not None:
            _check_eagerly(what, layer, ids)
        return ids
    checks = [_assertion(what, through) for through in _through_casts(ids)]
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.identity(ids) if checks else ids


def _through_casts(ids: tf.Tensor) -> Iterator[_Through]:
    """Yields the values among the ids that have come from an input of the graph through a cast."""
    # Each part is a tensor and, unless all of its elements are ids, a mask of those that are.
    parts: list[tuple[tf.Tensor, tf.Tensor | None]] = [(ids, None)]
    seen = {ids.name}
    while parts:
        through, more = _sources_of(*parts.pop())
        if through is not None:
            yield through
        for tensor, kept in more:
            if kept is not None or tensor.name not in seen:
                parts.append((tensor, kept))
            if kept is None:
                seen.add(tensor.name)


def _sources_of(
    part: tf.Tensor, kept: tf.Tensor | None
) -> tuple[_Through | None, list[tuple[tf.Tensor, tf.Tensor | None]]]:
    """Returns the cast that a tensor comes from, or the tensors of which it was made.

    `kept` is a mask of the elements that are ids; `None`: all are.
    """
    tensor, chooses, bounded = part, False, False
    while True:
        op = tensor.op
        if op.type == "Cast":
            source = op.inputs[0]
            if source.dtype in EXACT_BELOW:
                narrowest = _narrowest(source)
                if narrowest is None:
                    return None, []
                through = _from_floats(part, tensor.dtype, source, narrowest)
                return _where(kept, through, part, tensor, chooses), []
            if not source.dtype.is_integer:
                return None, []
            narrows = not keeps_ids(source.dtype.name, tensor.dtype.name)
            if narrows and _narrowest(source) is not None:
                # Values that were cut off cannot be seen in the result.
                low, high = tensor.dtype.min, tensor.dtype.max + 1
                through = _Through(source, source.dtype, low, high)
                return _where(kept, through, part, tensor, chooses), []
            tensor = source
            continue
        moved = _moved(op) if op.type in _MOVES else []
        varying = _beside_constant(op) if op.type in (*_SHIFTS, *_BOUNDS) else None
        if varying is not None and op.type in _BOUNDS:
            chooses = bounded = True  # values beyond the bound are not in the result
            tensor = varying
        elif varying is not None:
            if chooses or kept is not None:
                return None, []  # it is not known which values before the shift are ids
            return None, [(varying, None)]
        elif len(moved) == 1:
            chooses |= op.type in _CHOOSES
            tensor = moved[0]
        elif bounded or (kept is not None and tensor is not part):
            return None, []  # it is not known here which elements are ids
        elif op.type == "SelectV2":
            condition = op.inputs[0]
            both = zip(moved, (condition, ~condition), strict=True)
            return None, [(each, c if kept is None else c & kept) for each, c in both]
        else:
            return None, [(each, None) for each in moved] if kept is None else []


def _where(
    kept: tf.Tensor | None, through: _Through, part: tf.Tensor, cast: tf.Tensor, chooses: bool
) -> _Through | None:
    """Returns the check of the values that become ids; `None` if it is not known which do."""
    is_before = through.values is not part  # the values were not moved as the part was
    if is_before and (chooses or kept is not None) and cast is not part:
        return None
    if kept is None:
        return through
    zero = tf.zeros([], through.values.dtype)
    return through._replace(values=tf.where(kept, through.values, zero))


def _from_floats(
    ids: tf.Tensor, cast: tf.DType, source: tf.Tensor, narrowest: tf.DType
) -> _Through:
    """Returns the check of ids after a cast of floats to the integer type `cast`."""
    limit = EXACT_BELOW[narrowest]
    if limit <= min(cast.max, ids.dtype.max):
        # Some of the floats may not become ids.
        return _Through(ids, narrowest, 1 - limit, limit)
    return _Through(source, narrowest, cast.min, cast.max + 1)


def _beside_constant(op: tf.Operation) -> tf.Tensor | None:
    """Returns the input of an op of two that is not a constant, if the other one is."""
    varying = [each for each in op.inputs if tf.get_static_value(each) is None]
    return varying[0] if len(varying) == 1 else None


def _moved(op: tf.Operation) -> list[tf.Tensor]:
    """Returns the inputs of an op whose values are among its outputs."""
    places = _MOVES[op.type]
    if places is None:
        # The last input of a concatenation is its axis.
        return list(op.inputs)[:-1] if op.type == "ConcatV2" else list(op.inputs)
    return [op.inputs[place] for place in places]


def _narrowest(tensor: tf.Tensor) -> tf.DType | None:
    """Returns the dtype on a tensor's way from an input of the graph that holds the fewest ids.

    `None` for values that are computed, or that come from no input of the graph.
    """
    waiting, seen, dtypes, is_input = [tensor], set(), [], False
    while waiting:
        tensor = waiting.pop()
        op = tensor.op
        dtypes.append(tensor.dtype)
        if op.type in _INPUTS:
            is_input = True
            continue
        if op.name in seen:
            continue
        seen.add(op.name)
        if op.type in _MOVES:
            waiting += _moved(op)
        elif op.type in _ROUNDS or op.type == "Cast":
            waiting.append(op.inputs[0])
        elif op.type in (*_SHIFTS, *_BOUNDS):
            varying = _beside_constant(op)
            waiting += [] if varying is None else [varying]
    return min(dtypes, key=_exact_below) if is_input else None


def _exact_below(dtype: tf.DType) -> int:
    return EXACT_BELOW.get(dtype, 2**64)


def _assertion(what: str, through: _Through) -> Any:
    values, limits = through.values, through.values.dtype
    # Comparisons with a NaN are false. Integers may have no number for a bound.
    if limits.is_floating:
        inside = tf.reduce_all(values < tf.constant(through.high, limits))
    else:
        inside = tf.reduce_all(values <= tf.constant(through.high - 1, limits))
    if through.low > limits.min:
        inside &= tf.reduce_all(values >= tf.constant(through.low, limits))
    return tf.debugging.Assert(inside, [_message(what, through)])


def _message(what: str, through: _Through) -> str:
    return (
        f"{what}: expected ids that the cast from {through.source.name} in the model keeps apart, "
        f"in [{through.low}, {through.high}). Received: ids outside of this range, into which the "
        "cast may have changed other ids, or NaN. Feed them as integers of 64 bits, in a tensor "
        "of their own; ids that are computed from numbers on purpose are best computed before the "
        "cast, as by keras.layers.Hashing or keras.layers.Discretization."
    )


def _check_eagerly(what: str, layer: keras.layers.Layer, ids: tf.Tensor) -> None:
    """Raises for ids that a functional model has cast in eager mode, by the layers of the model."""
    for call in callers.functional_calls(layer):
        for argument in first_arguments(call.layer, call.model):
            given = [part for part in tree.flatten(argument) if part is not None]
            if len(given) != 1:
                continue  # it is not known here which of them are the ids
            source = _float_behind(given[0])
            if source is None:
                continue
            limit = EXACT_BELOW[source]
            through = _Through(tf.cast(ids, tf.int64), source, 1 - limit, limit)
            kept = (through.values >= through.low) & (through.values < limit)
            if not bool(tf.reduce_all(kept)):
                raise ValueError(_message(what, through))


def _float_behind(tensor: Any) -> tf.DType | None:
    """Returns the float dtype that a symbolic tensor of ids was cast from, if all of it was."""
    history = getattr(tensor, "_keras_history", None)
    if history is None:
        return None
    operation = history.operation
    given = operation._inbound_nodes[history.node_index].input_tensors
    if type(operation).__name__ == "Cast" and given:
        dtype = tf.as_dtype(given[0].dtype)
        if dtype in EXACT_BELOW:
            return _narrowest_in_keras(given[0])
    elif type(operation).__name__ not in _KERAS_MOVES or not given:
        return None
    behind = [_float_behind(each) for each in given]
    return None if None in behind else behind[0]


def _narrowest_in_keras(tensor: Any) -> tf.DType | None:
    """Does what `_narrowest` does for a symbolic tensor, on its way from an input of the model."""
    waiting, dtypes, is_input = [tensor], [], False
    while waiting:
        tensor = waiting.pop()
        dtypes.append(tf.as_dtype(tensor.dtype))
        history = getattr(tensor, "_keras_history", None)
        if history is None:
            continue
        operation = history.operation
        if isinstance(operation, keras.layers.InputLayer):
            is_input = True
        elif type(operation).__name__ in (*_KERAS_MOVES, *_KERAS_SHIFTS, "Cast"):
            given = operation._inbound_nodes[history.node_index].input_tensors
            if type(operation).__name__ not in _KERAS_SHIFTS or len(given) == 1:
                waiting += given
    return min(dtypes, key=_exact_below) if is_input else None
