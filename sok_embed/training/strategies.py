"""Checks the strategy of `tf.distribute` that tables are trained under, and its workers.

The replicas of a MirroredStrategy are in one process and share its tables. The replicas of a
MultiWorkerMirroredStrategy are in several processes, which share the rows as workers of any
launcher do; but the strategy sums gradients over the workers. The gradient of an anchor names the
deposits of this process, and a sum of the gradients of several workers would name none. So the
anchor of such a table has a part for each worker, one after the other. A worker's deposits are
named in its own part, and the sum over workers has all parts side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators, tf_ops
from sok_embed.keras_bridge.layer_with_rows import LayerWithRows
from sok_embed.keras_bridge.private_state import all_layers
from sok_embed.keras_bridge.replaced_functions import replace_function

_ONE_PROCESS = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)
# Keras 3.15 cannot run these under a MultiWorkerMirroredStrategy of several workers.
_LOOPS_OF_KERAS = ("fit", "evaluate", "train_on_batch", "test_on_batch")

# Sums of the same float32 numbers in different orders differ relatively by less than this.
_TOLERANCE = 1e-5

LOOPS_THAT_WORK = (
    "Write a loop of your own with strategy.run, or start the workers with `sok-embed run` and use "
    "fit without a strategy and with sok_embed.DistributedOptimizer; see the guide on distribution."
)


def workers_summed() -> int:
    """Returns over how many workers the strategy in scope sums gradients; 1 without one."""
    return _place(tf.distribute.get_strategy())[1] if tf.distribute.has_strategy() else 1


def check_strategy(host: str) -> None:
    """Raises for a strategy in scope under which tables cannot be trained.

    Raises:
        ValueError: For strategies in which replicas do not update variables together; for a
            MultiWorkerMirroredStrategy with other workers than `sok_embed.init` has.
    """
    if not tf.distribute.has_strategy():
        return
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        _check_place(host, _place(strategy))
        _check_loops_of_keras()
    elif not isinstance(strategy, _ONE_PROCESS):
        raise ValueError(
            f"{host}: expected no tf.distribute strategy, or a MirroredStrategy, OneDeviceStrategy "
            "or MultiWorkerMirroredStrategy, whose replicas make every step together. Received: "
            f"{type(strategy).__name__}. Use a MultiWorkerMirroredStrategy for several workers, or "
            "none with `sok-embed run` and sok_embed.DistributedOptimizer; see the guide on "
            "distribution."
        )


def parts_of(anchor: tf.Tensor | tf.Variable) -> int:
    """Returns how many workers have a part of an anchor, or of its gradient."""
    elements = tf.TensorShape(anchor.shape).num_elements()
    return 1 if elements is None else max(1, elements // tf_ops.ANCHOR_SIZE)


def own_part(anchor: tf.Tensor, worker: int) -> tf.Tensor:
    """Returns the part of a worker, float32 `[ANCHOR_SIZE]`. Differentiable.

    `anchor` is float32 `[parts * ANCHOR_SIZE]`, an anchor or its gradient.
    """
    part = anchor[worker * tf_ops.ANCHOR_SIZE : (worker + 1) * tf_ops.ANCHOR_SIZE]
    part.set_shape([tf_ops.ANCHOR_SIZE])
    return part


def _summed_alike(gradient: tf.Tensor, parts: int) -> tf.Tensor:
    """Returns whether a sum has the gradients of all workers, each with the same factor.

    A call of a layer is collective, so all workers have made as many deposits. Their marks depend
    on the norms of their own gradients, but differ only by powers of `2**ANCHOR_MARK_STEP`. Without
    these powers the marks of all workers have the same sum.

    Args:
        gradient: float32 `[parts * ANCHOR_SIZE]`, of an anchor.
        parts: The number of workers that have one.

    Returns:
        A bool scalar. Numbers that are not finite count as alike: the commit checks them.
    """
    places = (tf_ops.ANCHOR_SIZE - tf_ops.ANCHOR_COORDINATES) // 2
    marks = tf.reshape(gradient, [parts, tf_ops.ANCHOR_SIZE])[:, :places]
    marks = tf.cast(marks, tf.float64)
    sizes = tf.abs(marks) / tf.reduce_max(tf.abs(marks))
    present = sizes > 0
    digits = tf.math.log(tf.where(present, sizes, 1.0)) / tf.math.log(tf.constant(2.0, tf.float64))
    steps = tf.round(digits / tf_ops.ANCHOR_MARK_STEP) * tf_ops.ANCHOR_MARK_STEP
    by_worker = tf.where(
        present, tf.sign(marks) * sizes * tf.pow(tf.cast(2.0, tf.float64), -steps), 0.0
    )
    sums = tf.reduce_sum(by_worker, 1)
    off = tf.abs(sums - sums[0])
    is_finite = tf.reduce_all(tf.math.is_finite(marks))
    return tf.reduce_all(off <= _TOLERANCE * tf.abs(sums[0])) | ~is_finite


def check_parts(anchor: Any, optimizer: Any, table: str) -> int:
    """Returns how many workers have a part of an anchor that is about to be trained.

    Raises:
        RuntimeError: If the strategy in scope sums gradients over other workers.
        ValueError: For an optimizer that would clip gradients of rows and of dense weights by
            different norms.
    """
    parts, workers = parts_of(anchor), workers_summed()
    if parts != workers:
        raise RuntimeError(
            f"Table '{table}': expected to be trained under the strategy that its layer was built "
            f"under, of {parts} workers. Received: a step under a strategy of {workers} workers. "
            "Call `strategy.run` of the strategy whose scope the model was made in."
        )
    if parts > 1 and isinstance(optimizer, keras.optimizers.Optimizer):
        if optimizer.clipnorm or optimizer.global_clipnorm:
            raise ValueError(
                f"Table '{table}': expected an optimizer without clipnorm and global_clipnorm "
                "under a MultiWorkerMirroredStrategy, by which Keras clips the gradients of each "
                "worker on its own, while gradients of rows are already summed. Received: an "
                "optimizer with one of these options. Leave them out, or start the workers with "
                "`sok-embed run` and clip by sok_embed.DistributedOptimizer, without that "
                "strategy."
            )
    return parts


def own_gradient(gradient: tf.Tensor | None, parts: int, table: str) -> tf.Tensor:
    """Returns this worker's part of an anchor's gradient that a strategy summed over workers.

    The gradient is float32 `[parts * ANCHOR_SIZE]`; `None`: it did not arrive.

    Raises:
        ValueError: For no gradient, and in eager execution for one of workers that have multiplied
            theirs by different factors.
        tf.errors.InvalidArgumentError: For such a gradient in a graph, when it runs.
    """
    error = (
        f"Table '{table}': expected gradients that the MultiWorkerMirroredStrategy has summed over "
        f"its {parts} workers, each of which has multiplied them by the same factor. Received: "
        "gradients with different factors. Call the optimizer's `apply` within `strategy.run`, "
        "scale the loss instead of gradients, and clip none of them before they are summed."
    )
    if gradient is None:
        raise ValueError(error)
    alike = _summed_alike(gradient, parts)
    if tf.executing_eagerly() and not alike:
        raise ValueError(error)
    with tf.control_dependencies([tf.debugging.Assert(alike, [error])]):
        return tf.identity(own_part(gradient, communicators.rank()))


def _place(strategy: Any) -> tuple[int, int]:
    """Returns the rank and the number of the workers whose gradients a strategy sums."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 0, 1
    workers = strategy.num_replicas_in_sync // len(strategy.extended.worker_devices)
    if workers == 1:
        return 0, 1
    resolver = strategy.cluster_resolver
    cluster = resolver.cluster_spec()
    before = cluster.num_tasks("chief") if "chief" in cluster.jobs else 0
    return resolver.task_id + (0 if resolver.task_type == "chief" else before), workers


