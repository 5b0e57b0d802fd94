"""Defines an embedding like `keras.layers.Embedding`, in a fraction of the memory."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from sok_embed.arguments import check_flag
from sok_embed.keras_bridge.layer_calls import refuse_dense_signature
from sok_embed.layers.hashed_layer import HashedLayer


@keras.saving.register_keras_serializable(package="sok_embed")
class HashedEmbedding(HashedLayer):
    """Turns ids into embeddings whose elements are hashed into one weight.

    As `keras.layers.Embedding`, but the table of `num_embeddings` rows is virtual: its elements
    share the slots of a weight of `size` floats. `HashedEmbeddingBag` describes how they do so, and
    how layers share a weight; this is the same layer without bags (Weinberger et al. 2009; Chen et
    al. 2015; with `block_size` above 1 Desai et al. 2022).

    Example:
    >>> import numpy as np
    >>> layer = HashedEmbedding(1000, 16, compression=0.1, block_size=8)
    >>> layer(np.array([[1, 2, 4], [5, 4, 3]])).shape
    TensorShape([2, 3, 16])
    >>> layer(tf.ragged.constant([[3], [], [1, 2]])).shape
    TensorShape([3, None, 16])
    >>> layer.weight.shape
    TensorShape([1600])

    Args:
        num_embeddings: Ids are in `[0, num_embeddings)`.
        embedding_dim: The length of an embedding.
        compression: Slots per element: the weight has `int(num_embeddings * embedding_dim *
            compression)`. Without effect where `weight` or `size` says how many.
        weight: `None`: uniform in ±sqrt(1 / num_embeddings). A Keras initializer, its name or
            config. A 1-D array of at least one float: the values to start from. A hashed layer,
            whose weight this one uses too.
        size: Slots of the weight, instead of `compression`. `None`: as these say.
        hash: `"mixed"`, `"original"` or `"modulo"`, see `HashedEmbeddingBag`.
        seed: The seed of the hash, in [0, 2**63). `None`: the smallest that no layer of the weight
            has had.
        sign: True if a second, independent hash gives each element its sign.
        block_size: Dimensions that lie in neighbouring slots.
        mask_zero: True if id 0 is padding, which later layers mask. It still has an embedding.
            Ragged inputs have no padding, and get no mask.
        sparse_gradient: `None`: the gradient is a `tf.IndexedSlices` where that is faster; `True`
            and `False` force it, see `HashedEmbeddingBag`.
        **kwargs: The arguments of `keras.layers.Layer`.

    Input shape:
        int32 or int64 of any shape; a `tf.RaggedTensor` of any ragged rank.

    Output shape:
        The shape of the input and `embedding_dim`, in the compute dtype (float32, bfloat16, float16
        or float64). Ragged for a ragged input.

    Raises:
        ValueError: For an argument, an input or a policy that is none of the above; for a seed that
            another layer of the weight hashes another table with; for weights saved with another
            hash.
        tf.errors.InvalidArgumentError: For an id out of range. With the weight on a GPU its
            embedding is NaN, and the next call there raises.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        compression: float = 1 / 64,
        weight: Any = None,
        *,
        size: int | None = None,
        hash: str = "mixed",
        seed: int | None = None,
        sign: bool = False,
        block_size: int = 1,
        mask_zero: bool = False,
        sparse_gradient: bool | None = None,
        **kwargs: Any,
    ) -> None:
        check_flag("mask_zero", mask_zero)
        super().__init__(
            num_embeddings,
            embedding_dim,
            compression,
            weight,
            size=size,
            hash=hash,
            seed=seed,
            sign=sign,
            block_size=block_size,
            sparse_gradient=sparse_gradient,
            **kwargs,
        )
        self.mask_zero = bool(mask_zero)
        self.supports_masking = self.mask_zero

    def call(self, input: Any) -> Any:
        """Looks the ids up."""
        ids = self._as_ids(input)
        refuse_dense_signature(self, ids, padded=False, pools=False)
        self._check_ids(ids)
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(self._embed(ids.flat_values))
        return self._embed(ids)

    def _check_ids(self, ids: Any) -> None:
        if isinstance(ids, tf.SparseTensor) or getattr(ids, "sparse", False):
            raise self._error(
                "a dense or a ragged tensor", "a sparse one. Use tf.sparse.to_dense, or its values"
            )
        super()._check_ids(ids)

    def _embed(self, ids: tf.Tensor) -> tf.Tensor:
        """Makes bags of one each: `[...]` to `[..., embedding_dim]`."""
        rows = self._lookup(tf.reshape(ids, [-1, 1]), mode="sum")
        shape = tf.concat([tf.shape(ids, tf.int64), [self.embedding_dim]], 0)
        embeddings = tf.reshape(rows, shape)
        embeddings.set_shape(ids.shape.concatenate(self.embedding_dim))
        return embeddings

    def compute_mask(self, input: Any, mask: Any = None) -> Any:
        """Returns where ids are not 0, if `mask_zero`."""
        if not self.mask_zero or _is_ragged(input):
            return None
        return ops.not_equal(input, 0)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the shape of the input and `embedding_dim`."""
        return (*input_shape, self.embedding_dim)

    def compute_output_spec(self, input: Any) -> keras.KerasTensor:
        """Returns the shape and the dtype of the output; raises as a call does."""
        self._check_ids(input)
        return keras.KerasTensor(
            self.compute_output_shape(input.shape),
            dtype=self.compute_dtype,
            ragged=_is_ragged(input),
            ragged_rank=getattr(input, "ragged_rank", None),
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "mask_zero": self.mask_zero}


def _is_ragged(ids: Any) -> bool:
    return isinstance(ids, tf.RaggedTensor) or bool(getattr(ids, "ragged", False))
