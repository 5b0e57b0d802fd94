"""Tells the validation of a `fit` from an `evaluate` by itself."""

from __future__ import annotations

from typing import Any

import keras

from sok_embed.keras_bridge.callers import callbacks_of_running_list


class FitOrEvaluate(keras.callbacks.Callback):
    """Knows whether a `fit` is running, also after one that was interrupted: a base of callbacks.

    Keras calls `on_train_end` only at the end of a `fit` that raises nothing.
    """

    _fitting = False
    _list_of_fit: list[Any] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes that validations are now parts of epochs."""
        super().on_train_begin(logs)
        self._fitting, self._list_of_fit = True, callbacks_of_running_list()

    def on_test_begin(self, logs: Any = None) -> None:
        """Notes that no `fit` is running, if another list of callbacks is."""
        super().on_test_begin(logs)
        if callbacks_of_running_list() is not self._list_of_fit and self._list_of_fit:
            self._fitting = False

    def on_train_end(self, logs: Any = None) -> None:
        """Notes that from now on an evaluation is not part of an epoch."""
        super().on_train_end(logs)
        self._fitting, self._list_of_fit = False, []
