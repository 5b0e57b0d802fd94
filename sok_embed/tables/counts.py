"""Adapts the counts of admissions and sketches to another number of workers.

The layouts are those of `docs/reference/file-formats.md` and `docs/reference/checkpoint-format.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sok_embed.binding import _core
from sok_embed.kv import CorruptionError

Mask = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]

_HEAD = struct.Struct("<4sIIIQdII")
_CHUNK = struct.Struct("<4sIQIQ")
_CHUNK_HEAD_BYTES = _CHUNK.size + 8
_COUNTER = np.dtype([("key", "<i8"), ("count", "<u4")])
_SKETCH = struct.Struct("<4sIQQI")
_FILTER_BITS = (2, 4, 8, 16)


class _Counts(NamedTuple):
    """A dump of an admission.

    Attributes:
        config: `min_count`, `capacity`, `false_positive_rate` and `counter_bits`.
        kind: `"frequency"` or `"counting_bloom"`.
        fingerprint: The fingerprint of the config, as chunks have it; `None` without chunks.
        chunks: The payload of each chunk that was counted in, by its number.
    """

    config: tuple[Any, ...]
    kind: bytes
    fingerprint: int | None
    chunks: dict[int, memoryview]


def merge_admissions(parts: Sequence[bytes], mine: Mask) -> bytes:
    """Merges the counts of the admissions of several workers.

    A counter of `frequency` belongs to a key, and goes to the worker of the key. A counter of
    `counting_bloom` belongs to many keys, and the greatest of all workers is taken: it is never too
    low, but too high for some keys, which are admitted early.

    Args:
        parts: Dumps of the workers; a dump without counts is empty.
        mine: A function that returns which keys belong to this worker.

    Returns:
        A dump, as `tf_ops.restore` takes it. Empty if no part has anything.

    Raises:
        CorruptionError: For a part that is not a dump.
        ValueError: For parts of two configs.
    """
    read = [_read_counts(part) for part in parts if part]
    if not read:
        return b""
    first = read[0]
    if any((part.config, part.kind) != (first.config, first.kind) for part in read):
        raise ValueError(
            "Expected workers with one admission for a table. Received: the counts of "
            f"{sorted({(part.kind.decode(), *part.config) for part in read})}."
        )
    chunks: dict[int, bytes] = {}
    for number in sorted({number for part in read for number in part.chunks}):
        payloads = [part.chunks[number] for part in read if number in part.chunks]
        if first.kind == b"frequency":
            payload = _merge_frequencies(payloads, mine)
        else:
            payload = _merge_filters(payloads, int(first.config[3]))
        if payload:
            chunks[number] = payload
    prints = [part.fingerprint for part in read if part.fingerprint is not None]
    return _write_counts(first, prints[0] if prints else 0, chunks)


def _read_counts(data: bytes) -> _Counts:
    """Reads a dump, and checks its checksums: the merged dump gets new ones."""
    try:
        magic, version, head_bytes, *config, kind_bytes = _HEAD.unpack_from(data)
        if magic != b"SOKN" or version != 1:
            raise CorruptionError(
                f"Expected the counts of an admission, of version 1. Received: {magic!r} of "
                f"version {version}."
            )
        kind = data[_HEAD.size : _HEAD.size + kind_bytes]
        at = _HEAD.size + kind_bytes + 4
        (count,) = struct.unpack_from("<I", data, at - 4)
        _check_number("bytes of its head", at + 12 * count + 8, head_bytes)
        _check_bytes(data[: head_bytes - 8], data[head_bytes - 8 : head_bytes])
        sizes = struct.iter_unpack("<IQ", data[at : at + 12 * count])
        chunks: dict[int, memoryview] = {}
        fingerprint, begin = None, head_bytes
        for number, length in sizes:
            _, _, fingerprint, _, payload = _CHUNK.unpack_from(data, begin)
            start = begin + _CHUNK_HEAD_BYTES
            _check_number(f"bytes of chunk {number}", _CHUNK_HEAD_BYTES + payload, length)
            chunks[number] = memoryview(data)[start : start + payload]
            _check_chunk(data[begin:start], chunks[number])
            begin += length
        _check_number("bytes", begin, len(data))
    except struct.error as error:
        raise CorruptionError(f"Expected the counts of an admission. Received: {error}.") from None
    _check_payloads(kind, config[3], chunks)
    return _Counts(tuple(config), kind, fingerprint, chunks)


def _check_number(what: str, expected: int, received: int) -> None:
    if expected != received:
        raise CorruptionError(
            f"Expected counts of an admission with {expected} {what}. Received: {received}."
        )


def _check_payloads(kind: bytes, bits: int, chunks: Mapping[int, memoryview]) -> None:
    """Raises CorruptionError unless counters of a kind fill the chunks."""
    if kind not in (b"frequency", b"counting_bloom"):
        raise CorruptionError(
            f"Expected the counts of 'frequency' or 'counting_bloom'. Received: {kind!r}."
        )
    if kind == b"counting_bloom" and bits not in _FILTER_BITS:
        raise CorruptionError(f"Expected counters of {_FILTER_BITS} bits. Received: {bits} bits.")
    size = _COUNTER.itemsize if kind == b"frequency" else max(1, bits // 8)
    for number, payload in chunks.items():
        if len(payload) % size:
            raise CorruptionError(
                f"Expected counters of {size} bytes in chunk {number} of the counts of an "
                f"admission. Received: {len(payload)} bytes."
            )


def _check_bytes(head: bytes, told: bytes) -> None:
    if _core.checksum(np.frombuffer(head, np.uint8), 0) != int.from_bytes(told, "little"):
        raise _another_checksum()


def _check_chunk(head: bytes, payload: memoryview) -> None:
    found = _core.admission_chunk_checksum(
        np.frombuffer(head[: _CHUNK.size], np.uint8), np.frombuffer(payload, np.uint8)
    )
    if found != int.from_bytes(head[_CHUNK.size :], "little"):
        raise _another_checksum()


def _another_checksum() -> CorruptionError:
    return CorruptionError(
        "Expected the counts of an admission that agree with their checksums. Received: counts "
        "that do not."
    )


def _merge_frequencies(payloads: Sequence[memoryview], mine: Mask) -> bytes:
    """Merges counters of 12 bytes by key; of equal keys the greater count is kept."""
    counters = np.concatenate([np.frombuffer(payload, _COUNTER) for payload in payloads])
    counters = counters[mine(counters["key"].astype(np.int64))]
    counters = counters[np.lexsort((-counters["count"].astype(np.int64), counters["key"]))]
    _, first = np.unique(counters["key"], return_index=True)
    return counters[first].tobytes()


def _merge_filters(payloads: Sequence[memoryview], bits: int) -> bytes:
    """Merges counters that stand in bytes, the lowest bits first, by their maximum."""
    sizes = {len(payload) for payload in payloads}
    if len(sizes) > 1:
        raise CorruptionError(
            "Expected counters of an admission in chunks of one size on all workers. Received: "
            f"chunks of {sorted(sizes)} bytes."
        )
    merged: npt.NDArray[Any] | None = None
    for payload in payloads:
        counters = np.frombuffer(payload, np.uint16 if bits == 16 else np.uint8)
        if merged is None:
            merged = counters.copy()
        elif bits >= 8:
            np.maximum(merged, counters, out=merged)
        else:
            mask = (1 << bits) - 1
            merged = sum(
                (
                    np.maximum(merged >> shift & mask, counters >> shift & mask) << shift
                    for shift in range(0, 8, bits)
                ),
                start=np.zeros_like(merged),
            )
    assert merged is not None
    return merged.tobytes()


def _write_counts(like: _Counts, fingerprint: int, payloads: Mapping[int, bytes]) -> bytes:
    chunks = {number: _chunk(number, fingerprint, data) for number, data in payloads.items()}
    head_bytes = _HEAD.size + len(like.kind) + 4 + 12 * len(chunks) + 8
    head = _HEAD.pack(b"SOKN", 1, head_bytes, *like.config, len(like.kind)) + like.kind
    head += struct.pack("<I", len(chunks))
    for number, chunk in chunks.items():
        head += struct.pack("<IQ", number, len(chunk))
    head += _core.checksum(np.frombuffer(head, np.uint8), 0).to_bytes(8, "little")
    return head + b"".join(chunks.values())


def _chunk(number: int, fingerprint: int, payload: bytes) -> bytes:
    header = _CHUNK.pack(b"SOKA", 1, fingerprint, number, len(payload))
    checksum = _core.admission_chunk_checksum(
        np.frombuffer(header, np.uint8), np.frombuffer(payload, np.uint8)
    )
    return header + checksum.to_bytes(8, "little") + payload


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

    Args:
        parts: The results of `CountMinSketch::Dump` on the workers that are needed, by their
            numbers.
        workers: The number of workers that wrote them.
        place: The place of the sketch to make.

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