def _check_place(host: str, place: tuple[int, int]) -> None:
    communicator = communicators.current()
    joined = (communicator.rank, communicator.size)
    if joined == place:
        return
    if place[1] == 1:
        raise ValueError(
            f"{host}: expected one worker, since the MultiWorkerMirroredStrategy knows no other. "
            f"Received: worker {joined[0]} of {joined[1]}, by sok_embed.init(). Set TF_CONFIG to "
            "the cluster of all workers before the strategy is made, or use a MirroredStrategy and "
            "sok_embed.DistributedOptimizer."
        )
    raise ValueError(
        f"{host}: expected to be worker {place[0]} of {place[1]}, as the "
        f"MultiWorkerMirroredStrategy has it. Received: worker {joined[0]} of {joined[1]}, by "
        "sok_embed.init(). Start each worker with its TF_CONFIG and call sok_embed.init() first; "
        "where a launcher numbers the workers, give the tasks of TF_CONFIG the same numbers."
    )


def _check_loops_of_keras() -> None:
    """Makes the loops of Keras that would fail raise with advice, in this process from now on."""
    for name in _LOOPS_OF_KERAS:
        replace_function(keras.Model, name, _checked_loop)


def _checked_loop(loop: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if _place(self.distribute_strategy)[1] > 1:
        if any(isinstance(each, LayerWithRows) for each in all_layers(self)):
            raise ValueError(
                f"Model '{self.name}': expected a loop of your own under a "
                f"MultiWorkerMirroredStrategy. Received: {loop.__name__}, which Keras "
                f"{keras.__version__} does not have for several workers of a strategy. "
                f"{LOOPS_THAT_WORK}"
            )
    return loop(self, *args, **kwargs)
