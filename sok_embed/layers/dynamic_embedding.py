"""Defines an embedding like `keras.layers.Embedding`, without `input_dim`."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators
from sok_embed.arguments import check_choice, check_integer, takes_options
from sok_embed.keras_bridge.keras_arguments import refuse_unknown_arguments
from sok_embed.keras_bridge.layer_calls import refuse_dense_signature
from sok_embed.kv.table_spec import TableOptions
from sok_embed.layers.arguments import attributes_of, check_key_type, serialize_initializer
from sok_embed.layers.start_rows import start_rows
from sok_embed.layers.table_layer import TableLayer
from sok_embed.lookups.bags import bags_of, check_weights, shaped
from sok_embed.lookups.combining import check_ids, output_spec, refuse_padding_mask
from sok_embed.lookups.input_forms import Form
from sok_embed.lookups.padding import is_key, padding_keys
from sok_embed.tf_ops.collections import COMBINERS
from sok_embed.training.descriptions import plain
from sok_embed.training.strategies import check_strategy


@keras.saving.register_keras_serializable(package="sok_embed")
class DynamicEmbedding(TableLayer):
    """Turns integers of any value into vectors, with a vocabulary that grows as it trains.

    As `keras.layers.Embedding`, but keys need not be numbered from 0: any 64-bit integer is a key,
    negative ones too. A key gets a row the first time it is trained on. Until then, and in
    evaluation, its vector is the one that training would start from, a function of the seed and
    the key alone.

    The rows are not a `tf.Variable`: look at them through `table`. They follow the optimizer that
    trains the model, unless `optimizer` says otherwise. Only rows that a batch contains are
    updated; see the guide on tables for what that means for optimizers with momentum.

    With a combiner the vectors of the keys along the last axis of the input become one, as for the
    words of a text or what a user has bought. `DistributedEmbedding` does the same for many tables
    at once.

    Under Horovod the rows are spread over the workers, and a call is collective: each worker must
    make it.

    Example:
    >>> import numpy as np
    >>> model = keras.Sequential([keras.Input((2,), dtype="int64"), DynamicEmbedding(8),
    ...                           keras.layers.Flatten(), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> keys = np.array([[4, -7], [2**62, 4]])
    >>> history = model.fit(keys, np.ones([2, 1]), verbose=0)
    >>> model.layers[0].table.size()
    3

    Vectors that were trained elsewhere, and bags of keys with a weight for each:

    >>> vectors = np.array([[1, 2], [3, 4]], np.float32)
    >>> layer = DynamicEmbedding(2, combiner="sum", weights=(np.array([7, 2**40]), vectors))
    >>> bags = tf.ragged.constant([[7, 2**40], [], [7]], dtype=tf.int64)
    >>> layer(bags, weights=bags.with_values([1.0, 10.0, 0.5])).numpy()
    array([[31. , 42. ],
           [ 0. ,  0. ],
           [ 0.5,  1. ]], dtype=float32)

    Args:
        output_dim: The length of a vector.
        embeddings_initializer: A Keras initializer, its name or config. `"uniform"` is
            -0.05..0.05.
        mask_zero: True if key 0 is padding, and so is the empty string, with its `fingerprint`: it
            is what Keras' `StringLookup` turns into 0.
        optimizer: A name, a Keras optimizer or its config. `None`: the optimizer of the model.
        combiner: The way in which the vectors of the keys along the last axis become one: `"sum"`,
            `"mean"`, `"sqrtn"` (the sum by the root of the number of keys) or `"max"`, place by
            place. `None`: each key has its vector.
        embeddings_regularizer: A Keras regularizer, its name, its config, or a function of rows
            `[n, output_dim]`, float32. Its loss of the distinct rows of each call is added to the
            losses of the model; several workers each add the loss of their own batch. `None`: no
            regularizer.
        embeddings_constraint: A Keras constraint that acts on each row by itself, its name, its
            config, or a function of rows `[n, output_dim]`, float32. After each step it replaces
            the rows that the step has changed, on the worker that holds them; slots and counters
            stay. `MaxNorm`, `UnitNorm` and `MinMaxNorm` need `axis=1`. `None`: no constraint.
        padding_value: The key that is padding, an int64 or a uint64, or the string that is padding,
            such as `""`, which stands for a missing string. With a combiner, bags are pooled
            without it, in every form of input: it is not looked up, counts for no admission and no
            divisor, and gets no gradient. Without a combiner it still has a vector, as in Keras,
            which later layers mask; ragged inputs then get no mask. `None`: every key is a key,
            unless `mask_zero` says otherwise.
        weights: Vectors that rows start from, trained elsewhere: a pair `(keys, embeddings)`,
            distinct int64 `[n]` and float `[n, output_dim]`; the path of an `.npz` file with arrays
            of these names; or, as of `keras.layers.Embedding`, float `[n, output_dim]` of the keys
            0 to n - 1, also in a list. They become rows when the layer is built, in a table that
            must have none then; with several workers each takes its own keys out of the same pair.
            The config does not have them. `None`: no vectors. The `weights` of a call are
            different: factors of keys.
        default_vector: The vector of keys without a row in calls that do not train, in evaluation
            and serving: `"zeros"`; or another key, whose vector stands for unknown ones, with one
            worker. `None`: the vector that training would start from, which nothing has trained.
            Such a vector gets no gradient: pass `training=True` where gradients are taken.
        **kwargs: The options of `sok_embed.kv.table_spec.TableOptions`, such as `max_rows`,
            `storage` and `eviction`, and the arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: int32, int64 or uint64, or strings, whose keys are their `sok_embed.fingerprint`s:
            dense of any shape; a `tf.RaggedTensor`; or, with a
            combiner, a `tf.SparseTensor` `[B, L]`, whose values are the keys.
        weights: Factors of the vectors of keys, with a combiner other than `"max"`:
            floats of the shape of dense inputs, with the row splits of ragged and the indices of
            sparse ones, beside which they may also be flat, `[n]`. Differentiable. A mean is
            divided by the sum of a bag's weights, and `"sqrtn"` by the root of the sum of their
            squares. `None`: each is 1. Vectors are `weights` of the constructor.
        training: True if keys without a row get one. Otherwise they get none before a step applies
            the gradients of the call.

    Output shape:
        The shape of the input and `output_dim`, ragged for ragged inputs. With a combiner, without
        the last axis of the input: `[..., L]`, ragged `[B, None]` and sparse `[B, L]` become
        `[..., output_dim]` and `[B, output_dim]`. A bag without keys, or with a divisor of 0, is
        zeros. In the compute dtype (float32, bfloat16 or float16).

    Raises:
        ValueError: For an eviction that needs `max_rows` without it, or counts steps in a storage,
            an `output_dim` or `max_rows` that is not a positive integer, an initializer
            or an optimizer that rows cannot follow, a float64 policy; for start vectors of other
            shapes or dtypes, with a key twice, with more keys of a worker than `max_rows`, or for a
            table that has rows, such as one in a storage; for a table that a GPU cannot hold, with
            `device="gpu"`: one in a storage, or with other types than float32; for inputs and
            weights of a call that are
            none of the above, and inputs with a Keras mask where there is a combiner.
        RuntimeError: For `device="gpu"` where no GPU can be used; the message says whether the
            driver, the compiler NVRTC or the GPU is missing.
        tf.errors.InvalidArgumentError: For weights of a call that lie at other places than its
            keys.
        tf.errors.ResourceExhaustedError: When a batch would exceed `max_rows`, and not enough rows
            may be evicted. The table is left as it was.
    """

    @takes_options(TableOptions)
    def __init__(
        self,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        optimizer: Any = None,
        *,
        combiner: str | None = None,
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        padding_value: int | str | None = None,
        weights: Any = None,
        default_vector: str | int | None = None,
        **kwargs: Any,
    ) -> None:
        refuse_unknown_arguments(DynamicEmbedding, kwargs)
        if isinstance(embeddings_initializer, int):
            raise ValueError(
                "Expected DynamicEmbedding(output_dim, …), which has no input_dim: its vocabulary "
                "grows. Received: the arguments of keras.layers.Embedding(input_dim, output_dim)."
            )
        check_integer("output_dim", output_dim, 1)
        check_choice("combiner", combiner, (*COMBINERS, None))
        padding = padding_keys(mask_zero, padding_value)
        default_key = _default_key(default_vector)
        given_rows = None if weights is None else start_rows(weights, output_dim)
        super().__init__(
            output_dim,
            embeddings_initializer,
            optimizer=optimizer,
            regularizer=embeddings_regularizer,
            constraint=embeddings_constraint,
            **kwargs,
        )
        self.output_dim = output_dim
        self.embeddings_initializer = embeddings_initializer
        self.mask_zero = mask_zero
        self.padding_value = padding_value
        self.default_vector = default_vector
        self._table_lookup.default = default_key
        self._padding = padding
        self.supports_masking = bool(padding)
        self.combiner = combiner
        self._given_rows = given_rows
        self._started_from = None
        if given_rows is not None and self.table.owners > 1:
            self._started_from = plain([given_rows.keys, given_rows.embeddings])
        if given_rows is not None:
            given_rows.check_fits(self.table, self.max_rows)

    def build(self, input_shape: Any = None) -> None:
        """Makes the anchor, and rows of the vectors that the layer was given to start from."""
        check_strategy(f"Layer '{self.name}'")
        if self._given_rows is not None:
            # The layer may be built while a function is traced.
            with tf.init_scope():
                self._given_rows.put_into(self.table, self.max_rows)
            self._given_rows = None
        super().build(input_shape)

    def _training_facts(self) -> dict[str, Any]:
        """Returns digests of the rows that the layer starts from."""
        return {"weights": self._started_from}

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Looks the keys up; with `training`, makes rows for those that have none."""
        pools = self.combiner is not None
        padded = pools and bool(self._padding)
        refuse_dense_signature(self, inputs, padded=padded, pools=pools)
        if self.combiner is not None:
            return self._pool(inputs, weights, training)
        if weights is not None:
            check_weights(f"Layer '{self.name}'", None, inputs, weights)
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(
                self._lookup(self._to_keys(inputs.flat_values), training)
            )
        if isinstance(inputs, tf.SparseTensor):
            check_ids(self.name, None, Form.of(inputs))
        return self._lookup(self._to_keys(inputs), training)

    def _pool(self, inputs: Any, weights: Any, training: bool | None) -> Any:
        """Returns a vector of each bag, in the form of the inputs without their last axis."""
        assert self.combiner is not None
        refuse_padding_mask(self.name, inputs)
        ids = self._to_ids(inputs)
        check_ids(self.name, self.combiner, Form.of(ids))
        if weights is not None:
            weights = weights if tf.is_tensor(weights) else tf.convert_to_tensor(weights)
            check_weights(f"Layer '{self.name}'", self.combiner, ids, weights)
        bags = bags_of(ids, weights)
        if self._padding:
            bags = bags.where(is_key(bags.keys, self._padding))
        assert self.combiner is not None
        reads_all = self.default_vector is not None and self.table.lookup_device is not None
        if self.embeddings_regularizer is None and not reads_all:
            context = self._begin_lookup(training)
            vectors = self._table_lookup.pooled(context, bags, self.combiner, self._compute_type)
            return shaped(vectors, ids)
        # A regularizer and a default vector need the row of each key, which TensorFlow's ops pool.
        rows = bags.pooled(self._lookup(bags.keys, training, tf.float32), self.combiner)
        return shaped(tf.cast(rows, self._compute_type), ids)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Returns where keys are not padding; vectors of bags have no mask."""
        if not self._padding or self.combiner is not None or Form.of(inputs).kind == "ragged":
            return None
        return is_key(inputs, self._padding)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the shape of the input, without its last axis if there is a combiner, and dim."""
        kept = input_shape if self.combiner is None else input_shape[:-1]
        return (*kept, self.output_dim)

    def compute_output_spec(
        self, inputs: Any, weights: Any = None, training: bool | None = None
    ) -> keras.KerasTensor:
        """Returns the shape and the dtype of the output; raises as a call does."""
        check_key_type(f"Layer '{self.name}'", inputs.dtype)
        check_ids(self.name, self.combiner, Form.of(inputs))
        if self.combiner is not None:
            refuse_padding_mask(self.name, inputs)
        if weights is not None:
            check_weights(f"Layer '{self.name}'", self.combiner, inputs, weights)
        shape = self.compute_output_shape(inputs.shape)
        return output_spec(inputs, shape, self.compute_dtype, self.combiner)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            **attributes_of(
                self,
                "output_dim mask_zero padding_value combiner default_vector",
            ),
            "embeddings_initializer": serialize_initializer(self.embeddings_initializer),
        }


def _default_key(default_vector: Any) -> str | int | None:
    """Returns the key, as int64, whose vector keys without a row have."""
    if isinstance(default_vector, str) and default_vector != "zeros":
        raise ValueError(
            f"Expected default_vector to be 'zeros', a key or None. Received: {default_vector!r}."
        )
    if default_vector is None or isinstance(default_vector, str):
        return default_vector
    key = check_integer("default_vector", default_vector, -(2**63), 2**64)
    if communicators.size() > 1:
        raise ValueError(
            "Expected default_vector to be 'zeros' or None with several workers, of which one has "
            f"the row of a key. Received: default_vector={default_vector} on "
            f"{communicators.size()} workers."
        )
    return key - 2**64 if key >= 2**63 else key
