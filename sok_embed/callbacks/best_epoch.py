"""Stops at the right epoch, with one worker or many, and goes back to the best one."""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import Any

import keras

from sok_embed import communicators
from sok_embed.callbacks.averaged_logs import FiguresOfAll
from sok_embed.checkpoint import Checkpoint
from sok_embed.checkpoint.transfer.saves import wait_for_writers
from sok_embed.files.records import local_path
from sok_embed.keras_bridge.private_state import print_line


class EarlyStopping(FiguresOfAll, keras.callbacks.EarlyStopping):
    """`keras.callbacks.EarlyStopping` with the rows of tables, for one worker or many.

    The monitored metric is that of the examples of all workers, as `AverageMetrics` makes it, so
    that they stop at the same epoch. All of them need the callback.

    With `restore_best_weights`, each epoch that is better than those before is kept as a
    `sok_embed.checkpoint.Checkpoint`, instead of the one before, and the best one is restored
    when training has ended: dense weights, rows with their slots, and the optimizer with its step,
    which Keras would leave at the last epoch. A checkpoint does not have gradients that were
    accumulated and not applied, so an epoch must end when the optimizer applies them.

    Example:
    >>> callback = EarlyStopping(monitor="loss", patience=2, restore_best_weights=True)

    Args:
        monitor: The metric that is compared.
        min_delta: The smallest change that counts as an improvement.
        patience: The number of epochs without a better one after which training stops.
        verbose: 1: worker 0 prints when it stops and which epoch it restores. 0: it does not.
        mode: `"min"`, `"max"` or `"auto"`: whether a smaller or a greater metric is better.
        baseline: The value that the metric must improve on, or training stops after `patience`
            epochs.
        restore_best_weights: True if the model of the best epoch is restored when training ends.
        start_from_epoch: The first epoch that is compared.
        directory: The folder where the best epoch is kept, and stays; nothing else should be in
            there. `None`: in a temporary folder, which is possible only with one worker. Several
            workers need a folder that they share.

    Raises:
        ValueError: For a directory without `restore_best_weights`, and for a URL; at the beginning
            of `fit` with several workers for `restore_best_weights` without a directory, and when
            an epoch is kept as `Checkpoint.save` raises.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
        *,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            monitor=monitor,
            min_delta=min_delta,
            patience=patience,
            verbose=verbose,
            mode=mode,
            baseline=baseline,
            # Keras would keep weights without rows, so it must keep none.
            restore_best_weights=False,
            start_from_epoch=start_from_epoch,
        )
        if directory is not None and not restore_best_weights:
            raise ValueError(
                "Expected no directory with restore_best_weights=False, which keeps nothing. "
                f"Received: {os.fspath(directory)!r}."
            )
        self.best_epoch = 0
        self.keeps_best_epoch = restore_best_weights
        if directory is not None:
            local_path(directory)  # refuses a URL
        self._directory = directory
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._kept: str | None = None  # the folder, once it has an epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets the epochs of an earlier `fit`."""
        super().on_train_begin(logs)
        self._kept = None
        size = communicators.size()
        if self.keeps_best_epoch and self._directory is None and size > 1:
            raise ValueError(
                "Expected a directory that all workers share, in which "
                f"EarlyStopping(restore_best_weights=True) keeps the best epoch of {size} workers. "
                "Received: directory=None. Give a directory, as in "
                "EarlyStopping(restore_best_weights=True, directory='/shared/run7/best')."
            )
        if communicators.rank():
            self.verbose = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Warns if the best epoch of an earlier `fit` would be forgotten."""
        super().on_epoch_begin(epoch, logs)
        folder = self._directory
        if epoch and self.best is None and folder is not None and os.path.exists(folder):
            if not communicators.rank():
                warnings.warn(
                    f"Expected to know how good the epoch in '{os.fspath(folder)}' was, as fit "
                    f"goes on with epoch {epoch + 1}. Received: no record of it, so the next epoch "
                    "takes its place. Give another directory, or a baseline.",
                    stacklevel=2,
                )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keeps the epoch if it is the best one, and stops if there was none for too long."""
        before, self.best_epoch = self.best_epoch, -1
        super().on_epoch_end(epoch, self.figures_of_all(logs))
        if self.best_epoch != epoch:
            self.best_epoch = before
        elif self.keeps_best_epoch:
            wait_for_writers()  # of BackupAndRestore, for one
            self._kept = Checkpoint(self.model).save(self._folder())

    def on_train_end(self, logs: Any = None) -> None:
        """Restores the best epoch."""
        super().on_train_end(logs)
        if self._kept is not None:
            if self.verbose > 0:
                print_line(
                    f"Restoring the model from the end of the best epoch: {self.best_epoch + 1}."
                )
            wait_for_writers()
            Checkpoint(self.model).restore(self._kept)
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _folder(self) -> str:
        if self._directory is not None:
            return os.fspath(self._directory)
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="sok-embed-best-")
        return self._temporary.name
