"""Saves own rows in the checkpoints of `tf.compat.v1.train.Saver`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.training.saving import saveable_object

from sok_embed import kv, tf_ops
from sok_embed.tables import contents


class RowsSaveable(saveable_object.SaveableObject):
    """The rows, slots and steps of a table, as they are between two steps.

    For a table on disk the checkpoint has only the path: saving flushes the storage, and the rows
    stay there.
    """

    def __init__(self, table: Any) -> None:
        self._table = table
        with tf.name_scope("own_rows"):
            self.contents = tf_ops.export(table.resource_handle, table.dim, with_slots=True)
            if table.storage is not None:
                tensors = contents.storage_tensors(_flushed(table.storage))
            else:
                tensors = self.contents.by_name()
        name = f"{table.name}/own_rows"
        specs = [
            saveable_object.SaveSpec(tensor, "", f"{name}/{field}")
            for field, tensor in tensors.items()
        ]
        super().__init__(table.resource_handle, specs, name)

    def restore(self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any) -> Any:
        """Replaces the rows of the table by those of a checkpoint."""
        if self._table.storage is not None:
            return tf.no_op()
        handle = self._table.resource_handle
        restored = tf_ops.restore(handle, tf_ops.Export(*restored_tensors))
        slots = self._table.slot_sources
        if not slots:
            return restored
        # The next step may make rows, which copy slots, before any commit has set the slots.
        return tf.group(restored, tf_ops.bind_slots(handle, slots))


def _flushed(storage: kv.Storage) -> tf.Tensor:
    """Flushes the storage, and returns its path."""

    def flush() -> bytes:
        storage.flush()
        return os.fsencode(storage.path)

    path = tf.compat.v1.py_func(flush, [], tf.string)
    path.set_shape([])
    return path
