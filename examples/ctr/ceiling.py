"""Computes the best possible ranking of the labels of a source, where it is known."""

from __future__ import annotations

import numpy as np

from ctr.auc import exact_auc
from ctr.batches import Source
from ctr.generated import Generated

_BLOCK = 65_536


def best_possible_auc(source: Source) -> float | None:
    """Returns the test AUC of the logits that generated labels come from; `None` for others."""
    if not isinstance(source, Generated):
        return None
    scores, labels = [], []
    for batch in source.batches("test", _BLOCK):
        scores.append(source.true_logits(batch))
        labels.append(batch.labels)
    return exact_auc(np.concatenate(scores), np.concatenate(labels))
