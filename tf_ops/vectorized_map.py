"""Lookups within `tf.vectorized_map`: one for all turns of the map, instead of one a turn.

`tf.vectorized_map` traces its function once, and then makes each op again for all turns together.
The ops that were traced stay in the graph, and run too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.python.ops.parallel_for import pfor

from sok_embed.tf_ops.collections import BAG_A_ROW
from sok_embed.tf_ops.native import on_cpu
from sok_embed.tf_ops.tables import number_in_graph

# Ops that are converted even if their inputs do not seem to differ from turn to turn: one variant
# has the bags of all turns, and the places of own rows are always those of all turns.
_CONVERTED_ALWAYS = (
    "CollectionPool",
    "CollectionOutput",
    "CollectionPoolOnGpu",
    "OwnPlaces",
)
pfor.force_stateful_ops.update(f"SokEmbed>{name}" for name in _CONVERTED_ALWAYS)


def _again(turns: Any, learns: str | None = None) -> Any:
    """Makes the op that was traced once more, for all turns, from inputs that were converted.

    The op that was traced loses the attribute `learns`, by which it counts keys and makes rows.
    """
    op = turns.op
    with tf.device(op.device):
        made = pfor._create_op(
            op.type,
            [each.t for each in turns.inputs],
            [output.dtype for output in op.outputs],
            op.node_def.attr,
        )
    if "number" in op.node_def.attr:
        made._set_attr("number", AttrValue(i=number_in_graph()))
    if learns is not None:
        op._set_attr(learns, AttrValue(b=False))
    return made


def _unstacked(made: Any) -> list[Any]:
    return [pfor.wrap(output, False) for output in made.outputs]


def _each_key_alone(
    turns: Any, learns: str | None, together: Sequence[int], outputs: Iterable[int]
) -> list[Any]:
    """Converts an op that looks keys up, each by itself.

    Args:
        turns: The conversion.
        learns: The attribute, as for `_again`.
        together: The inputs of which each turn has its own: keys, and tensors of their shape.
        outputs: The outputs that begin with the shape of the keys.
    """
    stacked = any(turns.input(place).is_stacked for place in together)
    if stacked:
        turns.stack_inputs(together)
    _check_shared(turns, together)
    made = _again(turns, learns)
    return [
        pfor.wrap(output, stacked and place in outputs) for place, output in enumerate(made.outputs)
    ]


def _check_shared(turns: Any, together: Sequence[int]) -> None:
    """Raises unless all turns share the other inputs, such as the table."""
    for place in range(turns.num_inputs):
        if place not in together:
            turns.unstacked_input(place)


@pfor.RegisterPFor("SokEmbed>Lookup")
def _lookup(turns: Any) -> list[Any]:
    counts = range(3, turns.num_inputs)
    return _each_key_alone(turns, "make_rows", [1, *counts], [0])


@pfor.RegisterPFor("SokEmbed>AdaptiveLookup")
def _adaptive_lookup(turns: Any) -> list[Any]:
    together = [1]
    for place, attribute in ((2, "has_counts"), (3, "has_mask")):
        if turns.get_attr(attribute):
            together.append(place)
    return _each_key_alone(turns, "training", together, [0])


@pfor.RegisterPFor("SokEmbed>AdaptiveMaskGather")
def _adaptive_mask_gather(turns: Any) -> list[Any]:
    counts = range(6, turns.num_inputs)
    hashes = turns.get_attr("hash_keys")
    together = [2, 4, *counts] if hashes else [2, 3, 4, *counts]
    return _each_key_alone(turns, "make_rows", together, [0, 2, 3] if hashes else [0, 2])


@pfor.RegisterPFor("SokEmbed>OwnPlaces")
def _own_places(turns: Any) -> list[Any]:
    # The places are those of the keys of all turns, one turn after the other.
    turns.stack_inputs([1, 2])
    return _unstacked(_again(turns))


@pfor.RegisterPFor("SokEmbed>AdaptiveMaskGatherOnGpu")
def _adaptive_mask_gather_on_gpu(turns: Any) -> list[Any]:
    turns.stack_inputs([2, 3])  # since the places are always those of all turns
    found = _each_key_alone(turns, "make_rows", [2, 3], [0, 2])
    _hold(turns, found[0].t.op)
    return found


@pfor.RegisterPFor("SokEmbed>AdaptiveBuckets")
@pfor.RegisterPFor("SokEmbed>StaticBuckets")
def _buckets(turns: Any) -> list[Any]:
    return _each_key_alone(turns, None, [0], [0])


@pfor.RegisterPFor("SokEmbed>TrainedToken")
@pfor.RegisterPFor("SokEmbed>OwnOrder")
@pfor.RegisterPFor("SokEmbed>AllToAll")
def _shared(turns: Any) -> list[Any]:
    _check_shared(turns, [])
    return _unstacked(_again(turns))


def _hold(turns: Any, made: Any) -> None:
    """Makes a later commit wait for a lookup on a GPU, whose first input is a token of its tables.

    The wrapper of the lookup does this for the op that was traced.
    """
    token = turns.input(0).t.op
    with on_cpu(), tf.control_dependencies([made]):
        pfor._create_op(token.type, list(token.inputs), [tf.variant], token.node_def.attr)


# The bags of all turns follow each other in one request, one lookup and one pooling. An op that has
# the bags of all turns in a variant carries this mark.
_MARK = "_sok_embed_has_bags_of_all_turns"


def _mark(made: Any) -> Any:
    setattr(made, _MARK, True)
    return made


def _has_bags_of_all_turns(variant: tf.Tensor) -> bool:
    return hasattr(variant.op, _MARK)


def _in_one_axis(values: tf.Tensor) -> tf.Tensor:
    """Returns `[turns, n, ...]` as `[turns * n, ...]`."""
    shape = tf.shape(values)
    return tf.reshape(values, tf.concat([[shape[0] * shape[1]], shape[2:]], 0))


def _row_splits(splits: tf.Tensor) -> tf.Tensor:
    """Returns row splits `[turns, bags + 1]` as those of all bags, `[turns * bags + 1]`.

    Splits that do not begin with 0, or end otherwise than those of another turn, become -1, which
    the request refuses.
    """
    keys = splits[:, -1:]
    fit = (splits[:, :1] == 0) & (keys == keys[:1])
    follow = tf.where(fit, splits + tf.cumsum(keys, exclusive=True), -1)
    return tf.concat([[0], tf.reshape(follow[:, 1:], [-1])], 0)


def _stack_bags(turns: Any, places: Iterable[int], keys: Iterable[int], splits: Any) -> None:
    """Stacks the inputs that say which keys are in which bags, the bags of all turns in one axis.

    Args:
        turns: The conversion.
        places: The inputs that are stacked.
        keys: The inputs among them that are keys, one a feature.
        splits: The inputs among them that are row splits.
    """
    turns.stack_inputs(places)
    for place, kind in zip(keys, turns.get_attr("bags"), strict=True):
        if kind == BAG_A_ROW:
            _replace(turns, place, _in_one_axis)
    for place in splits:
        _replace(turns, place, _row_splits)


def _replace(turns: Any, place: int, change: Any) -> None:
    turns.inputs[place] = pfor.wrap(change(turns.input(place).t), True)


def _weights_may_differ(turns: Any) -> bool:
    """Returns whether the op that pools what was asked for may have other weights in each turn."""
    return any(
        turns.pfor.op_is_inside_loop(op.inputs[place].op)
        for op in turns.op.outputs[2].consumers()
        if "num_weights" in op.node_def.attr
        for place in _last(op, "num_weights")
    )


def _last(op: Any, number: str) -> list[int]:
    """Returns the places of the inputs that are last, of which an attribute has the number."""
    count = len(op.inputs)
    return list(range(count - op.get_attr(number), count))


@pfor.RegisterPFor("SokEmbed>CollectionRequest")
def _collection_request(turns: Any) -> list[Any]:
    if not (any(each.is_stacked for each in turns.inputs) or _weights_may_differ(turns)):
        return _unstacked(_again(turns))
    features = len(turns.get_attr("bags"))
    splits = range(features, features + turns.get_attr("num_splits"))
    _stack_bags(turns, range(turns.num_inputs), range(features), splits)
    return _unstacked(_mark(_again(turns)))


@pfor.RegisterPFor("SokEmbed>Prefetch")
def _prefetch(turns: Any) -> Any:
    if turns.input(1).is_stacked:
        turns.stack_inputs([1])
    return _again(turns)


@pfor.RegisterPFor("SokEmbed>CollectionServe")
@pfor.RegisterPFor("SokEmbed>CollectionServeOnGpu")
def _collection_serve(turns: Any) -> list[Any]:
    _check_shared(turns, [])
    made = _again(turns, "make_rows")
    if turns.op_type.endswith("OnGpu"):
        _hold(turns, made)
    return _unstacked(made)


@pfor.RegisterPFor("SokEmbed>CollectionPool")
def _collection_pool(turns: Any) -> list[Any]:
    return _pool(turns, 2, _last(turns.op, "num_weights"), [])


@pfor.RegisterPFor("SokEmbed>CollectionPoolOnGpu")
def _collection_pool_on_gpu(turns: Any) -> list[Any]:
    weights = _last(turns.op, "num_weights")
    first = turns.num_inputs - len(weights) - turns.get_attr("num_splits")
    return _pool(turns, 3, weights, range(first, first + turns.get_attr("num_splits")))


def _pool(turns: Any, asked: int, weights: Sequence[int], splits: Sequence[int]) -> list[Any]:
    """Converts an op that pools rows.

    Args:
        turns: The conversion.
        asked: The input that is the variant of what was asked for.
        weights: The inputs that are weights.
        splits: The inputs that are row splits.
    """
    of_all = _has_bags_of_all_turns(turns.input(asked).t)
    of_turns = [*splits, *weights] if of_all else []
    _check_shared(turns, of_turns)
    if of_all:
        turns.stack_inputs(of_turns)
        for place in splits:
            _replace(turns, place, _row_splits)
    made = _again(turns)
    return _unstacked(_mark(made) if of_all else made)


@pfor.RegisterPFor("SokEmbed>LookupPooled")
def _lookup_pooled(turns: Any) -> list[Any]:
    keys = range(1, 1 + turns.get_attr("num_features"))
    splits = range(keys.stop, keys.stop + 2 * turns.get_attr("num_splits"))  # host_splits too
    checked = range(splits.stop, splits.stop + turns.get_attr("num_checked"))
    places = [*keys, *splits, *checked, *_last(turns.op, "num_weights")]
    _check_shared(turns, places)
    of_all = any(turns.input(place).is_stacked for place in places)
    if of_all:
        _stack_bags(turns, places, keys, splits)
    made = _again(turns, "make_rows")
    _hold(turns, made)
    return _unstacked(_mark(made) if of_all else made)


@pfor.RegisterPFor("SokEmbed>CollectionOutput")
def _output(turns: Any) -> list[Any]:
    _check_shared(turns, [])
    (output,) = _again(turns).outputs
    if not _has_bags_of_all_turns(turns.input(0).t):
        return [pfor.wrap(output, False)]
    count = turns.pfor.loop_len_vector
    bags = tf.shape(output)[:1] // tf.maximum(count, 1)
    of_turns = tf.reshape(output, tf.concat([count, bags, [turns.get_attr("width")]], 0))
    return [pfor.wrap(of_turns, True)]


def _refuse_gradients(_: Any) -> NoReturn:
    raise ValueError(
        "Expected the gradient of a loss by the rows of a table. Received: a jacobian by them, or "
        "gradients taken within tf.vectorized_map. Take jacobians by the vectors that the layer "
        "returns, which a tape has to watch, and gradients outside of the map or in tf.map_fn."
    )


for _name in (
    "Deposit",
    # These come before a deposit.
    "CollectionOutputGradient",
    "CollectionPoolGradient",
    "PooledGradients",
):
    pfor.RegisterPFor(f"SokEmbed>{_name}")(_refuse_gradients)
