"""Trained models with layers of all kinds, what they are fed, and what a SavedModel answers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok

DIM = 4
EXTREMES = [2**63 - 1, -(2**63), -1, 0]
# Keys that are trained on, each example a bag; then bags with keys that nothing has trained.
TRAINED = [[5, 2**40, 7], [], [7], [*EXTREMES, 5, 5], [3], [11, 12, 13, 14, 15, 16]]
ASKED = [[5, 99], [], [7, 7, 7], [*EXTREMES, 1234567], [3], [11, 12, 13, 14, 15, 16]]

Fed = dict[str, Any]


def of_form(form: str, values: list[list[Any]], dtype: Any) -> Any:
    """Returns values in a form; dense ones are the first and the last of a bag."""
    if form == "dense":
        return np.array([[row[0], row[-1]] if row else [1, 1] for row in values], dtype)
    ragged = tf.ragged.constant(values, dtype)
    return ragged if form == "ragged" else ragged.to_sparse()


def weights_of(values: list[list[int]]) -> list[list[float]]:
    """Returns a weight a key, some of them negative, with sums of 0 among them."""
    random = np.random.default_rng(3)
    return [random.normal(size=len(row)).astype(np.float32).tolist() for row in values]


def trained(
    layer: keras.layers.Layer, form: str, weights: str = "", dtype: str = "int64"
) -> tuple[keras.Model, Fed]:
    """Returns a functional model over a layer, trained, and what to ask it.

    Args:
        layer: The layer.
        form: `"dense"`, `"ragged"` or `"sparse"`.
        weights: The argument of the layer that takes weights; `""`: none.
        dtype: The dtype of keys.
    """
    flags = {"ragged": form == "ragged", "sparse": form == "sparse"}
    shape = (2,) if form == "dense" else (None,)
    inputs = {"ids": keras.Input(shape, dtype=dtype, name="ids", **flags)}
    arguments = {}
    if weights:
        inputs["weights"] = keras.Input(shape, name="weights", **flags)
        arguments[weights] = inputs["weights"]
    vectors = layer(inputs["ids"], **arguments)
    if form == "dense" and len(vectors.shape) == 3:
        vectors = keras.layers.Flatten()(vectors)
    model = keras.Model(inputs, [vectors, keras.layers.Dense(1)(vectors)])
    model.compile("adam", ["mse", "mse"])
    np_dtype = np.dtype(dtype)
    feeds = []
    for keys in (TRAINED, ASKED):
        wrapped = [[key % 2**64 for key in row] for row in keys] if dtype == "uint64" else keys
        feeds.append({"ids": of_form(form, wrapped, np_dtype)})
        if weights:
            feeds[-1]["weights"] = of_form(form, weights_of(keys), np.float32)
    targets = [np.ones([6, *vectors.shape[1:]], np.float32), np.ones((6, 1), np.float32)]
    dataset = tf.data.Dataset.from_tensors((feeds[0], tuple(targets)))
    model.fit(dataset, epochs=3, verbose=0)
    return model, feeds[1]


def predicted(model: keras.Model, fed: Fed) -> list[np.ndarray]:
    """Returns what `predict` says of one batch, a list of arrays."""
    outputs = model.predict(tf.data.Dataset.from_tensors((fed,)), verbose=0)
    return list(outputs.values()) if isinstance(outputs, dict) else np_list(outputs)


def np_list(outputs: Any) -> list[np.ndarray]:
    """Returns outputs as a list of arrays."""
    return [np.asarray(each) for each in (outputs if isinstance(outputs, list) else [outputs])]


def parts_of(fed: Fed) -> dict[str, tf.Tensor]:
    """Returns the dense tensors that a signature has for what a model is fed."""
    parts = {}
    for name, tensor in fed.items():
        if isinstance(tensor, tf.RaggedTensor):
            parts[f"{name}_values"] = tensor.flat_values
            parts[f"{name}_row_lengths"] = tensor.row_lengths()
        elif isinstance(tensor, tf.SparseTensor):
            parts[f"{name}_values"], parts[f"{name}_indices"] = tensor.values, tensor.indices
            parts[f"{name}_dense_shape"] = tensor.dense_shape
        else:
            parts[name] = tf.constant(tensor)
    return parts


def answered(folder: str, fed: Fed) -> list[np.ndarray]:
    """Returns what the signature of a SavedModel answers, in the order of its outputs."""
    loaded = tf.saved_model.load(folder)  # files of rows are open as long as this object lives
    outputs = loaded.signatures["serving_default"](**parts_of(fed))
    return [outputs[name].numpy() for name in sorted(outputs)]


def assert_same_bits(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Raises unless arrays are the same, with the signs of zeros."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


def table(combiner: Any, **options: Any) -> sok.TableConfig:
    """Returns the config of a table of any keys."""
    return sok.TableConfig("t", None, DIM, combiner=combiner, initializer="ones", **options)
