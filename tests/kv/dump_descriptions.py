"""Dumps whose groups are described in another way than the library would."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path


def with_descriptions(dumped: Path, change: Callable[[bytes], bytes]) -> bytes:
    """The bytes of a dump whose groups have other descriptions, with checksums that fit."""
    data = bytearray(dumped.read_bytes())
    offset = int.from_bytes(data[-40:-32], "little")
    index = bytearray(data[offset:-40])
    place, kept = 4, index[:4]
    for _ in range(int.from_bytes(index[:4], "little")):
        head = index[place : place + 24]
        length = int.from_bytes(head[12:16], "little")
        text = change(bytes(index[place + 24 : place + 24 + length]))
        head[12:16] = len(text).to_bytes(4, "little")
        kept += head + text
        place += 24 + length
    body = bytes(data[:offset]) + bytes(kept)
    footer = offset.to_bytes(8, "little") + (len(body) + 40).to_bytes(8, "little") + data[-24:-16]
    checksum = _xxh3(bytes(kept) + footer, offset)
    return body + footer + checksum.to_bytes(8, "little") + data[-8:]


def _xxh3(data: bytes, seed: int) -> int:
    """XXH3 of 64 bits, by the library itself."""
    function = ctypes.CDLL("libxxhash.so.0").XXH3_64bits_withSeed
    function.restype = ctypes.c_uint64
    return int(function(data, ctypes.c_size_t(len(data)), ctypes.c_uint64(seed)))
