"""The rows of a dump of a storage, in pieces."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import numpy as np

from sok_embed.binding import _core
from sok_embed.checkpoint.files.rows_file import Rows
from sok_embed.files.records import checksum, damaged

HEADER_BYTES = 24
BLOCK = struct.Struct("<IIQ")
MOST_BYTES = 1 << 20  # payload of a block, unless a single row is longer


def rows_of_dump(path: str, group: int) -> Iterator[Rows]:
    """Yields the rows of a group in a dump: see `docs/reference/dump-format.md`.

    Args:
        path: The path of a file that `Storage.dump` or a conversion has written.
        group: The number of the group. All of the file is checked.

    Raises:
        CorruptionError: For a damaged file.
    """
    groups = _core.dump_groups(path)  # this checks the ends of the file
    with open(path, "rb") as file:
        file.seek(HEADER_BYTES, os.SEEK_SET)
        for number, dim, slot_floats, count, _ in groups:
            width = 16 + 4 * (dim + slot_floats)
            most = max(1, MOST_BYTES // width)
            for begin in range(0, count, most):
                n = min(most, count - begin)
                offset = file.tell()
                block = file.read(BLOCK.size + n * width + 8)
                covered = memoryview(block)[: BLOCK.size + n * width]
                told = int.from_bytes(block[len(covered) :], "little")
                head = BLOCK.unpack_from(block)
                if checksum(covered, offset) != told or head != (number, n, n * width):
                    raise damaged(path, f"a whole block at byte {offset}", "another")
                if number == group:
                    yield _columns(covered[BLOCK.size :], n, dim, slot_floats)


def _columns(payload: memoryview, n: int, dim: int, slot_floats: int) -> Rows:
    counters = np.frombuffer(payload, np.uint32, 2 * n, 8 * n).astype(np.int64)
    floats = np.frombuffer(payload, np.float32, n * (dim + slot_floats), 16 * n)
    floats = floats.reshape(n, dim + slot_floats)
    return Rows(
        np.frombuffer(payload, np.int64, n),
        floats[:, :dim],
        floats[:, dim:],
        counters[:n],
        counters[n:],
    )
