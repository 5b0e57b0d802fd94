"""`keras.layers.Embedding` without `input_dim`."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from sok_embed.arguments import check_positive
from sok_embed.layers.arguments import serialize_initializer
from sok_embed.layers.keras_arguments import refuse_keras_arguments
from sok_embed.layers.table_layer import TableLayer


@keras.saving.register_keras_serializable(package="sok_embed")
class DynamicEmbedding(TableLayer):
    """Turns integers of any value into vectors, with a vocabulary that grows as it trains.

    As `keras.layers.Embedding`, but keys need not be numbered from 0: any 64-bit integer is a key,
    negative ones too. A key gets a row the first time it is trained on. Until then, and in
    evaluation, its vector is the one that training would start from, a function of the seed and
    the key alone.

    The rows are no `tf.Variable`: look at them through `table`. They follow the optimizer that
    trains the model, unless `optimizer` says otherwise. Only rows that a batch contains are
    updated; see the guide on tables for what that means for optimizers with momentum.

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

    Args:
        output_dim: The length of a vector.
        embeddings_initializer: A Keras initializer, its name or config. `"uniform"` is
            -0.05..0.05.
        mask_zero: Whether key 0 is padding, which later layers mask. It still has a vector.
        optimizer: A name, a Keras optimizer or its config. `None`: that of the model.
        seed: Of the initializer; `None`: from the layer's name and Keras' global seed.
        max_rows: The most rows on each worker; beyond it rows are evicted, or training raises.
            `None`: no limit.
        storage: A `sok_embed.kv.Storage` that the rows live in, to outgrow memory and outlive the
            process. `None`: they live in memory.
        group: Of the storage, in [0, 256). Each layer needs one of its own.
        admission: Which keys get a row: a `FrequencyAdmission` or `CountingBloomAdmission` of
            `sok_embed.admission`. The others keep the vector that they start from. `None`: all.
        eviction: Which rows go: of `sok_embed.eviction`, or `"lru"` or `"lfu"`, by which a full
            table evicts the rows that were trained least recently or least often, as many as
            newcomers need. `None`: rows stay.
        **kwargs: Of `keras.layers.Layer`.

    Input shape:
        Integers of any shape.

    Output shape:
        The shape of the input and `output_dim`, in the compute dtype (float32, bfloat16 or
        float16).

    Raises:
        ValueError: For an eviction that needs `max_rows` without it, or counts steps in a storage,
            an `output_dim` or `max_rows` that is no positive integer, an initializer
            or an optimizer that rows cannot follow, a float64 policy.
        tf.errors.ResourceExhaustedError: When a batch would exceed `max_rows`, and not enough rows
            may go. The table is left as it was.
    """

    def __init__(
        self,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        optimizer: Any = None,
        *,
        seed: int | None = None,
        max_rows: int | None = None,
        storage: Any = None,
        group: int = 0,
        admission: Any = None,
        eviction: Any = None,
        **kwargs: Any,
    ) -> None:
        refuse_keras_arguments("DynamicEmbedding", kwargs)
        if isinstance(embeddings_initializer, int):
            raise ValueError(
                "Expected DynamicEmbedding(output_dim, …), which has no input_dim: its vocabulary "
                "grows. Received: the arguments of keras.layers.Embedding(input_dim, output_dim)."
            )
        check_positive("output_dim", output_dim)
        if max_rows is not None:
            check_positive("max_rows", max_rows)
        super().__init__(
            output_dim,
            embeddings_initializer,
            optimizer=optimizer,
            seed=seed,
            max_rows=max_rows,
            storage=storage,
            group=group,
            admission=admission,
            eviction=eviction,
            **kwargs,
        )
        self.output_dim = output_dim
        self.embeddings_initializer = embeddings_initializer
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.max_rows = max_rows

    def call(self, inputs: Any, training: bool | None = None) -> tf.Tensor:
        """Looks the keys up; with `training`, makes rows for those that have none."""
        return self._lookup(self._to_keys(inputs), training)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Returns where keys are not 0, if `mask_zero`."""
        return ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the shape of the input and `output_dim`."""
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> keras.KerasTensor:
        """Returns the shape and the dtype of the output."""
        return self._output_spec(inputs)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "embeddings_initializer": serialize_initializer(self.embeddings_initializer),
            "mask_zero": self.mask_zero,
            "max_rows": self.max_rows,
        }
