"""The base of layers over a `Table`: lookups with a gradient, storage, saving."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from sok_embed import admission as admissions
from sok_embed import communicators, kv
from sok_embed import eviction as evictions
from sok_embed.admission import Admission
from sok_embed.arguments import check_integer, shown
from sok_embed.eviction import Eviction
from sok_embed.layers.arguments import check_key_type
from sok_embed.layers.key_layer import KeyLayer
from sok_embed.layers.saved_rows import SavedRows, StorableRows
from sok_embed.lookups.lookup import TableLookup
from sok_embed.tables import group_holders, storage_copies
from sok_embed.tables.devices import CPU, check_device
from sok_embed.tables.row_dtypes import FLOAT32, check_row_dtypes
from sok_embed.tables.table import Table


class TableLayer(KeyLayer):
    """Base of the layers that own a `Table`. Do not use it directly."""

    table: Table

    def __init__(
        self,
        dim: int,
        initializer: Any,
        *,
        optimizer: Any = None,
        regularizer: Any = None,
        constraint: Any = None,
        seed: int | None = None,
        max_rows: int | None = None,
        direct: bool = False,
        storage: kv.Storage | Mapping[str, Any] | None = None,
        group: int = 0,
        admission: Admission | Mapping[str, Any] | None = None,
        eviction: Eviction | str | Mapping[str, Any] | None = None,
        row_dtype: str = FLOAT32,
        slot_dtype: str = FLOAT32,
        device: str = CPU,
        max_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dim,
            initializer,
            optimizer=optimizer,
            regularizer=regularizer,
            constraint=constraint,
            **kwargs,
        )
        self.storage = (
            storage_copies.storage_of(storage) if isinstance(storage, Mapping) else storage
        )
        self.group = check_integer("group", group, named=True)
        self.admission = admissions.get(admission)
        self.eviction = evictions.get(eviction)
        evictions.check_place(
            self.eviction,
            f"Layer '{self.name}'",
            max_rows=max_rows,
            stored=storage is not None,
            direct=direct,
        )
        stored = self._stored_group()
        if seed is None and stored is not None and stored.initializer is not None:
            seed = stored.initializer["seed"]
        self.seed = self._choose_seed(seed)
        if stored is not None:
            assert self.storage is not None
            group_holders.check_same_start(
                f"Layer '{self.name}'", self.storage, stored, self._row_initializer, self.seed
            )
        check_row_dtypes(f"Layer '{self.name}'", row_dtype, slot_dtype)
        self.row_dtype = row_dtype
        self.slot_dtype = slot_dtype
        self._max_rows = max_rows
        self._direct = direct
        communicator = communicators.current()
        self.table = Table(
            dim,
            self._row_initializer,
            seed=self.seed,
            max_rows=max_rows,
            direct=direct,
            owners=communicator.size,
            owner=communicator.rank,
            storage=self.storage,
            group=self.group,
            admission=self.admission,
            eviction=self.eviction,
            row_dtype=row_dtype,
            slot_dtype=slot_dtype,
            device=check_device(f"Layer '{self.name}'", device),
            max_bytes=max_bytes,
            name=self.name,
        )
        self.table.constraint = self.embeddings_constraint
        self.table.host = weakref.ref(self)
        self._table_lookup = TableLookup(
            self.table, f"Layer '{self.name}'", key_limit=self.table.key_limit
        )
        if self.storage is not None:
            group_holders.hold(self.storage, self.group, self, f"layer '{self.name}'")

    def _stored_group(self) -> kv.Group | None:
        """Returns the layer's group in the storage; raises if another layer has taken it."""
        if self.storage is None:
            if self.group != 0:
                raise ValueError(
                    f"Layer '{self.name}': expected a storage with group={self.group}. Received: "
                    "storage=None. A group is a part of a storage."
                )
            return None
        if not isinstance(self.storage, kv.Storage):
            raise ValueError(
                f"Layer '{self.name}': expected storage to be a sok_embed.kv.Storage. Received: "
                f"{shown(self.storage)} (of type {type(self.storage).__name__})."
            )
        if not 0 <= self.group < kv.GROUPS:
            raise ValueError(
                f"Layer '{self.name}': expected group in [0, {kv.GROUPS}). Received: {self.group}."
            )
        return group_holders.stored_group(
            f"Layer '{self.name}'", self.storage, self.group, f"layer '{self.name}'"
        )

    def _lookup(self, keys: tf.Tensor, training: bool | None) -> tf.Tensor:
        """Returns embeddings of int64 keys, `keys.shape + [dim]`, in the compute dtype."""
        return tf.cast(self._rows(keys, training), self._compute_type)

    def _rows(
        self, keys: tf.Tensor, training: bool | None, dtype: tf.DType | None = None
    ) -> tf.Tensor:
        """Returns rows of int64 keys, `keys.shape + [dim]`, and regularizes them."""
        call = self._begin_lookup(training)
        rows = self._table_lookup.vectors(call, keys, dtype=dtype or self._row_type)
        self._regularize(keys, rows)
        return rows

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
            "storage": storage_copies.config_of(self.storage),
            "group": self.group,
            "admission": None if self.admission is None else self.admission.get_config(),
            "eviction": None if self.eviction is None else self.eviction.get_config(),
            "row_dtype": self.row_dtype,
            "slot_dtype": self.slot_dtype,
        }
