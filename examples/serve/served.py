"""A version of a model: the one place in which the service loads and calls TensorFlow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from fields import InvalidRequest, fields_of

with contextlib.suppress(ModuleNotFoundError):  # an export with ops="stock" needs TensorFlow alone
    import sok_embed.serving.served_table  # noqa: F401


class Served:
    """A version that is loaded.

    Args:
        folder: The folder of the version, such as `"served/3"`.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.version = int(os.path.basename(folder))
        # Files of rows are open as long as this object lives.
        self._loaded = tf.saved_model.load(folder)
        self._signature = self._loaded.signatures["serving_default"]
        self.inputs = fields_of(self._signature.structured_input_signature[1])
        self._dtypes = {
            name: spec.dtype for name, spec in self._signature.structured_input_signature[1].items()
        }
        self.outputs = fields_of(self._signature.structured_outputs)
        sparse = [each.name for each in self.outputs if each.kind == "sparse"]
        if sparse:
            raise ValueError(
                f"Expected dense and ragged outputs. Received: sparse ones, {sparse}. Export a "
                "model that makes them dense."
            )
        self._warm_up()

    def parse(self, instance: Any) -> dict[str, Any]:
        """Returns an example by names of inputs.

        Args:
            instance: The example in JSON: an object, or the value of the only input.

        Raises:
            InvalidRequest: For other inputs than those of the model, and for other values.
        """
        names = [field.name for field in self.inputs]
        if not isinstance(instance, dict):
            if len(names) != 1:
                raise InvalidRequest(f"expected an object with {names}. Received: another value.")
            instance = {names[0]: instance}
        if set(instance) != set(names):
            raise InvalidRequest(f"expected the inputs {names}. Received: {sorted(instance)}.")
        return {field.name: field.parse(instance[field.name]) for field in self.inputs}

    def shapes(self, example: Mapping[str, Any]) -> tuple[Any, ...]:
        """Returns the shapes of an example: those of a batch are the same."""
        return tuple(field.open_shape(example[field.name]) for field in self.inputs)

    def predict(self, examples: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Returns what the model answers to each example, as JSON has it.

        Raises:
            InvalidRequest: If the model refuses a value.
        """
        parts: dict[str, Any] = {}
        for field in self.inputs:
            parts.update(field.tensors([example[field.name] for example in examples]))
        given = {name: tf.constant(part, self._dtypes[name]) for name, part in parts.items()}
        try:
            outputs = {name: each.numpy() for name, each in self._signature(**given).items()}
        except tf.errors.InvalidArgumentError as error:
            raise InvalidRequest(_reason(error.message)) from error
        lists = {field.name: field.examples(outputs) for field in self.outputs}
        if len(lists) == 1:
            return next(iter(lists.values()))
        return [dict(zip(lists, each, strict=True)) for each in zip(*lists.values(), strict=True)]

    def _warm_up(self) -> None:
        """Runs the model once, so that a first request does not wait for what that makes."""
        example = {
            field.name: field.parse(_zeros(field.shape, field.dtype, field.depth))
            for field in self.inputs
        }
        with contextlib.suppress(InvalidRequest):  # a model may refuse zeros
            self.predict([example])


def _reason(message: str) -> str:
    """Returns the line of a message of TensorFlow that says what a value should have been."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    told = [line for line in lines if "xpected" in line or "failed" in line]
    return (told or lines or ["The model refuses a value."])[-1].split(" [[{{node")[0]


def _zeros(shape: Sequence[int | None], dtype: np.dtype[Any], depth: int) -> Any:
    if depth:
        return []
    zero: Any = "" if dtype.kind == "O" else np.zeros([], dtype).item()
    if not shape:
        return zero
    return [_zeros(shape[1:], dtype, 0) for _ in range(1 if shape[0] is None else shape[0])]


def versions(path: str) -> list[str]:
    """Returns the folders of all versions, the greatest number first."""
    numbers = [name for name in os.listdir(path) if name.isascii() and name.isdigit()]
    return [os.path.join(path, name) for name in sorted(numbers, key=int, reverse=True)]
