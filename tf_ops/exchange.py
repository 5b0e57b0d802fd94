"""An exchange between workers, and its local half: group keys by owner, put rows back in place."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import tensorflow as tf

from sok_embed.tf_ops.native import ops


class Partition(NamedTuple):
    """Distinct keys, grouped by the worker that owns them.

    Attributes:
        unique_keys: `[u]`, those of owner 0 first.
        splits: int32 `[owners]`, how many belong to each.
        inverse: int32 `[n]`, so that `keys[i] == unique_keys[inverse[i]]`.
    """

    unique_keys: tf.Tensor
    splits: tf.Tensor
    inverse: tf.Tensor


def unique_and_partition(
    keys: tf.Tensor, owners: int, key_limit: int = 0, buckets: int = 0
) -> Partition:
    """Finds the distinct keys and groups them by owner: the key modulo `owners`, rounded down.

    Args:
        keys: `[n]`, fewer than 2**31.
        owners: The number of workers that share the keys, at most 65536.
        key_limit: Keys must be below it; 0 lets every key pass.
        buckets: The number of buckets; if not 0, the owner is the key's `adaptive_buckets` modulo
            `owners`.

    Raises:
        tf.errors.InvalidArgumentError: For a key that is not below `key_limit`, or more owners.
    """
    return Partition(
        *ops.sok_embed_unique_and_partition(
            keys=keys, owners=owners, key_limit=key_limit, buckets=buckets
        )
    )


def expand(rows: tf.Tensor, inverse: tf.Tensor) -> tf.Tensor:
    """Returns `rows[inverse]`, `[n, dim]`. Differentiable in `rows`.

    Args:
        rows: `[u, dim]`, float32 or bfloat16.
        inverse: int32 `[n]`, each in `[0, u)`.
    """
    return ops.sok_embed_expand(rows=rows, inverse=inverse)


def expand_gradient(gradients: tf.Tensor, inverse: tf.Tensor, distinct: tf.Tensor) -> tf.Tensor:
    """Computes the gradient of `expand`: sums of gradients of equal `inverse`, in float32.

    Args:
        gradients: `[n, dim]`, float32 or bfloat16.
        inverse: int32 `[n]`.
        distinct: int32 scalar, the number of rows `u`.

    Returns:
        float32 `[u, dim]`.
    """
    return ops.sok_embed_expand_gradient(gradients=gradients, inverse=inverse, distinct=distinct)


@tf.RegisterGradient("SokEmbed>Expand")
def _expand_gradient(op: Any, upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
    rows, inverse = op.inputs
    sums = expand_gradient(upstream, inverse, tf.shape(rows)[0])
    return tf.cast(sums, rows.dtype), None


class Exchanged(NamedTuple):
    """The result of an exchange.

    Attributes:
        rows: `[m, ...]`, those of worker 0 first.
        splits: int32 `[workers]`, how many came from each.
        turn: int64 scalar, which exchange of its name it was.
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
) -> Exchanged:
    """Sends rows to every worker and receives rows from each. Collective.

    Differentiable in `rows`: the gradient goes back the way that the rows came. In a `tf.function`
    an exchange waits for its inputs, and not for the exchanges before it.

    Args:
        rows: `[n, ...]`; the first `splits[0]` go to worker 0, the next to worker 1, ….
        splits: int32 `[workers]`, summing to n.
        mesh: The number of the connections, `Mesh.number`.
        exchange: A name, the same on every worker.
        turn: int64 scalar that tells exchanges of one name apart whose order may differ from worker
            to worker. -1: they are counted.
        in_program_order: True if in a `tf.function` it also waits for the stateful ops before it
            that use no resources, and those after it for the exchange.

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
            mesh=mesh,
            exchange=exchange,
            # A node's name has no other characters.
            name=re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", exchange),
        )
    )


@tf.RegisterGradient("SokEmbed>AllToAll")
def _all_to_all_gradient(op: Any, upstream: tf.Tensor, *_: Any) -> list[tf.Tensor | None]:
    # An eager tape may come to the gradients of two calls in another order on another worker.
    name = op.get_attr("exchange").decode() + ".gradients"
    _, splits, turn = op.outputs
    gradient = all_to_all(upstream, splits, op.get_attr("mesh"), name, turn).rows
    return [gradient, *[None] * (len(op.inputs) - 1)]
