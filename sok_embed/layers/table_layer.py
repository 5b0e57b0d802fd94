"""What layers over a `Table` have in common: lookups with a gradient, storage, saving."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sok_embed import admission as admissions
from sok_embed import callers, communicators, contents, kv, tf_ops
from sok_embed import eviction as evictions
from sok_embed.admission import Admission
from sok_embed.arguments import check_integer
from sok_embed.eviction import Eviction
from sok_embed.layers.anchored_layer import AnchoredLayer
from sok_embed.layers.rebuilding import check_rebuilt
from sok_embed.lookup import TableLookup
from sok_embed.table import Table

# Which layer has which group of a storage: two that took one by oversight would share its rows.
_layer_of_group: weakref.WeakKeyDictionary[
    kv.Storage, weakref.WeakValueDictionary[int, TableLayer]
] = weakref.WeakKeyDictionary()


_PREFIX = "table_"  # of the entries of a Keras file


class TableLayer(AnchoredLayer):
    """Base of the layers that own a `Table`. Not for use by itself.

    Args:
        dim: The length of a row.
        initializer: A Keras initializer, its name or config; see
            `sok_embed.initializers.row_initializer`.
        optimizer: A name, a Keras optimizer or its config. `None`: the rows follow the optimizer
            that trains the model.
        seed: Of the initializer. `None`: from the initializer if it was given one, else from the
            name of the layer and the seed of `keras.utils.set_random_seed`.
        max_rows: The most rows on each worker, or `None`.
        direct: Whether keys are positions in `[0, max_rows * workers)`.
        storage: A `sok_embed.kv.Storage`, or its config, that the rows live in. `None`: they live
            in memory.
        group: Of the storage.
        admission: Which keys get a row, from `sok_embed.admission`, or its config. `None`: all.
        eviction: Which rows go, from `sok_embed.eviction`, or its name or config. `None`: none.
        **kwargs: Of `keras.layers.Layer`.
    """

    table: Table

    def __init__(
        self,
        dim: int,
        initializer: Any,
        *,
        optimizer: Any = None,
        seed: int | None = None,
        max_rows: int | None = None,
        direct: bool = False,
        storage: kv.Storage | Mapping[str, Any] | None = None,
        group: int = 0,
        admission: Admission | Mapping[str, Any] | None = None,
        eviction: Eviction | str | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dim, initializer, optimizer=optimizer, **kwargs)
        by_config = isinstance(storage, Mapping)
        self.storage = kv.Storage.from_config(storage) if isinstance(storage, Mapping) else storage
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
        if seed is None and stored is not None:
            seed = stored.initializer["seed"]
        self.seed = self._choose_seed(seed)
        if by_config and stored is not None:
            self._check_same_start(stored)
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
            name=self.name,
        )
        self._table_lookup = TableLookup(
            self.table, f"Layer '{self.name}'", key_limit=self.table.key_limit
        )
        if self.storage is not None:
            layers = _layer_of_group.setdefault(self.storage, weakref.WeakValueDictionary())
            layers[self.group] = self

    def _rows_are_kept(self) -> bool:
        return self.storage is not None

    def _layer_of_group(self) -> str | None:
        """The name of the layer that has the group of the storage."""
        assert self.storage is not None
        layers = _layer_of_group.get(self.storage)
        layer = None if layers is None else layers.get(self.group)
        return None if layer is None else layer.name

    def _stored_group(self) -> kv.Group | None:
        """What the storage has of the layer's group; raises if another layer has taken it."""
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
                f"{self.storage!r} (of type {type(self.storage).__name__})."
            )
        if not 0 <= self.group < kv.GROUPS:
            raise ValueError(
                f"Layer '{self.name}': expected group in [0, {kv.GROUPS}). Received: {self.group}."
            )
        taken = self._layer_of_group()
        if taken is not None and taken != self.name:
            gc.collect()  # a layer that is gone but for cycles of references
            taken = self._layer_of_group()
        if taken is not None and taken != self.name:
            raise ValueError(
                f"Layer '{self.name}': expected a group of its own in {self.storage!r}. Received: "
                f"group={self.group}, which layer '{taken}' has. Pass another group=, or call one "
                "layer in both places."
            )
        groups = {group.number: group for group in self.storage.groups()}
        return groups.get(self.group)

    def _check_same_start(self, stored: kv.Group) -> None:
        """Raises if a config would change what new rows of a group start from."""
        assert self.storage is not None
        initializer = self._row_initializer
        own = (initializer.kind, np.float32(initializer.a), np.float32(initializer.b), self.seed)
        kept = stored.initializer
        theirs = (kept["kind"], np.float32(kept["a"]), np.float32(kept["b"]), kept["seed"] % 2**63)
        if own != theirs and not self.storage.read_only:
            raise ValueError(
                f"Layer '{self.name}': expected the initializer that group {self.group} of "
                f"{self.storage!r} has, {kept}. Received: another, {initializer} with seed "
                f"{self.seed}, from a config, which must not change it. Make the model by its "
                "class, with storage=, and use model.load_weights(file)."
            )

    def _lookup(self, keys: tf.Tensor, training: bool | None) -> tf.Tensor:
        """Embeddings of int64 keys of any shape, `keys.shape + [dim]`, in the compute dtype."""
        call = self._begin_lookup(training)
        return self._table_lookup.vectors(call, keys, dtype=self._compute_type)

    def _output_spec(self, inputs: Any) -> keras.KerasTensor:
        """The shape and the dtype of the output, for symbolic calls."""
        self._check_key_type(inputs)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def save_own_variables(self, store: Any) -> None:
        """Adds the rows to what Keras saves; those in a storage are flushed, and stay there."""
        if self.storage is not None:
            self.storage.flush()
            super().save_own_variables(store)
            store["storage_rows"] = np.int64(self.table.size())
            return
        self._check_saves_all_rows()
        super().save_own_variables(store)
        contents.save(store, _PREFIX, self.table.export(slots=True))

    def load_own_variables(self, store: Any) -> None:
        """Takes the rows out of what Keras saved, unless they lie in the layer's storage."""
        check_rebuilt()
        expected = contents.entries(tf_ops.Export, _PREFIX).values()
        saved = set(store.keys())
        if self.storage is not None and saved.isdisjoint(expected):
            rows = int(np.asarray(store["storage_rows"])) if "storage_rows" in saved else 0
            super().load_own_variables({name: store[name] for name in saved - {"storage_rows"}})
            if rows and not self.table.size():
                warnings.warn(
                    f"Layer '{self.name}': expected {rows} rows in {self.storage!r}, as the model "
                    "was saved with. Received: none, so every key has the vector it starts from. "
                    "Put the folder of that time there.",
                    stacklevel=2,
                )
            return
        if self.storage is not None and callers.loading_model():
            raise ValueError(
                f"Layer '{self.name}': expected no rows in a file whose model has its rows in "
                f"{self.storage!r}. Received: some, which would take the place of those. To put "
                "them there, make the model by its class and use model.load_weights(file)."
            )
        self._check_loads_all_rows(
            "Load it in one process, and give each worker its rows with `layer.table.assign`."
        )
        if "storage_rows" in saved and saved.isdisjoint(expected):
            raise ValueError(
                f"Layer '{self.name}': expected rows in the file, for a layer without a storage. "
                "Received: a file of a layer whose rows lie in a storage, and are not in the file. "
                "Make the layer with storage= and group= as it was saved; or bring the rows over, "
                "with `layer.table.export(slots=True)` there and `layer.table.restore` here."
            )
        contents.check_whole(f"Layer '{self.name}'", saved, tf_ops.Export, [_PREFIX])
        if not saved.issuperset(expected):
            raise ValueError(
                f"Layer '{self.name}': expected rows saved by a table layer, with the entries "
                f"{', '.join(expected)}. Received: {', '.join(sorted(saved)) or 'no entries'}. "
                "To take the weights of a static embedding, use "
                "`layer.table.assign(range(len(weights)), weights)`."
            )
        super().load_own_variables({name: store[name] for name in saved.difference(expected)})
        self.table.restore(contents.load(store, _PREFIX, tf_ops.Export))

    def get_config(self) -> dict[str, Any]:
        """The arguments that all table layers share."""
        return {
            **super().get_config(),
            "storage": None if self.storage is None else self.storage.get_config(),
            "group": self.group,
            "admission": None if self.admission is None else self.admission.get_config(),
            "eviction": None if self.eviction is None else self.eviction.get_config(),
        }
