"""Makes tables whose rows may lie in the memory of a GPU, as TensorFlow sees it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from sok_embed.tables.devices import AUTO, CPU, chosen_device
from sok_embed.tables.row_dtypes import FLOAT32


def make_on(what: str, device: Any, attributes: dict[str, Any], make: Callable[[], None]) -> int:
    """Makes a table on a device.

    Args:
        what: The beginning of messages, such as `"Table 'a'"`.
        device: The device that the caller of the table asks for.
        attributes: The attributes of the op that makes the table; they get its `gpu`.
        make: The function that makes the table with these attributes.

    Returns:
        The number of the GPU whose memory the rows lie in; -1 for the host's.

    Raises:
        RuntimeError: For a GPU that cannot be used, unless the device is `"auto"`.
        ValueError: For a table that a GPU cannot hold, likewise, and for a TF1 graph.
    """
    wanted = chosen_device(what, device)
    number = _place_of_rows(what, wanted, attributes)
    if number < 0:
        make()
        return -1
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise _in_graph(what)
    attributes["gpu"] = number
    try:
        make()
    except (RuntimeError, ValueError, tf.errors.OpError) as error:
        if wanted != AUTO:
            raise
        attributes["gpu"] = -1
        make()
        # Without a GPU, "auto" means the host.
        if tf.config.get_visible_devices("GPU"):
            warnings.warn(
                f"{what}: expected to lie on GPU {number}, which device='auto' prefers. It lies on "
                f"the host. Received: {error}",
                stacklevel=3,
            )
        return -1
    _warn_of_full_memory(number)
    return number


def refuse_in_graph(what: str, device: Any) -> None:
    """Raises ValueError unless the rows of a TF1 graph lie in the host's memory.

    Args:
        what: The beginning of the message.
        device: The device that the caller asks for.
    """
    if chosen_device(what, device) != CPU:
        raise _in_graph(what)


def _in_graph(what: str) -> ValueError:
    return ValueError(
        f"{what}: expected eager execution around a table on a GPU. Received: a TF1 graph. Use "
        "device='cpu' there."
    )


def logical_device(number: int) -> str | None:
    """Returns the name by which TensorFlow knows the GPU of a number; None if it does not."""
    logical = [str(each.name) for each in tf.config.list_logical_devices("GPU")]
    first = 0  # of the logical devices of a GPU, of which it has one or several
    for visible in tf.config.get_visible_devices("GPU"):
        if int(visible.name.rpartition(":")[2]) == number and first < len(logical):
            return logical[first]
        first += len(tf.config.get_logical_device_configuration(visible) or [None])
    return None


def _place_of_rows(what: str, device: str, attributes: dict[str, Any]) -> int:
    """Returns the number of the GPU that is asked for, or -1 for the host.

    Checks that it can hold the table.
    """
    if device == CPU:
        return -1
    dtypes = attributes["row_dtype"], attributes["slot_dtype"]
    if "storage" in attributes:
        reason = "rows in memory", "a storage, whose rows are on disk and in the host's memory"
    elif attributes.get("direct"):
        reason = "a hash index", "keys that are found by position (use_hashtable=False)"
    elif dtypes != (FLOAT32, FLOAT32):
        reason = "row_dtype='float32' and slot_dtype='float32'", f"{dtypes[0]!r} and {dtypes[1]!r}"
    else:
        return _number_of(device)
    if device == AUTO:
        return -1
    raise ValueError(
        f"{what}: expected {reason[0]} with device={device!r}. Received: {reason[1]}. Use "
        "device='cpu', or 'auto', which takes a GPU only where it can hold the table."
    )


def _warn_of_full_memory(number: int) -> None:
    """Warns if TensorFlow takes all memory of a GPU, so that none is left for rows."""
    for visible in tf.config.get_visible_devices("GPU"):
        if int(visible.name.rpartition(":")[2]) != number:
            continue
        limits = tf.config.get_logical_device_configuration(visible) or []
        if (limits and all(each.memory_limit for each in limits)) or _lets_memory_grow(visible):
            return
        # The text is the same for all tables, so that it is shown once.
        warnings.warn(
            f"Expected TensorFlow to leave memory of GPU {number} to the rows of tables. Received: "
            "a TensorFlow that takes nearly all of it when it first uses the GPU. Call "
            "tf.config.experimental.set_memory_growth(gpu, True), or limit its memory by "
            "tf.config.set_logical_device_configuration, before anything runs on the GPU.",
            stacklevel=4,
        )


def _number_of(device: str) -> int:
    """Returns the number of a GPU: the given one, or the first one that TensorFlow sees."""
    if ":" in device:
        return int(device.partition(":")[2])
    for visible in tf.config.get_visible_devices("GPU"):
        return int(visible.name.rpartition(":")[2])
    return 0


def _lets_memory_grow(visible: Any) -> bool:
    if os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() == "true":
        return True
    try:
        return bool(tf.config.experimental.get_memory_growth(visible))
    except ValueError:  # GPUs of one process have different settings
        return False
