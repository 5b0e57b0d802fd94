"""Spares tests four things that take most of the time of a small model's first step.

Keras builds an optimizer within the function that it traces, so that TensorFlow traces the function
a second time; TensorFlow rewrites each graph before it runs, and notes the lines of Python that
made each op; and Keras traces several functions to cut arrays into batches. None of that is what
most tests are about: `make test` has optimizers built before the first step of a `fit`, graphs run
as they were traced, ops without lines, and dense arrays that are not shuffled cut into the same
batches by an op. `make test-all`, by `SOK_TEST_FRESH=1`, leaves everything as users have it.
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
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
    from tensorflow.python.util import tf_stack

    spared = spared and not ALL_TRACES
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": spared})
    for place, name, wrapper in (
        (TensorFlowTrainer, "make_train_function", _with_optimizer),
        (ArrayDataAdapter, "get_tf_dataset", _without_functions),
        (tf_stack, "extract_stack", _of_one_place),
    ):
        original = getattr(place, name)
        original = getattr(original, "__wrapped__", original)
        setattr(place, name, wrapper(original) if spared else original)


def _with_optimizer(make_train_function: Any) -> Any:
    @functools.wraps(make_train_function)
    def make(self: Any, force: bool = False) -> Any:
        optimizer = self.optimizer
        if self.built and optimizer is not None and not optimizer.built and not self.run_eagerly:
            with self.distribute_strategy.scope():
                optimizer.build(self.trainable_variables)
        return make_train_function(self, force)

    return make


def _without_functions(get_tf_dataset: Any) -> Any:
    @functools.wraps(get_tf_dataset)
    def get(self: Any) -> Any:
        import keras
        import tensorflow as tf
        from keras.src.trainers.data_adapters.array_slicing import convert_to_sliceable

        inputs = convert_to_sliceable(self._inputs, target_backend="tensorflow")
        if self._shuffle or not all(map(_is_dense, keras.tree.flatten(inputs))):
            return get_tf_dataset(self)
        dataset = tf.data.Dataset.from_tensor_slices(keras.tree.lists_to_tuples(inputs))
        dataset = dataset.batch(self._batch_size, drop_remainder=not self._partial_batch_size)
        options = tf.data.Options()
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)

    return get


def _is_dense(array: Any) -> bool:
    import numpy as np
    import tensorflow as tf

    return isinstance(array, (np.ndarray, tf.Tensor))


def _of_one_place(extract_stack: Any) -> Any:
    place = extract_stack()

    @functools.wraps(extract_stack)
    def extract(stacklevel: int = 1) -> Any:
        return place

    return extract
