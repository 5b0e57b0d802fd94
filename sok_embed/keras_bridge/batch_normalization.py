"""Has `keras.layers.BatchNormalization` work with several workers, and with batches of 0 examples.

Keras knows nothing of other workers: moving statistics would be those of each worker's own batches,
and `synchronized=True` would mean the replicas of one process.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators
from sok_embed.keras_bridge.graphs import graphs_in_reach
from sok_embed.keras_bridge.replaced_functions import replace_function

_takes_empty_batches = False
# The examples of a layer's last batch in training, if it ran eagerly. In a graph they are an
# attribute of the graph: a tensor keeps its graph, which keeps the layer.
_examples: weakref.WeakKeyDictionary[Any, tf.Tensor] = weakref.WeakKeyDictionary()
_OF_GRAPH = "_sok_embed_examples"
# The layer that has a gamma or a beta.
_layers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def prepare_batch_normalization(takes_empty_batches: bool = False) -> None:
    """Replaces two methods of `BatchNormalization`, in this process from now on.

    A layer is noted when it is called in training, for `layers_with_statistics`. With several
    workers and `synchronized=True` it normalizes by the examples of all workers.

    Args:
        takes_empty_batches: True if from now on a batch without examples is handled as in
            inference. Keras would compute the mean of no numbers: moving statistics and the
            gradients of `gamma` would become NaN, or with a mask the statistics would decay
            towards 0.
    """
    global _takes_empty_batches
    _takes_empty_batches = _takes_empty_batches or takes_empty_batches
    normalization: Any = keras.layers.BatchNormalization
    replace_function(normalization, "call", _call)
    replace_function(normalization, "_moments", _moments)


def layers_with_statistics(variables: Iterable[Any]) -> list[Any]:
    """Returns the layers that were called in training and have a gamma or beta among `variables`.

    They come in the order of the variables, which is the same on all workers.
    """
    found: list[Any] = []
    for variable in variables:
        layer = _layers.get(id(variable))
        is_own = layer is not None and (variable is layer.gamma or variable is layer.beta)
        if is_own and not any(layer is each for each in found):
            found.append(layer)
    return found


def examples_of(layer: Any) -> tf.Tensor:
    """Returns the number of examples of the layer's last batch in training, a float32 scalar.

    It is 1 where the layer was called in another function than the one that is traced now.
    """
    if tf.executing_eagerly():
        found = _examples.get(layer)
    else:
        noted = (getattr(graph, _OF_GRAPH, {}).get(id(layer)) for graph in graphs_in_reach())
        found = next((each for each in noted if each is not None), None)
    return tf.constant(1.0) if found is None else found


def _note_examples(layer: Any, inputs: tf.Tensor) -> None:
    examples = tf.cast(tf.shape(inputs)[0], tf.float32)
    if tf.executing_eagerly():
        _examples[layer] = examples
        return
    graph: Any = tf.compat.v1.get_default_graph()
    setattr(graph, _OF_GRAPH, {**getattr(graph, _OF_GRAPH, {}), id(layer): examples})


def _call(
    call: Callable[..., Any], self: Any, inputs: Any, training: Any = None, mask: Any = None
) -> Any:
    if not training or not self.trainable:
        return call(self, inputs, training=training, mask=mask)
    if isinstance(inputs, tf.Tensor):  # not a placeholder of Keras
        _note_examples(self, inputs)
        known_by = [each for each in (self.gamma, self.beta) if each is not None]
        for variable in known_by:
            _layers[id(variable)] = self
        if not known_by and communicators.size() > 1:
            warnings.warn(
                f"Layer '{self.name}': expected a gamma or a beta, by which the layer is found "
                "when workers average its moving statistics. Received: center=False and "
                "scale=False, so each worker keeps statistics of its own, and files have those of "
                "worker 0. Leave center=True.",
                stacklevel=2,
            )
    size = tf.TensorShape(inputs.shape).num_elements()
    # A worker without examples adds nothing to the sums if workers normalize together.
    if not _takes_empty_batches or size or _is_shared(self):
        return call(self, inputs, training=training, mask=mask)
    if size == 0:
        return call(self, inputs, training=False, mask=mask)
    return tf.cond(
        tf.size(inputs) > 0,
        lambda: call(self, inputs, training=training, mask=mask),
        lambda: call(self, inputs, training=False, mask=mask),
    )


def _is_shared(layer: Any) -> bool:
    return layer.synchronized and communicators.size() > 1


def _moments(
    call: Callable[..., Any], self: Any, inputs: Any, mask: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance of the examples of all workers where the layer is synchronized."""
    if not _is_shared(self) or not isinstance(inputs, tf.Tensor):
        return call(self, inputs, mask)
    is_valid = tf.ones_like(inputs, tf.bool)
    if mask is not None:
        is_valid &= tf.cast(mask, tf.bool)[..., tf.newaxis]
    axes, name = self._reduction_axes, f"sok_embed.statistics.{self.path or self.name}"

    def own(values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.where(is_valid, values, 0), axes, keepdims=True)

    sums = tf.stack([own(inputs), own(tf.ones_like(inputs))])
    total, count = tf.unstack(_summed(sums, f"{name}.sums"))
    mean = tf.math.divide_no_nan(total, count)
    # A difference of squares would lose the digits of a small variance.
    squares = _summed(own(tf.square(inputs - mean)), f"{name}.squares")
    variance = tf.math.divide_no_nan(squares, count)
    return tf.reshape(mean, [-1]), tf.reshape(variance, [-1])


def _summed(own: tf.Tensor, name: str) -> tf.Tensor:
    """Sums a tensor over all workers. Collective, and so is its gradient."""
    communicator = communicators.current()

    @tf.custom_gradient
    def summed(tensor: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return reduced(upstream, f"{name}.gradient")

        return reduced(tensor, name), gradient

    def reduced(tensor: tf.Tensor, name: str) -> tf.Tensor:
        # Workers find each other's tensors by the names of ops.
        with tf.name_scope("sok_embed.statistics/"):
            return tf.ensure_shape(communicator.all_reduce(tensor, name), tensor.shape)

    return summed(own)
