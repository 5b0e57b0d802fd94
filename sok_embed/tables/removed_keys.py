"""Reads the keys that a table has noted because their rows have gone."""

from __future__ import annotations

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.arguments import check_integer
from sok_embed.kv import RemovedKeys

_MOST = 2**62


def taken_keys(handle: tf.Tensor, limit: int) -> RemovedKeys:
    """Returns the keys that a table has noted, and makes it note the next ones."""
    taken = tf_ops.removed_keys(handle, check_integer("limit", limit, 0, _MOST))
    return RemovedKeys(taken.keys.numpy(), bool(taken.complete))
