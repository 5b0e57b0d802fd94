"""Logs the number of rows of each table that were evicted in an epoch of `fit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import keras

from sok_embed import communicators
from sok_embed.communicators.agreement import Agreement
from sok_embed.keras_bridge.private_state import all_layers
from sok_embed.tables.adaptive_table import AdaptiveTable
from sok_embed.tables.table import Table


class _Figures(NamedTuple):
    """The figures of a table; the last two only rise."""

    rows: int
    evicted: int
    left_out: int


class EvictionMetrics(keras.callbacks.Callback):
    """Adds to the logs of each epoch how many rows every table has, and how many have gone.

    They are `<layer>/rows`, the rows at the end of the epoch; `<layer>/evicted`, those that have
    gone by an eviction in the epoch, of an `AdaptiveEmbedding` the own rows that have gone for any
    reason; and `<layer>/left_out`, the keys whose gradients were dropped since the table was full
    and not enough of its rows might go. Layers with several tables have
    `<layer>/<table>/rows` and so on. `removed_keys` of a table has the keys.

    With several workers figures are sums over all of them, and the callback is collective: all
    workers have it. Of a table that lies on every worker they are those of each.

    `History` has them. Callbacks that read logs, such as `keras.callbacks.TensorBoard` and
    `CSVLogger`, must come after this one in the list.

    Example:
    >>> callbacks = [EvictionMetrics(), keras.callbacks.CSVLogger("epochs.csv")]

    Raises:
        ValueError: At the beginning of `fit`, for a model without tables; of a model that is not
            built by then, at the end of the epoch.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, _Figures] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        """Remembers where the figures stand."""
        self._before = self._now(may_lack=not self.model.built)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the figures of the epoch."""
        now = self._now()
        for name, figures in now.items():
            # A layer that was built in the first epoch began at nothing.
            before = self._before.get(name, _Figures(0, 0, 0))
            if logs is not None:
                logs[f"{name}/rows"] = figures.rows
                logs[f"{name}/evicted"] = figures.evicted - before.evicted
                logs[f"{name}/left_out"] = figures.left_out - before.left_out
        self._before = now

    def _now(self, may_lack: bool = False) -> dict[str, _Figures]:
        """Returns the figures of each table, summed over workers. Collective."""
        tables = dict(_tables_of(self.model))
        if not tables and not may_lack:
            raise ValueError(
                f"Model '{self.model.name}': expected layers with tables, whose figures "
                "EvictionMetrics adds to the logs. Received: a model without one. Leave the "
                "callback out."
            )
        own = {name: _figures_of(table) for name, table in tables.items()}
        agreement = Agreement(communicators.current())
        spread = [name for name, table in tables.items() if not _is_on_all(table)]
        sums = agreement.sums([n for name in spread for n in own[name]], "evicted rows")
        for i, name in enumerate(spread):
            own[name] = _Figures(*sums[3 * i : 3 * i + 3])
        return own


def _tables_of(model: keras.Model) -> Iterator[tuple[str, Table | AdaptiveTable]]:
    for layer in all_layers(model):
        table, tables = getattr(layer, "table", None), getattr(layer, "tables", None)
        if isinstance(table, (Table, AdaptiveTable)):
            yield layer.name, table
        elif isinstance(tables, Mapping):
            for name, one in tables.items():
                if isinstance(one, Table):
                    yield f"{layer.name}/{name}", one


def _figures_of(table: Table | AdaptiveTable) -> _Figures:
    stats = table.stats()
    evicted = stats["demoted"] if isinstance(table, AdaptiveTable) else stats["evicted"]
    return _Figures(int(stats["rows"]), int(evicted), int(stats.get("left_out", 0)))


def _is_on_all(table: Table | AdaptiveTable) -> bool:
    """Returns whether every worker holds all rows."""
    return isinstance(table, Table) and table.is_replicated
