"""Reads private attributes of Keras' objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
from keras.src.utils import io_utils


def mask_of(tensor: Any) -> Any:
    """Returns the mask that Keras has attached to a tensor, or `None`."""
    return getattr(tensor, "_keras_mask", None)


def all_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yields the layers of a model and the layers inside of them, each once."""
    yield from model._flatten_layers(include_self=False)


def losses_of(model: keras.Model) -> dict[str, Any]:
    """Returns the losses that a model was compiled with, and their weights."""
    compiled = getattr(getattr(model, "_compile_config", None), "config", {})
    return {name: compiled.get(name) for name in ("loss", "loss_weights")}


def inputs_of_layers(model: keras.Model) -> dict[str, list[list[str]]]:
    """Returns the names of the layers whose outputs each layer of a model takes.

    Example:
    >>> first = keras.Input((2,), name="first")
    >>> inputs_of_layers(keras.Model(first, keras.layers.ReLU(name="relu")(first)))
    {'first': [[]], 'relu': [['first']]}

    Returns:
        A list for each call of a layer. Empty for a subclass of `keras.Model` without such a graph.
    """
    functional: Any = getattr(model, "_functional", None) or model
    by_depth: dict[int, list[Any]] = getattr(functional, "_nodes_by_depth", {})
    calls = [
        (node.operation.name, node.operation._inbound_nodes.index(node), node)
        for nodes in by_depth.values()
        for node in nodes
    ]
    found: dict[str, list[list[str]]] = {}
    for name, _, node in sorted(calls, key=lambda call: call[:2]):
        makers = [tensor._keras_history.operation for tensor in node.input_tensors]
        found.setdefault(name, []).append([each.name for each in makers if each is not None])
    return found


def seed_of(initializer: keras.initializers.Initializer) -> Any:
    """Returns the seed that a random initializer was given or, without one, has drawn."""
    return initializer._init_seed


def symbolic_inputs(model: keras.Model) -> Any:
    """Returns the nest of symbolic inputs of a functional or sequential model, else `None`."""
    functional = getattr(model, "_functional", None) or model
    return getattr(functional, "_inputs_struct", None)


def takes_training(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer's `call` has an argument `training`, which `predict` sets."""
    return bool(layer._call_has_training_arg)


def print_line(text: str) -> None:
    """Prints a line as Keras prints its own: `keras.config` may send them to the log."""
    io_utils.print_msg(text)
