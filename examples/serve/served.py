"""Loads and calls versions of a model; no other module of the service imports TensorFlow."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from fields import InvalidRequest, fields_of

with contextlib.suppress(ModuleNotFoundError):  # an export with ops="stock" needs TensorFlow alone
    import sok_embed.serving.served_table  # noqa: F401


class Served:
    """A version that is loaded.

    Args:
        version: The numbers that answers name it by, such as `{"version": 3}`.
        run: The model. It is called with tensors by name, and returns tensors by name.
        inputs: The specifications of these tensors.
        outputs: The specifications of the tensors that it returns.

    Raises:
        ValueError: For a model with outputs that are sparse.
    """

    def __init__(
        self,
        version: dict[str, int],
        run: Callable[..., Mapping[str, tf.Tensor]],
        inputs: Mapping[str, tf.TensorSpec],
        outputs: Mapping[str, tf.TensorSpec],
    ) -> None:
        self.version = version
        self._run = run
        self.inputs = fields_of(inputs)
        self._dtypes = {name: spec.dtype for name, spec in inputs.items()}
        self.outputs = fields_of(outputs)
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
                raise InvalidRequest(
                    f"expected an object with {names}. Received: {str(instance)[:80]}."
                )
            instance = {names[0]: instance}
        if set(instance) != set(names):
            raise InvalidRequest(f"expected the inputs {names}. Received: {sorted(instance)}.")
        return {field.name: field.parse(instance[field.name]) for field in self.inputs}

    def shapes(self, example: Mapping[str, Any]) -> tuple[Any, ...]:
        """Returns the shapes of an example: all examples of a batch have the same shapes."""
        return tuple(field.open_shape(example[field.name]) for field in self.inputs)

    def predict(self, examples: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Returns the answer of the model to each example, for JSON.

        Raises:
            InvalidRequest: If the model refuses a value.
        """
        parts: dict[str, Any] = {}
        for field in self.inputs:
            parts.update(field.tensors([example[field.name] for example in examples]))
        given = {name: tf.constant(part, self._dtypes[name]) for name, part in parts.items()}
        try:
            outputs = {name: each.numpy() for name, each in self._run(**given).items()}
        except tf.errors.InvalidArgumentError as error:
            raise InvalidRequest(_reason(error.message)) from error
        lists = {field.name: field.examples(outputs) for field in self.outputs}
        if len(lists) == 1:
            return next(iter(lists.values()))
        return [dict(zip(lists, each, strict=True)) for each in zip(*lists.values(), strict=True)]

    def _warm_up(self) -> None:
        """Runs the model once, so that the first request does not wait for the first trace."""
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


class Exports:
    """Loads exports: the greatest number that can be loaded.

    Args:
        path: The folder of all versions.
        refused: Called with a folder and an error where one does not load, once for each error.
    """

    def __init__(self, path: str, refused: Callable[[str, Exception], None]) -> None:
        self._path, self._refused = path, refused
        self._told: dict[str, str] = {}
        self._folder: str | None = None
        self._served: Served | None = None

    def behind(self) -> float:
        """Returns 0: deltas are not followed."""
        return 0

    def newest(self) -> Served | None:
        """Returns the newest version, the same object if it is the same; None: there is none."""
        numbers = [name for name in os.listdir(self._path) if name.isascii() and name.isdigit()]
        for number in sorted(numbers, key=int, reverse=True):
            folder = os.path.join(self._path, number)
            if folder == self._folder:
                break
            try:
                self._served = _load(folder)
            except Exception as error:  # it may be half copied: it is retried, and reported once
                if self._told.get(folder) != str(error):
                    self._told[folder] = str(error)
                    self._refused(folder, error)
                continue
            self._folder = folder
            break
        return self._served


class FollowedExports:
    """Loads an export with native ops, and the deltas that a training publishes for it.

    Args:
        path: The folder of all versions.
        refused: Called with the folder and the error, until an export can be loaded.
            `sok_embed.serving` logs what it leaves alone later.
    """

    def __init__(self, path: str, refused: Callable[[str, Exception], None]) -> None:
        self._path, self._refused = path, refused
        self._told = ""
        self._live: Any = None
        self._snapshot: Any = None
        self._served: Served | None = None

    def behind(self) -> float:
        """Returns the number of published deltas that are not served; NaN if it is unknown."""
        try:
            return self._live.deltas_behind()
        except Exception:  # an export is not loaded, or CURRENT.json cannot be read
            return math.nan

    def newest(self) -> Served | None:
        """Returns the newest version, the same object if it is the same; None: there is none."""
        try:
            if self._live is None:
                from sok_embed import serving

                self._live = serving.load(self._path)
            else:
                self._live.update()
            snapshot = self._live.snapshot
            if snapshot is not self._snapshot:
                version = snapshot.version._asdict()
                told = {"version": version["export"], "delta": version["delta"]}
                self._served = Served(told, snapshot, snapshot.inputs, snapshot.outputs)
                self._snapshot = snapshot
        except Exception as error:
            if self._told != str(error):
                self._told = str(error)
                self._refused(self._path, error)
        return self._served


def _load(folder: str) -> Served:
    loaded = tf.saved_model.load(folder)
    signature = loaded.signatures["serving_default"]

    def run(**parts: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return loaded.signatures["serving_default"](**parts)  # `loaded` keeps files of rows open

    _, inputs = signature.structured_input_signature
    version = {"version": int(os.path.basename(folder))}
    return Served(version, run, inputs, signature.structured_outputs)
