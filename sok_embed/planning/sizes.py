"""Reads and writes sizes in bytes, in the form in which people write them."""

from __future__ import annotations

import re
from typing import Any

from sok_embed.arguments import check_integer

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)B?", re.IGNORECASE)


def size_in_bytes(name: str, value: Any) -> int:
    """Returns a size as a number of bytes.

    Example:
    >>> size_in_bytes("memory", "16GiB") == 16 * 2**30
    True
    >>> size_in_bytes("memory", "1.5 MB")
    1500000

    A size is a positive integer, or a number with a unit: B, KB, MB, GB, TB, PB are powers of 1000,
    KiB, MiB, GiB, TiB, PiB powers of 1024.
    """
    if not isinstance(value, str):
        return check_integer(name, value, 1)
    found = _SIZE.fullmatch(value.strip())
    size = 0
    if found is not None:
        number, unit, binary = found.groups()
        size = round(float(number) * (1024 if binary else 1000) ** _POWERS[unit.upper()])
    if size < 1:
        raise ValueError(
            f"Expected {name} to be a positive number of bytes, or a string such as '16GiB' or "
            f"'80GB'. Received: {name}={value!r}."
        )
    return size


def shown_size(size: int | float) -> str:
    """Returns a size for people, in powers of 1024.

    Example:
    >>> shown_size(1536), shown_size(700)
    ('1.5 KiB', '700 B')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = 0
    while power < len(units) - 1 and size >= 1024 ** (power + 1):
        power += 1
    number = size / 1024**power
    return f"{number:,.0f} B" if power == 0 else f"{number:,.1f} {units[power]}"
