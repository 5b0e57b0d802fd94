"""An exchange of rows between workers."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import tensorflow as tf

from sok_embed.tf_ops.native import ops


class Exchanged(NamedTuple):
    """The result of an exchange.

    Attributes:
        rows: `[m, ...]`, rows of worker 0 first.
        splits: int32 `[workers]`, how many rows came from each.
        turn: int64 scalar, the number of the exchange among those of its name.
    """

    rows: tf.Tensor
    splits: tf.Tensor
    turn: tf.Tensor


def all_to_all(
    rows: tf.Tensor,
    splits: tf.Tensor,
    mesh: int,
    exchange: str,
    turn: Any = -1,
    *,
    in_program_order: bool = False,
    gradient_splits: tf.Tensor | None = None,
    same_rows: bool = False,
) -> Exchanged:
    """Sends rows to every worker and receives rows from each. Collective.

    Differentiable in `rows`: the gradient goes back the way that the rows came, unless
    `gradient_splits` say otherwise. In a `tf.function` an exchange waits for its inputs, and not
    for the exchanges before it.

    Args:
        rows: `[n, ...]`; the first `splits[0]` go to worker 0, the next to worker 1, ….
        splits: int32 `[workers]`, summing to n.
        mesh: The number of the connections, `Mesh.number`.
        exchange: A name, the same on every worker.
        turn: int64 scalar, the number of the exchange among those of its name, for exchanges whose
            order may differ from worker to worker. -1: they are counted.
        in_program_order: True if in a `tf.function` the exchange keeps its place in the order of
            stateful ops: it waits for earlier ones without resources, and later ones wait for it.
        gradient_splits: int32 `[workers]`, how much of the gradient of the result goes to each
            worker. `None`: as many rows as came from it.
        same_rows: True if each worker gets all n rows, from one buffer. Each of `splits` is n, and
            the gradient is the sum of those of all workers.

    Raises:
        tf.errors.InvalidArgumentError: For other splits, and for rows of another type or shape than
            those of another worker.
        tf.errors.AbortedError: If a worker is lost, or does not come within the timeout.
    """
    waits = in_program_order or tf.executing_eagerly()
    return Exchanged(
        *ops.sok_embed_all_to_all(
            rows=rows,
            splits=splits,
            turn=tf.cast(turn, tf.int64),
            orders=[] if waits else [ops.sok_embed_own_order()],
            gradient_splits=[] if gradient_splits is None else [gradient_splits],
            mesh=mesh,
            exchange=exchange,
            same_rows=same_rows,
            # A node's name has no other characters.
            name=re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", exchange),
        )
    )


@tf.RegisterGradient("SokEmbed>AllToAll")
def _all_to_all_gradient(op: Any, upstream: tf.Tensor, *_: Any) -> list[tf.Tensor | None]:
    # An eager tape may compute the gradients of two calls in different orders on different workers.
    name = op.get_attr("exchange").decode().removesuffix(".rows") + ".gradients"
    _, splits, turn = op.outputs
    if op.get_attr("num_gradient_splits"):
        splits = op.inputs[-1]
    gradient = all_to_all(upstream, splits, op.get_attr("mesh"), name, turn).rows
    if op.get_attr("same_rows"):
        of_each = tf.concat([tf.shape(op.inputs[1]), tf.shape(op.inputs[0])], 0)
        gradient = tf.reduce_sum(tf.reshape(gradient, of_each), 0)
    return [gradient, *[None] * (len(op.inputs) - 1)]
