"""Finds the optimizers that take a step faster with a sparse gradient than with a dense one."""

from __future__ import annotations

import keras


def sparse_below(optimizer: keras.optimizers.Optimizer | None) -> dict[str, float]:
    """Returns the touched share of a weight below which a step with slices is faster.

    Measured by `benchmarks/hashed_bag.py --sparse-gradient`. All but the simplest optimizers of
    Keras change every slot in each step, and make slices dense several times meanwhile.
    """
    if optimizer is None:
        return {}
    moves_all = optimizer.weight_decay or optimizer.use_ema
    if moves_all or optimizer.gradient_accumulation_steps:
        return {"sparse_below": 0.0}
    if isinstance(optimizer, keras.optimizers.SGD) and not optimizer.momentum:
        return {"sparse_below": 1 / 32}
    if isinstance(optimizer, keras.optimizers.Adagrad):
        return {"sparse_below": 1 / 128}
    return {"sparse_below": 0.0}
