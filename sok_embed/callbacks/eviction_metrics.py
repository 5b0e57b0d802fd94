"""Logs the number of rows of each table that were evicted in an epoch of `fit`."""

from __future__ import annotations

from sok_embed.callbacks.table_metrics import TableMetrics


class EvictionMetrics(TableMetrics):
    """Adds to the logs of each epoch how many rows each table has, and how many were evicted.

    It is `TableMetrics(figures=["rows", "evicted", "left_out"])`: see there. `removed_keys` of a
    table has the keys.

    Example:
    >>> import keras
    >>> callbacks = [EvictionMetrics(), keras.callbacks.CSVLogger("epochs.csv")]

    Raises:
        ValueError: As `TableMetrics`.
    """

    def __init__(self) -> None:
        super().__init__(figures=("rows", "evicted", "left_out"))
