"""Describes the speed of the workers and of the network between them, for the cost model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from sok_embed.arguments import is_number

MESSAGES = 3  # of a step, between two workers: keys, rows, gradients


@dataclass(frozen=True)
class Hardware:
    """The speed of machines and network, for the cost model of a plan.

    Example:
    >>> Hardware(bandwidth=12.5e9).step_seconds(sent=25e9, received=0, touched=0)
    2.00015

    Args:
        bandwidth: The bytes that a worker sends a second; it receives as many at the same time.
            Default: 1.25e9, a network of 10 Gbit/s.
        latency: The seconds that a message between two workers takes at least. Default: 50e-6.
        memory_bandwidth: The bytes of rows that a worker reads and writes a second, at random
            places in its memory. Default: 10e9.

    Raises:
        ValueError: For a number that is not finite, or not above 0; the latency may be 0.
    """

    bandwidth: float = 1.25e9
    latency: float = 50e-6
    memory_bandwidth: float = 10e9

    def __post_init__(self) -> None:
        """Checks the values."""
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_0 = field.name == "latency"
            if not is_number(value) or value < 0 or (value == 0 and not may_be_0):
                least = "at least 0" if may_be_0 else "above 0"
                raise ValueError(
                    f"Expected {field.name} to be a finite number {least}. Received: "
                    f"{field.name}={value!r}."
                )
            object.__setattr__(self, field.name, float(value))

    def step_seconds(self, sent: Any, received: Any, touched: Any) -> Any:
        """Returns how long a worker's part of a step takes, apart from the dense model.

        Args:
            sent: The bytes that the worker sends; a number, or an array for several workers.
            received: The bytes that the worker receives.
            touched: The bytes of rows that the worker reads and writes in its memory.

        Returns:
            Seconds: `3 * latency + max(sent, received) / bandwidth + touched / memory_bandwidth`.
        """
        # This is max(sent, received) for numbers and for arrays alike; the sums are exact.
        most = (sent + received + abs(sent - received)) / 2
        return MESSAGES * self.latency + most / self.bandwidth + touched / self.memory_bandwidth
