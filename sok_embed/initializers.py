"""Maps Keras initializers to the C++ core, which draws each row from (seed, group, key)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from sok_embed.arguments import shown
from sok_embed.keras_bridge import callers
from sok_embed.keras_bridge.private_state import seed_of

__all__ = ["RowInitializer", "derive_seed", "row_initializer"]

_SUPPORTED = (
    "Zeros, Ones, Constant, RandomUniform, RandomNormal, TruncatedNormal, VarianceScaling, "
    "GlorotUniform, GlorotNormal, HeUniform, HeNormal, LecunUniform, LecunNormal, and the aliases "
    "xavier, xavier_uniform, xavier_normal"
)

_ALIASES = {
    "xavier": "glorot_uniform",
    "xavier_uniform": "glorot_uniform",
    "xavier_normal": "glorot_normal",
}

# This is the standard deviation of a standard normal distribution truncated at -2 and 2.
_TRUNCATED_STDDEV = 0.87962566103423978


@dataclass(frozen=True)
class RowInitializer:
    """The initializer of rows in the core.

    Attributes:
        kind: `"constant"`, `"uniform"`, `"normal"` or `"truncated_normal"`.
        a: The constant, the lower bound, or the mean.
        b: The upper bound (exclusive), or the standard deviation (before truncation). 0 for a
            constant.
        seed: The seed that the Keras initializer was given, or `None`.
    """

    kind: str
    a: float
    b: float
    seed: int | None

    @property
    def bounds(self) -> tuple[str, float, float]:
        """The kind and the two numbers, without the seed."""
        return self.kind, self.a, self.b


def row_initializer(identifier: Any, dim: int) -> RowInitializer:
    """Finds the native initializer that draws what a Keras initializer draws.

    Keras takes the fans of `VarianceScaling` and its family from the shape of the whole table. A
    hash table has no number of rows, so a row counts as a square here: `fan_in = fan_out = dim`,
    and `input_axes` and `output_axes` have no effect. `glorot_uniform` is uniform within
    `sqrt(3 / dim)` on either side.

    Vectors have the distribution that Keras gives them, not its values: the values of Keras depend
    on the order in which they are drawn, the values here on the seed, the group and the key.

    Example:
    >>> row_initializer("uniform", 16)
    RowInitializer(kind='uniform', a=-0.05, b=0.05, seed=None)

    Args:
        identifier: A Keras initializer, its name, config or class. `"xavier"` and
            `"xavier_uniform"` are Glorot's uniform, `"xavier_normal"` is Glorot's normal.
        dim: The length of a row.

    Returns:
        A `RowInitializer`. Its seed is the `int` that the initializer was given. An initializer
        without a seed, or with a `keras.random.SeedGenerator`, has `None`.

    Raises:
        ValueError: If there is no such initializer; the message lists the supported ones.
    """
    if isinstance(identifier, str):
        identifier = _ALIASES.get(identifier, identifier)
    try:
        initializer = keras.initializers.get(identifier)
    except (KeyError, TypeError, ValueError) as error:
        raise _unsupported(identifier) from error
    for known, make in _TWINS.items():
        # A subclass that draws values of its own is not among the supported classes.
        if isinstance(initializer, known) and type(initializer).__call__ is known.__call__:
            return make(initializer, dim)
    raise _unsupported(identifier)


def derive_seed(name: str) -> int:
    """Derives the seed of a table from its name and from Keras' global seed.

    The seed is the same in every process that gives the table the same name and calls
    `keras.utils.set_random_seed` with the same number, or does not call it, which counts as the
    number 0.
    Keras keeps the global seed for each thread: call this from the thread that set it.

    Args:
        name: The name of the layer or table.

    Returns:
        An integer in [0, 2**63).
    """
    digest = hashlib.blake2b(f"{callers.global_seed()}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _constant(initializer: Any, dim: int) -> RowInitializer:
    value = np.asarray(initializer.value)
    if value.ndim != 0:
        raise ValueError(
            "Expected a Constant initializer of one number, for a row of any table. "
            f"Received: a value of shape {value.shape}."
        )
    return RowInitializer("constant", float(value), 0.0, None)


def _variance_scaling(initializer: Any, dim: int) -> RowInitializer:
    # With fan_in = fan_out = dim all three modes divide by dim.
    stddev = math.sqrt(initializer.scale / max(1.0, dim))
    if initializer.distribution == "truncated_normal":
        return _random("truncated_normal", 0.0, stddev / _TRUNCATED_STDDEV, initializer)
    if initializer.distribution == "untruncated_normal":
        return _random("normal", 0.0, stddev, initializer)
    limit = math.sqrt(3.0) * stddev
    return _random("uniform", -limit, limit, initializer)


def _random(kind: str, a: Any, b: Any, initializer: Any) -> RowInitializer:
    seed = seed_of(initializer)
    return RowInitializer(kind, float(a), float(b), seed if isinstance(seed, int) else None)


_TWINS: dict[type[Any], Callable[[Any, int], RowInitializer]] = {
    keras.initializers.Zeros: lambda *_: RowInitializer("constant", 0.0, 0.0, None),
    keras.initializers.Ones: lambda *_: RowInitializer("constant", 1.0, 0.0, None),
    keras.initializers.Constant: _constant,
    keras.initializers.RandomUniform: lambda i, _: _random("uniform", i.minval, i.maxval, i),
    keras.initializers.RandomNormal: lambda i, _: _random("normal", i.mean, i.stddev, i),
    keras.initializers.TruncatedNormal: lambda i, _: _random(
        "truncated_normal", i.mean, i.stddev, i
    ),
    # These include Glorot's, He's and Lecun's.
    keras.initializers.VarianceScaling: _variance_scaling,
}


def _unsupported(identifier: Any) -> ValueError:
    return ValueError(
        f"Expected an initializer that a row can be drawn from: {_SUPPORTED}. "
        f"Received: {shown(identifier)}."
    )
