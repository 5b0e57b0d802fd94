"""What knows of variables alone: it would leave rows out, or behind, without a word."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras

from sok_embed import callers, communicators

_allowed: ContextVar[bool] = ContextVar("sok_embed_dense_only", default=False)

_INSTEAD = (
    "Save with sok_embed.save_model(model, 'model.keras') or, in fit, with "
    "sok_embed.callbacks.ModelCheckpoint, and load with keras.saving.load_model."
)

_EARLY_STOPPING = (
    "expected a callback that brings rows back too. Received: Keras' own "
    "EarlyStopping(restore_best_weights=True), which would put the dense weights of the best epoch "
    "beside the rows of the last one. Use sok_embed.callbacks.EarlyStopping, with the same "
    "arguments."
)


@contextlib.contextmanager
def dense_only() -> Iterator[None]:
    """Lets `set_weights` and its like take the dense weights alone, and leave rows as they are.

    Without it they raise for a model with rows: dense weights of one time and rows of another make
    a model that nobody has trained. Use it where you put the rows in place yourself.

    Example:
    >>> import sok_embed
    >>> layer = sok_embed.DynamicEmbedding(2)
    >>> model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Dense(1)])
    >>> with dense_only():
    ...     model.set_weights(model.get_weights())
    """
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


class LayerWithRows(keras.layers.Layer):
    """A layer whose rows are no variables, so that what takes its variables lacks them."""

    def _has_rows(self) -> bool:
        return True

    def _rows_are_kept(self) -> bool:
        """Returns whether rows lie in storages, and stay there whatever weights are set."""
        return False

    @property
    def metrics(self) -> Any:
        """Returns metrics as Keras has them. `fit` asks before its first step, so checks are here.

        Raises:
            ValueError: For callbacks that would take dense weights alone at the end of the epoch,
                and for Keras' own ModelCheckpoint on several workers.
        """
        for callback in callers.callbacks_at_start_of_fit():
            self._check_callback(callback)
        return super().metrics

    def get_config(self) -> dict[str, Any]:
        """Returns the config; raises for HDF5, which writes configs first and weights later."""
        self._check_dense_alone()
        return super().get_config()

    @property
    def weights(self) -> Any:
        """The anchor; raises for those who would take it for the whole layer."""
        self._check_dense_alone()
        return super().weights

    @property
    def variables(self) -> Any:
        """The anchor; raises for those who would take it for the whole layer."""
        self._check_dense_alone()
        return super().variables

    def _check_dense_alone(self) -> None:
        if _allowed.get() or not self._has_rows():
            return
        asking = callers.asking_functions_of_keras()
        reason = self._reason(asking)
        if reason is not None:
            saving = callers.saving_to_hdf5()
            done = "" if saving is None else _undo_hdf5(saving)
            raise ValueError(f"Layer '{self.name}': {reason}{done}")

    def _check_callback(self, callback: Any) -> None:
        if _allowed.get() or not self._has_rows():
            return
        files: set[str] = set()
        if isinstance(callback, keras.callbacks.EarlyStopping):
            files = {"early_stopping.py"} if callback.restore_best_weights else files
        elif isinstance(callback, keras.callbacks.ModelCheckpoint):
            if not getattr(callback, "saves_rows_of_all_workers", False):
                self._check_one_worker()
            old = callback.filepath.endswith(".h5") and not callback.save_weights_only
            files = {"legacy_h5_format.py"} if old else files
        elif isinstance(callback, keras.callbacks.OrbaxCheckpoint):
            files = {"orbax_checkpoint.py"}
        reason = self._reason(files)
        if reason is not None:
            raise ValueError(f"Layer '{self.name}': {reason}")

    def _check_one_worker(self) -> None:
        size = communicators.size()
        if size > 1 and not self._rows_are_kept():
            raise ValueError(
                f"Layer '{self.name}': expected sok_embed.callbacks.ModelCheckpoint with {size} "
                "workers, which writes the rows of all of them. Received: that of Keras, whose "
                "file would hold the rows of one. It has the same arguments."
            )

    def _reason(self, asking: set[str]) -> str | None:
        """Returns why those who ask must not have the variables, by what of Keras is running."""
        for file, name in (("legacy_h5_format.py", "HDF5"), ("orbax_checkpoint.py", "Orbax")):
            if file in asking:
                return (
                    f"expected a format that has rows. Received: {name}, which has no rows. "
                    f"{_INSTEAD}"
                )
        if "early_stopping.py" in asking:
            # If no row is trained, the rows are those of every epoch.
            return _EARLY_STOPPING if self.trainable else None
        setting = asking & {"set_weights", "set_state_tree"}
        if setting and not self._rows_are_kept():
            name = min(setting)
            return (
                f"expected to set rows and dense weights together. Received: {name}, which sets "
                f"dense weights alone. {_INSTEAD} To set them and leave the rows as they are: "
                f"`with sok_embed.dense_only(): model.{name}(…)`."
            )
        return None


def _undo_hdf5(saving: callers.HDF5Saving) -> str:
    """Undoes what Keras did before the first layer was asked; says what cannot be undone.

    Args:
        saving: What `callers.saving_to_hdf5` returns.
    """
    model = saving.model
    compiled = getattr(model, "_compile_config", None)
    if compiled is not None:
        # Keras has taken the optimizer out, and would not save it in any format after that.
        compiled.config.setdefault("optimizer", model.optimizer)
    if not saving.opened_new_file:
        return ""
    with contextlib.suppress(OSError):
        os.remove(saving.path)
    return f" Keras had emptied {os.fspath(saving.path)!r} before, and it is removed."
