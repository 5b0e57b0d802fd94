"""Files in the form of safetensors: dense weights, and arrays of rows; no TensorFlow."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sok_embed.kv import CorruptionError

# The names that safetensors has for dtypes, and the bytes of a value.
_DTYPES = {
    "bool": ("BOOL", 1), "int8": ("I8", 1), "uint8": ("U8", 1), "int16": ("I16", 2),
    "uint16": ("U16", 2), "float16": ("F16", 2), "bfloat16": ("BF16", 2), "int32": ("I32", 4),
    "uint32": ("U32", 4), "float32": ("F32", 4), "int64": ("I64", 8), "uint64": ("U64", 8),
    "float64": ("F64", 8),
}  # fmt: skip
_ALIGNED = 8


class WeightSpec(NamedTuple):
    """The kind of a dense weight."""

    dtype: str  # the name of its dtype, such as `"float32"`
    shape: tuple[int, ...]  # the shape

    @property
    def is_known(self) -> bool:
        """True if a file can have such a weight."""
        return self.dtype in _DTYPES

    @property
    def bytes(self) -> int:
        """The length of the values."""
        return math.prod(self.shape) * _DTYPES[self.dtype][1]


def packed(weights: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    """Returns the content of a file of weights; bfloat16 is a dtype of `ml_dtypes`."""
    specs = {name: WeightSpec(value.dtype.name, value.shape) for name, value in weights.items()}
    values = [np.ascontiguousarray(weights[name]).tobytes() for name in sorted(weights)]
    return b"".join([_header(specs), *values])


def unpacked(path: str, data: bytes, specs: Mapping[str, WeightSpec]) -> dict[str, bytes]:
    """Returns the bytes of each weight of a file, which must have these weights and no others."""
    header = _header(specs)
    length = len(header) + sum(spec.bytes for spec in specs.values())
    if len(data) != length or not data.startswith(header):
        raise CorruptionError(
            f"Expected the dense weights of the model in '{path}', in {length} bytes. Received: "
            f"{len(data)} bytes, or weights of other names, shapes or dtypes."
        )
    found, begin = {}, len(header)
    for name in sorted(specs):
        end = begin + specs[name].bytes
        found[name] = data[begin:end]
        begin = end
    return found


def arrays_of(path: str) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of a file, which lie in the file."""
    names = {text: name for name, (text, _) in _DTYPES.items()}
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    found: dict[str, npt.NDArray[Any]] = {}
    for name, told in header.items():
        shape, (begin, end) = tuple(told["shape"]), told["data_offsets"]
        dtype = np.dtype(names[told["dtype"]])
        # An empty array cannot be mapped.
        found[name] = (
            np.memmap(path, dtype, "r", 8 + size + begin, shape)
            if begin < end
            else np.empty(shape, dtype)
        )
    return found


def _header(specs: Mapping[str, WeightSpec]) -> bytes:
    """Returns the header before the values, which depends only on the kinds of weights."""
    fields, begin = {}, 0
    for name in sorted(specs):
        end = begin + specs[name].bytes
        dtype, _ = _DTYPES[specs[name].dtype]
        fields[name] = {
            "dtype": dtype,
            "shape": list(specs[name].shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text
