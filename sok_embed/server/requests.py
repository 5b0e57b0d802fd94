"""Turns requests into the tensors of a signature, and its outputs into replies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from sok_embed.server.values import Array, InvalidRequest, Values, listed, short
from sok_embed.serving.loaded_export import array_of

Parts = dict[str, Array]

_PARTS = re.compile(r"(.*)_(values|indices|dense_shape|row_lengths(?:_\d+)?)", re.DOTALL)
# The most places of a sparse input: a model may make it dense.
_MOST_PLACES = 2**24
# The most columns of a sparse input that is joined with those of other requests.
_JOINED_COLUMNS = 2**13


class Examples(NamedTuple):
    """The examples of a request.

    Attributes:
        parts: An array for each input of the signature, by its name.
        size: The number of examples.
    """

    parts: Parts
    size: int


class Field:
    """One input or output of a model: a tensor, or the parts of a ragged or sparse tensor.

    Args:
        name: The name that the input or output has in the model.
        kind: `"dense"`, `"ragged"` or `"sparse"`.
        lengths: The names of the parts with lengths of rows, from the outermost dimension on.
        spec: The specification of the dense tensor, or of the part with values.

    Attributes:
        shape: The shape of an example, or of one value of a bag; `None` is any size.
        parts: The names of all parts in the signature; those with values come first.
    """

    def __init__(self, name: str, kind: str, lengths: list[str], spec: tf.TensorSpec) -> None:
        self.name, self.kind, self.lengths = name, kind, lengths
        self._values = Values(spec.dtype)
        self.zero = self._values.zero
        self.shape = () if spec.shape.rank is None else tuple(spec.shape.as_list()[1:])
        self.parts = [name if kind == "dense" else f"{name}_values", *lengths]
        if kind == "sparse":
            self.parts += [f"{name}_indices", f"{name}_dense_shape"]

    def parse(self, rows: list[Any]) -> Parts:
        """Returns the parts of examples, each of which is a value or nested lists of JSON.

        Raises:
            InvalidRequest: For values of another type or shape.
        """
        level = rows
        lengths = [] if self.kind == "dense" else [_lengths(level, self.name)]
        for _ in self.lengths[1:]:
            level = list(chain.from_iterable(level))
            lengths.append(_lengths(level, self.name))
        if lengths:
            level = list(chain.from_iterable(level))
        count, sizes = len(level), []
        for size in self.shape:
            found = _sizes(level, self.name)
            if len(found) > 1 or (size is not None and found - {size}):
                raise InvalidRequest(
                    f"'{self.name}': expected values of shape {_shape_text(self.shape)}, and the "
                    f"same shape for all of a request. Received: lists of {sorted(found)[:4]}."
                )
            sizes.append(found.pop() if found else size or 0)
            level = list(chain.from_iterable(level))
        values = self._values.array(level, self.name).reshape(count, *sizes)
        parts = dict(zip(self.parts, [values, *lengths[: len(self.lengths)]], strict=False))
        if self.kind == "sparse":
            before = np.cumsum(lengths[0]) - lengths[0]
            columns = np.arange(count) - np.repeat(before, lengths[0])
            indices = np.stack([np.repeat(np.arange(len(rows)), lengths[0]), columns], 1)
            parts[self.parts[1]] = indices.astype(np.int64)
            parts[self.parts[2]] = np.array([len(rows), lengths[0].max()], np.int64)
        return parts

    def count(self, parts: Mapping[str, Array]) -> int:
        """Returns the number of examples in parts, which must fit one another.

        A batch has the parts of several requests one after the other, so that parts of one request
        that do not fit would move the values of others.

        Raises:
            InvalidRequest: If they do not fit.
        """
        values = parts[self.parts[0]]
        if self.kind == "sparse":
            indices, (rows, columns) = parts[self.parts[1]], parts[self.parts[2]].tolist()
            steps = np.diff(indices, axis=0)
            self._expect(
                len(indices) == len(values)
                and 0 <= rows
                and 0 <= columns
                and rows * columns <= _MOST_PLACES
                and bool(np.all((indices >= 0) & (indices < [rows, columns])))
                and bool(np.all((steps[:, 0] > 0) | ((steps[:, 0] == 0) & (steps[:, 1] > 0)))),
                f"{len(values)} indices, in order and within a dense_shape of at most "
                f"{_MOST_PLACES} places",
                indices,
                parts[self.parts[2]],
            )
            return int(rows)
        inner = len(values)
        for name in reversed(self.lengths):
            lengths = parts[name]
            self._expect(
                bool(np.all((lengths >= 0) & (lengths <= inner))) and int(lengths.sum()) == inner,
                f"lengths in {name} that are not negative and have the sum {inner}",
                lengths,
            )
            inner = len(lengths)
        return inner

    def form(self, parts: Mapping[str, Array]) -> Any:
        """Returns what parts of requests have in common that may be joined."""
        if self.kind == "sparse" and parts[self.parts[2]][1] > _JOINED_COLUMNS:
            return object()  # which is equal to no other: it would make the others as wide
        return parts[self.parts[0]].shape[1:]

    def joined(self, parts: list[Parts]) -> Parts:
        """Returns the parts of several requests as those of one."""
        if len(parts) == 1:
            return {name: parts[0][name] for name in self.parts}
        if self.kind != "sparse":
            return {name: np.concatenate([each[name] for each in parts]) for name in self.parts}
        values, indices, shape = self.parts
        shapes = np.stack([each[shape] for each in parts])
        before = np.cumsum(shapes[:, 0]) - shapes[:, 0]
        moved = [each[indices] + [row, 0] for each, row in zip(parts, before, strict=True)]
        return {
            values: np.concatenate([each[values] for each in parts]),
            indices: np.concatenate(moved),
            shape: np.array([shapes[:, 0].sum(), shapes[:, 1].max()], np.int64),
        }

    def split(self, outputs: Mapping[str, Array], counts: list[int]) -> list[Parts]:
        """Returns the parts of an output for each request of a batch, by its number of examples.

        Raises:
            ValueError: If the output has another number of examples than the batch.
        """
        names = [*self.lengths, self.parts[0]]
        ends = np.cumsum(counts)
        found: list[Parts] = [{} for _ in counts]
        for number, name in enumerate(names):
            array = outputs[name]
            if number == 0 and len(array) != ends[-1]:
                raise ValueError(
                    f"Expected a value of '{self.name}' for each of {ends[-1]} examples. Received: "
                    f"{len(array)} from the model."
                )
            for each, part in zip(found, np.split(array, ends[:-1]), strict=True):
                each[name] = part
            if name in self.lengths:
                ends = np.concatenate([[0], np.cumsum(array)])[ends]
        return found

    def rows(self, parts: Mapping[str, Array]) -> list[Any]:
        """Returns the value of each example for JSON, which does not have NaN and infinity.

        Raises:
            FloatingPointError: For NaN and infinity.
        """
        values = listed(self.name, parts[self.parts[0]])
        for name in reversed(self.lengths):
            ends = np.cumsum(parts[name]).tolist()
            values = [values[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return values

    def _expect(self, condition: bool, expected: str, *received: Array) -> None:
        if not condition:
            given = ", ".join(short(each[:9].tolist()) for each in received)
            raise InvalidRequest(f"'{self.name}': expected {expected}. Received: {given}.")


class Signature:
    """The inputs and outputs of a model, as its clients see them.

    Args:
        inputs: The `tf.TensorSpec` of each part of the inputs, by its name, as
            `sok_embed.serving.export` names them.
        outputs: The same of the outputs.
        most: The most examples of a request.

    Raises:
        ValueError: For outputs that are sparse, and inputs that requests cannot have.
    """

    def __init__(
        self,
        inputs: Mapping[str, tf.TensorSpec],
        outputs: Mapping[str, tf.TensorSpec],
        most: int = 1024,
    ) -> None:
        self._most = most
        self.specs = {
            "inputs": dict(sorted(inputs.items())),
            "outputs": dict(sorted(outputs.items())),
        }
        self.inputs, self.outputs = _fields(inputs), _fields(outputs)
        self._wanted = {
            name: (
                tuple(spec.shape.as_list()),
                np.dtype(object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype),
                spec.dtype.is_floating,
            )
            for name, spec in inputs.items()
        }
        sparse = [each.name for each in self.outputs if each.kind == "sparse"]
        if sparse:
            raise ValueError(
                f"Expected dense and ragged outputs. Received: sparse ones, {sparse}. Export a "
                "model that makes them dense."
            )
        for each in self.outputs:
            shape = outputs[each.parts[0]].shape
            if each.kind == "dense" and shape.rank is not None and shape[:1].as_list() != [None]:
                raise ValueError(
                    f"Expected a value of the output '{each.name}' for each example. Received: the "
                    f"shape {shape}. Export a model with outputs that depend on the example."
                )

    def from_rows(self, instances: Any) -> Examples:
        """Returns the examples of `"instances"`, the rows of TensorFlow Serving's protocol.

        Args:
            instances: A list with an entry for each example: an object with a value for each
                input, or the value of the only input.

        Raises:
            InvalidRequest: For other inputs than those of the model, and for other values.
        """
        if type(instances) is not list or not instances:
            raise InvalidRequest(
                'Expected "instances": [...], with an entry for each example. Received: '
                f"{short(instances)}."
            )
        self._check_size(len(instances))
        names = [field.name for field in self.inputs]
        is_row = type(instances[0]) is dict and instances[0].keys() != {"b64"}
        if len(names) == 1 and not is_row:
            columns = {names[0]: instances}
        else:
            wanted = set(names)
            for number, instance in enumerate(instances):
                if type(instance) is not dict or instance.keys() != wanted:
                    raise InvalidRequest(
                        f"Instance {number}: expected an object with {names}. Received: "
                        f"{short(instance)}."
                    )
            columns = {name: [each[name] for each in instances] for name in names}
        return self.from_columns(columns)

    def from_columns(self, given: Any) -> Examples:
        """Returns the examples of `"inputs"`, the columns of TensorFlow Serving's protocol.

        Args:
            given: An object with a list of values for each input, or for each part of the inputs
                in the signature; or the list of the only input.

        Raises:
            InvalidRequest: For other inputs than those of the model, and for other values.
        """
        fields = {field.name: field for field in self.inputs}
        if type(given) is not dict and len(fields) == 1:
            given = {self.inputs[0].name: given}
        specs = self.specs["inputs"]
        has_parts = type(given) is dict and given.keys() == specs.keys() != fields.keys()
        if has_parts:
            fields = {name: Field(name, "dense", [], spec) for name, spec in specs.items()}
        if type(given) is not dict or given.keys() != fields.keys():
            raise InvalidRequest(f"Expected the inputs {[*fields]}. Received: {short(given)}.")
        parts: Parts = {}
        for name, field in fields.items():
            if type(given[name]) is not list:
                raise InvalidRequest(
                    f"'{name}': expected a list with an entry for each example. Received: "
                    f"{short(given[name])}."
                )
            if not has_parts:
                self._check_size(len(given[name]))
            parts |= _parsed(field, given[name])
        return self.from_tensors(parts) if has_parts else self.checked(parts)

    def from_tensors(self, tensors: Mapping[str, Array]) -> Examples:
        """Returns the examples of tensors, by the names of the parts in the signature.

        Raises:
            InvalidRequest: For tensors of other names, shapes or dtypes.
        """
        specs = self.specs["inputs"]
        self.check_names([*tensors])
        parts = {}
        for name, (shape, dtype, is_floating) in self._wanted.items():
            array = tensors[name]
            if dtype.kind == "O" and array.dtype.kind != "O":
                raise InvalidRequest(f"'{name}': expected strings. Received: {array.dtype}.")
            if len(array.shape) != len(shape) or any(
                size not in (None, found) for size, found in zip(shape, array.shape, strict=True)
            ):
                raise InvalidRequest(
                    f"'{name}': expected the shape {_shape_text(shape)}. Received: "
                    f"{_shape_text(array.shape)}."
                )
            if array.dtype != dtype:
                try:
                    with np.errstate(over="ignore"):
                        array = array_of(name, array, specs[name].dtype)
                except TypeError as error:
                    raise InvalidRequest(str(error)) from error
            if is_floating and not np.isfinite(array).all():
                raise InvalidRequest(f"'{name}': expected finite numbers. Received: NaN or more.")
            parts[name] = array
        return self.checked(parts)

    def check_names(self, names: list[str]) -> None:
        """Raises InvalidRequest unless these are the names of all parts of the inputs."""
        specs = self.specs["inputs"]
        if len(names) != len(specs) or set(names) != specs.keys():
            raise InvalidRequest(f"Expected the inputs {[*specs]}. Received: {short(names)}.")

    def check_outputs(self, names: Sequence[str]) -> None:
        """Raises InvalidRequest unless these are different names of parts of the outputs."""
        specs = self.specs["outputs"]
        if len(set(names)) != len(names) or not specs.keys() >= set(names):
            raise InvalidRequest(
                f"Expected different outputs of {[*specs]}. Received: {short([*names])}."
            )

    def checked(self, parts: Parts) -> Examples:
        """Returns the examples of parts that fit one another.

        Raises:
            InvalidRequest: If the parts do not fit, or have no example.
        """
        counts = [field.count(parts) for field in self.inputs]
        if len(set(counts)) != 1 or not counts[0]:
            raise InvalidRequest(
                f"Expected the same number of examples of each input, and at least 1. Received: "
                f"{short(counts)}."
            )
        self._check_size(counts[0])
        return Examples(parts, counts[0])

    def _check_size(self, size: int) -> None:
        if size > self._most:
            raise InvalidRequest(
                f"Expected at most {self._most} examples. Received: {size}. Send several requests."
            )

    def joined(self, requests: list[Examples]) -> Parts:
        """Returns the parts of all requests of a batch."""
        given = [each.parts for each in requests]
        return {name: part for field in self.inputs for name, part in field.joined(given).items()}

    def split(self, outputs: Mapping[str, Array], counts: list[int]) -> list[Parts]:
        """Returns the outputs of each request of a batch, by the numbers of their examples."""
        found: list[Parts] = [{} for _ in counts]
        for field in self.outputs:
            for each, parts in zip(found, field.split(outputs, counts), strict=True):
                each.update(parts)
        return found

    def zeros(self) -> Parts:
        """Returns the parts of one example of zeros, with bags that are empty."""
        parts: Parts = {}
        for field in self.inputs:
            example = np.full([size or 1 for size in field.shape], field.zero, object).tolist()
            parts |= field.parse([example if field.kind == "dense" else []])
        return parts

    def shapes(self, examples: Examples) -> tuple[Any, ...]:
        """Returns the shapes of examples; only requests of the same shapes are one batch."""
        return tuple(field.form(examples.parts) for field in self.inputs)

    def rows(self, outputs: Parts) -> list[Any]:
        """Returns the value of each example for JSON: an object, or the value of the only output.

        Raises:
            FloatingPointError: For NaN and infinity, which JSON does not have.
        """
        columns = {field.name: field.rows(outputs) for field in self.outputs}
        if len(columns) == 1:
            return next(iter(columns.values()))
        rows = zip(*columns.values(), strict=True)
        return [dict(zip(columns, each, strict=True)) for each in rows]


def _fields(specs: Mapping[str, tf.TensorSpec]) -> list[Field]:
    """Returns the fields of which a signature has the parts."""
    fields: list[Field] = []
    taken: set[str] = set()
    for name in sorted(specs):
        match = _PARTS.fullmatch(name)
        base = match[1] if match else name
        lengths = sorted(
            (
                each
                for each in specs
                if re.fullmatch(re.escape(base) + r"_row_lengths(_\d+)?", each)
            ),
            key=lambda each: (len(each), each),
        )
        sparse = [f"{base}_{part}" for part in ("values", "indices", "dense_shape")]
        field = Field(name, "dense", [], specs[name])
        if match and f"{base}_values" in specs and lengths:
            field = Field(base, "ragged", lengths, specs[f"{base}_values"])
        elif match and set(sparse) <= set(specs):
            field = Field(base, "sparse", [], specs[f"{base}_values"])
            if specs[sparse[2]].shape[0] != 2:
                raise ValueError(
                    "Expected sparse tensors of two dimensions, examples and values. Received: "
                    f"'{base}' with dense_shape {specs[sparse[2]].shape}."
                )
        if taken.isdisjoint(field.parts):
            taken.update(field.parts)
            fields.append(field)
    return fields


def _parsed(field: Field, rows: list[Any]) -> Parts:
    """Returns the parts of rows; an error names the first row that is wrong."""
    try:
        return field.parse(rows)
    except InvalidRequest as error:
        first, wrong = 0, rows
        while len(wrong) > 1:
            half = len(wrong) // 2
            try:
                field.parse(wrong[:half])
            except InvalidRequest:
                wrong = wrong[:half]
            else:
                first, wrong = first + half, wrong[half:]
        try:
            field.parse(wrong)
        except InvalidRequest as alone:
            raise InvalidRequest(f"Instance {first}: {alone}") from error
        raise  # rows that do not fit one another


def _lengths(level: list[Any], name: str) -> Array:
    """Returns the lengths of lists."""
    _sizes(level, name)
    return np.fromiter(map(len, level), np.int64, len(level))


def _sizes(level: list[Any], name: str) -> set[int]:
    """Returns the different lengths of lists; raises InvalidRequest for other values."""
    if not set(map(type, level)) <= {list}:
        wrong = next(each for each in level if type(each) is not list)
        raise InvalidRequest(f"'{name}': expected a list. Received: {short(wrong)}.")
    return set(map(len, level))


def _shape_text(shape: Iterable[int | None]) -> str:
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"
