"""The base of layers over a `Table`: lookups with a gradient, storage, saving."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import keras

from sok_embed import communicators, kv
from sok_embed.kv.table_spec import TableOptions, TableSpec
from sok_embed.layers.arguments import check_key_type
from sok_embed.layers.key_layer import KeyLayer
from sok_embed.layers.saved_rows import SavedRows, StorableRows
from sok_embed.lookups.lookup import TableLookup
from sok_embed.tables import group_holders, storage_copies
from sok_embed.tables.table import Table, table_of


class TableLayer(KeyLayer):
    """Base of the layers that own a `Table`. Do not use it directly."""

    table: Table
    storage: kv.Storage | None

    def __init__(
        self,
        dim: int,
        initializer: Any,
        *,
        optimizer: Any = None,
        regularizer: Any = None,
        constraint: Any = None,
        direct: bool = False,
        **kwargs: Any,
    ) -> None:
        options = TableOptions.taken_from(kwargs)
        super().__init__(
            dim,
            initializer,
            optimizer=optimizer,
            regularizer=regularizer,
            constraint=constraint,
            **kwargs,
        )
        if isinstance(options.get("storage"), Mapping):
            options["storage"] = storage_copies.storage_of(options["storage"])
        communicator = communicators.current()
        spec = TableSpec(
            dim=dim,
            initializer=self._row_initializer.bounds,
            direct=direct,
            owners=communicator.size,
            owner=communicator.rank,
            name=self.name,
            what=f"Layer '{self.name}'",
            **options,
        )
        holder = f"layer '{self.name}'"
        spec = group_holders.with_seed(spec, holder, self._choose_seed)
        for name, value in spec.options().items():
            setattr(self, name, value)
        self.table = table_of(spec)
        self.table.constraint = self.embeddings_constraint
        self.table.host = weakref.ref(self)
        self._table_lookup = TableLookup(
            self.table, f"Layer '{self.name}'", key_limit=self.table.key_limit
        )
        if spec.storage is not None:
            group_holders.hold(spec.storage, spec.group, self, holder)

    def _output_spec(self, inputs: Any) -> keras.KerasTensor:
        """Returns the shape and the dtype of the output, for symbolic calls."""
        check_key_type(f"Layer '{self.name}'", inputs.dtype)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def _saved_rows(self) -> list[SavedRows]:
        return [StorableRows(self.name, self.table, "table_", "storage_rows")]

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that all table layers share."""
        return {
            **super().get_config(),
            **self.table.spec.options_config(),
            "storage": storage_copies.config_of(self.storage),
        }
