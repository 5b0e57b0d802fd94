"""Averages dense gradients over workers inside of a Keras optimizer."""

from __future__ import annotations

import warnings
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators, tf_ops
from sok_embed.keras_bridge import callers
from sok_embed.keras_bridge.anchors import is_anchor
from sok_embed.keras_bridge.batch_normalization import prepare_batch_normalization
from sok_embed.optimizers.row_rules import config_of
from sok_embed.training import strategies
from sok_embed.training.moving_statistics import MovingStatistics
from sok_embed.training.same_model import check_same_step
from sok_embed.training.sparse_gradients import average_slices

# The most bytes of gradients that are sent in one message.
_BUCKET_BYTES = 25 * 2**20
# Norms are multiplied by each of these before they are squared, so that one of the squares fits
# into a float32.
_SCALES = (2.0**64, 1.0, 2.0**-64)
# The variables of the running `apply` on this thread. Each replica of a strategy has a thread.
_applied_to: ContextVar[Any] = ContextVar("applied_to")

__all__ = ["DistributedOptimizer", "average_gradients", "averages_gradients"]


def DistributedOptimizer(optimizer: Any) -> keras.optimizers.Optimizer:  # noqa: N802
    """Makes a Keras optimizer that averages gradients over the workers before it applies them.

    Gradients of table rows do not pass through it: the backward pass has sent them to the owners of
    the rows, which sum them and divide by the number of workers. So n workers with batches of b
    train like one worker with a batch of n * b. The norm of these gradients does pass through it,
    for `clipnorm` and `global_clipnorm`.

    The moving statistics of `keras.layers.BatchNormalization` are averaged along with the gradients
    of the layer's gamma or beta, weighted by the examples of each worker's batch, so that they are
    the same on all workers after each step. With `synchronized=True` such a layer normalizes by the
    examples of all workers. Other state that training updates stays that of each worker.

    With one worker it changes nothing. A model that is saved with it loads as one with the plain
    optimizer.

    Example:
    >>> optimizer = DistributedOptimizer(keras.optimizers.Adam(1e-3))
    >>> optimizer.name
    'adam'

    Args:
        optimizer: A Keras optimizer that has not been used yet, or its name.

    Returns:
        An optimizer of the same class, configuration and name.

    Raises:
        ValueError: If the optimizer has been built already: its state would be lost. For a
            `LossScaleOptimizer` around one that accumulates gradients and clips them by a norm.
            Under a `tf.distribute.MultiWorkerMirroredStrategy` of several workers, which sums
            gradients over them by itself.
    """
    _refuse_summed()
    prepare_batch_normalization()
    optimizer = keras.optimizers.get(optimizer)
    if optimizer.built:
        raise ValueError(
            f"Expected an optimizer that no model has used yet. Received: {optimizer.name}, which "
            "has variables. Wrap it before `model.compile`."
        )
    base = type(optimizer)
    if averages_gradients(optimizer):
        return optimizer
    scales = issubclass(base, keras.optimizers.LossScaleOptimizer)
    if scales:
        _check_scaled(optimizer.inner_optimizer)
    # Keras serializes what `__class__` says: a saved model names the plain optimizer, by the name
    # that it is registered under.
    averaging: Any = type(
        base.__name__,
        (_AveragesScaledGradients if scales else _AveragesGradients, base),
        {
            "__module__": base.__module__,
            "__class__": property(lambda self: base),
            "_updates_its_own_way": base.__module__.partition(".")[0] not in ("keras", "sok_embed"),
        },
    )
    made = averaging.from_config(config_of(optimizer))
    # No config has the variables of `exclude_from_weight_decay`.
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(optimizer, name):
            setattr(made, name, getattr(optimizer, name))
    return made


class _AveragesGradients:
    """A base class before an optimizer class, which averages the gradients that are applied.

    Gradients are averaged after they were accumulated and before they are clipped, so that norms
    are those of the whole batch.
    """

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        check_same_step(self, trainable_variables, averages=True)
        token = _applied_to.set(trainable_variables)
        try:
            super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]
        finally:
            _applied_to.reset(token)

    def _clip_gradients(self, grads: Any) -> Any:
        clips = self.clipnorm or self.global_clipnorm  # type: ignore[attr-defined]
        # A class of another package may use norms in its own way.
        others = type(self)._updates_its_own_way  # type: ignore[attr-defined]
        averages = _averaged(grads, _applied_to.get(), bool(clips or others))
        return super()._clip_gradients(averages)  # type: ignore[misc]


