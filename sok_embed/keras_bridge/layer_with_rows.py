"""The base of layers with tables: their anchor, rows in files, refusals of Keras' other calls.

Keras handles variables alone, and rows are not variables: calls that would silently leave rows out
are refused.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import keras

from sok_embed import communicators, kv
from sok_embed.keras_bridge import callers
from sok_embed.keras_bridge.anchors import is_anchor
from sok_embed.keras_bridge.counted_rows import RowCount, counted_rows
from sok_embed.keras_bridge.layer_calls import LayerOfIds
from sok_embed.keras_bridge.rebuilding import check_rebuilt
from sok_embed.optimizers.row_rules import row_rule

_allowed: ContextVar[bool] = ContextVar("sok_embed_dense_only", default=False)

# Functions of Keras that count the parameters of a model or a layer.
_COUNTING = {"count_params", "print_summary"}

_INSTEAD = (
    "Save with sok_embed.save_model(model, 'model.keras') or, in fit, with "
    "sok_embed.callbacks.ModelCheckpoint, and load with keras.saving.load_model."
)

_VECTORS = (
    "`keys, vectors = layer.table.export()` copies all rows out, `layer.table.lookup(ids)` reads "
    "some, and `layer.table.assign(ids, vectors)` sets them; a layer with several tables has them "
    "in `layer.tables`."
)

_EARLY_STOPPING = (
    "expected a callback that brings rows back too. Received: Keras' own "
    "EarlyStopping(restore_best_weights=True), which would put the dense weights of the best epoch "
    "beside the rows of the last one. Use sok_embed.callbacks.EarlyStopping, with the same "
    "arguments."
)


@contextlib.contextmanager
def dense_only() -> Iterator[None]:
    """Allows `set_weights` and similar calls to set dense weights alone, without rows.

    Without it they raise for a model with rows, since dense weights of one time do not fit rows of
    another. Use it if you restore the rows yourself.

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


class SavedEntries(Protocol):
    """A part of what a layer has in a Keras file beside its variables."""

    def has(self, entry: str) -> bool:
        """Returns whether an entry of a file belongs to this part."""

    def save(self, store: Any) -> None:
        """Adds the entries."""

    def read(self, store: Any) -> Callable[[], None]:
        """Reads and checks the entries, and returns a function that puts them into the layer."""


