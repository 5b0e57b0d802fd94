"""The progress of a run, which a checkpoint has beside model and data."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# Attributes that callbacks of Keras keep from one epoch to the next.
_REMEMBERED: dict[type, tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("best", "best_epoch", "wait", "stopped_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("best", "wait", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: (
        "best", "_batches_seen_since_last_saving", "_last_batch_seen",
    ),
}  # fmt: skip


class Progress(tf.train.experimental.PythonState):
    """A dict that a checkpoint stores as JSON.

    Attributes:
        fields: The dict, empty before the first save or restore.
    """

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}

    def serialize(self) -> str:
        """Returns the dict as JSON, in which floats keep all their bits."""
        return json.dumps(self.fields)

    def deserialize(self, string_value: str | bytes) -> None:
        """Sets the dict from a checkpoint."""
        self.fields = json.loads(string_value)


def plain(value: Any) -> Any:
    """Returns a figure of logs, or a value of a callback's state, in the form for JSON."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    return np.asarray(value).tolist()


def states_of(callbacks: Sequence[Any]) -> list[list[Any]]:
    """Returns the class and the state of each callback that has one."""
    found = []
    for callback in callbacks:
        state = _state_of(callback)
        if state is not None:
            found.append([type(callback).__name__, plain(state)])
    return found


def restore_states(callbacks: Sequence[Any], states: Sequence[Sequence[Any]]) -> None:
    """Gives callbacks the states that `states_of` has found in another process.

    Callbacks that the saved run did not have begin anew, with a warning.
    """
    holders = [callback for callback in callbacks if _state_of(callback) is not None]
    names = [type(callback).__name__ for callback in holders]
    saved = [name for name, _ in states]
    if names != saved:
        warnings.warn(
            "Expected callbacks with a state as in the run that was begun: "
            f"{', '.join(saved) or 'none'}. Received: {', '.join(names) or 'none'}. They begin "
            "anew.",
            stacklevel=2,
        )
        return
    for callback, (_, state) in zip(holders, states, strict=True):
        if _has_protocol(callback):
            callback.set_state(state)
        else:
            for name, value in state.items():
                setattr(callback, name, value)


def _has_protocol(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(
        getattr(callback, "set_state", None)
    )


def _state_of(callback: Any) -> Any:
    """Returns the state of a callback; `None`: no known state."""
    if _has_protocol(callback):
        return callback.get_state()
    for kind, names in _REMEMBERED.items():
        if isinstance(callback, kind):
            return {name: getattr(callback, name, None) for name in names}
    return None


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raises for callbacks whose work would be lost, or would disturb the run."""
    for callback in callbacks:
        name = type(callback).__name__
        if name == "BackupAndRestore":
            raise ValueError(
                "Expected callbacks without BackupAndRestore: checkpoint.fit saves and restores by "
                f"itself. Received: {name}. Leave it out."
            )
        keeps = any(
            getattr(callback, flag, False) for flag in ("restore_best_weights", "keeps_best_epoch")
        )
        if keeps and not _has_protocol(callback):
            raise ValueError(
                f"Expected {name}(restore_best_weights=False): a run that goes on does not know "
                "which epoch a callback has kept. Received: True. Save the best epoch by "
                "sok_embed.callbacks.ModelCheckpoint(…, save_best_only=True), which remembers the "
                "best epoch so far."
            )
