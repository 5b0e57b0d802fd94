"""Spares tests two things that take most of the time of a small model's first step.

Keras builds an optimizer within the function that it traces, so that TensorFlow traces the function
a second time; and TensorFlow rewrites each graph before it runs. Neither is what most tests are
about: `make test` has optimizers built before the first step of a `fit`, and graphs run as they
were traced. `make test-all`, by `SOK_TEST_FRESH=1`, leaves everything as users have it.
"""

from __future__ import annotations

import functools
import os
from typing import Any

ALL_TRACES = os.environ.get("SOK_TEST_FRESH", "0") != "0"


def spare_traces(spared: bool) -> None:
    """Has models of this process, from now on, train with fewer traces or as users have it."""
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    spared = spared and not ALL_TRACES
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": spared})
    original = TensorFlowTrainer.make_train_function
    original = getattr(original, "__wrapped__", original)
    TensorFlowTrainer.make_train_function = _with_optimizer(original) if spared else original


def _with_optimizer(make_train_function: Any) -> Any:
    @functools.wraps(make_train_function)
    def make(self: Any, force: bool = False) -> Any:
        optimizer = self.optimizer
        if self.built and optimizer is not None and not optimizer.built and not self.run_eagerly:
            with self.distribute_strategy.scope():
                optimizer.build(self.trainable_variables)
        return make_train_function(self, force)

    return make
