"""DeepRec's filters of keys, as admissions of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from sok_embed.admission import Admission, CountingBloomAdmission, FrequencyAdmission
from sok_embed.arguments import check_integer

# Counters of a Bloom filter stop at their largest value, so 16 bits are enough for wider types.
_COUNTER_BITS = {tf.uint8: 8, tf.uint16: 16, tf.uint32: 16, tf.uint64: 16}


@dataclass(frozen=True)
class CounterFilter:
    """A key gets a row of its own when it has been asked for `filter_freq` times.

    Example:
    >>> CounterFilter(filter_freq=3).admission()
    FrequencyAdmission(min_count=3)

    Attributes:
        filter_freq: The number of times. With 0 and 1 a key gets its row at once.

    Raises:
        ValueError: For anything but an integer in `[0, 2**32)`.
    """

    filter_freq: int = 0

    def __post_init__(self) -> None:
        freq = check_integer(f"{type(self).__name__}'s filter_freq", self.filter_freq, 0, 2**32)
        object.__setattr__(self, "filter_freq", freq)

    def admission(self) -> Admission | None:
        """Returns the admission of `sok_embed.admission` that does this."""
        return FrequencyAdmission(self.filter_freq) if self.filter_freq > 1 else None


@dataclass(frozen=True)
class CBFFilter:
    """A `CounterFilter` with counts in a counting Bloom filter, which has a fixed size.

    Example:
    >>> CBFFilter(filter_freq=3, max_element_size=1000, false_positive_probability=0.01).admission()
    CountingBloomAdmission(min_count=3, capacity=1000, false_positive_rate=0.01, counter_bits=16)

    Attributes:
        filter_freq: The number of times that a key is asked for until it gets a row, below 2 to the
            power of the counters' bits.
        max_element_size: The number of distinct keys that the filter is made for.
        false_positive_probability: The share of rarer keys that get a row too early, in (0, 1).
        counter_type: `tf.uint8` or `tf.uint16`. The wider `tf.uint32` and `tf.uint64` are
            `tf.uint16` here.

    Raises:
        ValueError: For a value out of its range.
    """

    filter_freq: int = 0
    max_element_size: int = 0
    false_positive_probability: float = -1.0
    counter_type: Any = tf.uint64

    def __post_init__(self) -> None:
        counter_type = tf.as_dtype(self.counter_type)
        if counter_type not in _COUNTER_BITS:
            raise ValueError(
                "CBFFilter: expected counter_type to be tf.uint8, tf.uint16, tf.uint32 or "
                f"tf.uint64. Received: {counter_type.name}."
            )
        object.__setattr__(self, "counter_type", counter_type)
        bits = _COUNTER_BITS[counter_type]
        freq = check_integer("CBFFilter's filter_freq", self.filter_freq, 1, 2**bits)
        size = check_integer("CBFFilter's max_element_size", self.max_element_size, 1)
        object.__setattr__(self, "filter_freq", freq)
        object.__setattr__(self, "max_element_size", size)
        if not 0 < self.false_positive_probability < 1:
            raise ValueError(
                "CBFFilter: expected false_positive_probability in (0, 1). Received: "
                f"{self.false_positive_probability!r}."
            )

    def admission(self) -> Admission:
        """Returns the admission of `sok_embed.admission` that does this."""
        return CountingBloomAdmission(
            self.filter_freq,
            self.max_element_size,
            self.false_positive_probability,
            _COUNTER_BITS[self.counter_type],
        )
