"""The base of layers of one table: the seed, checks of keys, the config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from sok_embed.initializers import derive_seed, row_initializer
from sok_embed.keras_bridge.graph_casts import checked_ids
from sok_embed.keras_bridge.keras_arguments import function_of_rows
from sok_embed.keras_bridge.layer_calls import refuse_casts, true_ids
from sok_embed.keras_bridge.layer_with_rows import LayerWithRows
from sok_embed.keras_bridge.rebuilding import plain_errors
from sok_embed.lookups.lookup import LookupContext, TableLookup, distinct_rows
from sok_embed.optimizers import row_rules
from sok_embed.tables import row_constraints
from sok_embed.tables.adaptive_table import AdaptiveTable
from sok_embed.tables.table import Table
from sok_embed.tables.tensors import as_keys
from sok_embed.training.commit import Commit
from sok_embed.training.strategies import check_strategy


class KeyLayer(LayerWithRows):
    """Base of the layers that look keys up in one table. Not for use by itself."""

    seed: int
    table: Table | AdaptiveTable
    _table_lookup: TableLookup

    def __init__(
        self,
        dim: int,
        initializer: Any,
        *,
        optimizer: Any,
        regularizer: Any,
        constraint: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._compute_type = activation_type(self.compute_dtype)
        self._row_initializer = row_initializer(initializer, dim)
        self.optimizer = row_rules.get(optimizer)
        row_rules.check_own(self.optimizer, self.name)
        self.embeddings_regularizer = function_of_rows(
            "Regularizer", keras.regularizers.get, regularizer
        )
        self.embeddings_constraint = row_constraints.get(constraint)
        # A regularizer gets rows as they are, whatever the dtype of their vectors.
        regularized = self.embeddings_regularizer is not None
        self._row_type = tf.float32 if regularized else self._compute_type
        self._dim = dim

    def _choose_seed(self) -> int:
        """Returns the seed of the initializer, or one made from the name."""
        seed = self._row_initializer.seed
        return derive_seed(self.name) if seed is None else seed

    def _make_anchor(self, make: Callable[..., Any]) -> Any:
        check_strategy(f"Layer '{self.name}'")
        commit = Commit(self.table, self.optimizer)
        return self._table_lookup.make_anchor(make, commit, name="anchor")

    def _begin_lookup(self, training: bool | None) -> LookupContext:
        """Begins a call of the layer, and decides whether the call may make rows."""
        check_strategy(f"Layer '{self.name}'")
        return self._table_lookup.begin(self.trainable, training)

    def _lookup(
        self,
        keys: tf.Tensor,
        training: bool | None,
        dtype: tf.DType | None = None,
        routes: Any = None,
    ) -> tf.Tensor:
        """Returns vectors of int64 keys, `keys.shape + [dim]`, and regularizes their rows.

        Without a dtype, vectors have the compute dtype.
        """
        context = self._begin_lookup(training)
        rows = self._table_lookup.vectors(context, keys, routes, dtype or self._row_type)
        if self.embeddings_regularizer is not None:
            self.add_loss(self.embeddings_regularizer(distinct_rows(keys, rows)))
        return tf.cast(rows, dtype or self._compute_type)

    def _tables(self) -> list[Any]:
        return [self.table] if "table" in vars(self) else []

    def _follows_model(self) -> bool:
        return self.optimizer is None

    def _to_keys(self, inputs: Any) -> tf.Tensor:
        refuse_casts(self)
        try:
            keys = as_keys(true_ids(inputs), hashes_strings=True)
        except ValueError as error:
            raise ValueError(f"Layer '{self.name}': {error}") from None
        return checked_ids(f"Layer '{self.name}'", keys, self)

    def _to_ids(self, inputs: Any) -> Any:
        """Returns the inputs with int64 keys: a tensor, ragged or sparse."""
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self._to_keys(inputs.flat_values))
        if isinstance(inputs, tf.SparseTensor):
            return inputs.with_values(self._to_keys(inputs.values))
        return self._to_keys(inputs)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes a layer from the result of `get_config`; raises what the constructor raises."""
        with plain_errors():
            return super().from_config(config)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that all layers with rows share."""
        return {
            **super().get_config(),
            "optimizer": row_rules.serialize(self.optimizer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "embeddings_constraint": keras.constraints.serialize(self.embeddings_constraint),
            "seed": self.seed,
        }


def activation_type(dtype: str) -> tf.DType:
    """Returns the dtype of vectors, for a compute dtype.

    Raises for one that rows do not support.
    """
    if dtype in ("float32", "bfloat16", "float16"):
        return tf.as_dtype(dtype)
    raise ValueError(
        f"Expected a compute dtype of float32, bfloat16 or float16. Received: {dtype}."
    )
