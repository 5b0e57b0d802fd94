"""Computes the exact area under the ROC curve."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def exact_auc(scores: NDArray[np.floating], labels: NDArray[np.floating]) -> float:
    """Returns the probability that a positive row scores above a negative one, ties counting half.

    Mann and Whitney's U from average ranks. `nan` when one of the classes is missing.

    Example:
        >>> exact_auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]))
        0.875
    """
    positive = labels > 0.5
    positives = int(positive.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return float("nan")
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[group]
    wins = ranks[positive].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))
