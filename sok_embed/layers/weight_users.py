"""Who uses a hashed weight: layers with their seeds, calls with their gradients."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import tensorflow as tf


class WeightUsers:
    """The layers of one weight, and which of their calls belong to one step.

    Gradients that are `tf.IndexedSlices` are only appended to each other when calls of one step
    meet, and Keras' optimizers take each slice for itself, where their rules ask for the square of
    the sum. So slices are for a step with one call; where one of several gradients is dense,
    TensorFlow makes their sum dense.
    """

    def __init__(self) -> None:
        self.layers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._seeds: set[int] = set()
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._calls: list[weakref.ref[Any]] = []

    def add(self, layer: Any) -> None:
        """Counts a `HashedLayer` in."""
        self.layers.add(layer)
        self._seeds.add(layer.seed)

    def next_seed(self) -> int:
        """The smallest that no layer has had, alive or not: garbage must not decide it."""
        return next(seed for seed in range(len(self._seeds) + 1) if seed not in self._seeds)

    def clash(self, layer: Any) -> Any | None:
        """Another layer of the same hash but for the table that it stands for."""

        def find() -> Any | None:
            table = layer._signature()
            for other in self.layers:
                same = other.hash == layer.hash and other.seed == layer.seed
                if same and other._signature() != table:
                    return other
            return None

        if find() is not None:
            gc.collect()  # a layer that is gone but for cycles of references
        return find()

    def only_call(self) -> bool:
        """Whether the call that begins is the only one of its step, as far as one can see."""
        if len(self.layers) > 1 or tf.distribute.get_strategy().num_replicas_in_sync > 1:
            return False
        if tf.executing_eagerly():
            self._calls = [ids for ids in self._calls if ids() is not None]
            return not self._calls
        graph = tf.compat.v1.get_default_graph()
        while getattr(graph, "outer_graph", None) is not None and hasattr(
            graph.outer_graph, "outer_graph"
        ):
            graph = graph.outer_graph  # of branches and loops, to the function that holds them
        if graph in self._graphs:
            return False
        self._graphs.add(graph)
        return True

    def watch(self, ids: tf.Tensor) -> tf.Tensor:
        """The ids of a call, in a tensor that nobody holds but an eager tape that records it."""
        if tf.executing_eagerly():
            ids = tf.identity(ids)
            self._calls.append(weakref.ref(ids))
        return ids
