"""Models with layers of all kinds, what they are fed, and what a SavedModel answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok
from sok_embed.serving import export

DIM = 4
EXTREMES = [2**63 - 1, -(2**63), -1, 0]
# Keys that are trained on, each example a bag; then bags with keys that nothing has trained.
TRAINED = [[5, 2**40, 7], [], [7], [*EXTREMES, 5, 5], [3], [11, 12, 13, 14, 15, 16]]
# These are many, since TensorFlow computes 8 or 16 numbers at once otherwise than a few.
ASKED = [[5, 99], [], [7, 7, 7], [*EXTREMES, 1234567], [3], [11, 12, 13, 14, 15, 16]] * 6

FORMS = ("dense", "ragged", "sparse")
# The argument of a layer that takes weights.
WEIGHTED = {"dynamic": "weights", "collection": "weights", "bag": "per_sample_weights"}

Fed = dict[str, Any]


def dynamic(combiner: Any = "mean", initializer: Any = "ones", **options: Any) -> Any:
    """Returns a layer with a table of any keys; unknown ones have the same vector with any ops."""
    return sok.DynamicEmbedding(DIM, initializer, combiner=combiner, **options)


def adaptive(combiner: Any = "mean", **options: Any) -> Any:
    """Returns a layer with own and static rows."""
    return sok.AdaptiveEmbedding(DIM, static_buckets=5, combiner=combiner, seed=1, **options)


def collection(combiner: Any = "mean", initializer: Any = "ones", **options: Any) -> Any:
    """Returns a layer with many tables that has one; options are those of its feature."""
    table = sok.TableConfig("t", None, DIM, combiner=combiner, initializer=initializer, seed=1)
    return sok.DistributedEmbedding(sok.FeatureConfig("a", table, **options))


def of_form(form: str, values: list[list[Any]], dtype: Any) -> Any:
    """Returns values in a form; dense ones are the first and the last of a bag."""
    if form == "dense":
        return np.array([[row[0], row[-1]] if row else [1, 1] for row in values], dtype)
    ragged = tf.ragged.constant(values, dtype)
    return ragged if form == "ragged" else ragged.to_sparse()


def input_of(form: str, name: str, dtype: str) -> Any:
    """Returns an input of bags in a form."""
    shape = (2,) if form == "dense" else (None,)
    flags = {"ragged": form == "ragged", "sparse": form == "sparse"}
    return keras.Input(shape, dtype=dtype, name=name, **flags)


def weights_of(values: list[list[int]]) -> list[list[float]]:
    """Returns a weight a key, some of them negative, with sums of 0 among them."""
    random = np.random.default_rng(3)
    return [random.normal(size=len(row)).astype(np.float32).tolist() for row in values]


def called(layers: Sequence[Any], form: str, weights: Sequence[str]) -> tuple[Fed, list[Any]]:
    """Returns inputs `ids`, and `weights` if a layer takes them, and the outputs of layers.

    Args:
        layers: The layers.
        form: `"dense"`, `"ragged"` or `"sparse"`.
        weights: For each layer its argument that takes weights; `""`: none.
    """
    inputs = {"ids": input_of(form, "ids", "int64")}
    if any(weights):
        inputs["weights"] = input_of(form, "weights", "float32")
    outputs = []
    for layer, argument in zip(layers, weights, strict=True):
        given = {argument: inputs["weights"]} if argument else {}
        outputs.append(layer(inputs["ids"], **given))
    return inputs, outputs


def fed_of(form: str, keys: list[list[int]], weights: list[list[float]] | None = None) -> Fed:
    """Returns what a model with the inputs of `called` is fed."""
    fed = {"ids": of_form(form, keys, np.int64)}
    if weights is not None:
        fed["weights"] = of_form(form, weights, np.float32)
    return fed


def fit(model: keras.Model, fed: Fed) -> None:
    """Trains a model towards random numbers, so that rows differ from each other."""
    random = np.random.default_rng(1)
    outputs = [each.shape[1:] for each in model.outputs]
    model.compile(keras.optimizers.SGD(0.05), ["mse"] * len(outputs))
    count = np.shape(fed["ids"])[0] or fed["ids"].shape[0]
    targets = [random.normal(size=(count, *shape)).astype(np.float32) for shape in outputs]
    dataset = tf.data.Dataset.from_tensors((fed, tuple(targets)))
    model.fit(dataset, epochs=3, verbose=0)


def trained(layers: Any, form: str, weights: str | Sequence[str] = "") -> tuple[keras.Model, Fed]:
    """Returns a functional model over layers, trained, and what to ask it.

    Its outputs are those of the layers, and one of a dense layer that has them all.

    Args:
        layers: A layer, or a list of them.
        form: `"dense"`, `"ragged"` or `"sparse"`.
        weights: The argument of the layer that takes weights; `""`: none. A list for several.
    """
    if not isinstance(layers, (list, tuple)):
        layers, weights = [layers], [str(weights)]
    inputs, vectors = called(layers, form, weights or [""] * len(layers))
    joined = keras.layers.Concatenate()(vectors) if len(vectors) > 1 else vectors[0]
    head = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    model = keras.Model(inputs, [*vectors, head(joined)])
    feeds = [
        fed_of(form, keys, weights_of(keys) if any(weights) else None) for keys in (TRAINED, ASKED)
    ]
    fit(model, feeds[0])
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
    return answered_parts(folder, parts_of(fed))


def answered_parts(folder: str, parts: dict[str, tf.Tensor]) -> list[np.ndarray]:
    """Returns what the signature of a SavedModel answers to dense parts of inputs."""
    loaded = tf.saved_model.load(folder)  # files of rows are open as long as this object lives
    signature = loaded.signatures["serving_default"]
    names = sorted(signature.structured_input_signature[1])
    if set(names) != set(parts):  # TensorFlow numbers those of a dict that Keras does not name
        parts = dict(zip(names, [parts[name] for name in sorted(parts)], strict=True))
    outputs = signature(**parts)
    return [outputs[name].numpy() for name in sorted(outputs, key=lambda name: (len(name), name))]


def assert_same_bits(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Raises unless arrays are the same, with the signs of zeros."""
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8), f"output {number}")


def check(
    model: keras.Model,
    fed: Fed,
    expected: list[np.ndarray],
    path: Any,
    kinds: Sequence[str] = ("native", "stock"),
    **arguments: Any,
) -> Mapping[str, str]:
    """Raises unless exports with kinds of ops answer the bits that are expected.

    Returns:
        The folders of the exports, by their ops.
    """
    folders = {ops: export(model, path / ops, ops=ops, **arguments) for ops in kinds}
    for folder in folders.values():
        assert_same_bits(answered(folder, fed), expected)
    return folders
