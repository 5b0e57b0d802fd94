"""Lookups within `tf.vectorized_map`, and errors for derivatives that rows do not have."""

from __future__ import annotations

from typing import Any, NoReturn

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.python.ops.parallel_for import pfor

from sok_embed.tf_ops.native import number_in_graph, ops


def _disable_learning(turns: Any, attribute: str) -> None:
    """Turns learning off in the op that was traced: it stays in the graph, and runs too."""
    turns.op._set_attr(attribute, AttrValue(b=False))


@pfor.RegisterPFor("SokEmbed>Lookup")
def _lookup_of_all_turns(turns: Any) -> list[Any]:
    """Looks the keys of all turns of a loop up at once, instead of one lookup a turn."""
    together = [1, *([3] * turns.get_attr("num_counts"))]  # keys, and counts of their shape
    stacked = any(turns.input(place).is_stacked for place in together)
    if stacked:
        turns.stack_inputs(together)
    keys, *counts = (turns.input(place).t for place in together)
    embeddings, receipt = ops.sok_embed_lookup(
        table=turns.unstacked_input(0),
        keys=keys,
        anchor=turns.unstacked_input(2),
        counts=counts,
        **{name: turns.get_attr(name) for name in ("dtype", "dim", "make_rows")},
        number=number_in_graph(),
    )
    _disable_learning(turns, "make_rows")
    return [pfor.wrap(embeddings, stacked), pfor.wrap(receipt, False)]


@pfor.RegisterPFor("SokEmbed>LookupOnGpu")
def _lookup_on_gpu_of_all_turns(turns: Any) -> list[Any]:
    stacked = turns.input(1).is_stacked
    with tf.device(turns.op.device):
        embeddings, receipt = ops.sok_embed_lookup_on_gpu(
            token=turns.unstacked_input(0),
            keys=turns.input(1).t,
            anchor=turns.unstacked_input(2),
            **{name: turns.get_attr(name) for name in ("dtype", "dim", "make_rows")},
            number=number_in_graph(),
        )
    _disable_learning(turns, "make_rows")
    return [pfor.wrap(embeddings, stacked), pfor.wrap(receipt, False)]


@pfor.RegisterPFor("SokEmbed>AdaptiveLookup")
def _adaptive_lookup_of_all_turns(turns: Any) -> list[Any]:
    # The inputs of which each turn has its own: keys, and tensors of their shape.
    together = [1]
    for place, attribute in ((2, "has_counts"), (3, "has_mask")):
        if turns.get_attr(attribute):
            together.append(place)
    stacked = any(turns.input(place).is_stacked for place in together)
    if stacked:
        turns.stack_inputs(together)
    keys, counts, mask = (turns.input(place).t for place in (1, 2, 3))
    attributes = ("dtype", "dim", "training", "has_counts", "has_mask")
    embeddings, receipt = ops.sok_embed_adaptive_lookup(
        table=turns.unstacked_input(0),
        keys=keys,
        counts=counts,
        mask=mask,
        anchor=turns.unstacked_input(4),
        **{name: turns.get_attr(name) for name in attributes},
        number=number_in_graph(),
    )
    _disable_learning(turns, "training")
    return [pfor.wrap(embeddings, stacked), pfor.wrap(receipt, False)]


@pfor.RegisterPFor("SokEmbed>Deposit")
@pfor.RegisterPFor("SokEmbed>DepositOnGpu")
@pfor.RegisterPFor("SokEmbed>DepositPooledOnGpu")
def _deposits_of_all_turns(_: Any) -> NoReturn:
    raise ValueError(
        "Expected the gradient of a loss by the rows of a table. Received: a jacobian by them, or "
        "gradients taken within tf.vectorized_map. Take jacobians by the vectors that the layer "
        "returns, which a tape has to watch, and gradients outside of the map or in tf.map_fn."
    )


@tf.RegisterGradient("SokEmbed>Deposit")
@tf.RegisterGradient("SokEmbed>DepositOnGpu")
@tf.RegisterGradient("SokEmbed>DepositPooledOnGpu")
def _second_derivative(*_: Any) -> NoReturn:
    raise ValueError(
        "Expected second derivatives by way of the vectors that the layer returns. Received: one "
        "by way of a gradient of layer.anchor, whose elements are not those of the rows. Watch the "
        "vectors with the inner tape and take its gradient by them: inner.watch(vectors), "
        "inner.gradient(loss, vectors)."
    )
