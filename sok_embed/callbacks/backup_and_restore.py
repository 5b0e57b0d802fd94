"""Backups in `fit` that include rows, so that a killed training can go on."""

from __future__ import annotations

import os
import warnings
from typing import Any

import keras
import tensorflow as tf

from sok_embed.arguments import shown
from sok_embed.checkpoint import Checkpoint, CheckpointManager
from sok_embed.checkpoint.manager import POLL_EVERY


class BackupAndRestore(keras.callbacks.Callback):
    """`keras.callbacks.BackupAndRestore` with the rows of tables, for one worker or many.

    `fit` saves a checkpoint at the end of each epoch, and begins the next epoch when the checkpoint
    is complete. If `fit` is interrupted or killed, the same `fit` in a new process, with any number
    of workers, begins with the epoch after the last one that has ended. All workers need the
    callback, and a directory that they share; it is the directory of a
    `sok_embed.checkpoint.CheckpointManager`.

    With a number for `save_freq`, checkpoints are saved within epochs too. From one of these `fit`
    goes on at the beginning of its epoch, with a warning: it trains on the first batches of the
    epoch again, as Keras' callback does. `sok_embed.checkpoint.fit` goes on at the next batch
    instead.

    If the optimizer has accumulated gradients and not applied them, a save waits for a later batch
    or epoch.

    Training goes on while a checkpoint within an epoch is written, see
    `sok_embed.checkpoint.CheckpointManager`. An error of such a save ends `fit` at one of the next
    batches.

    Example:
    >>> callback = BackupAndRestore("backup")

    Args:
        backup_dir: The folder of the checkpoints, or the URL of an object store. Nothing else
            should be in there, and each `fit` of a program has one of its own.
        save_freq: `"epoch"`, or the number of batches after which to save.
        incremental: True if checkpoints may have only the changes since the one before.
        max_deltas: The most checkpoints of changes, one after another.
        max_to_keep: The most checkpoints that are kept, not counting those that they build on.
        save_on_background: True if training goes on while a checkpoint within an epoch is written.
        delete_checkpoint: True if checkpoints are removed when `fit` has done all its epochs, or a
            callback has stopped it; save the model after `fit` then. If not, the same `fit` does
            nothing afterwards.

    Raises:
        ImportError: For a URL, without fsspec or the package that it needs for the store.
        ValueError: For another `save_freq`, and numbers that are not positive.
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        incremental: bool = False,
        max_deltas: int = 40,
        max_to_keep: int = 3,
        save_on_background: bool = True,
        delete_checkpoint: bool = True,
    ) -> None:
        super().__init__()
        is_number = isinstance(save_freq, int) and not isinstance(save_freq, bool)
        if save_freq != "epoch" and not (is_number and int(save_freq) > 0):
            raise ValueError(
                "Expected save_freq to be 'epoch' or a positive number of batches. Received: "
                f"{shown(save_freq)}."
            )
        self._every = int(save_freq) if is_number else None
        self._delete_checkpoint = delete_checkpoint
        # The place of the newest checkpoint: epochs that are done, and batches of the next one.
        self._epoch = tf.Variable(0, dtype=tf.int64)
        self._batch = tf.Variable(0, dtype=tf.int64)
        self._directory = backup_dir
        self._incremental = incremental
        self._keeps: dict[str, Any] = {
            "max_to_keep": max_to_keep,
            "max_deltas": max_deltas,
            "save_on_background": save_on_background,
        }
        self._saved_at = 0  # the batch of the epoch
        self._make_manager(None)

    def _make_manager(self, model: keras.Model | None) -> None:
        self._checkpoint = Checkpoint(model, epoch=self._epoch, batch=self._batch)
        self._manager = CheckpointManager(self._checkpoint, self._directory, **self._keeps)

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores the last checkpoint, if there is one."""
        self._make_manager(self.model)
        folder = self._manager.restore_or_initialize()
        if folder is None:
            return
        epoch, batch = int(self._epoch), int(self._batch)
        self.model._initial_epoch = epoch
        if batch:
            warnings.warn(
                f"The checkpoint '{folder}' was saved after {batch} batches of epoch {epoch + 1}. "
                "fit cannot begin within an epoch: it trains on these batches again. Train by "
                "sok_embed.checkpoint.fit to go on with the next batch.",
                stacklevel=2,
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts the batches of the epoch anew."""
        self._epoch.assign(epoch)
        self._saved_at = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves after every `save_freq` batches."""
        done = batch + 1
        if done == self.params.get("steps"):
            return  # the end of the epoch is saved
        if self._every is not None and done - self._saved_at >= self._every:
            self._save(done)
        elif done % POLL_EVERY == 0:
            self._manager.poll()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves at the end of the epoch, and waits until the checkpoint is whole."""
        self._epoch.assign(epoch + 1)
        self._save(0)
        # After a kill at the beginning of the next epoch the whole epoch would be repeated.
        self._manager.wait()

    def _save(self, batch: int) -> None:
        if self._checkpoint.waiting_calls():
            return  # accumulated gradients would be lost
        self._batch.assign(batch)
        # The end of an epoch may be the step that was saved last.
        self._manager.save(self._checkpoint.step(), self._incremental)
        self._saved_at = batch

    def on_train_end(self, logs: Any = None) -> None:
        """Removes the checkpoints: all epochs are done, or a callback has stopped training."""
        self.model._initial_epoch = None  # of the next fit
        self._manager.wait()
        if self._delete_checkpoint:
            self._manager.remove_all()
