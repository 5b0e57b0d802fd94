"""Stand-ins for the handles of tables in graphs for serving, which read rows with other ops."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

import tensorflow as tf


class ServedRows:
    """The rows of a table, as a graph for serving reads them."""

    def find(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of keys, zeros for keys without a row, and which keys have a row.

        Args:
            keys: int64 of any shape.

        Returns:
            float32 `keys.shape + [dim]`, and bool `keys.shape`.
        """
        raise NotImplementedError

    def lookup(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns the same as a lookup that does not train, float32 `keys.shape + [dim]`.

        Args:
            keys: int64 of any shape.
        """
        raise NotImplementedError


class ServedAdaptiveRows:
    """The own and the static rows of an adaptive table, as a graph for serving reads them."""

    def lookup(self, keys: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """Returns the same as a lookup that does not train, float32 `keys.shape + [dim]`.

        Args:
            keys: int64 of any shape.
            mask: int32 of the shape of the keys, as for `adaptive_lookup`.
        """
        raise NotImplementedError


class Pool(Protocol):
    """Makes a vector for each bag of rows that have been looked up."""

    def __call__(
        self,
        rows: tf.Tensor,
        bags: tf.Tensor | int,
        weights: tf.Tensor | None,
        combiner: str,
        max_length: int,
        feature: str,
    ) -> tf.Tensor:
        """Returns float32 `[bags, dim]`, with the same bits as `collection_pool`.

        Args:
            rows: float32 `[n, dim]`, the rows of the keys.
            bags: int64 `[bags + 1]`, where the keys of each bag begin; or the length of all bags.
            weights: float32, one a key, or `None`.
            combiner: `"sum"`, `"mean"`, `"sqrtn"` or `"max"`.
            max_length: The most keys of a bag; 0: any number.
            feature: The name of the feature, for messages.
        """


_stand_in_of: ContextVar[Callable[[Any], Any] | None] = ContextVar(
    "sok_embed_served_by", default=None
)
_pool: ContextVar[Pool | None] = ContextVar("sok_embed_pooled_by", default=None)
_asserts: ContextVar[bool] = ContextVar("sok_embed_asserts", default=True)


@contextlib.contextmanager
def served_by(
    stand_in_of: Callable[[Any], Any], pool: Pool | None = None, asserts: bool = True
) -> Iterator[None]:
    """Lets graphs that are traced meanwhile read rows from stand-ins, with TensorFlow's ops.

    Args:
        stand_in_of: A function that returns the stand-in for a table: `ServedRows`, or
            `ServedAdaptiveRows`.
        pool: A function that pools rows; `None`: TensorFlow's ops do.
        asserts: `False` for a graph that may have none of TensorFlow's assertions, such as ONNX's.
    """
    token, pool_token = _stand_in_of.set(stand_in_of), _pool.set(pool)
    asserts_token = _asserts.set(asserts)
    try:
        yield
    finally:
        _asserts.reset(asserts_token)
        _pool.reset(pool_token)
        _stand_in_of.reset(token)


def serving_pool() -> Pool | None:
    """Returns the function that pools rows in the graph that is traced; `None`: stock ops pool."""
    return _pool.get()


def is_serving() -> bool:
    """Returns whether the graph that is traced is for serving: TensorFlow's ops, no training."""
    return _stand_in_of.get() is not None


def stand_in(table: Any) -> Any:
    """Returns the stand-in for a table in the graph that is traced; `None` if there is none."""
    function = _stand_in_of.get()
    if function is None:
        return None
    # The function reads the table itself.
    token = _stand_in_of.set(None)
    try:
        return function(table)
    finally:
        _stand_in_of.reset(token)


def as_int64(keys: tf.Tensor) -> tf.Tensor:
    """Returns keys as int64; uint64 keys keep their 64 bits."""
    return tf.cast(keys, tf.int64)


def checked(tensor: tf.Tensor, condition: tf.Tensor, message: str, *shown: Any) -> tf.Tensor:
    """Returns the tensor, whose computation fails unless all of a condition holds.

    It raises `tf.errors.InvalidArgumentError` when the graph runs, which shows the tensors `shown`.
    In a graph without assertions the error names an op, and the op's name is the message.
    """
    if not _asserts.get():
        fails = tf.cast(~tf.reduce_all(condition), tf.int64)
        name = re.sub("[^A-Za-z0-9.]+", "_", message).strip("_")
        # There is one zero, at index 0.
        return tensor + tf.gather(tf.zeros([1], tensor.dtype), fails, name=name)
    check = tf.debugging.Assert(tf.reduce_all(condition), [message, *shown])
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(tensor)
