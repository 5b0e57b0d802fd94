"""Exports of models with ragged and sparse inputs, by signatures of dense tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from sok_embed.keras_bridge.private_state import symbolic_inputs
from sok_embed.tf_ops.served import checked


def export_model(
    model: keras.Model, path: str | os.PathLike[str], input_signature: Any = None
) -> None:
    """Exports a model like `model.export(path)`, with ragged and sparse inputs as dense parts.

    When it is loaded, its tables are filled row by row by the ops of this library. To serve a
    model, `sok_embed.serving.export` is better: its rows are mapped and not loaded.

    A signature that Keras makes up is dense for every input. Through it clients of a ragged model
    would have to pad, and padding would be read as keys. Here the signature has plain dense
    tensors, as TensorFlow Serving takes them: for a dense input its `name`; for a ragged one
    `name_values` and `name_row_lengths`, with several ragged dimensions `name_row_lengths_0` and so
    on, the outermost first; for a sparse one `name_indices`, `name_values` and `name_dense_shape`.
    Ragged and sparse outputs have the same form. Nested outputs have the names of their places:
    `{"scores": [a, b]}` has `scores_0` and `scores_1`, and `[[a, b], c]` has `output_0_0`,
    `output_0_1` and `output_1`.

    Example:
    >>> import numpy as np
    >>> from sok_embed import DynamicEmbedding
    >>> words = keras.Input((None,), dtype="int64", ragged=True, name="words")
    >>> model = keras.Model(words, DynamicEmbedding(2, combiner="mean", seed=1)(words))
    >>> export_model(model, "served")
    >>> serve = tf.saved_model.load("served").signatures["serving_default"]
    >>> (vectors,) = serve(words_values=tf.constant([4, 7, 9], tf.int64),
    ...                    words_row_lengths=tf.constant([2, 0, 1], tf.int64)).values()
    >>> bags = tf.ragged.constant([[4, 7], [], [9]], dtype=tf.int64)
    >>> bool(np.array_equal(vectors, model(bags)))
    True

    Args:
        model: A Keras model that is built.
        path: A folder for the SavedModel. Its endpoint is `serve`, and `serving_default`.
        input_signature: The signature of the inputs, in a list, as `model.export` has it: its first
            argument, a nest of `tf.TensorSpec`, `tf.RaggedTensorSpec` and `tf.SparseTensorSpec`.
            Inputs go by their keys in dicts, and by names of specs that have one. `None`: the
            signature that a functional or sequential model has.

    Raises:
        ValueError: For a subclassed model without a signature, for a signature of several
            arguments, and for two tensors of one name.
        tf.errors.InvalidArgumentError: From the endpoint, for lengths that do not fit the values.
    """
    serve, parts = serving_function(model, input_signature)
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", serve, [{part.name: part for part in parts}])
    archive.write_out(os.fspath(path), verbose=False)


def serving_function(
    model: keras.Model, input_signature: Any = None, **options: Any
) -> tuple[Callable[[dict[str, tf.Tensor]], Any], list[tf.TensorSpec]]:
    """Returns a function from the dense parts of a model's inputs to its outputs, and their specs.

    The model is built. The signature is as for `export_model`, and options are those of its call.
    """
    nest = _inputs_of(model) if input_signature is None else _only_argument(input_signature)
    specs = tree.map_structure(_spec_of, nest)
    inputs = [
        _Input(getattr(leaf, "name", None) or _place(path, "inputs"), spec)
        for (path, leaf), spec in zip(
            tree.flatten_with_path(nest), tree.flatten(specs), strict=True
        )
    ]
    parts = [part for each in inputs for part in each.parts]
    _check_different([part.name for part in parts], "inputs")

    def serve(given: dict[str, tf.Tensor]) -> Any:
        tensors = [each.tensor(given) for each in inputs]
        return _dense_parts(model(tree.pack_sequence_as(specs, tensors), **options))

    return serve, parts


class _Input:
    """One input, and the dense tensors that it consists of."""

    def __init__(self, name: str, spec: Any) -> None:
        self._name = name
        self._spec = spec
        shape = spec.shape
        if isinstance(spec, tf.RaggedTensorSpec):
            self._lengths = _lengths(name, spec.ragged_rank)
            inner = shape[spec.ragged_rank + 1 :]
            self.parts = [
                tf.TensorSpec([None, *inner], spec.dtype, f"{name}_values"),
                *(tf.TensorSpec([None], tf.int64, each) for each in self._lengths),
            ]
        elif isinstance(spec, tf.SparseTensorSpec):
            self.parts = [
                tf.TensorSpec([None, shape.rank], tf.int64, f"{name}_indices"),
                tf.TensorSpec([None], spec.dtype, f"{name}_values"),
                tf.TensorSpec([shape.rank], tf.int64, f"{name}_dense_shape"),
            ]
        else:
            self.parts = [tf.TensorSpec(shape, spec.dtype, name)]

    def tensor(self, given: Mapping[str, tf.Tensor]) -> Any:
        """Returns the input that consists of the given parts."""
        name, spec = self._name, self._spec
        if isinstance(spec, tf.RaggedTensorSpec):
            values, lengths = given[f"{name}_values"], [given[each] for each in self._lengths]
            inner = [*lengths[1:], values]
            for number, each in enumerate(lengths):
                fit = tf.equal(
                    tf.reduce_sum(tf.cast(each, tf.float64)),
                    tf.cast(tf.shape(inner[number])[0], tf.float64),
                )
                message = f"{name}: expected lengths that fit. Received:"
                lengths[number] = checked(each, tf.reduce_all(each >= 0) & fit, message, each)
            return tf.RaggedTensor.from_nested_row_lengths(values, lengths, validate=False)
        if isinstance(spec, tf.SparseTensorSpec):
            names = ("indices", "values", "dense_shape")
            sparse = tf.SparseTensor(*(given[f"{name}_{each}"] for each in names))
            sparse.set_shape(spec.shape)
            return sparse
        return given[name]


def _lengths(name: str, ragged_rank: int) -> list[str]:
    if ragged_rank == 1:
        return [f"{name}_row_lengths"]
    return [f"{name}_row_lengths_{dimension}" for dimension in range(ragged_rank)]


def _inputs_of(model: keras.Model) -> Any:
    """Returns the symbolic inputs of a functional or sequential model."""
    inputs = symbolic_inputs(model)
    if inputs is None:
        raise ValueError(
            f"Model '{model.name}': expected an input_signature for a subclassed model, or one "
            "that is not built, since Keras does not know what it takes. Received: "
            "input_signature=None. Begin a Sequential with a keras.Input, or pass a signature, as "
            "in input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)]."
        )
    return inputs[0] if isinstance(inputs, list) and len(inputs) == 1 else inputs


def _only_argument(signature: Any) -> Any:
    """Returns the nest of the first argument; raises for more than one, or none."""
    if isinstance(signature, (list, tuple)) and len(signature) == 1:
        return signature[0]
    count = len(signature) if isinstance(signature, (list, tuple)) else type(signature).__name__
    raise ValueError(
        "Expected input_signature to be a list of one argument, the model's inputs, as in "
        f"[tf.RaggedTensorSpec([None, None], tf.int64)]. Received: {count}."
    )


def _place(path: tuple[Any, ...], default: str) -> str:
    """Returns a name for the value at a path of a nest."""
    numbered = all(isinstance(key, int) for key in path)
    return "_".join(map(str, (default, *path) if numbered else path))


def _dense_parts(outputs: Any) -> Any:
    """Returns outputs as they are or, if they are nested, ragged or sparse, the dense parts of all.

    Parts are named by the place of their output: `{"scores": [a, b]}` has `scores_0`, `scores_1`.
    """
    flat = outputs.values() if isinstance(outputs, dict) else outputs
    if not isinstance(outputs, (dict, list, tuple)):
        flat = [outputs]
    composite = (tf.RaggedTensor, tf.SparseTensor)
    if all(tf.is_tensor(each) and not isinstance(each, composite) for each in flat):
        return outputs
    parts = [
        part
        for path, each in tree.flatten_with_path(outputs)
        for part in _parts_of(_place(path, "output"), each)
    ]
    _check_different([name for name, _ in parts], "outputs")
    return dict(parts)


def _parts_of(name: str, output: Any) -> list[tuple[str, tf.Tensor]]:
    """Returns the names and the dense parts of an output."""
    if isinstance(output, tf.RaggedTensor):
        lengths = zip(_lengths(name, output.ragged_rank), output.nested_row_lengths(), strict=True)
        return [(f"{name}_values", output.flat_values), *lengths]
    if isinstance(output, tf.SparseTensor):
        kinds = ("indices", "values", "dense_shape")
        return [(f"{name}_{kind}", getattr(output, kind)) for kind in kinds]
    return [(name, output)]


def _check_different(names: list[str], of: str) -> None:
    if len(set(names)) < len(names):
        raise ValueError(
            f"Expected tensors of different names. Received: {', '.join(names)}. Name the {of} "
            "otherwise."
        )


def _spec_of(tensor: Any) -> tf.TypeSpec:
    if isinstance(tensor, tf.TypeSpec):
        return tensor
    shape, dtype = [None, *tensor.shape[1:]], tf.as_dtype(tensor.dtype)
    if getattr(tensor, "ragged", False):
        return tf.RaggedTensorSpec(shape, dtype, tensor.ragged_rank or 1)
    if getattr(tensor, "sparse", False):
        return tf.SparseTensorSpec(shape, dtype)
    return tf.TensorSpec(shape, dtype)
