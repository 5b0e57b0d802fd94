"""Shows the progress and the figures of runs with several seeds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import mean, stdev


def note(line: str) -> None:
    """Progress, beside the output."""
    print(line, file=sys.stderr, flush=True)


def spread(values: Sequence[float], sign: str = "") -> str:
    """Returns mean and standard deviation over the seeds as text. `sign="+"` writes a plus too."""
    deviation = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    return f"{mean(values):{sign}.4f}{deviation}"
