"""Defines the layer that looks up many features in many tables at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf

from sok_embed.arguments import check_choice
from sok_embed.collection.inputs import (
    FeatureInput,
    absent_input,
    as_tensor,
    feature_input,
    shape_of,
)
from sok_embed.collection.tables import CollectionCommit, TableCollection
from sok_embed.configs.configs import distinct_tables
from sok_embed.configs.nests import FeatureNest, Given
from sok_embed.configs.shared_configs import share_optimizers
from sok_embed.keras_bridge.graph_casts import checked_ids
from sok_embed.keras_bridge.keras_arguments import refuse_unknown_arguments
from sok_embed.keras_bridge.layer_calls import (
    functional_inputs,
    refuse_casts,
    refuse_dense_signature,
    true_ids,
)
from sok_embed.keras_bridge.layer_with_rows import LayerWithRows, SavedEntries
from sok_embed.keras_bridge.private_state import mask_of
from sok_embed.keras_bridge.rebuilding import plain_errors
from sok_embed.kv.table_spec import TableOptions
from sok_embed.layers.arguments import check_key_type
from sok_embed.layers.key_layer import activation_type
from sok_embed.layers.saved_optimizers import SavedOptimizer
from sok_embed.layers.saved_rows import StorableRows
from sok_embed.lookups.collection_lookup import CollectionLookup
from sok_embed.lookups.exchange import PooledBatch
from sok_embed.lookups.lookup import distinct_rows
from sok_embed.lookups.padding import mask_of_keys
from sok_embed.optimizers import own_variables
from sok_embed.planning import Plan
from sok_embed.planning.tables import EXCHANGED
from sok_embed.tables.table import Table
from sok_embed.tables.tensors import as_keys
from sok_embed.training.descriptions import plain
from sok_embed.training.strategies import check_strategy

_OUTPUTS = ("structure", "concat", "stack")
_OF_TABLES = "Give it to a TableConfig."
_REMEDIES = {
    "output_dim": "Give embedding_dim= to a TableConfig.",
    "combiner": "Give it to a TableConfig or a FeatureConfig.",
    "mask_zero": "Give it to a FeatureConfig.",
    "padding_value": "Give it to a FeatureConfig.",
    "weights": "Make the layer, and put rows in with layer.tables[name].assign(keys, embeddings).",
    "embeddings_initializer": "Give initializer= to a TableConfig.",
    "embedding_initializer": "Give initializer= to a TableConfig.",
    **dict.fromkeys([*TableOptions.names(), "initializer", "optimizer"], _OF_TABLES),
    "embeddings_regularizer": "Give regularizer= to a TableConfig.",
    "embeddings_constraint": "Give constraint= to a TableConfig.",
}


@keras.saving.register_keras_serializable(package="sok_embed")
class DistributedEmbedding(LayerWithRows):
    """Turns the features of a batch into vectors, by as many tables as they need.

    Each feature looks its keys up in a table, alone or with others that share it, and combines the
    vectors of an example's keys into one. All tables are read by one lookup and trained by one
    commit: in one process this is faster than a layer a table, and with several workers, over whom
    the rows are spread, a step takes three messages between them however many tables there are.

    Tables grow as in `DynamicEmbedding`, and follow the optimizer that trains the model, unless
    their config has an optimizer. Features whose output is not used leave their rows as they are.

    Example:
    >>> import numpy as np
    >>> from sok_embed import FeatureConfig, TableConfig
    >>> items = TableConfig("items", None, 8)
    >>> layer = DistributedEmbedding({
    ...     "item": FeatureConfig("item", items),
    ...     "seen": FeatureConfig("seen", items, combiner="sum"),
    ...     "country": FeatureConfig("country", TableConfig("countries", 200, 4)),
    ... })
    >>> vectors = layer({
    ...     "item": np.array([7, 2**40]),
    ...     "seen": tf.ragged.constant([[7, 8, 9], []], dtype=tf.int64),
    ...     "country": np.array([[3], [199]]),
    ... })
    >>> {name: tuple(vector.shape) for name, vector in vectors.items()}
    {'item': (2, 8), 'seen': (2, 8), 'country': (2, 4)}

    Args:
        feature_configs: A nest (dicts, lists, tuples) of `FeatureConfig`, of this package or of
            keras-rs. Features with an equal table of one name share it.
        output: `"structure"`: vectors in plain dicts, lists and tuples, as the inputs of the call.
            `"concat"`: one tensor `[B, sum of dims]`. `"stack"`: one tensor `[B, features, dim]`,
            for tables of one dim. Both have the features of a dict in the order of its sorted
            keys, and the features of a list in its order.
        exchange_dtype: The dtype of the rows that workers send each other: `"float32"`, or
            `"bfloat16"`, which rounds them and halves their bytes. Gradients are summed and sent in
            float32.
        **kwargs: The arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: A nest in the form of the configs, in which a dict may lack features: with
            `output="structure"` a layer can be called with some of its features, as for one of two
            towers that share a table, and returns their vectors. Several workers call a layer with
            the same features. Each input is dense `[B]` or `[B, L]`, ragged `[B, None]` or sparse
            `[B, L]`, of int32, int64, uint64 or strings, whose keys are their
            `sok_embed.fingerprint`s. Keys that a Keras mask of a dense input leaves out are left
            out of what is combined; with `combiner=None` the output has that mask.
        weights: Factors of the vectors of keys, floats at the places of the inputs: a nest in the
            form of the configs, with `None` for features without, or a dict by the names of
            features. Differentiable. `None`: all factors are 1.
        training: True if keys without a row get one. Otherwise they get none before a step applies
            the gradients of the call.

    Output shape:
        `[B, dim]` of each feature, or with `combiner=None` a vector for each key: `[B, dim]`,
        `[B, L, dim]` or ragged `[B, None, dim]`. In the compute dtype (float32, bfloat16 or
        float16).

    Raises:
        ValueError: For values that are not configs, tables of one name that differ, and a nest of
            inputs that differs from the configs'.
        tf.errors.InvalidArgumentError: For keys out of a vocabulary.
        tf.errors.ResourceExhaustedError: When a batch would exceed `max_rows` of a table, and not
            enough rows may be evicted.
    """

    def __init__(
        self,
        feature_configs: Any,
        *,
        output: str = "structure",
        exchange_dtype: str = "float32",
        **kwargs: Any,
    ) -> None:
        refuse_unknown_arguments(DistributedEmbedding, kwargs, _REMEDIES)
        super().__init__(**kwargs)
        self.supports_masking = True
        self._compute_type = activation_type(self.compute_dtype)
        self.output_form = check_choice("output", output, _OUTPUTS)
        self.exchange_dtype = check_choice("exchange_dtype", exchange_dtype, EXCHANGED)
        self._nest = FeatureNest(self.name, feature_configs)
        self._features = tuple(self._nest.features)
        distinct_tables(self._features)  # this checks them
        self._check_output()
        self._collection = TableCollection(self.name, self._features, exchange_dtype)
        self._collection.host = weakref.ref(self)
        for number, table in enumerate(self._collection.values()):
            self._track_trackable(table, f"table_{number}")
        for number, config in enumerate(self._collection.configs):
            if config.optimizer is not None:
                self._track_trackable(config.optimizer, own_variables.name_of(number))
        self._track_trackable(self._collection.queue, "queue")
        self._lookup = CollectionLookup(
            self._collection.plan(),
            self._collection,
            f"Layer '{self.name}'",
            self.name,
            self._collection.owner,
            tf.as_dtype(exchange_dtype),
        )

    def _check_output(self) -> None:
        if self.output_form == "structure":
            return
        apart = [feature.name for feature in self._features if feature.own_combiner is None]
        if apart:
            raise ValueError(
                f"Layer '{self.name}': expected a combiner of every feature, with output="
                f"'{self.output_form}'. Received: combiner=None of {', '.join(apart)}."
            )
        dims = {feature.table.embedding_dim for feature in self._features}
        if self.output_form == "stack" and len(dims) > 1:
            raise ValueError(
                f"Layer '{self.name}': expected tables of one embedding_dim, with output='stack'. "
                f"Received: {sorted(dims)}. Use output='concat'."
            )

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables of this worker, by name."""
        return self._collection

    @property
    def optimizers(self) -> Mapping[str, keras.optimizers.Optimizer]:
        """The optimizers of the tables that have one for themselves, by the table's name."""
        configs = self._collection.configs
        own = {each.name: each.optimizer for each in configs if each.optimizer is not None}
        return MappingProxyType(own)  # Keras would save what lies in a dict a second time

    @property
    def plan(self) -> Plan:
        """The places of the tables, and their costs: `print(layer.plan)` is a table.

        It is `sok_embed.plan` of the configs and of the workers that there are, for a batch of
        8,192 examples on all of them together. For another batch, or with what is known of bags
        and rows, make a plan beforehand, and the layer of `plan.pinned(feature_configs)`.
        """
        return self._collection.sharding

    def _make_anchor(self, make: Callable[..., Any]) -> Any:
        check_strategy(f"Layer '{self.name}'")
        commit = CollectionCommit(self._collection)
        # Where no table is trained it is not a weight that an optimizer would look for a rule for.
        trains = any(self._collection.trainable)
        return self._lookup.make_anchor(make, commit, name="anchor", trainable=trains)

    def __call__(self, inputs: Any, weights: Any = None, **kwargs: Any) -> Any:
        """Calls `call`; Keras gets tensors alone, since it takes no nest of mixed values."""
        what = f"Layer '{self.name}'"
        given = self._given(inputs)
        tensors = [
            as_tensor(f"{what}: feature '{each.feature.name}'", each.value) for each in given
        ]
        by_name = {
            each.feature.name: values if hasattr(values, "dtype") else tf.convert_to_tensor(values)
            for each, values in zip(given, self._nest.weights(given, weights), strict=True)
            if values is not None
        }
        return super().__call__(self._nest.packed(inputs, tensors), by_name or None, **kwargs)

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Looks all keys up, and combines the vectors of each example's."""
        check_strategy(f"Layer '{self.name}'")
        refuse_casts(self)
        what = f"Layer '{self.name}'"
        present = self._given(inputs)
        # A feature that the call does not have becomes one without keys, whose output is left out.
        given = [absent_input() for _ in self._features]
        calls = functional_inputs(self)
        for each, values in zip(present, self._nest.weights(present, weights), strict=True):
            self._refuse_dense_signature(each, calls)
            keys = true_ids(each.value)
            given[each.number] = feature_input(
                what, each.feature, keys, values, mask_of(each.value)
            )
        given = [each._replace(keys=checked_ids(what, each.keys, self)) for each in given]
        context = self._lookup.begin(self.trainable, training)
        regularized = [feature.table.regularizer is not None for feature in self._features]
        asked = [
            each.of_keys() if rows else each for each, rows in zip(given, regularized, strict=True)
        ]
        # A bag of one key is that key's vector, whatever the combiner.
        combiners = [feature.own_combiner or "sum" for feature in self._features]
        batch = PooledBatch(
            keys=[each.keys for each in asked],
            bags=[each.bags for each in asked],
            splits=[each.splits for each in asked if each.splits is not None],
            combiners=combiners,
            weights=[each.weights for each in asked],
        )
        concat = self.output_form != "structure"
        if any(regularized):
            pooled = self._lookup.pooled(context, batch)
            self._regularize(given, pooled)
            pooled = [
                tf.cast(each.pooled(rows, combiner) if apart else rows, self._compute_type)
                for each, rows, combiner, apart in zip(
                    given, pooled, combiners, regularized, strict=True
                )
            ]
            pooled = [tf.concat(pooled, 1)] if concat else pooled
        else:
            pooled = self._lookup.pooled(context, batch, concat=concat, dtype=self._compute_type)
        if concat:
            return self._joined(pooled[0], given)
        shaped = [_shaped(pooled[each.number], given[each.number]) for each in present]
        return self._nest.packed(inputs, shaped)

    def _regularize(self, given: list[FeatureInput], vectors: list[tf.Tensor]) -> None:
        """Adds the loss of the distinct rows of each table that has a regularizer."""
        for config in distinct_tables(self._features):
            if config.regularizer is None:
                continue
            numbers = [n for n, each in enumerate(self._features) if each.table.name == config.name]
            keys = tf.concat([tf.reshape(as_keys(given[n].keys), [-1]) for n in numbers], 0)
            rows = tf.concat([vectors[n] for n in numbers], 0)
            self.add_loss(config.regularizer(distinct_rows(keys, rows)))

    def _refuse_dense_signature(self, given: Given, calls: Any) -> None:
        """Raises for ids of a feature that an export would take as dense, and padded."""
        feature = given.feature

        def of_feature(inputs: Any) -> list[Any]:
            return [each.value for each in self._nest.inputs(inputs) if each.feature is feature]

        combines = feature.own_combiner is not None
        refuse_dense_signature(
            self,
            given.value,
            padded=combines and bool(feature.padding),
            pools=combines and given.value.shape.rank != 1,
            feature=feature.name,
            chosen=of_feature,
            calls=calls,
        )

    def _joined(self, vectors: tf.Tensor, given: list[FeatureInput]) -> tf.Tensor:
        batch = next((each.shape[0] for each in given if each.shape[0] is not None), None)
        vectors.set_shape([batch, vectors.shape[1]])
        if self.output_form == "concat":
            return vectors
        count = len(self._features)
        return tf.reshape(vectors, [-1, count, vectors.shape[1] // count])

    def _given(self, inputs: Any) -> list[Given]:
        """Returns the features that the inputs have; all of them where their vectors are joined."""
        given = self._nest.inputs(inputs)
        if self.output_form != "structure" and len(given) < len(self._features):
            present = {each.number for each in given}
            lacking = [f.name for n, f in enumerate(self._features) if n not in present]
            raise ValueError(
                f"Layer '{self.name}': expected inputs of all features, whose vectors "
                f"output='{self.output_form}' joins. Received: inputs without "
                f"{', '.join(map(repr, lacking))}. A layer with output='structure' can be called "
                "with some of its features."
            )
        return given

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """Returns the masks of the outputs: with `combiner=None`, the mask of the input."""
        if self.output_form != "structure":
            return None
        masks = [
            mask_of_keys(each.value, each.feature.padding)
            if each.feature.own_combiner is None
            else None
            for each in self._given(inputs)
        ]
        return self._nest.packed(inputs, masks)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shapes of the outputs."""
        shapes = [shape_of(each.feature, each.value) for each in self._given(input_shape)]
        if self.output_form == "structure":
            return self._nest.packed(input_shape, shapes)
        dims = [shape[-1] for shape in shapes]
        if self.output_form == "concat":
            return (shapes[0][0], sum(dims))
        return (shapes[0][0], len(dims), dims[0])

    def compute_output_spec(
        self, inputs: Any, weights: Any = None, training: bool | None = None
    ) -> Any:
        """Returns the shapes and the dtype of the outputs."""
        given = self._given(inputs)
        specs = []
        for each in given:
            feature, keys = each.feature, each.value
            check_key_type(f"Layer '{self.name}': feature '{feature.name}'", keys.dtype)
            ragged = bool(getattr(keys, "ragged", False)) and feature.own_combiner is None
            shape = shape_of(feature, keys.shape)
            specs.append(keras.KerasTensor(shape, dtype=self.compute_dtype, ragged=ragged))
        if self.output_form == "structure":
            return self._nest.packed(inputs, specs)
        shape = self.compute_output_shape(
            self._nest.packed(inputs, [each.value.shape for each in given])
        )
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_embedding_tables(self) -> dict[str, Any]:
        """Returns the keys and vectors of this worker's rows.

        Returns:
            A dict of `(keys, embeddings)` by the name of the table: int64 `[n]` and float32 `[n,
            dim]`, in no order.
        """
        return {name: table.export() for name, table in self._collection.items()}

    def _tables(self) -> list[Table]:
        return list(self._collection.values()) if "_collection" in vars(self) else []

    def _training_facts(self) -> dict[str, Any]:
        """Returns what decides how the tables train, with their seeds and their places."""
        features = {
            feature.name: {
                "table": feature.table.name,
                "combiner": feature.own_combiner,
                "max_length": feature.max_length,
                "padding": feature.padding,
            }
            for feature in self._features
        }
        return {
            "output": self.output_form,
            "order": [feature.name for feature in self._features],
            "features": features,
            "tables": plain(self._collection.seeded),
            "places": plain(self._collection.placements),
        }

    def _follows_model(self) -> bool:
        configs = self._collection.configs
        return any(config.trainable and config.optimizer is None for config in configs)

    def _trained_tables(self) -> list[bool]:
        return [self.trainable and trained for trained in self._collection.trainable]

    def _saved_rows(self) -> list[SavedEntries]:
        rows = [
            StorableRows(self.name, table, f"table_{number}_", f"table_{number}_storage_rows")
            for number, table in enumerate(self._collection.values())
        ]
        optimizers = [
            SavedOptimizer(self.name, config.name, number, config.optimizer)
            for number, config in enumerate(self._collection.configs)
        ]
        return [*rows, *optimizers]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes a layer from the result of `get_config`; raises the errors of the constructor."""
        config = dict(config)
        features = keras.saving.deserialize_keras_object(config["feature_configs"])
        share_optimizers(each.table for each in keras.tree.flatten(features))
        config["feature_configs"] = features
        with plain_errors():
            return super().from_config(config)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, with the seeds that were chosen."""
        tables = self._collection.seeded
        seeded = self._nest.mapped(
            lambda feature: replace(feature, table=tables[feature.table.name])
        )
        return {
            **super().get_config(),
            "feature_configs": keras.saving.serialize_keras_object(seeded),
            "output": self.output_form,
            "exchange_dtype": self.exchange_dtype,
        }


def _shaped(vectors: tf.Tensor, given: FeatureInput) -> Any:
    """Returns vectors `[bags, dim]` in the shape of a feature's output."""
    if given.ragged is not None:
        return given.ragged.with_values(vectors)
    dim = vectors.shape[-1]
    if given.shape.rank == 1:
        vectors.set_shape([given.shape[0], dim])
        return vectors
    shaped = tf.reshape(vectors, tf.concat([tf.shape(given.keys), [dim]], 0))
    shaped.set_shape([*given.shape, dim])
    return shaped