class LayerWithRows(LayerOfIds):
    """Base of the layers whose rows are in tables. Do not use it directly.

    Keras finds the anchor as the only weight, so that code which handles variables lacks the rows.
    """

    # Whether rows in a storage may come from the copy beside the file of a model.
    _reads_storage_copies = True

    def _tables(self) -> Sequence[Any]:
        """Returns the tables that have the rows of the layer."""
        raise NotImplementedError

    def _trained_tables(self) -> Sequence[bool]:
        """Returns for each table whether training changes it."""
        return [self.trainable] * len(self._tables())

    def _saved_rows(self) -> Sequence[SavedEntries]:
        """Returns the layer's entries in a Keras file beside its variables."""
        raise NotImplementedError

    def _make_anchor(self, make: Callable[..., Any]) -> Any:
        """Returns the anchor, which it makes with a function like `add_weight`."""
        raise NotImplementedError

    def _training_facts(self) -> dict[str, Any]:
        """Returns what decides how the rows train, beside the arguments of the constructor."""
        return {}

    def _follows_model(self) -> bool:
        """Returns whether the optimizer of the model trains rows of the layer."""
        return True

    def _storages(self, trained: bool = False) -> list[kv.Storage]:
        """Returns the storages in which rows of the layer lie, or rows that change, each once."""
        found: dict[kv.Storage, None] = {}
        for table, is_trained in zip(self._tables(), self._trained_tables(), strict=True):
            storage = getattr(table, "storage", None)
            if storage is not None and (is_trained or not trained):
                found[storage] = None
        return list(found)

    def _rows_are_kept(self) -> bool:
        """Returns whether all rows lie in storages, where they stay when weights are set."""
        return all(getattr(table, "storage", None) is not None for table in self._tables())

    def build(self, input_shape: Any = None) -> None:
        """Makes the anchor."""
        self.anchor = self._make_anchor(functools.partial(self.add_weight, autocast=False))
        self.built = True

    def count_params(self) -> int:
        """Counts the numbers in the vectors of this worker's rows; a summary shows bytes too."""
        numbers = super().count_params()  # this raises for a layer that is not built
        return RowCount.of(self._tables(), numbers)

    def save_own_variables(self, store: Any) -> None:
        """Adds the rows to Keras' file; rows in a storage are flushed, and stay there."""
        super().save_own_variables(store)
        for storage in self._storages():
            storage.flush()
        for saved in self._saved_rows():
            saved.save(store)

    def load_own_variables(self, store: Any) -> None:
        """Takes the rows of this worker from Keras' file, unless they are in a storage."""
        check_rebuilt()
        parts = self._saved_rows()
        put_rows = [saved.read(store) for saved in parts]
        others = [name for name in store.keys() if not any(saved.has(name) for saved in parts)]
        super().load_own_variables({name: store[name] for name in others})
        for put in put_rows:
            put()

    @property
    def trainable(self) -> bool:
        """Returns whether training changes the layer.

        When `compile` reads it, checks the optimizer.

        Raises:
            ValueError: From `compile`, for an optimizer whose rule rows cannot follow.
        """
        model = callers.compiling_model()
        if model is not None and self._trainable:
            self._check_optimizer(model)
        return bool(self._trainable)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        keras.layers.Layer.trainable.fset(self, value)

    def _check_optimizer(self, model: Any) -> None:
        """Raises if the first step would refuse the optimizer."""
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        # A `train_step` of the model's own may train the rows by another optimizer.
        own_step = type(model).train_step is not keras.Model.train_step
        if optimizer is None or own_step or not self._tables() or not self._follows_model():
            return
        try:
            row_rule(optimizer)
        except ValueError as error:
            raise ValueError(
                f"Layer '{self.name}': {error} A frozen layer, with layer.trainable = False, takes "
                "any."
            ) from None

    @property
    def embeddings(self) -> Any:
        """Raises an error that says how to get the vectors.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(
            f"Layer '{self.name}' has no attribute 'embeddings', as its rows are not a variable. "
            f"{_VECTORS}"
        )

    def get_weights(self) -> Any:
        """Returns the variables of the layer; raises if the anchor is the only one.

        Raises:
            ValueError: With the way to get the vectors.
        """
        if not _allowed.get() and all(map(is_anchor, self.weights)) and self._tables():
            raise ValueError(
                f"Layer '{self.name}': expected a call that returns its rows. Received: "
                "get_weights, which returns variables, and the only one here is the anchor, which "
                f"is always 0. {_VECTORS}"
            )
        return super().get_weights()

    @property
    def metrics(self) -> Any:
        """Returns Keras' metrics. `fit` reads them before its first step, so checks are made here.

        Raises:
            ValueError: For callbacks that would save dense weights without rows, or save no rows of
                a storage, which later steps change; for Keras' own ModelCheckpoint on several
                workers; and for rows in a read-only storage.
        """
        callbacks = callers.callbacks_at_start_of_fit()
        for storage in self._storages(trained=True) if callbacks else ():
            if storage.read_only:
                raise ValueError(
                    f"Layer '{self.name}': expected a storage that may be written, as fit trains "
                    f"its rows. Received: {storage!r}. Freeze the layer, by layer.trainable = "
                    "False; or open the storage for writing. To go on from a file with rows beside "
                    "it, make the model by its class, and put them in by "
                    "model.load_weights(file)."
                )
        for callback in callbacks:
            self._check_callback(callback)
        return super().metrics

    def get_config(self) -> dict[str, Any]:
        """Returns the config; raises for HDF5, which writes configs first and weights later."""
        self._check_dense_alone()
        return super().get_config()

    @property
    def weights(self) -> Any:
        """The anchor; raises for functions of Keras that would handle it as the whole layer.

        When Keras counts parameters, it gets the vectors of the rows instead of the anchor. When it
        draws histograms, it gets nothing, since the anchor is always 0.
        """
        asking = self._check_dense_alone()
        found = super().weights
        counts, draws = not asking.isdisjoint(_COUNTING), "_log_weights" in asking
        if not counts and not draws:
            return found
        others = [variable for variable in found if not is_anchor(variable)]
        tables = zip(self._tables(), self._trained_tables(), strict=True)
        return others + [counted_rows(*table) for table in tables if counts]

    @property
    def variables(self) -> Any:
        """The anchor; raises for functions of Keras that would handle it as the whole layer."""
        self._check_dense_alone()
        return super().variables

    def _check_dense_alone(self) -> set[str]:
        """Returns the functions of Keras that are calling.

        Raises if one needs more than variables.
        """
        asking = callers.asking_functions_of_keras()
        if _allowed.get() or not self._tables():
            return asking
        reason = self._reason(asking)
        if reason is not None:
            saving = callers.saving_to_hdf5()
            done = "" if saving is None else _undo_hdf5(saving)
            raise ValueError(f"Layer '{self.name}': {reason}{done}")
        return asking

    def _check_callback(self, callback: Any) -> None:
        if _allowed.get() or not self._tables():
            return
        files: set[str] = set()
        if isinstance(callback, keras.callbacks.EarlyStopping):
            files = {"early_stopping.py"} if callback.restore_best_weights else files
        elif isinstance(callback, keras.callbacks.ModelCheckpoint):
            if not getattr(callback, "saves_rows_of_all_workers", False):
                self._check_one_worker()
                self._check_rows_stay("ModelCheckpoint")
            old = callback.filepath.endswith(".h5") and not callback.save_weights_only
            files = {"legacy_h5_format.py"} if old else files
        elif isinstance(callback, getattr(keras.callbacks, "OrbaxCheckpoint", ())):
            files = {"orbax_checkpoint.py"}
        elif isinstance(callback, keras.callbacks.BackupAndRestore):
            self._check_rows_stay("BackupAndRestore")
        elif isinstance(callback, keras.callbacks.TensorBoard) and callback.embeddings_freq:
            raise ValueError(
                f"Layer '{self.name}': expected sok_embed.callbacks.Projector('"
                f"{callback.log_dir}'), which writes rows for TensorBoard's projector. Received: "
                f"TensorBoard(embeddings_freq={callback.embeddings_freq}), which writes those of "
                "keras.layers.Embedding alone. Leave embeddings_freq at 0."
            )
        reason = self._reason(files)
        if reason is not None:
            raise ValueError(f"Layer '{self.name}': {reason}")

    def _check_one_worker(self) -> None:
        size = communicators.size()
        if size > 1 and not self._rows_are_kept():
            raise ValueError(
                f"Layer '{self.name}': expected sok_embed.callbacks.ModelCheckpoint with {size} "
                "workers, which writes the rows of all of them. Received: the ModelCheckpoint of "
                "Keras, whose file would hold the rows of one worker. Both have the same "
                "arguments."
            )

    def _check_rows_stay(self, callback: str) -> None:
        """Raises for a callback of Keras whose file would soon be older than the rows on disk."""
        changing = [storage for storage in self._storages(trained=True) if not storage.read_only]
        if changing:
            raise ValueError(
                f"Layer '{self.name}': expected sok_embed.callbacks.{callback}, which keeps the "
                f"rows of {changing[0]!r} with the dense weights. Received: the callback of Keras, "
                "which leaves rows where they are: dense weights of one time would meet the rows "
                "of a later one. Use the callback of sok_embed instead."
            )

    def _reason(self, asking: set[str]) -> str | None:
        """Returns the reason why the running functions of Keras must not get the variables."""
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
    """Undoes what Keras did before it asked the first layer; returns a text of what it cannot undo.

    Args:
        saving: The saving, as returned by `callers.saving_to_hdf5`.
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
