"""The base of layers whose rows are in tables: the anchor, the count of rows, saving, loading."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sok_embed.keras_bridge.dense_alone import LayerWithRows
from sok_embed.keras_bridge.rebuilding import check_rebuilt
from sok_embed.keras_bridge.row_count import RowCount
from sok_embed.training.descriptions import of_arguments
from sok_embed.training.strategies import check_strategy


class SavedEntries(Protocol):
    """A part of what a layer has in a Keras file beside its variables."""

    def has(self, entry: str) -> bool:
        """Returns whether an entry of a file belongs to this part."""

    def save(self, store: Any) -> None:
        """Adds the entries."""

    def read(self, store: Any) -> Callable[[], None]:
        """Reads and checks the entries, and returns a function that puts them into the layer."""


class RowsLayer(LayerWithRows):
    """Base of the layers whose rows are saved in a Keras file beside variables.

    Do not use it directly.

    Keras builds a layer with rows in its `build`, and finds its anchor as its only weight.
    """

    def _training_facts(self) -> dict[str, Any]:
        """Returns all that decides how the rows train, for the comparison of workers."""
        return of_arguments(self)

    def _saved_rows(self) -> Sequence[SavedEntries]:
        """Returns the layer's entries in a Keras file beside its variables."""
        raise NotImplementedError

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


class LayerWithAnchor(RowsLayer):
    """Base of the layers that train their rows by an anchor. Not for use by itself."""

    def _make_anchor(self, make: Callable[..., Any]) -> Any:
        """Returns the anchor, which it makes with a function like `add_weight`."""
        raise NotImplementedError

    def build(self, input_shape: Any = None) -> None:
        """Makes the anchor."""
        check_strategy(f"Layer '{self.name}'")
        self.anchor = self._make_anchor(functools.partial(self.add_weight, autocast=False))
        self.built = True

    def count_params(self) -> int:
        """Counts the numbers in the vectors of this worker's rows; a summary shows bytes too."""
        numbers = super().count_params()  # this raises for a layer that is not built
        return RowCount.of(self._tables(), numbers)
