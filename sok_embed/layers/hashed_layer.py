"""The base of layers over a hashed weight: the weight, its hash, sharing, saving."""

from __future__ import annotations

import json
import math
import numbers
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.arguments import FLOATS_ROUND, check_choice, check_flag, check_integer, shown
from sok_embed.keras_bridge import callers
from sok_embed.keras_bridge.graph_casts import checked_ids
from sok_embed.keras_bridge.keras_arguments import refuse_unknown_arguments
from sok_embed.keras_bridge.layer_calls import LayerOfIds, refuse_casts, true_ids
from sok_embed.keras_bridge.rebuilding import check_rebuilt
from sok_embed.layers.arguments import attributes_of
from sok_embed.layers.weight_users import WeightUsers
from sok_embed.training.descriptions import plain
from sok_embed.training.same_model import USERS

_LIMIT = 2**63
_MAX_DIM = 2**24
_HASHES = ("mixed", "original", "modulo")
# Arguments that decide which elements of the weight belong to an id.
_SIGNATURE = "hash seed sign block_size num_embeddings embedding_dim"
_FLOATS = ("float32", "bfloat16", "float16", "float64")
_REMEDIES = {
    "input_dim": "It is called num_embeddings= here.",
    "output_dim": "It is called embedding_dim= here.",
    "weights": "Pass the slots as an array of one dimension, weight=array.",
    "embeddings_initializer": "Pass weight=initializer.",
    "mask_zero": "Use padding_idx=0.",
    "embeddings_regularizer": "Use an optimizer with weight_decay, such as "
    "keras.optimizers.AdamW, or activity_regularizer=, which sees the outputs.",
    "embeddings_constraint": "Constrain the outputs, as with keras.layers.UnitNormalization().",
    "quantization_config": "A smaller compression= saves memory; dtype='mixed_bfloat16' makes the "
    "outputs smaller.",
}


