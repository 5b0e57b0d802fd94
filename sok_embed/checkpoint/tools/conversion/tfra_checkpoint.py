"""Unpacks the tables of TFRA in a checkpoint of TensorFlow, with TensorFlow."""

from __future__ import annotations

import glob
import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from sok_embed.files.records import damaged

CHECKPOINT_FOLDER = "TFRADynamicEmbedding"  # where a FileSystemSaver puts files
STATUS_SUFFIXES = ("_frequency", "_timestamp")  # tables of restrict policies, of int32
_TABLE = re.compile(r"(?:.*/)?tables_of_([^/]+)/(\d+)/\.ATTRIBUTES/table-keys")
_STEPS = re.compile(r"(?:.*/)?(?:_iterations|iter)/\.ATTRIBUTES/VARIABLE_VALUE")


def checkpoint_prefix(path: str) -> str | None:
    """Returns the checkpoint of TensorFlow that a path names; `None` if it names no checkpoint.

    Args:
        path: A checkpoint without `.index`, or the folder of a SavedModel.
    """
    for prefix in (path.removesuffix(".index"), os.path.join(path, "variables", "variables")):
        if os.path.isfile(f"{prefix}.index"):
            return prefix
    return None


def unpacked_checkpoint(prefix: str, work: str, asked: Sequence[str]) -> tuple[str, int | None]:
    """Writes the tables of a checkpoint into files of keys and values.

    It holds one table in memory at a time.

    Returns:
        The folder of the files, which is the folder beside the checkpoint if a `FileSystemSaver`
        has written it; and the steps of the optimizer, or `None` if there is no optimizer or there
        are several.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(prefix)
        names = reader.get_variable_to_shape_map()
        _check_room(prefix, names)
        steps = {int(reader.get_tensor(name)) for name in names if _STEPS.fullmatch(name)}
        step = steps.pop() if len(steps) == 1 else None
        found = [match for match in map(_TABLE.fullmatch, sorted(names)) if match is not None]
        parts = [(match[1], match[2]) for match in found]
        twice = [name for name, _ in parts if parts.count((name, "0")) > 1]
        if twice:
            raise ValueError(
                f"Expected tables of different names in '{prefix}'. Received: '{twice[0]}' twice. "
                "Give layers and variables names of their own in TFRA, and save again."
            )
        shards = Counter(name for name, _ in parts)
        if not found:
            return os.path.join(os.path.dirname(prefix), CHECKPOINT_FOLDER), step
        for match in found:
            name, number = match[1].replace(".S", "_"), int(match[2]) + 1
            keys = reader.get_tensor(match[0])
            values = reader.get_tensor(match[0].removesuffix("keys") + "values")
            if _fit(prefix, name, keys, values, asked):
                file = f"{name}_mht_{number}of{shards[match[1]]}_rank0_size1"
                _write(os.path.join(work, file), keys, values)
    except (tf.errors.OpError, RuntimeError) as error:
        raise damaged(prefix, "a checkpoint of TensorFlow", str(error)) from None
    return work, step


def _check_room(prefix: str, shapes: dict[str, list[int]]) -> None:
    """Raises CorruptionError for a tensor that does not fit into the files of a checkpoint."""
    room = sum(os.path.getsize(file) for file in glob.glob(f"{glob.escape(prefix)}.data-*"))
    for name, shape in shapes.items():
        if math.prod(shape) > room:  # each element takes a byte at least
            raise damaged(prefix, f"'{name}' to fit into {room} bytes", f"shape {shape}")


def _fit(prefix: str, name: str, keys: Any, values: Any, asked: Sequence[str]) -> bool:
    """Returns whether a table is converted; raises if it was requested but cannot be converted."""
    integers = values.dtype == np.int32 and name.endswith(STATUS_SUFFIXES)
    floats = values.dtype.kind in "fV" and values.dtype.itemsize <= 4  # V: bfloat16
    if keys.dtype.kind != "i" or not (integers or floats):
        if asked and name not in asked:
            return False
        raise ValueError(
            f"Expected keys of int64 or int32 and values of float32 or float16 in table '{name}' "
            f"of '{prefix}'. Received: {keys.dtype} and {values.dtype}. Name the other tables with "
            "--table, and read this one with tf.train.load_checkpoint."
        )
    if keys.ndim != 1 or values.ndim != 2 or len(keys) != len(values):
        received = f"values of shape {values.shape}"
        raise damaged(prefix, f"a vector for each of {len(keys)} keys of '{name}'", received)
    return True


def _write(file: str, keys: Any, values: Any) -> None:
    keys.astype("<i8").tofile(f"{file}-keys")
    values.astype("<i4" if values.dtype == np.int32 else "<f4").tofile(f"{file}-values")
