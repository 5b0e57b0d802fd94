"""Defines SparseOperationKit's dense embedding: workers send keys and get rows back."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sok_embed.arguments import check_flag, check_integer, takes_options
from sok_embed.fingerprints import keys_of_strings
from sok_embed.keras_bridge.keras_arguments import refuse_unknown_arguments
from sok_embed.keras_bridge.layer_calls import true_ids
from sok_embed.kv.table_spec import TableOptions
from sok_embed.layers.arguments import attributes_of, serialize_initializer
from sok_embed.layers.table_layer import TableLayer


@keras.saving.register_keras_serializable(package="sok_embed")
class All2AllDenseEmbedding(TableLayer):
    """Embeds a fixed number of keys for each feature field, with rows spread over the workers.

    The arguments are the same as in SparseOperationKit's layer of this name. The row of a key lives
    on worker `key % size`. Each call sends the distinct keys of the batch to their owners and gets
    their rows back; the backward pass sends gradients, summed by key, the same way. With one worker
    nothing travels.

    Rows follow the optimizer that trains the model, unless `optimizer` says otherwise. Under
    Horovod a call is collective: each worker must make it.

    Example:
    >>> import numpy as np
    >>> layer = All2AllDenseEmbedding(max_vocabulary_size_per_gpu=1000, embedding_vec_size=4,
    ...                               slot_num=2, nnz_per_slot=3)
    >>> layer(np.arange(12).reshape(2, 2, 3)).shape
    TensorShape([2, 2, 3, 4])
    >>> layer.table.size()
    12

    Args:
        max_vocabulary_size_per_gpu: The most rows on each worker.
        embedding_vec_size: The length of a vector.
        slot_num: The number of feature fields of a sample.
        nnz_per_slot: The number of keys of a field.
        dynamic_input: True if the input is one-dimensional, of any length. `slot_num` and
            `nnz_per_slot` do not describe it then.
        use_hashtable: `True`: any 64-bit integer is a key, and gets a row the first time it is
            trained on. `False`: keys are in `[0, max_vocabulary_size_per_gpu * size)`, found by
            position, without a hash.
        key_dtype: `tf.int64`, `tf.int32` or `tf.uint64`. Inputs of another dtype are refused.
        embedding_initializer: A Keras initializer, its name or config. `"random_uniform"` is
            -0.05..0.05.
        optimizer: A name, a Keras optimizer or its config. `None`: the optimizer of the model.
        embeddings_regularizer: A Keras regularizer, as `DynamicEmbedding` has it. `None`: no
            regularizer.
        embeddings_constraint: A Keras constraint of rows, as `DynamicEmbedding` has it. `None`: no
            constraint.
        on_full: `"error"`: a batch that would exceed the limit, and that no eviction makes room
            for, raises and makes no rows.
        **kwargs: The options of `sok_embed.kv.table_spec.TableOptions` but `max_rows`, such as
            `storage` and `eviction`, and the arguments of `keras.layers.Layer`. A table
            without a hash takes no eviction, and lies neither in a storage nor on a GPU.

    Call arguments:
        inputs: The keys, of the shape below.
        training: True if keys without a row get one; it is, unless a call or Keras says otherwise.

    Input shape:
        Integers `[batch, slot_num, nnz_per_slot]`; `[None]` with `dynamic_input`. With int64 keys
        also strings, whose keys are their `sok_embed.fingerprint`s.

    Output shape:
        `[batch, slot_num, nnz_per_slot, embedding_vec_size]`; `[None, embedding_vec_size]` with
        `dynamic_input`. In the compute dtype (float32, bfloat16 or float16).

    Raises:
        ValueError: For an argument or an input that is none of the above.
        tf.errors.ResourceExhaustedError: When the table is full, and not enough rows may be
            evicted.
        tf.errors.InvalidArgumentError: For a key out of range, without a hash table.
    """

    @takes_options(TableOptions, "max_rows")
    def __init__(
        self,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        nnz_per_slot: int,
        dynamic_input: bool = False,
        use_hashtable: bool = True,
        key_dtype: Any = tf.int64,
        embedding_initializer: Any = "random_uniform",
        optimizer: Any = None,
        *,
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        on_full: str = "error",
        **kwargs: Any,
    ) -> None:
        refuse_unknown_arguments(All2AllDenseEmbedding, kwargs)
        check_integer("max_vocabulary_size_per_gpu", max_vocabulary_size_per_gpu, 1)
        check_integer("embedding_vec_size", embedding_vec_size, 1)
        check_integer("slot_num", slot_num, 1)
        check_integer("nnz_per_slot", nnz_per_slot, 1)
        if on_full != "error":
            raise ValueError(f'Expected on_full to be "error". Received: {on_full!r}.')
        if kwargs.get("storage") is not None and not use_hashtable:
            raise ValueError(
                "Expected use_hashtable=True with a storage, which finds rows by hash. Received: "
                "use_hashtable=False."
            )
        key_dtype = tf.as_dtype(key_dtype)
        if key_dtype not in (tf.int64, tf.int32, tf.uint64):
            raise ValueError(
                "Expected key_dtype to be tf.int64, tf.int32 or tf.uint64. "
                f"Received: {key_dtype.name}."
            )
        super().__init__(
            embedding_vec_size,
            embedding_initializer,
            optimizer=optimizer,
            regularizer=embeddings_regularizer,
            constraint=embeddings_constraint,
            max_rows=max_vocabulary_size_per_gpu,
            direct=not check_flag("use_hashtable", use_hashtable),
            **kwargs,
        )
        self.max_vocabulary_size_per_gpu = max_vocabulary_size_per_gpu
        self.embedding_vec_size = embedding_vec_size
        self.slot_num = slot_num
        self.nnz_per_slot = nnz_per_slot
        self.dynamic_input = dynamic_input
        self.use_hashtable = use_hashtable
        self.key_dtype = key_dtype
        self.embedding_initializer = embedding_initializer
        self.on_full = on_full

    def build(self, input_shape: Any = None) -> None:
        """Checks the input's shape and makes the anchor."""
        if input_shape is not None:
            self._check_shape(input_shape)
        super().build(input_shape)

    def call(self, inputs: Any, training: bool = True) -> tf.Tensor:
        """Looks the keys up; with `training`, makes rows for those that have none."""
        inputs = keys_of_strings(inputs)
        keys = tf.convert_to_tensor(inputs, None if hasattr(inputs, "dtype") else self.key_dtype)
        keys = true_ids(keys, self.key_dtype)
        self._check_shape(keys.shape)
        if keys.dtype.is_integer and keys.dtype != self.key_dtype:
            raise ValueError(
                f"Layer '{self.name}': expected keys of {self.key_dtype.name}, its key_dtype. "
                f"Received: {keys.dtype.name}. Cast them, or make the layer with "
                f"key_dtype=tf.{keys.dtype.name}."
            )
        return self._lookup(self._to_keys(keys), training)

    def _check_shape(self, shape: Any) -> None:
        expected = (None,) if self.dynamic_input else (None, self.slot_num, self.nnz_per_slot)
        if not tf.TensorShape(shape).is_compatible_with(expected):
            hint = "" if self.dynamic_input else " For keys of any number use dynamic_input=True."
            raise ValueError(
                f"Layer '{self.name}': expected keys of shape {_text(expected)}. "
                f"Received: shape {_text(shape)}.{hint}"
            )

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the shape of the input and `embedding_vec_size`."""
        self._check_shape(input_shape)
        return (*input_shape, self.embedding_vec_size)

    def compute_output_spec(self, inputs: Any, training: bool = True) -> keras.KerasTensor:
        """Returns the shape and the dtype of the output."""
        return self._output_spec(inputs)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        config = super().get_config()
        del config["max_rows"]
        return {
            **config,
            **attributes_of(
                self,
                "max_vocabulary_size_per_gpu embedding_vec_size slot_num nnz_per_slot "
                "dynamic_input use_hashtable on_full",
            ),
            "key_dtype": self.key_dtype.name,
            "embedding_initializer": serialize_initializer(self.embedding_initializer),
        }


def _text(shape: Any) -> str:
    return f"[{', '.join('None' if size is None else str(size) for size in shape)}]"
