"""`torch.nn.EmbeddingBag` as a Keras layer, in a fraction of the memory."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sok_embed.arguments import check_choice, check_flag, check_integer
from sok_embed.keras_bridge.layer_calls import refuse_dense_signature
from sok_embed.layers.hashed_layer import HashedLayer
from sok_embed.lookups.bags import rows_of
from sok_embed.lookups.input_forms import (
    Form,
    check_beside,
    flat_values,
    shape_text,
    values_beside,
)

_MODES = ("sum", "mean", "max")


@keras.saving.register_keras_serializable(package="sok_embed")
class HashedEmbeddingBag(HashedLayer):
    """Reduces bags of ids to one embedding each, whose elements are hashed into one weight.

    The table of `num_embeddings` rows is virtual: element `d` of row `id` is the position
    `position(id, d)` of a weight of `size` floats, which many elements share. This is the hashing
    trick of Weinberger et al. 2009 ("Feature Hashing for Large Scale Multitask Learning") on the
    parameters of a layer, as Chen et al. 2015 have it ("Compressing Neural Networks with the
    Hashing Trick"; `sign` is their equation 7). With `block_size` above 1 neighbouring dimensions
    lie in neighbouring positions, as in ROBE (Desai et al. 2022, "Random Offset Block Embedding
    Array"), which is faster and about as accurate.

    A bag is a row of a 2-D input, of a `tf.RaggedTensor` or of a `tf.SparseTensor`, or a part of a
    1-D input that `offsets` cut. An empty bag, also one of padding only, is zeros in each mode.
    Entries are reduced in their order, so that equal calls give equal bits.

    Several layers of `hash="mixed"` may share one weight: `HashedEmbeddingBag(…, weight=layer)`.
    Each hashes by a seed of its own, and contains the layer that has the variable: freezing one
    freezes both. A `.keras` file keeps the sharing; `keras.models.clone_model`, `from_config` and
    `.h5` files of models, which know of one layer at a time, do not.

    Example:
    >>> import numpy as np
    >>> bag = HashedEmbeddingBag(1000, 16, compression=0.1)
    >>> bag(np.array([[1, 2, 4], [5, 4, 3]])).shape
    TensorShape([2, 16])
    >>> bag(np.array([1, 2, 4, 5]), offsets=np.array([0, 3, 3])).shape
    TensorShape([3, 16])
    >>> bag.weight.shape
    TensorShape([1600])
    >>> other = HashedEmbeddingBag(50, 4, weight=bag, mode="mean")
    >>> other(tf.ragged.constant([[7], [], [1, 49]])).shape
    TensorShape([3, 4])
    >>> other.seed, other.weight is bag.weight
    (1, True)

    Args:
        num_embeddings: Ids are in `[0, num_embeddings)`.
        embedding_dim: The length of an embedding.
        compression: Positions per element: the weight has `int(num_embeddings * embedding_dim *
            compression)`. Above 1 with a warning, since the weight is then larger than the table.
            Without effect where `weight` or `size` says how many.
        mode: `"sum"`; `"mean"`, by the entries that are not padding; or `"max"`, whose gradient
            goes to the first of equal entries.
        weight: `None`: uniform in ±sqrt(1 / num_embeddings). A Keras initializer, its name or
            config. A 1-D array of at least one float: the values to start from. A hashed layer,
            whose weight this one uses too.
        size: Positions of the weight, instead of `compression`. `None`: as these say.
        hash: `"mixed"`: a well-mixed hash of seed, id and block. `"original"`: that of the PyTorch
            project, for weights that were trained with it. `"modulo"`: the elements in their order,
            modulo `size`; `compression=1` is the plain table.
        seed: The seed of the hash, in [0, 2**63). `None`: the smallest that no layer of the weight
            has had.
        sign: True if a second, independent hash gives each element its sign.
        block_size: Dimensions that lie in neighbouring positions.
        padding_idx: An id that takes no part and gets no gradient; negative: from the end.
        include_last_offset: True if `offsets` ends with the number of ids.
        sparse_gradient: `None`: the gradient is a `tf.IndexedSlices` of distinct positions where a
            step calls the weight once and that was measured to be faster: for a small part of the
            weight, under SGD and Adagrad, or under an optimizer that cannot be seen because no
            `fit` is running. `True`: always; slices of several calls in a step, and of replicas,
            are then not added up, which optimizers that square gradients mistake. `False`: never.
        **kwargs: The arguments of `keras.layers.Layer`.

    Call arguments:
        input: int32 or int64. `[B, N]`: B bags of N ids. `[n]`: bags as `offsets` say. A
            `tf.RaggedTensor` `[B, None]`. A `tf.SparseTensor` `[B, N]`, whose values are the ids,
            in the order of its rows.
        offsets: The start of each bag, with a 1-D input and of its dtype: `[B]`, or `[B + 1]` with
            `include_last_offset`. The first is 0, and none is below the one before.
        per_sample_weights: Floats that the entries are multiplied by, in mode `"sum"`: the shape
            and the kind of `input`; for ragged and sparse ones also `[n]`. Differentiable.

    Output shape:
        `[B, embedding_dim]`, in the compute dtype (float32, bfloat16, float16 or float64).

    Raises:
        ValueError: For an argument, an input or a policy that is none of the above; for a seed that
            another layer of the weight hashes another table with; for weights saved with another
            hash.
        tf.errors.InvalidArgumentError: For an id out of range, and for offsets that do not start at
            0, decrease, or go past the end. With the weight on a GPU the bag is NaN, and the next
            call there raises.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        compression: float = 1 / 64,
        mode: str = "sum",
        weight: Any = None,
        *,
        size: int | None = None,
        hash: str = "mixed",
        seed: int | None = None,
        sign: bool = False,
        block_size: int = 1,
        padding_idx: int | None = None,
        include_last_offset: bool = False,
        sparse_gradient: bool | None = None,
        **kwargs: Any,
    ) -> None:
        check_choice("mode", mode, _MODES)
        check_flag("include_last_offset", include_last_offset)
        if padding_idx is not None:
            check_integer("num_embeddings", num_embeddings, 1)
            padding_idx = check_integer("padding_idx", padding_idx)
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(
                    f"Expected padding_idx in [-{num_embeddings}, {num_embeddings}). "
                    f"Received: {padding_idx}."
                )
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
        self.mode = mode
        self.include_last_offset = bool(include_last_offset)
        self.padding_idx = None if padding_idx is None else padding_idx % self.num_embeddings

    def call(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> tf.Tensor:
        """Reduces the bags."""
        input = self._as_ids(input, offsets)
        if offsets is None:
            padded = self.padding_idx is not None
            refuse_dense_signature(self, input, padded=padded, pools=True)
        offsets = None if offsets is None else self._as_ids(offsets, input)
        weights = self._as_floats(per_sample_weights)
        self._check(input, offsets, weights)
        ids, last = input, self.include_last_offset
        if not isinstance(input, tf.Tensor):
            ids, offsets, last = flat_values(input), rows_of(input), True
            weights = values_beside("per_sample_weights", weights, input)
        outputs = self._lookup(
            ids,
            offsets,
            weights,
            mode=self.mode,
            padding_idx=self.padding_idx,
            include_last_offset=last and offsets is not None,
        )
        if input.shape.rank == 2:
            outputs.set_shape([input.shape[0], self.embedding_dim])
        return outputs

    def _as_floats(self, weights: Any) -> Any:
        """Returns the weights of entries in the compute dtype."""
        if weights is None:
            return None
        if not hasattr(weights, "dtype"):
            weights = tf.convert_to_tensor(weights, self.compute_dtype)
        if isinstance(weights, keras.Variable):
            weights = weights.value
        if not tf.as_dtype(weights.dtype).is_floating:
            raise ValueError(
                f"Layer '{self.name}': expected per_sample_weights to be floats. Received: "
                f"{tf.as_dtype(weights.dtype).name}. Cast them."
            )
        return tf.cast(weights, self.compute_dtype)

    def _check(self, input: Any, offsets: Any, weights: Any) -> None:
        """Raises ValueError for what no call can mean, symbolic or not."""
        self._check_ids(input)
        ids = Form.of(input)
        if ids.shape is None or len(ids.shape) not in (1, 2):
            raise self._error("ids of shape [n] or [B, N]", f"shape {shape_text(ids.shape)}")
        if ids.kind != "dense" and len(ids.shape) != 2:
            raise self._error(f"a {ids.kind} tensor [B, N]", f"shape {shape_text(ids.shape)}")
        if len(ids.shape) == 2 and offsets is not None:
            raise self._error(
                f"no offsets with a {ids.kind} input of shape {shape_text(ids.shape)}, whose rows "
                "are the bags",
                "offsets. Flatten the input, or leave them out",
            )
        if len(ids.shape) == 1:
            self._check_offsets(ids, offsets)
        if weights is not None:
            self._check_weights(input, weights)

    def _check_offsets(self, ids: Form, offsets: Any) -> None:
        if offsets is None:
            raise self._error("offsets with ids of shape [n]", "none. Pass where each bag starts")
        form = Form.of(offsets)
        if form.kind != "dense" or form.shape is None or len(form.shape) != 1:
            raise self._error("offsets of shape [B]", f"a {form.kind} {shape_text(form.shape)}")
        if form.dtype != ids.dtype:
            raise self._error(
                f"offsets of {ids.dtype}, as the ids", f"{form.dtype}. Cast one of them"
            )
        if self.include_last_offset and form.shape[0] == 0:
            raise self._error("offsets of shape [B + 1], with include_last_offset", "none")

    def _check_weights(self, ids: Any, weights: Any) -> None:
        if self.mode != "sum":
            raise self._error(
                "no per_sample_weights but in mode 'sum'", f"some, in mode '{self.mode}'"
            )
        dtype = Form.of(weights).dtype
        if not keras.backend.is_float_dtype(dtype):
            raise self._error("per_sample_weights to be floats", f"{dtype}. Cast them")
        check_beside(f"Layer '{self.name}'", "per_sample_weights", weights, ids)

    def compute_output_shape(
        self,
        input_shape: Any,
        offsets_shape: Any = None,
        per_sample_weights_shape: Any = None,
    ) -> tuple[int | None, int]:
        """Returns `[B, embedding_dim]`."""
        if len(input_shape) == 2:
            return (input_shape[0], self.embedding_dim)
        bags = None if offsets_shape is None else offsets_shape[0]
        if bags is not None and self.include_last_offset:
            bags -= 1
        return (bags, self.embedding_dim)

    def compute_output_spec(
        self, input: Any, offsets: Any = None, per_sample_weights: Any = None
    ) -> keras.KerasTensor:
        """Returns the shape and the dtype of the output; raises as a call does."""
        self._check(input, offsets, per_sample_weights)
        shape = self.compute_output_shape(input.shape, None if offsets is None else offsets.shape)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "mode": self.mode,
            "padding_idx": self.padding_idx,
            "include_last_offset": self.include_last_offset,
        }
