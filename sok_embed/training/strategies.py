"""Checks the strategy of `tf.distribute` that tables are trained under, and its workers.

The replicas of a MirroredStrategy are in one process and share its tables. The replicas of a
MultiWorkerMirroredStrategy are in several processes, which share the rows as workers of any
launcher do; but the strategy sums gradients over the workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators
from sok_embed.keras_bridge.dense_alone import LayerWithRows
from sok_embed.keras_bridge.private_state import all_layers
from sok_embed.keras_bridge.replaced_functions import replace_function

_ONE_PROCESS = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)
# Keras 3.15 cannot run these under a MultiWorkerMirroredStrategy of several workers.
_LOOPS_OF_KERAS = ("fit", "evaluate", "train_on_batch", "test_on_batch")

LOOPS_THAT_WORK = (
    "Write a loop of your own with strategy.run, or start the workers with `sok-embed run` and use "
    "fit without a strategy and with sok_embed.DistributedOptimizer; see the guide on distribution."
)


def workers_summed() -> int:
    """Returns over how many workers the strategy in scope sums gradients; 1 without one."""
    return _place(tf.distribute.get_strategy())[1]


def check_strategy(host: str) -> None:
    """Raises for a strategy in scope under which tables cannot be trained.

    Args:
        host: The owner of the tables, as a message begins: `"Layer 'items'"`.

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
