"""Has `fit` report losses and metrics by the weights of examples, not by those of training.

`sok_embed.data.join` weights examples so that gradients count all examples of a step alike. A loss
that is reported must not have that factor: it is the mean over examples, and the factor depends on
how many examples other workers have in the step.
"""

from __future__ import annotations

import contextvars
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.trainers.compile_utils import CompileMetrics
from keras.src.trainers.data_adapters import data_adapter_utils

from sok_embed.keras_bridge import callers
from sok_embed.keras_bridge.graphs import is_in_reach
from sok_embed.keras_bridge.replaced_functions import replace_function

_MARK = "_sok_embed_training_factors"
_PARTS = 4  # x, y, sample_weight, factors; a batch of Keras has three at most

# The factor of the step that is running or traced.
_factor: contextvars.ContextVar[tf.Tensor | None] = contextvars.ContextVar("factor", default=None)


def offer_factors(dataset: tf.data.Dataset, make: Callable[[], tf.data.Dataset]) -> None:
    """Has `fit` on `dataset` report by the weights of the examples themselves.

    Args:
        dataset: The dataset of batches `(x, y, sample_weight)`, whose weights have a factor.
        make: A function that makes the same dataset with a fourth part, the factors of the
            examples, float32 `[B]`, which are equal in a batch.
    """
    _replace_functions()
    setattr(dataset, _MARK, make)


def dataset_with_factors(model: keras.Model, data: Any) -> Any:
    """Returns the dataset of four parts if `data` has one that `model` can train on, else `data`.

    Batches of four parts are for the functions that `model.make_train_function` and
    `make_test_function` make next.
    """
    if not isinstance(data, tf.data.Dataset):
        return data
    make = getattr(data, _MARK, None)
    own: Any = type(model)
    if make is not None and own.make_train_function is TensorFlowTrainer.make_train_function:
        # Functions that were made before batches could have four parts are made again.
        if not hasattr(model.train_function, _MARK):
            model.train_function = None
        if not hasattr(model.test_function, _MARK):
            model.test_function = None
        return make()
    if make is not None or any(hasattr(each, _MARK) for each in _inputs_of(data)):
        received = "one that was changed after it" if make is None else "a make_train_function"
        warnings.warn(
            "Expected the dataset of sok_embed.data.join itself, and Keras' make_train_function. "
            f"Received: {received} of your own, so the loss and weighted metrics that fit reports "
            "have the weights of training in them. Join the dataset after everything else that is "
            "done to it, or watch metrics without weights.",
            stacklevel=3,
        )
    return data


def _inputs_of(dataset: Any) -> Iterator[Any]:
    inputs = getattr(dataset, "_inputs", None)
    for each in inputs() if inputs is not None else ():
        yield each
        yield from _inputs_of(each)


def _replace_functions() -> None:
    # The first dataset may be joined in the arguments of a call of `fit`, so `fit` itself stays.
    replace_function(TFEpochIterator, "__init__", _make_iterator)
    replace_function(TensorFlowTrainer, "_make_function", _make_function)
    replace_function(data_adapter_utils, "unpack_x_y_sample_weight", _unpack)
    replace_function(keras.losses.Loss, "__call__", _loss)
    replace_function(CompileMetrics, "update_state", _update_state)


def _make_iterator(call: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    model = callers.model_of_iterator()
    if model is not None:
        kwargs["x"] = dataset_with_factors(model, kwargs["x"])
    call(self, *args, **kwargs)


def _make_function(call: Callable[..., Any], self: Any, step: Callable[[Any], Any]) -> Any:
    @functools.wraps(step)
    def step_of_parts(data: Any) -> Any:
        if not isinstance(data, tuple) or len(data) != _PARTS:
            return step(data)
        # 0 in a batch without examples, as in its weights.
        token = _factor.set(tf.reduce_max(tf.pad(data[3], [[0, 1]])))
        try:
            return step(data[:3])
        finally:
            _factor.reset(token)

    function = call(self, step_of_parts)
    setattr(function, _MARK, True)
    return function


def _unpack(call: Callable[..., Any], data: Any) -> Any:
    is_ours = isinstance(data, tuple) and len(data) == _PARTS
    return call(data[:3] if is_ours else data)


def _loss(
    call: Callable[..., Any], self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    loss = call(self, y_true, y_pred, sample_weight)
    factor = None if sample_weight is None else _factor_here()
    # Weights are divided out again in such a mean, and factors with them.
    if factor is None or self.reduction == "mean_with_sample_weight":
        return loss
    return _divided(loss, factor)


@tf.custom_gradient
def _divided(loss: tf.Tensor, factor: tf.Tensor) -> Any:
    """Returns the loss by its factor; the gradient is that of the loss with its factor."""

    def gradient(upstream: tf.Tensor) -> Any:
        return upstream, None

    return tf.math.divide_no_nan(loss, tf.cast(factor, loss.dtype)), gradient


def _update_state(
    call: Callable[..., Any], self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    factor = None if sample_weight is None else _factor_here()
    if factor is not None:
        sample_weight = tf.nest.map_structure(
            lambda each: tf.math.divide_no_nan(each, tf.cast(factor, each.dtype)), sample_weight
        )
    return call(self, y_true, y_pred, sample_weight)


def _factor_here() -> tf.Tensor | None:
    """Returns the step's factor, unless a `tf.function` inside of the step is traced."""
    factor = _factor.get()
    return factor if factor is not None and is_in_reach(factor) else None
