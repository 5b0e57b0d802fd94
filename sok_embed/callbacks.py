"""Keras callbacks: whole files, dense weights of several workers, figures of adaptive layers."""

from __future__ import annotations

import os
from typing import Any

import keras

from sok_embed import communicators
from sok_embed.adaptive_table import AdaptiveTable
from sok_embed.saving import replacing, save_model


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """`keras.callbacks.ModelCheckpoint` whose file is the last whole one, also after a kill.

    Keras' own writes over the best model that there is. The arguments are the same; see
    `sok_embed.save_model` for how a file is replaced.

    Example:
    >>> callback = ModelCheckpoint("best.keras", monitor="loss", save_best_only=True)

    Args:
        filepath: Ends in `.keras`, or in `.weights.h5` with `save_weights_only`.
        *args: As `keras.callbacks.ModelCheckpoint` has them.
        **kwargs: As `keras.callbacks.ModelCheckpoint` has them.

    Raises:
        ValueError: For another ending, and as Keras raises.
    """

    def __init__(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(filepath, *args, **kwargs)
        if not self.filepath.endswith((".keras", ".weights.h5")):
            raise ValueError(
                "Expected a filepath that ends in .keras, or in .weights.h5 with "
                f"save_weights_only=True. Received: {self.filepath!r}."
            )

    def _should_save_model(self, epoch: int, batch: Any, logs: Any, filepath: str) -> bool:
        """Saves where Keras would, and tells it that there is nothing to do."""
        if super()._should_save_model(epoch, batch, logs, filepath):
            os.makedirs(os.path.dirname(os.path.abspath(filepath)), exist_ok=True)
            if self.save_weights_only:
                with replacing(filepath) as temporary:
                    self.model.save_weights(temporary)
            else:
                save_model(self.model, filepath)
        return False


class BroadcastVariables(keras.callbacks.Callback):
    """Gives every worker the dense weights and optimizer state of one of them, before training.

    Rows of tables need no broadcast: where a row starts is a function of its key.

    Example:
    >>> callback = BroadcastVariables(root_rank=0)

    Args:
        root_rank: The worker whose values all others take.

    Raises:
        ValueError: For a rank that no worker has.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        size = communicators.size()
        if not 0 <= root_rank < size:
            raise ValueError(
                f"Expected root_rank to be the rank of one of {size} workers, in [0, {size}). "
                f"Received: root_rank={root_rank}."
            )
        self.root_rank = root_rank

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts the weights. Keras has built the model and its optimizer by now."""
        communicator = communicators.current()
        if communicator.size == 1:
            return
        optimizer = self.model.optimizer
        variables = [*self.model.variables, *(optimizer.variables if optimizer else [])]
        for i, variable in enumerate(variables):
            if variable.dtype in ("string", "bool"):
                continue
            value = communicator.broadcast(
                variable.value, self.root_rank, f"sok_embed.broadcast.{i}"
            )
            variable.assign(value)


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
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, dict[str, float]] = {}
        self._fitting = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Remembers where the figures stand."""
        self._fitting = True
        self._before = {name: table.stats() for name, table in self._tables().items()}

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

    def _tables(self) -> dict[str, AdaptiveTable]:
        layers = self.model._flatten_layers()
        tables = ((layer.name, getattr(layer, "table", None)) for layer in layers)
        return {name: table for name, table in tables if isinstance(table, AdaptiveTable)}


def _add_states(logs: Any, name: str, figures: dict[str, float]) -> None:
    logs[f"{name}/own_rows"] = figures["rows"]
    for state in _STATES:
        logs[f"{name}/{state}"] = figures[state]
