"""The state that differs between workers, such as a worker's place in its data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from sok_embed.checkpoint.files.manifest import Manifest
from sok_embed.checkpoint.files.names import DATA_ENDINGS, data_prefix
from sok_embed.checkpoint.state.bundle import Bundle
from sok_embed.files.places import LocalFolder, check_record
from sok_embed.files.records import FileRecord


class OwnState:
    """Objects that each worker saves for itself, and restores if the number of workers is the same.

    Args:
        objects: The objects by name. Iterators of `tf.data` must be there when a checkpoint is
            restored; other objects stay as they are if it was written by another number of workers.
    """

    def __init__(self, objects: Mapping[str, Any], worker: int, workers: int) -> None:
        self._objects = dict(objects)
        self._worker, self._workers = worker, workers
        self._iterators = [
            name for name, each in self._objects.items() if isinstance(each, tf.data.Iterator)
        ]

    def write(self, folder: str, attempt: int) -> list[str]:
        """Writes the objects of this worker. Returns the names of two files, or none."""
        if not self._objects:
            return []
        prefix = data_prefix(self._worker, self._workers, attempt)
        try:
            tf.train.Checkpoint(**self._objects).write(os.path.join(folder, prefix))
        except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
            if not self._iterators:
                raise _write_error(folder, error) from None
            raise ValueError(
                "Expected iterators of tf.data whose state can be saved. Received: "
                f"{error.message} Leave Python functions and ops with a state out of the dataset, "
                "as tf.random.stateless_uniform for tf.random.uniform, or go by the count of "
                "batches: position='count' in checkpoint.fit, no iterator elsewhere."
            ) from None
        except tf.errors.OpError as error:
            raise _write_error(folder, error) from None
        return [f"{prefix}{ending}" for ending in DATA_ENDINGS]

    def needed(self, manifest: Manifest) -> list[FileRecord]:
        """Returns the records of the files that this worker restores from."""
        if self._iterators and manifest.workers != self._workers:
            raise ValueError(
                f"Expected a checkpoint of {self._workers} workers, each of which goes on where "
                f"its own iterator of tf.data stood. Received: {manifest.workers}. "
                "Restore it with the same number of workers, or go by the count of batches: "
                "position='count' in checkpoint.fit, no iterator elsewhere."
            )
        count = len(DATA_ENDINGS) if self._is_restored(manifest) else 0
        return list(manifest.data[self._worker * count : (self._worker + 1) * count])

    def check(self, folder: LocalFolder, manifest: Manifest) -> None:
        """Raises an error for files from which this worker cannot restore. Changes nothing."""
        records = self.needed(manifest)
        if not records:
            return
        prefix = data_prefix(self._worker, self._workers, manifest.attempt)
        for record in records:
            check_record(folder, record)
        bundle = Bundle(folder, prefix, records)
        names = {path.partition("/")[0] for path in bundle.shapes}
        lacking = sorted(self._objects.keys() - names)
        if lacking:
            raise ValueError(
                f"Expected a checkpoint with {', '.join(lacking)} of each worker. Received: a "
                "checkpoint without them. Give the objects that were saved."
            )

    def read(self, folder: LocalFolder, manifest: Manifest) -> None:
        """Restores the objects of this worker, if the same number of workers wrote the checkpoint.

        They are restored one after the other, since the iterators of a dataset share the count of
        its shuffles.
        """
        if not self._is_restored(manifest):
            return
        prefix = data_prefix(self._worker, self._workers, manifest.attempt)
        for name, each in self._objects.items():
            status = tf.train.Checkpoint(**{name: each}).read(os.path.join(folder.local, prefix))
            status.assert_existing_objects_matched()
            status.expect_partial()  # the others come in their turn

    def _is_restored(self, manifest: Manifest) -> bool:
        return bool(self._objects and manifest.data) and manifest.workers == self._workers


def _write_error(folder: str, error: tf.errors.OpError) -> OSError:
    return OSError(
        f"Expected to write the own state of a worker into '{folder}'. Received: {error.message}"
    )
