"""Turns examples in JSON into dense tensors for a signature, and its outputs into JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

_PARTS = re.compile(r"(.*)_(values|indices|dense_shape|row_lengths(?:_\d+)?)")


class InvalidRequest(ValueError):
    """A request that the client has to change."""


class Field:
    """One input or output of a model.

    Attributes:
        name: The name that it has in JSON.
        kind: `"dense"`, `"ragged"` or `"sparse"`.
        depth: The number of ragged dimensions in addition to the dimension of examples.
        shape: The shape of one example, or of one value of a ragged example; `None` is any size.
        dtype: The NumPy dtype of values; `object` for strings.
    """

    def __init__(
        self, name: str, kind: str, depth: int, shape: Sequence[int | None], dtype: Any
    ) -> None:
        self.name, self.kind, self.depth = name, kind, depth
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)

    def describe(self) -> dict[str, Any]:
        """Returns a description of the field for clients."""
        dtype = "string" if self.dtype == object else self.dtype.name
        return {"kind": self.kind, "depth": self.depth, "shape": self.shape, "dtype": dtype}

    def parse(self, given: Any) -> Any:
        """Returns one example as an array, or as nested lists of arrays where it is ragged.

        Raises:
            InvalidRequest: For values of another type or shape.
        """
        return self._parsed(given, 1 if self.kind == "sparse" else self.depth)

    def _parsed(self, given: Any, depth: int) -> Any:
        if not depth:
            array = self._array(given)
            if len(array.shape) != len(self.shape) or any(
                size not in (None, found)
                for size, found in zip(self.shape, array.shape, strict=True)
            ):
                raise InvalidRequest(
                    f"'{self.name}': expected {_shown_shape(self.shape)}. Received: "
                    f"{_shown_shape(array.shape)}."
                )
            return array
        if not isinstance(given, list):
            raise InvalidRequest(f"'{self.name}': expected a list. Received: {_shown(given)}.")
        if depth == 1 and not self.shape:  # one array, in place of one for each value
            array = self._array(given)
            if array.ndim != 1:
                raise InvalidRequest(
                    f"'{self.name}': expected a list of values. Received: {_shown(given)}."
                )
            return array
        return [self._parsed(each, depth - 1) for each in given]

    def _array(self, given: Any) -> Any:
        for value in _leaves(given):
            self._check(value)
        try:
            if given == []:
                return np.empty([0], self.dtype)
            return np.array(_wrapped(given, self.dtype), self.dtype)
        except (ValueError, OverflowError) as error:
            raise InvalidRequest(
                f"'{self.name}': expected lists of one length, with numbers that "
                f"{self.describe()['dtype']} has. Received: {_shown(given)}."
            ) from error

    def _check(self, value: Any) -> None:
        if self.dtype == object:
            right = isinstance(value, str)
        elif self.dtype.kind == "b":
            right = isinstance(value, bool)
        elif self.dtype.kind == "f":
            right = isinstance(value, (int, float)) and not isinstance(value, bool)
            right = right and abs(value) <= float(np.finfo(self.dtype).max)  # false for NaN
        else:
            least, most = _bounds(self.dtype)
            right = isinstance(value, int) and not isinstance(value, bool)
            right = right and least <= value <= most
        if not right:
            raise InvalidRequest(
                f"'{self.name}': expected values of {self.describe()['dtype']}. Received: "
                f"{_shown(value)}."
            )

    def tensors(self, examples: Sequence[Any]) -> dict[str, Any]:
        """Returns the parts of the signature for examples that `parse` returned."""
        if self.kind == "dense":
            return {self.name: np.stack(examples)}
        if self.kind == "sparse":
            lengths = [len(each) for each in examples]
            columns = [np.arange(length) for length in lengths]
            rows = np.repeat(np.arange(len(examples)), lengths)
            return {
                f"{self.name}_values": np.concatenate(examples),
                f"{self.name}_indices": np.stack([rows, np.concatenate(columns)], 1),
                f"{self.name}_dense_shape": np.array([len(examples), max(lengths)], np.int64),
            }
        parts, level = {}, list(examples)
        for number in range(self.depth):
            ending = "" if self.depth == 1 else f"_{number}"
            parts[f"{self.name}_row_lengths{ending}"] = np.array(
                [len(each) for each in level], np.int64
            )
            if number + 1 < self.depth or self.shape:
                level = [part for each in level for part in each]
        join = np.stack if self.shape else np.concatenate
        empty = np.empty([0, *(size or 0 for size in self.shape)], self.dtype)
        parts[f"{self.name}_values"] = join(level) if level else empty
        return parts

    def open_shape(self, example: Any) -> tuple[int, ...]:
        """Returns the shape of a dense example: a batch has only examples of one shape."""
        return example.shape if self.kind == "dense" else ()

    def examples(self, outputs: Mapping[str, Any]) -> list[Any]:
        """Returns the value of each example in JSON, from the outputs of the signature."""
        if self.kind == "dense":
            return _listed(outputs[self.name])
        values = _listed(outputs[f"{self.name}_values"])
        for number in reversed(range(self.depth)):
            ending = "" if self.depth == 1 else f"_{number}"
            ends = np.cumsum(outputs[f"{self.name}_row_lengths{ending}"]).tolist()
            begins = [0, *ends[:-1]]
            values = [values[begin:end] for begin, end in zip(begins, ends, strict=True)]
        return values


def fields_of(specs: Mapping[str, Any]) -> list[Field]:
    """Returns the fields of which a signature has the parts.

    Args:
        specs: Specs of tensors, which have `shape` and `dtype`, by name. Ragged and sparse ones
            are in parts, as `sok_embed.serving.export` names them.
    """
    fields: list[Field] = []
    taken: set[str] = set()
    for name in sorted(specs):
        match = _PARTS.fullmatch(name)
        base = match[1] if match else ""
        lengths = [
            each for each in specs if re.fullmatch(rf"{re.escape(base)}_row_lengths(_\d+)?", each)
        ]
        sparse = {f"{base}_{part}" for part in ("values", "indices", "dense_shape")}
        if base and f"{base}_values" in specs and lengths:
            field, parts = (base, "ragged", len(lengths)), {f"{base}_values", *lengths}
        elif base and sparse <= set(specs):
            field, parts = (base, "sparse", 1), sparse
        else:
            field, parts = (name, "dense", 0), {name}
        if parts & taken:
            continue
        if field[1] == "sparse" and specs[f"{base}_dense_shape"].shape[0] != 2:
            raise ValueError(
                f"Expected sparse tensors of two dimensions, examples and values. Received: "
                f"'{base}' with dense_shape {specs[f'{base}_dense_shape'].shape}."
            )
        taken |= parts
        spec = specs[name if field[1] == "dense" else f"{base}_values"]
        dtype = object if spec.dtype.name == "string" else spec.dtype.as_numpy_dtype
        fields.append(Field(*field, spec.shape.as_list()[1:], dtype))
    return fields


def _bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Returns the least and the greatest integer that a client may send for a dtype.

    A key of 64 bits may be signed or unsigned, whatever the model takes: the same bits are the same
    key.
    """
    if dtype.itemsize == 8:
        return -(2**63), 2**64 - 1
    bounds = np.iinfo(dtype)
    return bounds.min, bounds.max


def _wrapped(given: Any, dtype: np.dtype[Any]) -> Any:
    """Returns lists of 64-bit integers, converted to the dtype with the same bits."""
    if dtype not in (np.int64, np.uint64):
        return given
    if isinstance(given, list):
        return [_wrapped(each, dtype) for each in given]
    least = -(2**63) if dtype == np.int64 else 0
    return (given - least) % 2**64 + least


def _leaves(given: Any) -> Iterable[Any]:
    if not isinstance(given, list):
        yield given
        return
    for each in given:
        if isinstance(each, list):
            yield from _leaves(each)
        else:
            yield each


def _listed(array: Any) -> list[Any]:
    if array.dtype == object:
        return [
            each.decode(errors="replace") if isinstance(each, bytes) else _listed(each)
            for each in array
        ]
    listed: list[Any] = array.tolist()
    return listed


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _shown_shape(shape: Sequence[int | None]) -> str:
    if not shape:
        return "one value"
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    return f"values of shape [{sizes}]"
