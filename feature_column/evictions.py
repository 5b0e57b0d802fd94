"""DeepRec's evictions of rows."""

from __future__ import annotations

from dataclasses import dataclass

from sok_embed.arguments import check_integer
from sok_embed.eviction import MaxAge, MinNorm


@dataclass(frozen=True)
class GlobalStepEvict:
    """A key whose row was not updated for `steps_to_live` steps goes back to its static row.

    DeepRec looks for such rows when it saves a checkpoint; here that happens during training, every
    `steps_to_live // 16 + 1` steps.

    Example:
    >>> GlobalStepEvict(steps_to_live=1000).eviction()
    MaxAge(seconds=None, steps=1000)

    Attributes:
        steps_to_live: The number of steps, at least 1. Only steps with gradients for the table
            count.

    Raises:
        ValueError: For anything else.
    """

    steps_to_live: int | None = None

    def __post_init__(self) -> None:
        steps = check_integer("GlobalStepEvict's steps_to_live", self.steps_to_live, 1, 2**32)
        object.__setattr__(self, "steps_to_live", steps)

    def eviction(self) -> MaxAge:
        """Returns the eviction of `sok_embed.eviction` that does this."""
        return MaxAge(steps=self.steps_to_live)

    @property
    def every(self) -> int:
        """The number of steps in which all rows are checked once."""
        assert self.steps_to_live is not None
        return self.steps_to_live // 16 + 1


@dataclass(frozen=True)
class L2WeightEvict:
    """A key whose row is nearly zero goes back to its static row.

    Example:
    >>> L2WeightEvict(l2_weight_threshold=1e-3).eviction()
    MinNorm(l2=0.001, every=100)

    Attributes:
        l2_weight_threshold: Rows with a smaller Euclidean norm are removed. Above 0.
        every: The number of steps in which all rows are checked once.

    Raises:
        ValueError: For a value out of its range.
    """

    l2_weight_threshold: float = -1.0
    every: int = 100

    def __post_init__(self) -> None:
        if not self.l2_weight_threshold > 0:
            raise ValueError(
                "L2WeightEvict: expected l2_weight_threshold above 0. Received: "
                f"{self.l2_weight_threshold!r}, with which no row would ever be removed."
            )
        object.__setattr__(self, "every", check_integer("L2WeightEvict's every", self.every, 1))

    def eviction(self) -> MinNorm:
        """Returns the eviction of `sok_embed.eviction` that does this."""
        return MinNorm(float(self.l2_weight_threshold), min(self.every, 2**32 - 1))
