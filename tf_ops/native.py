"""Loads `_ops.so`, which registers the ops with TensorFlow."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import tensorflow as tf

_PATH = Path(__file__).with_name("_ops.so")


_numbers = itertools.count(1)


def on_cpu() -> Any:
    """Places the op that makes a handle on the CPU, whatever device its caller asks for.

    TensorFlow has a resource on the device whose op makes it, and runs all ops on it there. Each
    device has names of its own, so the same one would be two tables on two devices.
    """
    return tf.device("/device:CPU:0")


def number_in_graph() -> int:
    """Tells ops of a graph apart, in the order in which they are made.

    Returns:
        0 where ops run as they are called, which needs no numbers.
    """
    return 0 if tf.executing_eagerly() else next(_numbers)


def _load() -> Any:
    if not _PATH.exists():
        raise ImportError(
            f"Expected the compiled ops of sok_embed at {_PATH}. Received: no such file. "
            "Build them with `make setup` in the source tree, or install the package with "
            "`pip install .`."
        )
    try:
        return tf.load_op_library(str(_PATH))
    except (tf.errors.NotFoundError, OSError) as error:
        raise ImportError(
            f"The compiled ops of sok_embed do not load with TensorFlow {tf.__version__}: {error}. "
            "They belong to the TensorFlow that they were built with; build them again with "
            "`make setup` or `pip install .`."
        ) from error


ops: Any = _load()
