"""The base of layers whose rows are in tables: the anchor, the count of rows, saving, loading."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from sok_embed.keras_bridge.dense_alone import LayerWithRows
from sok_embed.keras_bridge.rebuilding import check_rebuilt
from sok_embed.keras_bridge.row_count import RowCount
from sok_embed.layers.saved_rows import SavedRows
from sok_embed.training.strategies import check_strategy


class RowsLayer(LayerWithRows):
    """Base of the layers whose rows are saved in a Keras file beside variables.

    Do not use it directly.

    Keras builds a layer with rows in its `build`, and finds its anchor as its only weight.
    """

    def _saved_rows(self) -> Sequence[SavedRows]:
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
        put_rows, others = [], set(store.keys())
        for saved in self._saved_rows():
            put_rows.append(saved.read(store))
            others -= saved.names
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
