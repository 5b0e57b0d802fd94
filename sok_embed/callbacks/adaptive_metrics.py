"""Logs figures of adaptive tables in an epoch of `fit`."""

from __future__ import annotations

from sok_embed.callbacks.table_metrics import TableMetrics
from sok_embed.communicators import Communicator, LocalCommunicator
from sok_embed.tables.adaptive_table import AdaptiveTable


class AdaptiveMetrics(TableMetrics):
    """Adds the figures of every `AdaptiveEmbedding` of the model to the logs of each epoch.

    They are `<layer>/own_rows`; `<layer>/promoted` and `<layer>/demoted`, the keys that got or lost
    a row in the epoch; `<layer>/own_share`, the share of keys looked up in training in the epoch
    that read rows of their own; `<layer>/sketch_saturation`; `<layer>/own_bytes`,
    `<layer>/static_bytes` and `<layer>/sketch_bytes`. After an `evaluate` by itself, which counts
    nothing, the figures of events are left out.

    `History` has them. Callbacks that read logs, such as `keras.callbacks.TensorBoard` and
    `CSVLogger`, must come after this one in the list. With several workers the figures are those of
    each worker alone; `TableMetrics` has sums over workers.

    Example:
    >>> import keras
    >>> callbacks = [AdaptiveMetrics(), keras.callbacks.CSVLogger("epochs.csv")]

    Raises:
        ValueError: At the beginning of `fit` or `evaluate`, for a model without an
            `AdaptiveEmbedding`; of a model that is not built by then, at the end of the epoch.
    """

    _kinds = AdaptiveTable
    _wanted = "an AdaptiveEmbedding among its layers"

    def __init__(self) -> None:
        super().__init__(
            figures=(
                "own_rows",
                "promoted",
                "demoted",
                "own_share",
                "sketch_saturation",
                "own_bytes",
                "static_bytes",
                "sketch_bytes",
            )
        )

    def _communicator(self) -> Communicator:
        """Returns a communicator of this worker alone."""
        return LocalCommunicator()