class _AveragesScaledGradients:
    """A base class before a `LossScaleOptimizer`: all workers see an overflow of one."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        variables = trainable_variables or self._trainable_variables  # type: ignore[attr-defined]
        check_same_step(self, variables, averages=True)
        super().apply(average_gradients(grads, variables), trainable_variables)  # type: ignore[misc]


def averages_gradients(optimizer: Any) -> bool:
    """Returns whether `DistributedOptimizer` made the optimizer."""
    return issubclass(type(optimizer), (_AveragesGradients, _AveragesScaledGradients))


def check_trained_together(optimizer: Any, table: str, warns: bool) -> None:
    """Raises if the step of an optimizer would train several workers apart.

    Args:
        optimizer: The optimizer, of Keras or of `tf.compat.v1.train`, that applies the step.
        table: The name of a table that it trains, for messages.
        warns: True if a warning has not been given yet.

    Raises:
        ValueError: If each worker scales the loss and decides by itself which steps to skip: the
            others would wait forever for one that skips a step. On all workers if the step would
            train otherwise on one of them, as `check_same_step` raises it.

    Warns:
        UserWarning: If dense gradients are not averaged.
    """
    is_keras = isinstance(optimizer, keras.optimizers.Optimizer)
    is_summed = strategies.workers_summed() > 1
    scaling = callers.loss_scaling_optimizer()
    if scaling is not None and not averages_gradients(scaling):
        wrapped = "sok_embed.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
        if is_summed:
            raise ValueError(
                f"Table '{table}': expected no LossScaleOptimizer under a "
                "MultiWorkerMirroredStrategy, by which each worker looks for overflows in its own "
                "gradients, whereas all must skip the same steps. Received: a LossScaleOptimizer. "
                "Use mixed_bfloat16, which needs no loss scaling, or start the workers with "
                f"`sok-embed run` and use {wrapped} without that strategy."
            )
        raise ValueError(
            f"Table '{table}': expected a LossScaleOptimizer that averages gradients before it "
            "looks for overflows, since all workers must skip the same steps. Received: a "
            f"LossScaleOptimizer that does not. Compile the model with {wrapped}."
        )
    averages = averages_gradients(optimizer)
    if averages:
        return  # it has compared the workers before
    variables = optimizer._trainable_variables if is_keras else []
    check_same_step(optimizer, variables, averages=is_summed)
    if is_summed or not warns or (not is_keras and callers.v1_optimizer_averages()):
        return
    name = optimizer.name if is_keras else optimizer.get_name()
    wrapper = "sok_embed" if is_keras else "horovod.tensorflow"
    warnings.warn(
        f"Table '{table}' is shared by {communicators.size()} workers, and the optimizer '{name}' "
        "does not average dense gradients over them, so that their dense weights drift apart. Wrap "
        f"it in {wrapper}.DistributedOptimizer.",
        stacklevel=2,
    )


def average_gradients(gradients: Any, variables: Any = None) -> list[Any]:
    """Averages gradients over all workers. Collective.

    Tensors of one type travel together, in messages of up to 25 MiB, the size of the buckets of
    PyTorch's DistributedDataParallel. The indices of all slices take one message, and their rows
    another.

    Args:
        gradients: Tensors, `tf.IndexedSlices` or `None`, the same on every worker but for their
            values and, in slices, their number.
        variables: The variables of the gradients. The gradient of an anchor still names the
            deposits of this worker, and gets the norm of the average of all workers' rows.

    Returns:
        The averages, in the same order and of the same kinds. With more than one worker the indices
        of slices are distinct: rules that square a gradient must square the sum.

    Raises:
        ValueError: Under a `tf.distribute.MultiWorkerMirroredStrategy` of several workers.
    """
    return _averaged(gradients, variables, needs_norms=True)


def _averaged(gradients: Any, variables: Any, needs_norms: bool) -> list[Any]:
    """Averages as `average_gradients` does, and computes norms of anchors if they are needed.

    Without norms, dense gradients do not wait for the gradients of rows. A table whose own
    optimizer clips by norm needs the norm of its own gradients.
    """
    _refuse_summed()
    communicator = communicators.current()
    averages = list(gradients)
    if communicator.size == 1:
        return averages
    dense, squares, sparse = {}, {}, {}
    # Workers match tensors by the names of ops, so these must not depend on Keras' scopes, which
    # have numbers that count how often a worker has traced.
    with tf.name_scope("sok_embed.gradients/"):
        for i, gradient in enumerate(averages):
            if gradient is None:
                continue
            if variables is not None and is_anchor(variables[i]):
                if needs_norms or getattr(variables[i].constraint, "clips_by_norm", False):
                    squares[i] = _square(gradient)
            elif isinstance(gradient, tf.IndexedSlices):
                sparse[i] = gradient
            else:
                dense[i] = tf.convert_to_tensor(gradient)
        statistics = MovingStatistics(variables or ())
        moved = dict(enumerate(statistics.tensors, len(averages)))
        reduced = _reduced({**dense, **squares, **moved}, communicator)
        statistics.assign(reduced[i] for i in moved)
        for i, average in average_slices(sparse, communicator).items():
            averages[i] = average
        for i in dense:
            averages[i] = reduced[i]
        for i in squares:
            averages[i] = _with_norm(averages[i], reduced[i], communicator.size)
    return averages


def _reduced(
    tensors: dict[int, tf.Tensor], communicator: communicators.Communicator
) -> dict[int, tf.Tensor]:
    """Averages tensors over all workers, in as few messages as their types and sizes allow."""
    buckets: list[list[int]] = []
    open_buckets: dict[tf.DType, int] = {}  # the last bucket of each type
    filled: dict[int, int] = {}
    for i, tensor in tensors.items():
        elements = tensor.shape.num_elements()
        at = open_buckets.get(tensor.dtype)
        # A tensor of unknown length may be long.
        size = _BUCKET_BYTES if elements is None else elements * tensor.dtype.size
        if at is None or filled[at] + size > _BUCKET_BYTES:
            at = open_buckets[tensor.dtype] = len(buckets)
            buckets.append([])
            filled[at] = 0
        buckets[at].append(i)
        filled[at] += size
    reduced: dict[int, tf.Tensor] = {}
    for number, bucket in enumerate(buckets):
        name = f"sok_embed.gradients.{number}"
        if len(bucket) == 1:
            (i,) = bucket
            reduced[i] = communicator.all_reduce(tensors[i], name, average=True)
            continue
        joined = tf.concat([tf.reshape(tensors[i], [-1]) for i in bucket], 0)
        average = communicator.all_reduce(joined, name, average=True)
        lengths = [tf.size(tensors[i]) for i in bucket]
        for i, part in zip(bucket, tf.split(average, lengths, num=len(bucket)), strict=True):
            reduced[i] = tf.reshape(part, tf.shape(tensors[i]))
            reduced[i].set_shape(tensors[i].shape)
    return reduced


def _square(gradient: tf.Tensor) -> tf.Tensor:
    """Returns the squares of the norm of this worker's rows, times each of `_SCALES`.

    Args:
        gradient: The gradient of an anchor, float32 `[ANCHOR_SIZE]`.

    Returns:
        float32 `[len(_SCALES)]`; infinite where a square is more than a float32 holds.
    """
    coordinates = gradient[tf.newaxis, -tf_ops.ANCHOR_COORDINATES :]
    return tf.reduce_sum(tf.square(coordinates * tf.constant(_SCALES)[:, tf.newaxis]), 1)


def _with_norm(gradient: tf.Tensor, mean_squares: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the gradient of an anchor with the norm of the average over workers.

    Each row is on one worker, or each worker with the row counts a part of it. So squares of norms
    add up. `mean_squares` are the averages of what `_square` returns on each worker.
    """
    marks = gradient[: -tf_ops.ANCHOR_COORDINATES]
    squares = mean_squares * size
    # The largest scale whose square fits keeps the digits of small norms. If none fits, the norm is
    # not finite.
    norm = tf.sqrt(squares[-1]) / (size * _SCALES[-1])
    for i in reversed(range(len(_SCALES) - 1)):
        fits = tf.math.is_finite(squares[i])
        norm = tf.where(fits, tf.sqrt(squares[i]) / size / _SCALES[i], norm)
    rest = tf.zeros([tf_ops.ANCHOR_COORDINATES - 1])
    return tf.concat([marks, norm[tf.newaxis], rest], 0)


def _refuse_summed() -> None:
    """Raises if the strategy in scope sums the gradients that would be averaged here."""
    workers = strategies.workers_summed()
    if workers > 1:
        raise ValueError(
            "Expected the optimizer itself under a MultiWorkerMirroredStrategy, which sums "
            f"gradients over its {workers} workers. Received: sok_embed.DistributedOptimizer, "
            "which averages them over the same workers. Take the optimizer as it is, and divide "
            "the loss by the examples of all workers, as tf.nn.compute_average_loss does."
        )


def _check_scaled(inner: keras.optimizers.Optimizer) -> None:
    """Raises if norms of accumulated gradients would be needed, which are sums of averages."""
    if inner.gradient_accumulation_steps and (inner.clipnorm or inner.global_clipnorm):
        raise ValueError(
            "Expected a LossScaleOptimizer around an optimizer that accumulates gradients or clips "
            f"them by a norm. Received: both, in {inner.name}. Leave out one of them, or use "
            "mixed_bfloat16, which needs no loss scaling."
        )
