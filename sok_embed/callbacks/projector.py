"""Writes rows for the projector of TensorBoard while a model trains."""

from __future__ import annotations

import os
from typing import Any

import keras

from sok_embed import plot
from sok_embed.arguments import check_integer
from sok_embed.callbacks.table_figures import tables_of
from sok_embed.callbacks.table_metrics import TableMetrics
from sok_embed.files.row_views import RowViews, Strings
from sok_embed.keras_bridge.callers import callbacks_of_running_list


class Projector(keras.callbacks.Callback):
    """Writes rows of all tables for the projector of TensorBoard, as `sok_embed.plot.projector`.

    `keras.callbacks.TensorBoard(embeddings_freq=)` shows `keras.layers.Embedding` alone. Of several
    workers each writes its own rows, so each needs a folder of its own. `TableMetrics` comes before
    it in the list.

    Example:
    >>> callback = Projector("logs")

    Args:
        log_dir: The folder, such as that of `keras.callbacks.TensorBoard`.
        freq: The number of epochs between two writes; the last rows are written at the end, too.
        most: The most rows of a table, at most 100,000: those that were trained most often.
        vocabulary: A `sok_embed.data.Vocabulary` that tells the strings of keys; `None`: points
            have keys.

    Raises:
        ValueError: For another `freq`; from `fit`: for a model without tables, another `most`, and
            a `TableMetrics` that comes after this callback.
        ModuleNotFoundError: From `fit`: without tensorboard.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        freq: int = 1,
        *,
        most: int = 10_000,
        vocabulary: Strings | None = None,
    ) -> None:
        super().__init__()
        self._log_dir = log_dir
        self._freq = check_integer("freq", freq, 1)
        self._most = most
        self._vocabulary = vocabulary

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses a place before `TableMetrics`, which would count the rows that are written."""
        running = callbacks_of_running_list()
        after = running[running.index(self) + 1 :] if self in running else []
        if any(isinstance(each, TableMetrics) for each in after):
            raise ValueError(
                "Expected TableMetrics before Projector in the list of callbacks. Received: "
                "Projector first, whose reads would count as lookups of the epoch."
            )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the rows, if they are due."""
        if (epoch + 1) % self._freq == 0:
            self._write_rows()

    def on_train_end(self, logs: Any = None) -> None:
        """Writes the last rows."""
        self._write_rows()

    def _write_rows(self) -> None:
        tables = {
            name: table for name, table in tables_of(self.model) if isinstance(table, RowViews)
        }
        if not tables:
            raise ValueError(
                f"Model '{self.model.name}': expected layers with tables whose rows the projector "
                "shows. Received: none. Leave the callback out."
            )
        plot.projector(self._log_dir, tables, most=self._most, vocabulary=self._vocabulary)