class HashedLayer(LayerOfIds):
    """Base of the layers whose embeddings are hashed into one weight. Not for use by itself."""

    size: int
    built: bool
    _users: WeightUsers

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        compression: float,
        weight: Any,
        *,
        size: int | None,
        hash: str,
        seed: int | None,
        sign: bool,
        block_size: int,
        sparse_gradient: bool | None,
        **kwargs: Any,
    ) -> None:
        refuse_unknown_arguments(type(self), kwargs, _REMEDIES)
        super().__init__(**kwargs)
        check_integer("num_embeddings", num_embeddings, 1, _LIMIT)
        check_integer("block_size", block_size, 1, _LIMIT)
        check_choice("hash", hash, _HASHES)
        check_flag("sign", sign)
        if sparse_gradient is not None:
            check_flag("sparse_gradient", sparse_gradient)
        check_integer("embedding_dim", embedding_dim, 1, _MAX_DIM + 1)
        if hash == "modulo" and num_embeddings * embedding_dim >= _LIMIT:
            raise ValueError(
                "Expected num_embeddings * embedding_dim to be below 2**63 with hash='modulo'. "
                f"Received: {num_embeddings} * {embedding_dim}."
            )
        self.num_embeddings = int(num_embeddings)
        self.embedding_dim = int(embedding_dim)
        is_number = isinstance(compression, numbers.Real) and not isinstance(compression, bool)
        self.compression = float(compression) if is_number else compression
        self.hash = hash
        self.sign = bool(sign)
        self.block_size = int(block_size)
        self.sparse_gradient = None if sparse_gradient is None else bool(sparse_gradient)
        self.weight_layer: HashedLayer | None = None
        self._own_weight: Any = None
        self._initializer: Any = None
        self._values: Any = None
        if size is not None:
            check_integer("size", size, 1)
        self._config_size = None if size is None else int(size)
        self._take_weight(weight)
        self._check_dtypes()
        self.seed = self._choose_seed(seed)
        self._users.add(self)

    def _take_weight(self, weight: Any) -> None:
        """Determines where the weight comes from, and how many slots it has."""
        if isinstance(weight, Mapping) and _names_a_hashed_layer(weight):
            weight = keras.saving.deserialize_keras_object(weight)
        size = self._config_size
        given: int | None = None
        if isinstance(weight, HashedLayer):
            # All layers that share a weight refer to the layer that has the variable.
            owner = weight if weight.weight_layer is None else weight.weight_layer
            self.weight_layer = owner
            self._users = owner._users
            given = owner.size
        else:
            self._users = WeightUsers()
            if isinstance(weight, keras.layers.Layer):
                raise ValueError(
                    "Expected a layer whose weight is shared to be a HashedEmbeddingBag or a "
                    f"HashedEmbedding. Received: weight={shown(weight)}."
                )
            if weight is None or isinstance(weight, (str, Mapping)) or callable(weight):
                self._initializer = None if weight is None else keras.initializers.get(weight)
            else:
                self._values = _as_weight(weight)
                self._config_size = given = len(self._values)
        if given is not None and size is not None and size != given:
            raise ValueError(
                f"Expected size to be {given}, the size of the weight, or None. Received: "
                f"size={size}."
            )
        if given is None:
            given = size if size is not None else self._compressed_size()
        self.size = int(given)

    def _compressed_size(self) -> int:
        fraction = self.compression
        if not isinstance(fraction, float) or not 0 < fraction < math.inf:
            raise ValueError(
                "Expected compression to be a number above 0: slots per element of the full "
                f"table. Received: compression={fraction!r}."
            )
        size = int(self.num_embeddings * self.embedding_dim * fraction)
        if size < 1:
            raise ValueError(
                "Expected a weight of at least one slot. Received: int(num_embeddings * "
                f"embedding_dim * compression) = int({self.num_embeddings} * {self.embedding_dim} "
                f"* {fraction}) = 0. Raise the compression, or pass size=."
            )
        if fraction > 1:
            dense = self.num_embeddings * self.embedding_dim
            warnings.warn(
                f"Layer '{self.name}': expected a compression of at most 1: slots per element of "
                f"the full table, 1/64 for a 64th. Received: {fraction:g}, which makes a weight of "
                f"{size:,} numbers instead of a table of {dense:,}.",
                stacklevel=2,
            )
        return size

    def _check_dtypes(self) -> None:
        """Raises ValueError for a dtype policy that the ops do not support."""
        compute, variable = self.compute_dtype, self._weight_dtype
        known = compute in _FLOATS and variable in _FLOATS
        if not known or (compute == "float64") != (variable == "float64"):
            raise ValueError(
                "Expected a compute dtype and a weight of float32, bfloat16 or float16, or both of "
                "float64. "
                f"Received: a compute dtype of {compute} and a weight of {variable}."
            )

    @property
    def _weight_dtype(self) -> str:
        owner = self if self.weight_layer is None else self.weight_layer
        return owner.variable_dtype

    def _choose_seed(self, seed: int | None) -> int:
        """Sets the seed.

        Raises if another layer would unintentionally hash its ids in the same way.
        """
        seed = self._users.next_seed() if seed is None else check_integer("seed", seed)
        if not 0 <= seed < _LIMIT:
            raise ValueError(f"Expected seed to be in [0, 2**63). Received: {seed}.")
        self.seed = seed
        other = self._users.clash(self)
        if other is None:
            return seed
        if self.hash != "mixed":
            raise ValueError(
                f"Layer '{self.name}': expected hash='mixed' for several tables in one weight. "
                f"Received: hash={self.hash!r}, which has no seed, so that equal ids of this table "
                f"and of layer '{other.name}' would meet in the same slots."
            )
        raise ValueError(
            f"Layer '{self.name}': expected a hash seed of its own in the weight that it shares. "
            f"Received: seed={seed}, which layer '{other.name}' has for another table, so that "
            "equal ids of both would meet in the same slots. Leave seed=None to have one chosen, "
            "or pass another."
        )

    def stands_for(self, other: HashedLayer) -> bool:
        """Returns whether both are the same table: equal ids have equal rows."""
        return self._signature() == other._signature()

    @property
    def spec(self) -> tf_ops.HashSpec:
        """The map of elements to slots."""
        return tf_ops.HashSpec(self.hash, self.seed, self.sign, self.block_size)

    @property
    def weight(self) -> Any:
        """The variable, `[size]`: this layer's, or that of `weight_layer`. `None` before build."""
        return self._own_weight if self.weight_layer is None else self.weight_layer.weight

    def build(self, input_shape: Any = None) -> None:
        """Makes the weight, if the layer does not share another's."""
        if self.weight_layer is not None:
            if not self.weight_layer.built:
                self.weight_layer.build(None)
        else:
            bound = math.sqrt(1 / self.num_embeddings)
            initializer = self._initializer or keras.initializers.RandomUniform(-bound, bound)
            values, self._values = self._values, None
            if values is not None:
                initializer = lambda shape, dtype: tf.cast(values, dtype)  # noqa: E731
            self._own_weight = self.add_weight(
                name="weight", shape=(self.size,), initializer=initializer, autocast=False
            )
            setattr(self._own_weight, USERS, self._users.living)
        self.built = True

    def _lookup(
        self,
        ids: tf.Tensor,
        offsets: tf.Tensor | None = None,
        per_sample_weights: tf.Tensor | None = None,
        **options: Any,
    ) -> tf.Tensor:
        """Reduces bags of checked ids to `[B, embedding_dim]` in the compute dtype."""
        ids = checked_ids(f"Layer '{self.name}'", ids, self)
        gradient = {None: "auto", False: "dense", True: "sparse"}[self.sparse_gradient]
        if gradient == "auto":
            if self._users.only_call():
                ids = self._users.watch(ids)
                options.update(_sparse_below(callers.fitting_optimizer()))
            else:
                gradient = "dense"
        return tf_ops.hashed_bag(
            # This makes no copy: it is a tensor in a StatelessScope, else the tf.Variable itself.
            self.weight.value,
            ids,
            offsets,
            per_sample_weights,
            num_embeddings=self.num_embeddings,
            embedding_dim=self.embedding_dim,
            spec=self.spec,
            dtype=tf.as_dtype(self.compute_dtype),
            gradient=gradient,
            **options,
        )

    def _as_ids(self, ids: Any, beside: Any = None) -> Any:
        """Makes a tensor. Python integers get the dtype of `beside`, or int64."""
        if isinstance(ids, keras.Variable):
            ids = ids.value
        if tf.is_tensor(ids) or isinstance(ids, np.ndarray):
            composite = isinstance(ids, (tf.RaggedTensor, tf.SparseTensor))
            return ids if composite else true_ids(tf.convert_to_tensor(ids))
        try:
            array = np.asarray(ids)
        except ValueError:
            raise self._error(
                "lists of one length", f"{shown(ids)}. Try tf.ragged.constant"
            ) from None
        if array.dtype == object:
            raise self._error("integers of 64 bits", f"{shown(ids)}")
        if array.size == 0:
            array = array.astype(np.int64)
        fits = array.dtype == np.int64 and np.array_equal(array, array.astype(np.int32))
        if fits and getattr(beside, "dtype", None) == tf.int32:
            array = array.astype(np.int32)
        return tf.convert_to_tensor(array)

    def _check_ids(self, ids: Any) -> None:
        """Raises ValueError for a dtype that is not allowed for ids."""
        refuse_casts(self)
        dtype = tf.as_dtype(ids.dtype)
        if dtype == tf.string:
            raise self._error(
                "integer ids", "strings. Number them, as with keras.layers.StringLookup"
            )
        if dtype not in (tf.int32, tf.int64):
            remedy = FLOATS_ROUND if dtype.is_floating else "Cast them"
            raise self._error("ids of int32 or int64", f"{dtype.name}. {remedy}")

    def _training_facts(self) -> dict[str, Any]:
        """Returns what decides how the layer trains, beside the arguments of the constructor."""
        owner = self.weight_layer
        weight = self._initializer if owner is None else owner.name
        return {"weight": plain(weight)}

    def _error(self, expected: str, received: str) -> ValueError:
        return ValueError(f"Layer '{self.name}': expected {expected}. Received: {received}.")

    def save_own_variables(self, store: Any) -> None:
        """Saves the weight, if this layer has it, and the hash with which it was trained."""
        super().save_own_variables(store)
        store["signature"] = np.frombuffer(json.dumps(self._signature()).encode(), np.uint8)

    def load_own_variables(self, store: Any) -> None:
        """Loads the weight, if it was saved with this layer's hash."""
        check_rebuilt()
        names = set(store.keys())
        if "signature" not in names:
            raise ValueError(
                f"Layer '{self.name}': expected what a hashed layer saved, with the entry "
                f"signature. Received: {', '.join(sorted(names)) or 'no entries'}. To start from "
                "an array, make the layer with weight=array. Of layers that share a weight, the "
                "one that has it must be the same as when they were saved."
            )
        saved = json.loads(bytes(np.asarray(store["signature"])))
        own = self._signature()
        differing = [name for name in own if own[name] != saved.get(name)]
        if differing:
            raise ValueError(
                f"Layer '{self.name}': expected a weight that was trained with "
                f"{', '.join(f'{name}={own[name]!r}' for name in differing)}. Received: a weight "
                f"of {', '.join(f'{name}={saved.get(name)!r}' for name in differing)}. It has no "
                "meaning under another hash: make the layer with the arguments it was saved with."
            )
        super().load_own_variables({name: store[name] for name in names - {"signature"}})

    def _signature(self) -> dict[str, Any]:
        """Returns the arguments on which the weight's meaning depends; some hashes have no seed."""
        signature = attributes_of(self, _SIGNATURE)
        if self.hash != "mixed" and not self.sign:
            signature["seed"] = None
        return signature

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that all hashed layers share."""
        weight = None
        if self.weight_layer is not None:
            # When a layer occurs a second time in a file, Keras gives it an id, by which it is
            # found in all places of the file, before this layer or after it.
            keras.saving.serialize_keras_object(self.weight_layer)
            weight = keras.saving.serialize_keras_object(self.weight_layer)
        elif self._initializer is not None:
            weight = keras.initializers.serialize(self._initializer)
        return {
            **super().get_config(),
            **attributes_of(self, f"{_SIGNATURE} compression sparse_gradient"),
            "weight": weight,
            "size": self._config_size,
        }


def _names_a_hashed_layer(config: Mapping[str, Any]) -> bool:
    cls = keras.saving.get_registered_object(config.get("registered_name") or "")
    return isinstance(cls, type) and issubclass(cls, HashedLayer)


def _as_weight(weight: Any) -> Any:
    """Returns the initial values of a weight, as an array of one dimension."""
    values = np.asarray(weight)
    name = values.dtype.name
    is_number = np.issubdtype(values.dtype, np.floating) or np.issubdtype(values.dtype, np.integer)
    if not is_number and name != "bfloat16":
        raise ValueError(
            "Expected weight to be an initializer, a hashed layer, or an array of floats. "
            f"Received: weight={shown(weight)}."
        )
    if values.ndim != 1 or values.size == 0:
        raise ValueError(
            "Expected a weight of one dimension that is not empty: the hash finds slots by one "
            f"number. Received: an array of shape {list(values.shape)}. Flatten it."
        )
    return values


def _sparse_below(optimizer: keras.optimizers.Optimizer | None) -> dict[str, float]:
    """Returns the touched share of a weight below which a step with slices is faster.

    Measured by `benchmarks/hashed_bag.py --sparse-gradient`. All but the simplest optimizers of
    Keras change every slot in each step, and make slices dense several times meanwhile.
    """
    if optimizer is None:
        return {}
    moves_all = optimizer.weight_decay or optimizer.use_ema
    if moves_all or optimizer.gradient_accumulation_steps:
        return {"sparse_below": 0.0}
    if isinstance(optimizer, keras.optimizers.SGD) and not optimizer.momentum:
        return {"sparse_below": 1 / 32}
    if isinstance(optimizer, keras.optimizers.Adagrad):
        return {"sparse_below": 1 / 128}
    return {"sparse_below": 0.0}
