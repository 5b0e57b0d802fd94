"""Rows out of a dump, read by docs/reference/dump-format.md and nothing else."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_HEADER_BYTES = 24
_FOOTER = struct.Struct("<QQQQ8s")


@dataclass(frozen=True)
class DumpedRows:
    """The rows of one group, ascending by key.

    Attributes:
        keys: uint64 [n].
        updates: uint32 [n].
        times: uint32 [n], of the last updates.
        floats: float32 [n, dim + slot_floats].
    """

    keys: np.ndarray
    updates: np.ndarray
    times: np.ndarray
    floats: np.ndarray


def read_dump(path: Path) -> dict[int, DumpedRows]:
    """Returns the groups of a dump that have rows."""
    content = path.read_bytes()
    index_at, length, _, _, end = _FOOTER.unpack_from(content, len(content) - _FOOTER.size)
    assert content[:8] == b"SOKDUMP\n" and end == b"SOKDEND\n" and length == len(content)
    blocks: dict[int, list[tuple[np.ndarray, ...]]] = {}
    at = _HEADER_BYTES
    while at < index_at:
        group, n, payload = struct.unpack_from("<IIQ", content, at)
        rows = at + 16
        floats = np.frombuffer(content, "<f4", (payload - 16 * n) // 4, rows + 16 * n)
        blocks.setdefault(group, []).append(
            (
                np.frombuffer(content, "<u8", n, rows),
                np.frombuffer(content, "<u4", n, rows + 8 * n),
                np.frombuffer(content, "<u4", n, rows + 12 * n),
                floats.reshape(n, -1),
            )
        )
        at = rows + payload + 8
    return {group: _sorted(parts) for group, parts in blocks.items()}


def _sorted(parts: list[tuple[np.ndarray, ...]]) -> DumpedRows:
    keys, *columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(keys)
    return DumpedRows(keys[order], *(column[order] for column in columns))
