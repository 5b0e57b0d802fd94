"""Writes rows for the projector of TensorBoard while a model trains."""

from __future__ import annotations

import os
from typing import Any

import keras

from sok_embed import plot
from sok_embed.arguments import check_integer
from sok_embed.callbacks.table_figures import tables_of
from sok_embed.files.row_views import RowViews, Strings


class Projector(keras.callbacks.Callback):
    """Writes rows of all tables for the projector of TensorBoard, as `sok_embed.plot.projector`.

    `keras.callbacks.TensorBoard(embeddings_freq=)` shows `keras.layers.Embedding` alone. Of several
    workers each writes its own rows, so each needs a folder of its own.

    Example:
    >>> callback = Projector("logs")

    Args:
        log_dir: The folder, such as that of `keras.callbacks.TensorBoard`.
        freq: The number of epochs between two writes; the last rows are written at the end, too.
        most: The most rows of a table, at most 100,000: those that were trained most often.
        vocabulary: A `sok_embed.data.Vocabulary` that tells the strings of keys; `None`: points
            have keys.

    Raises:
        ValueError: For another `freq`; from `fit`: for a model without tables, and another `most`.
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
