"""Makes tables whose rows may lie in the memory of a GPU, as TensorFlow sees it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from sok_embed.kv.devices import AUTO, CPU, chosen_device
from sok_embed.kv.table_spec import TableSpec


def create_on_device(spec: TableSpec, create: Callable[[TableSpec], None]) -> None:
    """Creates a table on the device that its spec asks for.

    `create` gets the spec with `gpu`, the number of the GPU whose memory the rows lie in, or -1.

    Raises:
        RuntimeError: For a GPU that cannot be used, unless the device is `"auto"`.
        ValueError: For a table that a GPU cannot hold, likewise, and for a TF1 graph.
    """
    wanted = chosen_device(spec.what, spec.device)
    number = _place_of_rows(spec, wanted)
    if number < 0:
        return create(spec)
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise _in_graph(spec.what)
    try:
        create(replace(spec, gpu=number))
    except (RuntimeError, ValueError, tf.errors.OpError) as error:
        if wanted != AUTO:
            raise
        create(spec)
        # Without a GPU, "auto" means the host.
        if tf.config.get_visible_devices("GPU"):
            warnings.warn(
                f"{spec.what}: expected to lie on GPU {number}, which device='auto' prefers. It "
                f"lies on the host. Received: {error}",
                stacklevel=3,
            )
        return None
    _warn_of_full_memory(number)
    return None


def refuse_in_graph(what: str, device: Any) -> None:
    """Raises ValueError unless the rows of a TF1 graph lie in the host's memory."""
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


def _place_of_rows(spec: TableSpec, device: str) -> int:
    """Returns the number of the GPU that is asked for, or -1 for the host.

    Checks that it can hold the table.
    """
    if device == CPU:
        return -1
    if spec.storage is not None:
        reason = "rows in memory", "a storage, whose rows are on disk and in the host's memory"
    elif spec.direct:
        reason = "a hash index", "keys that are found by position (use_hashtable=False)"
    elif not spec.has_float32_rows:
        dtypes = f"{spec.row_dtype!r} and {spec.slot_dtype!r}"
        reason = "row_dtype='float32' and slot_dtype='float32'", dtypes
    else:
        return _number_of(device)
    if device == AUTO:
        return -1
    raise ValueError(
        f"{spec.what}: expected {reason[0]} with device={device!r}. Received: {reason[1]}. Use "
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
