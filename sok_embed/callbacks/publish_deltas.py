"""Publishes the changes of a `fit`, for served models that follow it."""

from __future__ import annotations

import os
from typing import Any

import keras

from sok_embed.arguments import check_integer, shown
from sok_embed.serving import Publisher


class PublishDeltas(keras.callbacks.Callback):
    """Publishes rows and dense weights while a model trains, beside an export of it.

    `sok_embed.serving.export(model, path)` writes the export first. From then on a model that
    `sok_embed.serving.load(path, follow=True)` has loaded, in any process that sees the folder,
    gives the answers of this model at each step that is published. A delta has the rows that have
    changed since the delta before, the keys whose rows were removed, and all dense weights of the
    same step. It gets its number once it is complete and on the device.

    The first delta of a `fit` compares all rows with the published ones, since a training may have
    gone back to a checkpoint. So do each delta of a table in a storage, and a delta after all rows
    were replaced. Other deltas take the rows that the table has noted as changed; incremental
    checkpoints have notes of their own. While a checkpoint is written in the background, a delta
    waits for a later batch, and after `every` more batches `fit` waits for it.

    With several workers, each needs the callback, with the same arguments, in a `fit` of equally
    many batches, and all share the folder: a delta has the changes of all workers. In an object
    store one process alone publishes.

    Example:
    >>> callback = PublishDeltas("served", every=100)

    Args:
        path: The folder of all versions of the model, as it was given to `export`, or their URL in
            an object store. Deltas belong to the newest version there, even if it comes while `fit`
            is running.
        every: The number of batches between two deltas, or `"epoch"`: a delta at the end of each
            epoch, before `sok_embed.checkpoint.fit` saves it. The last changes are published at the
            end.

    Raises:
        ValueError: For another `every`. From `fit`: for an export of another model,
            or with `ops="stock"`.
        FileNotFoundError: From `fit`: if the folder has no export.
        BlockingIOError: From `fit`: if something else publishes to the export.
        sok_embed.kv.CorruptionError: From `fit`: if an earlier delta is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], every: int | str = 1000) -> None:
        super().__init__()
        self._path = path
        if isinstance(every, str) and every != "epoch":
            raise ValueError(
                f"Expected every to be 'epoch' or a positive number of batches. Received: "
                f"{shown(every)}."
            )
        self._every = None if every == "epoch" else check_integer("every", every, 1)
        self._publisher: Publisher | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds the export and its deltas."""
        self._close()  # of a fit that was interrupted
        self._publisher = Publisher(self.model, self._path)
        self._waiting = 0  # batches

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes that no batch of the epoch has run."""
        self._batch: int | None = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes the first batch, which is not batch 0 where a fit goes on within an epoch."""
        if self._batch is None:
            self._batch = batch - 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Publishes after every `every` batches."""
        if self._every is None:
            return
        assert self._batch is not None and self._publisher is not None
        self._waiting += batch - self._batch
        self._batch = batch
        is_late = self._waiting >= 2 * self._every
        if self._waiting >= self._every and (is_late or not self._publisher.is_blocked()):
            self._publisher.publish()
            self._waiting = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Publishes the epoch, if deltas are those of epochs."""
        if self._every is None:
            assert self._publisher is not None
            self._publisher.publish()

    def on_train_end(self, logs: Any = None) -> None:
        """Publishes the last changes."""
        assert self._publisher is not None
        self._publisher.publish()
        self._close()

    def _close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
