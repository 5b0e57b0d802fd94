"""Initializers of vectors."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sok_embed.arguments import (
    MOST_DIMENSION,
    UINT64,
    check_choice,
    check_integer,
    check_number,
    shown_arguments,
)
from sok_embed.binding import _core
from sok_embed.kv.group import GROUPS


class Initializer:
    """The start of vectors: a function of the seed, the group and the key.

    | name | parameters |
    |---|---|
    | `zeros`, `ones` | |
    | `uniform` | `min=-1`, `max=1` (exclusive) |
    | `normal` | `mean=0`, `stddev=1` |
    | `truncated_normal` | `mean=0`, `stddev=1`; nothing beyond two standard deviations |
    | `xavier` | uniform within `sqrt(6 / dimension)` on either side |

    This `xavier` is Damo-Embedding's. Keras', with the fans of a square, has `sqrt(3 / dimension)`.

    Example:
    >>> Initializer("uniform", min=-0.1, max=0.1)
    Initializer('uniform', seed=0, min=-0.1, max=0.1)

    Args:
        name: One of the table.
        seed: Any integer; counted modulo 2**64.
        **parameters: The parameters in the table above.

    Raises:
        ValueError: For an unknown name or parameter, or a value that cannot be drawn with.
    """

    _DEFAULTS: dict[str, dict[str, float]] = {
        "zeros": {},
        "ones": {},
        "uniform": {"min": -1.0, "max": 1.0},
        "normal": {"mean": 0.0, "stddev": 1.0},
        "truncated_normal": {"mean": 0.0, "stddev": 1.0},
        "xavier": {},
    }

    def __init__(self, name: str, *, seed: int = 0, **parameters: float) -> None:
        self.name = check_choice("the name of an initializer", name, self._DEFAULTS)
        self.seed = check_integer("seed", seed)
        self.parameters = dict(self._DEFAULTS[name])
        for parameter, value in parameters.items():
            check_choice(f"parameters of initializer '{name}'", parameter, self.parameters)
            self.parameters[parameter] = check_number(f"initializer '{name}': {parameter}", value)
        self.draw(0, dimension=1)

    def bounds(self, dimension: int) -> tuple[str, float, float]:
        """Returns the distribution for vectors of a length.

        Args:
            dimension: The length of a vector.

        Returns:
            `(kind, a, b)`: `"constant"` with its value, `"uniform"` with its bounds, `"normal"` or
            `"truncated_normal"` with mean and standard deviation.
        """
        if self.name in ("zeros", "ones"):
            return "constant", float(self.name == "ones"), 0.0
        if self.name == "xavier":
            limit = math.sqrt(6.0 / dimension)
            return "uniform", -_float32(limit), _float32(limit)
        a, b = self.parameters.values()
        return self.name, _float32(a), _float32(b)

    def draw(self, key: int, *, dimension: int, group: int = 0) -> npt.NDArray[np.float32]:
        """Returns the vector that a key starts from.

        Args:
            key: The key, of 64 bits, signed or not.
            dimension: The length of the vector.
            group: The group that the key is in.

        Returns:
            float32 `[dimension]`.
        """
        vector = np.empty(check_integer("dimension", dimension, 1, MOST_DIMENSION + 1), np.float32)
        stream = (self.seed % UINT64, check_integer("group", group, 0, GROUPS))
        _core.Initializer(*self.bounds(dimension), *stream).fill(key % UINT64, vector)
        return vector

    def __repr__(self) -> str:
        return f"Initializer({shown_arguments(self.name, {'seed': self.seed, **self.parameters})})"


def _float32(value: float) -> float:
    """Rounds as ops do, so that a layer that opens the group draws the same vectors."""
    return float(np.float32(value))
