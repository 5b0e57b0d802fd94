"""Adds figures of tables, and of events in them, to the logs of `fit` and `evaluate`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sok_embed import communicators
from sok_embed.arguments import refuse_url
from sok_embed.callbacks import progress_line, table_figures
from sok_embed.callbacks.fit_or_evaluate import FitOrEvaluate
from sok_embed.callbacks.metric_states import is_number
from sok_embed.callbacks.table_figures import (
    AnyTable,
    Figures,
    counters_of,
    exchange_counters,
    figure,
    tables_of,
)
from sok_embed.communicators import Communicator
from sok_embed.files.table_status import write_status
from sok_embed.keras_bridge.private_state import all_layers

# The counters of each table by its name, and those of exchanges by this one.
_Counters = dict[str, Figures]
_EXCHANGE = "exchange"


class TableMetrics(FitOrEvaluate):
    """Adds figures of every table of the model to the logs, for all callbacks that read logs.

    The name of a figure is `<layer>/<figure>`; for a layer with several tables it is
    `<layer>/<table>/<figure>`. Each table has the figures that have a meaning for it:

    | Figure | Unit |
    |---|---|
    | `rows` | rows at the end; of an `AdaptiveEmbedding` own rows, here and below |
    | `new_rows` | rows that were made in the epoch |
    | `hit_rate` | share, in [0, 1], of the keys looked up in training that had a row before |
    | `memory_bytes` | bytes in memory, with slots and index; of a storage those of its cache |
    | `disk_bytes` | bytes of the storage's files of rows, as of the last flush, for all tables |
    | `cache_hit_rate` | share, in [0, 1], of the rows found that were in the cache of the storage |
    | `evicted` | rows that have gone by an eviction; own rows that have gone for any reason |
    | `left_out` | keys whose gradients were dropped in the epoch, as a full table had no room |
    | `refused` | keys that the admission counted in the epoch, without giving them a row |
    | `sketch_saturation` | share, in [0, 1], of the cells of an `AdaptiveEmbedding`'s sketch |

    With several workers there are `exchange/bytes`, the bytes of rows, keys and gradients that went
    to other workers in the epoch, and `exchange/seconds`, the time that exchanges were under way,
    the wait for slower workers included.
    Validations add `val_<layer>/hit_rate` and `val_<layer>/cache_hit_rate`. An `evaluate` outside
    of `fit` logs rates and states of tables, for later callbacks; its result does not have them.

    Figures are sums over all workers, seconds are averages, and the callback is collective: all
    workers have it. `hit_rate`, `cache_hit_rate` and `refused` count the keys that are looked up in
    tables: with one worker each id of the batch; with several workers, and in a
    `DistributedEmbedding`, the distinct ids of each worker's batch.

    `History` has the figures. `keras.callbacks.TensorBoard`, `CSVLogger` and other callbacks must
    come after this one in the list, and so must callbacks that read rows, as by `table.lookup` or
    `table.to_pandas`: what they read before it counts. The progress bar has the first four figures
    alone, each for all tables together: rows, keys and bytes are sums, and a rate is the share of
    the keys of all tables.

    Example:
    >>> import keras
    >>> callbacks = [TableMetrics(), keras.callbacks.CSVLogger("epochs.csv")]

    Args:
        update_freq: `"epoch"`: figures at the end of each epoch. A number of batches: figures of
            the epoch so far after every so many batches too; batches in between have the last
            figures.
        figures: The names of the figures of all tables, such as `["rows", "hit_rate"]`; exchanges
            are left out then. `None`: those of the table above.
        path: A folder for `sok-embed top`, which is made if it does not exist: worker 0 writes the
            logs into a small file there when there are new figures. `None`: no file is written.

    Raises:
        ValueError: For another `update_freq`, an unknown figure; at the beginning of `fit` or
            `evaluate`, for a model without tables; of a model that is not built by then, when
            figures are due.
    """

    # The kinds of tables that have figures, and their name in messages.
    _kinds: ClassVar[Any] = AnyTable
    _wanted: ClassVar[str] = "layers with tables"

    def __init__(
        self,
        update_freq: int | str = "epoch",
        *,
        figures: Sequence[str] | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        every = 0 if update_freq == "epoch" else update_freq
        if not isinstance(every, int) or (update_freq != "epoch" and every < 1):
            raise ValueError(
                "Expected update_freq to be 'epoch' or a number of batches of at least 1. "
                f"Received: update_freq={update_freq!r}."
            )
        unknown = sorted(set(figures or ()) - set(table_figures.NAMES))
        if unknown:
            raise ValueError(
                f"Expected figures among {', '.join(table_figures.NAMES)}. Received: "
                f"{', '.join(unknown)}."
            )
        self._every = every
        self._figures = figures
        self._folder = path
        if path is not None:
            refuse_url(os.fsdecode(path))
        # Without `every` the end of a batch is only counted, so Keras need not wait for each batch.
        self.async_safe = not every
        self._epoch = self._batches = 0
        self._began: _Counters = {}
        self._test_began: _Counters = {}
        self._tested: _Counters = {}
        self._last: Figures = {}
        self._totals: Figures = {}

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses a model without tables."""
        super().on_train_begin(logs)
        self._tables(may_lack=not self.model.built)
        progress_line.shorten_line(self, self._shortened)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers the present counters."""
        self._epoch, self._batches = epoch, 0
        self._began, self._tested = self._counters(may_lack=True), {}
        self._last, self._totals = {}, {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Adds the figures of the epoch so far, if they are due."""
        self._batches += 1
        if not self._every:
            return
        if self._batches % self._every == 0:
            self._last = self._figures_of_epoch()
            self._write(logs)
        if logs is not None:
            logs.update(self._last)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the figures of the epoch."""
        self._last = self._figures_of_epoch()
        if logs is not None:
            logs.update(self._last)
        self._write(logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Notes in the file that training has ended."""
        super().on_train_end(logs)
        self._write(logs, ended=True)

    def on_test_begin(self, logs: Any = None) -> None:
        """Remembers the present counters."""
        super().on_test_begin(logs)
        if not self._fitting:
            self._last, self._totals = {}, {}
            progress_line.shorten_line(self, self._shortened)
        self._test_began = self._counters(may_lack=self._fitting or not self.model.built)

    def on_test_end(self, logs: Any = None) -> None:
        """Adds the figures of an evaluation outside of `fit`.

        An epoch has those of its validation.
        """
        now = self._counters()
        risen = _risen(now, self._test_began)
        if self._fitting:
            self._tested = risen
        else:
            self._last = self._computed(now, None, risen)
            if logs is not None:
                logs.update(self._last)

    def _figures_of_epoch(self) -> Figures:
        now = self._counters()
        # The lookups of a validation do not count for the epoch.
        trained = _risen(_risen(now, self._began), self._tested)
        return self._computed(now, trained, self._tested)

    def _computed(
        self, now: _Counters, trained: _Counters | None, tested: _Counters
    ) -> dict[str, float]:
        """Returns the figures of all workers. Collective.

        `trained` is `None` for an evaluation outside of `fit`, and `tested` is empty without one.
        """
        windows = {"now": now, "trained": trained or {}, "tested": tested}
        numbers = {
            f"{window}/{table}/{counter}": value
            for window, counters in windows.items()
            for table, each in counters.items()
            for counter, value in each.items()
        }
        sums = table_figures.sums_over_workers(numbers, self._communicator())

        def of(window: str, table: str) -> Figures:
            own = windows[window].get(table, {})
            return {counter: sums[f"{window}/{table}/{counter}"] for counter in own}

        figures: Figures = {}
        tables = self._tables()
        self._totals = table_figures.totals(
            self._figures,
            [of("now", name) for name in tables],
            [of("tested" if trained is None else "trained", name) for name in tables],
            in_training=trained is not None,
        )
        for name, table in tables.items():
            states, in_training, in_test = (of(window, name) for window in windows)
            for each in self._figures or table_figures.usual_figures(table):
                if trained is not None:
                    figures[f"{name}/{each}"] = figure(each, states, in_training)
                elif each in table_figures.EVALUATED or each in table_figures.STATES:
                    figures[f"{name}/{each}"] = figure(each, states, in_test)
                if trained is not None and tested and each in table_figures.EVALUATED:
                    figures[f"val_{name}/{each}"] = figure(each, states, in_test)
        if trained is not None and _EXCHANGE in now:
            exchanged = of("trained", _EXCHANGE)
            figures["exchange/bytes"] = int(exchanged["bytes"])
            figures["exchange/seconds"] = exchanged["seconds"]
        return figures

    def _shortened(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Returns the logs with figures of all tables together, for the progress line."""
        return progress_line.with_totals(logs, self._last, self._totals)

    def _counters(self, may_lack: bool = False) -> _Counters:
        """Returns the counters of this worker by table, and those of its exchanges."""
        communicator = self._communicator()
        counters = {
            name: counters_of(table, communicator.rank)
            for name, table in self._tables(may_lack).items()
        }
        if self._figures is None and (exchanged := exchange_counters(communicator)):
            counters[_EXCHANGE] = exchanged
        return counters

    def _tables(self, may_lack: bool = False) -> dict[str, AnyTable]:
        found = {
            name: table for name, table in tables_of(self.model) if isinstance(table, self._kinds)
        }
        if not found and not may_lack:
            layers = all_layers(self.model)
            names = ", ".join(f"{type(layer).__name__} '{layer.name}'" for layer in layers)
            raise ValueError(
                f"Model '{self.model.name}': expected {self._wanted}, whose figures "
                f"{type(self).__name__} adds to the logs. Received: {names or 'no layers'}. Leave "
                "the callback out."
            )
        return found

    def _communicator(self) -> Communicator:
        """Returns the communicator of the workers whose figures are summed."""
        return communicators.current()

    def _write(self, logs: Mapping[str, Any] | None, ended: bool = False) -> None:
        """Writes the logs into the folder, on worker 0."""
        communicator = self._communicator()
        if self._folder is None or communicator.rank:
            return
        numbers = {name: float(value) for name, value in (logs or {}).items() if is_number(value)}
        status = {
            "time": time.time(),
            "workers": communicator.size,
            "epoch": self._epoch + 1,
            "batches": self._batches,
            "ended": ended,
            "logs": numbers | self._last,
        }
        write_status(self._folder, status)


def _risen(after: _Counters, before: _Counters) -> _Counters:
    """Returns how much counters have risen; a counter that is missing before was 0."""
    return {
        table: {name: count - before.get(table, {}).get(name, 0) for name, count in each.items()}
        for table, each in after.items()
    }
