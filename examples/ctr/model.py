"""Builds a DLRM-style model: bottom MLP, embeddings, dot products of every pair, top MLP."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

BOTTOM_UNITS = 64
TOP_UNITS = (128, 64)


@keras.saving.register_keras_serializable(package="ctr")
class PairwiseDots(keras.layers.Layer):
    """Dot products of each pair of vectors of a row.

    Input shape: `[rows, vectors, dim]`. Output shape: `[rows, vectors * (vectors - 1) / 2]`.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Finds the places of the lower triangle in the flattened matrix of products."""
        vectors = int(input_shape[1] or 0)
        lower = np.tril_indices(vectors, -1)
        self._vectors = vectors
        self._places = np.ravel_multi_index(lower, (vectors, vectors)).astype(np.int32)

    def call(self, vectors: Any) -> Any:
        """Multiplies and keeps each pair once."""
        products = keras.ops.matmul(vectors, keras.ops.transpose(vectors, (0, 2, 1)))
        flat = keras.ops.reshape(products, (-1, self._vectors * self._vectors))
        return keras.ops.take(flat, self._places, axis=1)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Returns one column for each pair."""
        vectors = int(input_shape[1] or 0)
        return (input_shape[0], vectors * (vectors - 1) // 2)


@keras.saving.register_keras_serializable(package="ctr")
class BatchLoss(keras.metrics.Metric):
    """The loss of only the latest batch; `fit` itself reports the mean of the epoch so far."""

    def __init__(self, name: str = "batch_loss", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._latest = self.add_variable((), "zeros", name="latest")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Keeps the mean binary cross-entropy of the rows; 0 for an empty batch."""
        losses = keras.losses.binary_crossentropy(y_true, y_pred, from_logits=True)
        rows = keras.ops.cast(keras.ops.shape(losses)[0], losses.dtype)
        self._latest.assign(keras.ops.sum(losses) / keras.ops.maximum(rows, 1))

    def result(self) -> Any:
        """Returns the loss of the latest batch."""
        return self._latest


def build_model(
    embedding: Callable[[Any], Any], fields: int, dense_width: int, dim: int, seed: int
) -> keras.Model:
    """Builds the model of inputs `dense` `[rows, dense_width]` and `keys` `[rows, fields]`.

    The embedding makes vectors `[rows, fields, dim]` of keys.

    The top MLP also sees the embeddings themselves, so that an id can matter on its own and a model
    without dense columns works. Each `Dense` has a seed of its own: how the MLPs start depends on
    `seed` only, not on the embedding.
    """
    dense = keras.Input((dense_width,), name="dense")
    keys = keras.Input((fields,), dtype="int64", name="keys")
    vectors = embedding(keys)
    seen = [keras.layers.Reshape((fields * dim,))(vectors)]
    if dense_width:
        bottom = _dense("bottom_1", BOTTOM_UNITS, "relu", seed)(dense)
        bottom = _dense("bottom_2", dim, "relu", seed)(bottom)
        seen.append(bottom)
        vectors = keras.layers.Concatenate(axis=1)(
            [keras.layers.Reshape((1, dim))(bottom), vectors]
        )
    seen.append(PairwiseDots()(vectors))
    top = keras.layers.Concatenate()(seen)
    for number, units in enumerate(TOP_UNITS, 1):
        top = _dense(f"top_{number}", units, "relu", seed)(top)
    logits = _dense("logit", 1, None, seed)(top)
    inputs = {"dense": dense, "keys": keys} if dense_width else {"keys": keys}
    return keras.Model(inputs, logits, name="dlrm")


def compile_model(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    metrics: Sequence[keras.metrics.Metric] = (),
) -> None:
    """Compiles with a summed loss: rows come weighted, see `Batch.weights`."""
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum"),
        metrics=list(metrics) or [BatchLoss()],
        jit_compile=False,  # custom ops have no XLA kernels; neither embedding uses XLA
    )


def _dense(name: str, units: int, activation: str | None, seed: int) -> keras.layers.Dense:
    start = keras.initializers.GlorotUniform(seed=zlib.crc32(f"{name} {seed}".encode()))
    return keras.layers.Dense(units, activation, kernel_initializer=start, name=name)
