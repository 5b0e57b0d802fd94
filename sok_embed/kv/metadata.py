"""Reads update counts and times of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from sok_embed.arguments import check_keys

Keys: TypeAlias = npt.NDArray[np.uint64] | npt.NDArray[np.int64]


class Metadata(NamedTuple):
    """The counters of keys. Each array has the shape of the keys.

    Attributes:
        exists: bool, whether the key has a row; a row that has expired does not count.
        update_nums: int64, the updates of the row; 0 without a row.
        update_times: int64, the time of the last update, or when the row was made, in seconds since
            1970; 0 without a row.
    """

    exists: npt.NDArray[np.bool_]
    update_nums: npt.NDArray[np.int64]
    update_times: npt.NDArray[np.int64]


def read_metadata(keys: Keys, read: Callable[..., Any]) -> Metadata:
    """Returns the counters of keys, which `read` writes into flat arrays.

    Raises:
        TypeError, ValueError: For other keys than arrays of uint64 or int64.
    """
    wanted = check_keys(keys)
    exists = np.empty(wanted.size, np.uint8)
    update_nums, update_times = np.empty(wanted.size, np.int64), np.empty(wanted.size, np.int64)
    read(wanted, exists, update_nums, update_times)
    return Metadata(
        exists.view(np.bool_).reshape(keys.shape),
        update_nums.reshape(keys.shape),
        update_times.reshape(keys.shape),
    )
