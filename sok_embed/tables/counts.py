"""Adapts the counts of sketches to another number of workers.

Their layout is that of `docs/reference/checkpoint-format.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sok_embed.binding import _core
from sok_embed.kv import CorruptionError

_SKETCH = struct.Struct("<4sIQQI")


class SketchPlace(NamedTuple):
    """The buckets that a sketch counts: the buckets whose number modulo `owners` is `owner`.

    Attributes:
        static_buckets: The number of static buckets of all workers.
        owners: The number of workers.
        owner: The number of this worker.
    """

    static_buckets: int
    owners: int
    owner: int


def merge_sketches(parts: Mapping[int, bytes], workers: int, place: SketchPlace) -> bytes:
    """Makes the sketch of a worker from sketches of other workers, cell by cell.

    `parts` are results of `CountMinSketch::Dump` by worker, of those that are needed.

    Raises:
        CorruptionError: For a part that is not a dump.
        ValueError: For parts of two sizes.
    """
    cells: npt.NDArray[np.uint8] | None = None
    shape: tuple[int, int] | None = None  # cells a bucket, bits a cell
    own = np.arange(place.owner, place.static_buckets, place.owners)
    count = -(-place.static_buckets // place.owners)
    for worker, data in parts.items():
        magic, version, buckets, width, bits = _SKETCH.unpack_from(data.ljust(_SKETCH.size, b"\0"))
        theirs = -(-place.static_buckets // workers)
        if buckets != theirs:
            raise CorruptionError(
                f"Expected a sketch of {theirs} buckets from each of {workers} workers. "
                f"Received: {buckets} buckets from worker {worker}."
            )
        expected = _SKETCH.size + 8 + buckets * width * bits // 8
        if magic != b"SOKC" or version != 1 or len(data) != expected:
            raise CorruptionError(
                f"Expected a sketch of version 1 with {expected} bytes. Received: {len(data)} "
                f"bytes that begin with {magic!r}, of version {version}."
            )
        if width * bits % 8:
            raise CorruptionError(
                "Expected a sketch whose cells fill the bytes of a bucket. Received: "
                f"{width} cells of {bits} bits."
            )
        found = np.frombuffer(data, np.uint8, offset=_SKETCH.size + 8)
        seed = _core.checksum(np.frombuffer(data[: _SKETCH.size], np.uint8), 0)
        told = int.from_bytes(data[_SKETCH.size : _SKETCH.size + 8], "little")
        if _core.checksum(found, seed) != told:
            raise CorruptionError(
                "Expected a sketch that agrees with its checksum. Received: a sketch that does not."
            )
        if shape not in (None, (width, bits)):
            raise ValueError(
                f"Expected sketches of one size. Received: {shape} and {(width, bits)} cells of a "
                "bucket and bits of a cell."
            )
        shape = (width, bits)
        found = found.reshape(buckets, -1)
        if cells is None:
            cells = np.zeros((count, found.shape[1]), np.uint8)
        shared = own[own % workers == worker]
        cells[shared // place.owners] = found[shared // workers]
    assert cells is not None and shape is not None
    header = _SKETCH.pack(b"SOKC", 1, count, *shape)
    seed = _core.checksum(np.frombuffer(header, np.uint8), 0)
    flat = cells.reshape(-1)
    return header + _core.checksum(flat, seed).to_bytes(8, "little") + flat.tobytes()
