"""Saves complete files of the model in `fit`, with the rows of all workers."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import keras

from sok_embed import communicators
from sok_embed.callbacks.averaged_logs import FiguresOfAll
from sok_embed.checkpoint.saving import (
    check_rows_can_be_copied,
    save_whole,
    tables_of_one_file,
    write_archive,
)

_WHOLE, _WEIGHTS = ".keras", ".weights.h5"


class ModelCheckpoint(FiguresOfAll, keras.callbacks.ModelCheckpoint):
    """`keras.callbacks.ModelCheckpoint` with all rows, whose file is always complete.

    Keras' callback writes over the best model so far. This one replaces a file once the new one is
    complete, as `sok_embed.save_model` does.

    Rows in a storage go on changing after the file was written, so they are copied with it, into a
    folder beside the file, `best.keras.rows`: by hard links if the file system has them. File and
    rows are replaced in one step. `keras.saving.load_model` reads the rows where they lie, from a
    storage that is open read-only, so such a model predicts and does not train; to go on from
    there, make the model by its class and `model.load_weights(file)`, which puts the rows into the
    storage of the model. Move the folder together with the file: without it both raise
    `FileNotFoundError`.

    With several workers, all of them need the callback, with the same path in a folder that they
    share. Metrics are those of the examples of all workers, as `AverageMetrics` makes them, before
    they are compared and put into the file's name, so that all workers save or none does.

    Example:
    >>> callback = ModelCheckpoint("best.keras", monitor="loss", save_best_only=True)

    Args:
        filepath: The path of the file, which ends in `.keras`, or in `.weights.h5` with
            `save_weights_only`. It may have fields such as `{epoch}` and `{val_loss:.2f}`.
        monitor: The metric that `save_best_only` compares.
        verbose: 1: worker 0 prints when it saves. 0: it does not.
        save_best_only: True if a file is written only when the metric is better than ever.
        save_weights_only: True if the file is that of `model.save_weights`, with rows too.
        mode: `"min"`, `"max"` or `"auto"`: whether a smaller or a greater metric is better.
        save_freq: `"epoch"`, or the number of batches after which to save.
        initial_value_threshold: The value that the metric must improve on at first.

    Raises:
        ValueError: For another ending, and as Keras raises; from `fit`, before the first step, as
            `sok_embed.save_model`, and for feature columns whose rows lie in a storage.
    """

    # Layers with rows read this attribute before `fit` begins.
    saves_rows_of_all_workers = True

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        initial_value_threshold: float | None = None,
    ) -> None:
        super().__init__(
            filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=save_best_only,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
            initial_value_threshold=initial_value_threshold,
        )
        if not self.filepath.endswith((_WHOLE, _WEIGHTS)):
            raise ValueError(
                f"Expected a filepath that ends in {_WHOLE}, or in {_WEIGHTS} with "
                f"save_weights_only=True. Received: {self.filepath!r}."
            )

    def set_model(self, model: keras.Model) -> None:
        """Takes the model that `fit` trains; only one worker prints."""
        super().set_model(model)
        if communicators.rank():
            self.verbose = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses tables that cannot be written to a file, before the first step."""
        super().on_train_begin(logs)
        tables_of_one_file(self.model)
        check_rows_can_be_copied(self.model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Warns if the best epoch of an earlier `fit` would be forgotten."""
        super().on_epoch_begin(epoch, logs)
        forgets = self.save_best_only and self.best in (None, float("inf"), -float("inf"))
        if forgets and epoch and os.path.exists(self.filepath) and not communicators.rank():
            warnings.warn(
                f"Expected to know how good the epoch in '{self.filepath}' was, as fit goes on "
                f"with epoch {epoch + 1}. Received: no record of it, so the next epoch takes its "
                "place. Give initial_value_threshold or another path, or train by "
                "sok_embed.checkpoint.fit, which remembers it.",
                stacklevel=2,
            )

    def _save_model(self, epoch: int, batch: int | None, logs: Any) -> None:
        """Saves when Keras would, by the metrics of all workers."""
        super()._save_model(epoch, batch, self.figures_of_all(logs))

    def _should_save_model(self, epoch: int, batch: Any, logs: Any, filepath: str) -> bool:
        """Saves when Keras would, and returns false, so that Keras saves nothing."""
        if super()._should_save_model(epoch, batch, logs, filepath):
            ending = _WEIGHTS if self.save_weights_only else _WHOLE
            write: Callable[[str], object] = functools.partial(write_archive, self.model)
            if self.save_weights_only:
                write = self.model.save_weights
            save_whole(self.model, filepath, ending, write, make_folder=True, copy_storages=True)
        return False
