"""The users of a hashed weight: layers with their seeds, calls with their gradients."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import tensorflow as tf


class WeightUsers:
    """The layers of one weight, and which of their calls belong to one step.

    If a step has several calls, their gradients as `tf.IndexedSlices` are only appended to each
    other. Keras' optimizers then treat each slice by itself, although their rules need the square
    of the sum. So slices are used only in a step with one call; if one of several gradients is
    dense, TensorFlow makes their sum dense.
    """

    def __init__(self) -> None:
        self.layers: weakref.WeakSet[Any] = weakref.WeakSet()
        # These include deleted layers: garbage collection must change neither seeds nor gradients.
        self._seeds: list[int] = []
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._calls: list[weakref.ref[Any]] = []

    def add(self, layer: Any) -> None:
        """Adds a `HashedLayer`."""
        self.layers.add(layer)
        self._seeds.append(layer.seed)

    def living(self) -> list[Any]:
        """Returns the layers that have not been deleted, in the order of their seeds."""
        if len(self._seeds) > 1:
            gc.collect()  # one may be kept only by cycles of references, on one of several workers
        return sorted(self.layers, key=lambda layer: (layer.seed, layer.name))

    def next_seed(self) -> int:
        """Returns the smallest seed that no layer has had."""
        return next(seed for seed in range(len(self._seeds) + 1) if seed not in self._seeds)

    def clash(self, layer: Any) -> Any | None:
        """Returns another layer that uses the same slots as this one for another table."""
        if self._find_clash(layer) is not None:
            gc.collect()  # it may be kept only by cycles of references
        return self._find_clash(layer)

    def _find_clash(self, layer: Any) -> Any | None:
        for other in self.layers:
            seeds_tell = layer.hash == "mixed" and other.seed != layer.seed
            if other.hash == layer.hash and not seeds_tell and not other.stands_for(layer):
                return other
        return None

    def only_call(self) -> bool:
        """Returns whether the call that begins is known to be the only one of its step."""
        if len(self._seeds) > 1 or tf.distribute.get_strategy().num_replicas_in_sync > 1:
            return False
        if tf.executing_eagerly():
            self._calls = [ids for ids in self._calls if ids() is not None]
            return not self._calls
        # In branches, loops and functions that another graph calls, gradients are dense anyway.
        graph = tf.compat.v1.get_default_graph()
        if graph in self._graphs:
            return False
        self._graphs.add(graph)
        return True

    def watch(self, ids: tf.Tensor) -> tf.Tensor:
        """Makes a tensor from a call's ids to which only a recording eager tape refers."""
        if tf.executing_eagerly():
            ids = tf.identity(ids)
            self._calls.append(weakref.ref(ids))
        return ids
