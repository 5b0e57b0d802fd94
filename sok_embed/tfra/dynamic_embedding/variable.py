"""Defines `Variable`, a table without a layer around it, with the methods that scripts call."""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.arguments import shown
from sok_embed.checkpoint.tools.conversion.tfra import Slots, tfra_tables
from sok_embed.layers import DynamicEmbedding
from sok_embed.layers.arguments import serialize_initializer
from sok_embed.lookups.bags import bags_of, check_weights, shaped
from sok_embed.lookups.lookup import LookupContext
from sok_embed.tfra.dynamic_embedding import modes
from sok_embed.tfra.dynamic_embedding.creators import CuckooHashTableCreator, KVCreator
from sok_embed.tfra.dynamic_embedding.restrict_policies import policy_of

__all__ = ["Variable", "get_variable"]

_KEY_TYPES = (tf.int64, tf.int32, tf.string)
_POLICIES = {tf.float32: "float32", tf.float16: "mixed_float16", tf.bfloat16: "mixed_bfloat16"}
# Arguments of DynamicEmbedding for combining and padding keys, which lookups take here instead.
_OF_LAYERS = ("embeddings_initializer", "combiner", "mask_zero", "output_dim", "padding_value")


@keras.saving.register_keras_serializable(package="sok_embed")
class Variable(DynamicEmbedding):
    """A table of vectors by key, which `embedding_lookup` reads and an optimizer trains.

    It is a Keras layer with one weight, which stands for its rows: a model that has it as an
    attribute trains and saves the rows.

    Example:
    >>> variable = Variable(name="users", dim=2, initializer=0.5)
    >>> variable.upsert(tf.constant([7], tf.int64), tf.constant([[1.0, 2.0]]))
    >>> variable.lookup(tf.constant([7, 8], tf.int64)).numpy()
    array([[1. , 2. ],
           [0.5, 0.5]], dtype=float32)

    Args:
        key_dtype: `tf.int64`, `tf.int32`, or `tf.string`, whose keys are their
            `sok_embed.fingerprint`s.
        value_dtype: The dtype of the results of lookups: `tf.float32`, `tf.float16` or
            `tf.bfloat16`. Rows are float32.
        dim: The length of a vector.
        devices: Not used. Rows are in the memory of the host, spread over the workers.
        partitioner: Not used.
        shared_name: Not used.
        name: The name, in which `_` stands for each `/`.
        initializer: The initializer of rows: a number, an initializer of Keras or TensorFlow that
            `sok_embed.initializers` supports, or an array of one value. `None`: zeros.
        trainable: True if lookups have a gradient.
        checkpoint: Must be true.
        init_size: Not used.
        kv_creator: A `CuckooHashTableCreator` or `HkvHashTableCreator`. `None`: the first.
        restrict_policy: `FrequencyRestrictPolicy` or `TimestampRestrictPolicy`, by which
            `restrict` chooses. `None`: `restrict` raises.
        bp_v2: Not used: an owner adds the gradients of all workers up, and none is lost.
        short_file_name: Not used.
        **kwargs: More arguments of `sok_embed.DynamicEmbedding`: `storage`, `admission`,
            `eviction`, `seed`, `optimizer`.

    Raises:
        TypeError: For another dtype of keys or values, or another creator.
        ValueError: For an option that tables of this package cannot have.
    """

    def __init__(
        self,
        key_dtype: Any = tf.int64,
        value_dtype: Any = tf.float32,
        dim: int = 1,
        devices: Any = None,
        partitioner: Any = None,
        shared_name: str | None = None,
        name: str = "DynamicEmbedding_Variable",
        initializer: Any = None,
        trainable: bool = True,
        checkpoint: bool = True,
        init_size: int = 0,
        kv_creator: KVCreator | None = None,
        restrict_policy: Any = None,
        bp_v2: bool = False,
        short_file_name: bool = False,
        **kwargs: Any,
    ) -> None:
        key_type, value_type = tf.as_dtype(key_dtype), tf.as_dtype(value_dtype)
        _check_types(key_type, value_type)
        if not checkpoint:
            raise ValueError(
                "Expected checkpoint=True: a table is saved with its model. Received: "
                f"{shown(checkpoint)}. Leave the variable out of what is saved."
            )
        if kv_creator is None:
            kv_creator = CuckooHashTableCreator()
        elif not isinstance(kv_creator, KVCreator):
            raise TypeError(
                "Expected kv_creator to be a CuckooHashTableCreator or a HkvHashTableCreator. "
                f"Received: {shown(kv_creator)}."
            )
        policy = policy_of(restrict_policy)
        kwargs.pop("dtype", None)
        super().__init__(
            dim,
            row_start(initializer),
            name=name.replace("/", "_"),
            trainable=trainable,
            dtype=_POLICIES[value_type],
            **{**kv_creator.table_arguments(), **kwargs},
        )
        self.dim = self.output_dim
        self.key_dtype = key_type
        self.value_dtype = value_type
        self.init_size = int(init_size)
        self.bp_v2 = bp_v2
        self.restrict_policy = None if policy is None else policy(self)
        self._names: list[str] = []
        self.build()

    @property
    def initializer(self) -> Any:
        """The initializer of rows, of Keras."""
        return self.embeddings_initializer

    @property
    def trainable_store(self) -> dict[str, Any]:
        """The trainable weight, which is the same for all, by the names of the lookups so far."""
        return dict.fromkeys(self._names, self.anchor)

    def get_trainable_by_name(self, name: str) -> Any:
        """Returns the weight that stands for the rows that a lookup of a name has read.

        Args:
            name: The name that was given to `embedding_lookup`.

        Raises:
            ValueError: If no lookup had this name.
        """
        if name not in self._names:
            raise ValueError(
                f"Expected the name of a lookup of '{self.name}'. Received: {name!r}. There are: "
                f"{', '.join(self._names) or 'none'}."
            )
        return self.anchor

    def note_lookup(self, name: str | None) -> None:
        """Notes the name of a lookup, for `get_trainable_by_name`."""
        if name is not None and name not in self._names:
            self._names.append(name)

    def call(
        self,
        inputs: Any,
        weights: Any = None,
        training: bool | None = None,
        combiner: str | None = None,
        max_norm: float | None = None,
    ) -> Any:
        """Looks keys up, and pools them with a combiner.

        Args:
            inputs: Keys of any shape; with a combiner a sparse tensor `[B, L]`.
            weights: Factors of the keys, with a combiner. `None`: all factors are 1.
            training: True if keys without a row get one at once.
            combiner: `"sum"`, `"mean"` or `"sqrtn"`. `None`: each key has its vector.
            max_norm: The norm to which longer vectors are scaled. `None`: vectors are not scaled.

        Returns:
            `keys.shape + [dim]`, or `[B, dim]`.
        """
        if combiner is None:
            return _clipped(super().call(inputs, training=training), max_norm)
        ids = self._to_ids(inputs)
        if weights is not None:
            check_weights(f"Variable '{self.name}'", combiner, ids, weights)
        bags = bags_of(ids, weights)
        if max_norm is None:
            context = self._begin_lookup(training)
            return shaped(
                self._table_lookup.pooled(context, bags, combiner, self._compute_type), ids
            )
        rows = _clipped(self._lookup(bags.keys, training, self._row_type), max_norm)
        return shaped(tf.cast(bags.pooled(rows, combiner), self._compute_type), ids)

    def _begin_lookup(self, training: bool | None) -> LookupContext:
        if modes.get_model_mode() == modes.ModelMode.INFERENCE:
            return LookupContext(None, False)
        return super()._begin_lookup(training)

    def size(self, index: int | None = None, name: str | None = None) -> tf.Tensor:
        """Returns the number of rows of this worker, an int64 scalar.

        Args:
            index: Not used, nor is `name`.
            name: A name for the operation.
        """
        return tf_ops.size(self.table.resource_handle)

    def lookup(self, keys: Any, return_exists: bool = False, name: str | None = None) -> Any:
        """Reads vectors without a gradient. With several workers all of them must call it.

        Args:
            keys: Keys of any shape.
            return_exists: True to return which keys have a row, too; with one worker.
            name: Not used.

        Returns:
            `keys.shape + [dim]`; with `return_exists` a pair with bools of `keys.shape`.

        Raises:
            ValueError: For `return_exists` with several workers.
        """
        if return_exists and self.table.owners > 1:
            raise ValueError(
                "Expected return_exists=False with several workers, of which each knows its own "
                f"rows. Received: True on {self.table.owners} workers. Call table.contains(keys) "
                "on the owner."
            )
        ids = self._to_keys(keys)
        vectors = self._table_lookup.vectors(
            LookupContext(None, False), ids, dtype=self._compute_type
        )
        if not return_exists:
            return vectors
        return vectors, tf_ops.exists(self.table.resource_handle, ids)

    def upsert(self, keys: Any, values: Any, name: str | None = None) -> tf.Operation | None:
        """Sets rows. Each of several workers takes its own keys. Slots of rows stay.

        Args:
            keys: Keys of any shape. The last of equal keys counts.
            values: Numbers of the shape of the keys and `[dim]`.
            name: Not used.
        """
        ids = tf.reshape(self._to_keys(keys), [-1])
        rows = tf.reshape(tf.cast(values, tf.float32), [-1, self.dim])
        mine = self._own(ids)
        if mine is not None:
            ids, rows = ids[mine], rows[mine]
        return tf_ops.assign(self.table.resource_handle, ids, rows)

    def accum(
        self, keys: Any, old_values: Any, new_values: Any, exists: Any, name: str | None = None
    ) -> tf.Operation | None:
        """Adds differences to rows, and sets rows that were not there. With one worker.

        A key whose row came or went since `exists` was read is left as it is.

        Args:
            keys: Distinct keys `[n]`.
            old_values: Numbers `[n, dim]`, the vectors that were read.
            new_values: Numbers `[n, dim]`, the vectors that the rows should have.
            exists: bool `[n]`, whether each key had a row.
            name: Not used.
        """
        now, there = self.lookup(keys, return_exists=True)
        now = tf.cast(now, tf.float32)
        old, new = tf.cast(old_values, tf.float32), tf.cast(new_values, tf.float32)
        same = tf.equal(tf.cast(exists, tf.bool), there)
        rows = tf.where(there[:, tf.newaxis], now + new - old, new)
        return self.upsert(tf.convert_to_tensor(keys)[same], rows[same])

    def remove(self, keys: Any, name: str | None = None) -> tf.Tensor:
        """Removes rows with their slots. Returns the number of removed rows, an int64 scalar.

        Args:
            keys: Keys of any shape. Keys without a row are ignored.
            name: Not used.
        """
        ids = tf.reshape(self._to_keys(keys), [-1])
        mine = self._own(ids)
        return tf_ops.remove(self.table.resource_handle, ids if mine is None else ids[mine])

    def clear(self, name: str | None = None) -> tf.Tensor:
        """Removes all rows of this worker. Returns the number of removed rows."""
        keys, _ = self.export()
        return tf_ops.remove(self.table.resource_handle, keys)

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns keys and vectors of this worker, in no order: int64 `[n]`, float32 `[n, dim]`.

        Keys of strings are their fingerprints.
        """
        found = tf_ops.export(self.table.resource_handle, self.dim, with_slots=False)
        return found.keys, found.embeddings

    def restrict(self, num_reserved: int, **kwargs: Any) -> int:
        """Removes rows as the restrict policy chooses them; see `RestrictPolicy`.

        Raises:
            ValueError: For a variable without a policy.
        """
        if self.restrict_policy is None:
            raise ValueError(
                f"Expected a restrict_policy of variable '{self.name}'. Received: None. Make it "
                "with restrict_policy=FrequencyRestrictPolicy, or give it an eviction=."
            )
        return int(self.restrict_policy.apply_restriction(num_reserved, **kwargs))

    def save_to_file_system(
        self,
        dirpath: str,
        proc_size: int | None = None,
        proc_rank: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Writes keys and vectors of this worker into two files, as TFRA does, eagerly.

        The files have neither slots nor counters; `sok_embed.checkpoint` saves everything.

        Args:
            dirpath: A folder, which is made if it does not exist.
            proc_size: The number of workers, which is not needed.
            proc_rank: The number of this worker, which is not needed.
            **kwargs: Not used: other arguments of TFRA's method.

        Raises:
            ValueError: For a wrong number of workers, or a wrong number of this worker.
        """
        rank, size = self.table.owner, self.table.owners
        if proc_rank not in (None, rank) or proc_size not in (None, size):
            raise ValueError(
                f"Expected proc_rank={rank} and proc_size={size}, as the table has them. Received: "
                f"{proc_rank} and {proc_size}. Leave them out, and call sok_embed.init() before "
                "variables are made."
            )
        keys, embeddings = self.table.export()
        os.makedirs(dirpath, exist_ok=True)
        name = os.path.join(dirpath, f"{self.name}_mht_1of1_rank{rank}_size{size}")
        keys.astype("<i8").tofile(f"{name}-keys")
        embeddings.astype("<f4").tofile(f"{name}-values")

    def load_from_file_system(self, dirpath: str, **kwargs: Any) -> None:
        """Adds the vectors of all files of this variable in a folder, of this package or of TFRA.

        Each of several workers takes its own keys. To be called eagerly.

        Args:
            dirpath: The folder.
            **kwargs: Not used: other arguments of TFRA's method.

        Raises:
            FileNotFoundError: If there are no files.
            CorruptionError: For files that do not fit together, and vectors of another dim.
            ValueError: If there are no files of the variable.
        """
        (found,) = tfra_tables(os.fspath(dirpath), "", [self.name], Slots("none"), self.dim)
        for rows in found.pieces():
            self.upsert(tf.constant(rows.keys), tf.constant(rows.embeddings))

    def _own(self, ids: tf.Tensor) -> tf.Tensor | None:
        """Returns bools, true for keys whose rows belong to this worker. `None`: all keys do."""
        if self.table.owners == 1:
            return None
        return tf.equal(tf.math.floormod(ids, self.table.owners), self.table.owner)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor that are used."""
        config = {k: v for k, v in super().get_config().items() if k not in _OF_LAYERS}
        policy = self.restrict_policy
        return {
            **config,
            "key_dtype": self.key_dtype.name,
            "value_dtype": self.value_dtype.name,
            "dim": self.dim,
            "initializer": serialize_initializer(self.embeddings_initializer),
            "restrict_policy": None if policy is None else type(policy).__name__,
            "init_size": self.init_size,
            "bp_v2": self.bp_v2,
        }


def get_variable(name: str, key_dtype: Any = tf.int64, value_dtype: Any = tf.float32,
                 dim: int = 1, **kwargs: Any) -> Variable:  # fmt: skip
    """Makes a `Variable`: a new one at each call, so keep it.

    Args:
        name: The name of the variable.
        key_dtype: The dtype of keys.
        value_dtype: The dtype of the results of lookups.
        dim: The length of a vector.
        **kwargs: More arguments of `Variable`.

    Raises:
        ValueError: Within a `tf.function`, and the errors of `Variable`.
    """
    if tf.inside_function():
        raise ValueError(
            "Expected get_variable outside of functions, since each call makes a table. Received: "
            f"get_variable({name!r}) within a tf.function. Make the variable once, and keep it."
        )
    return Variable(key_dtype, value_dtype, dim, name=name, **kwargs)


def row_start(initializer: Any) -> Any:
    """Returns the initializer of Keras that TFRA's argument stands for.

    Args:
        initializer: An initializer of Keras or of TensorFlow, a number, or an array of one value.
            `None`: zeros.

    Raises:
        ValueError: For an array of several values.
    """
    if initializer is None:
        return "zeros"
    if isinstance(initializer, str | dict | keras.initializers.Initializer | type):
        return initializer
    if hasattr(initializer, "get_config"):  # of tf.compat.v1, or tf.random_normal_initializer
        config = {k: v for k, v in initializer.get_config().items() if k != "dtype"}
        return keras.initializers.get({"class_name": type(initializer).__name__, "config": config})
    values = np.unique(np.asarray(initializer, np.float64))
    if values.size != 1:
        raise ValueError(
            "Expected an initializer of one value, or one that draws them. Received: an array of "
            f"{values.size} values. Set rows by upsert, or by weights= of sok_embed."
            "DynamicEmbedding."
        )
    return keras.initializers.Constant(float(values[0]))


def _clipped(vectors: Any, max_norm: float | None) -> Any:
    return vectors if max_norm is None else tf.clip_by_norm(vectors, max_norm, axes=[-1])


def _check_types(key_type: tf.DType, value_type: tf.DType) -> None:
    if key_type not in _KEY_TYPES or value_type not in _POLICIES:
        raise TypeError(
            "Expected keys of int64, int32 or string and values of float32, float16 or bfloat16. "
            f"Received: key_dtype={key_type.name}, value_dtype={value_type.name}. For tables of "
            "other values use tf.lookup.experimental.MutableHashTable."
        )
