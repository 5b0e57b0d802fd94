"""Figures of adaptive tables in the logs of `fit`."""

from __future__ import annotations

from typing import Any

import keras

from sok_embed.keras_bridge.private_state import all_layers
from sok_embed.tables.adaptive_table import AdaptiveTable

# These say how the tables stand, by the names that they have in `AdaptiveTable.stats`.
_STATES = ("sketch_saturation", "own_bytes", "static_bytes", "sketch_bytes")
# These say what happened in an epoch.
_EVENTS = ("promoted", "demoted")


class AdaptiveMetrics(keras.callbacks.Callback):
    """Adds the figures of every `AdaptiveEmbedding` of the model to the logs of each epoch.

    They are `<layer>/own_rows`; `<layer>/promoted` and `<layer>/demoted`, keys that got a row and
    that lost it in the epoch; `<layer>/own_share`, of the keys looked up in training in the epoch,
    how many read rows of their own; `<layer>/sketch_saturation`; `<layer>/own_bytes`,
    `<layer>/static_bytes` and `<layer>/sketch_bytes`. After an `evaluate` by itself, which counts
    nothing, the figures of events are left out.

    `History` has them. Callbacks that read logs, such as `keras.callbacks.TensorBoard` and
    `CSVLogger`, must come after this one in the list. On several workers the figures are those of
    the worker, and nothing travels.

    Example:
    >>> callbacks = [AdaptiveMetrics(), keras.callbacks.CSVLogger("epochs.csv")]

    Raises:
        ValueError: At the beginning of `fit` or `evaluate`, for a model without an
            `AdaptiveEmbedding`; of a model that is not built by then, at the end of the epoch.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, dict[str, float]] = {}
        self._fitting = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Remembers where the figures stand."""
        self._fitting = True
        tables = self._tables(may_lack=not self.model.built)
        self._before = {name: table.stats() for name, table in tables.items()}

    def on_test_begin(self, logs: Any = None) -> None:
        """Refuses a model without an `AdaptiveEmbedding`."""
        self._tables(may_lack=not self.model.built)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the figures of the epoch."""
        for name, table in self._tables().items():
            now = table.stats()
            # A layer that was built in the first epoch began at nothing.
            before = self._before.get(name, dict.fromkeys(now, 0))
            self._before[name] = now
            if logs is None:
                continue
            for event in _EVENTS:
                logs[f"{name}/{event}"] = now[event] - before[event]
            lookups = now["lookups"] - before["lookups"]
            own_lookups = now["own_lookups"] - before["own_lookups"]
            logs[f"{name}/own_share"] = own_lookups / max(lookups, 1)
            _add_states(logs, name, now)

    def on_train_end(self, logs: Any = None) -> None:
        """Forgets the figures."""
        self._fitting = False
        self._before = {}

    def on_test_end(self, logs: Any = None) -> None:
        """Adds how the tables stand, unless `fit` is running, whose epoch has them."""
        if logs is None or self._fitting:
            return
        for name, table in self._tables().items():
            _add_states(logs, name, table.stats())

    def _tables(self, may_lack: bool = False) -> dict[str, AdaptiveTable]:
        layers = list(all_layers(self.model))
        tables = ((layer.name, getattr(layer, "table", None)) for layer in layers)
        found = {name: table for name, table in tables if isinstance(table, AdaptiveTable)}
        if not found and not may_lack:
            names = ", ".join(f"{type(layer).__name__} '{layer.name}'" for layer in layers)
            raise ValueError(
                f"Model '{self.model.name}': expected an AdaptiveEmbedding among its layers, whose "
                f"figures AdaptiveMetrics adds to the logs. Received: {names or 'no layers'}. "
                "Leave the callback out: of other tables, `table.stats()` has the figures."
            )
        return found


def _add_states(logs: Any, name: str, figures: dict[str, float]) -> None:
    logs[f"{name}/own_rows"] = figures["rows"]
    for state in _STATES:
        logs[f"{name}/{state}"] = figures[state]
