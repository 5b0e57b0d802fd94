"""Writes the description of a table as the core reads it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote


def spec_text(dim: int, attributes: Mapping[str, Any]) -> str:
    """Returns the description of a table: a JSON object, which `TableSpec::FromJson` reads.

    Example:
    >>> spec_text(8, {"seed": -1, "storage": "/rows of items"})
    '{"dim": 8, "seed": 18446744073709551615, "storage": "/rows%20of%20items"}'

    Fields that are left out have the core's defaults. The path of a storage is percent-encoded,
    since it may have any bytes.
    """
    fields = {"dim": dim, **attributes}
    if "seed" in fields:
        fields["seed"] = int(fields["seed"]) % 2**64
    if "storage" in fields:
        fields["storage"] = quote(os.fsencode(fields["storage"]))
    for name, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            fields[name] = str(value)  # JSON has no such numbers
    return json.dumps(fields, default=lambda number: number.item())  # of NumPy's numbers
