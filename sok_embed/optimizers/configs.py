"""Returns configs of Keras optimizers whose learning rates Keras cannot serialize, too."""

from __future__ import annotations

from typing import Any

import keras


def config_of(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Returns the config of an optimizer; a learning rate that is a function or schedule stays one.

    Example:
    >>> config_of(keras.optimizers.SGD(0.5))["learning_rate"]
    0.5
    """
    rate: Any = optimizer._learning_rate
    if not callable(rate):
        return dict(optimizer.get_config())
    optimizer._learning_rate = None
    try:
        return {**optimizer.get_config(), "learning_rate": rate}
    finally:
        optimizer._learning_rate = rate
