"""Reads the rows of a dataset's next batches before their steps ask for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators, tf_ops
from sok_embed.arguments import check_integer
from sok_embed.data.joining import LOOKS_AHEAD, is_joined
from sok_embed.keras_bridge.anchors import forget_with
from sok_embed.lookups.seen_keys import is_on_disk, seen_keys

# The ops of this package that may run ahead.
_PURE = {
    f"SokEmbed>{name}"
    for name in ("Prefetch", "CollectionRequest", "HashPositions", "RowSplits", "StaticBuckets")
}
# Beside the batches that wait, the step has one, the next one is being made, and
# `sok_embed.data.join` holds one; and with several workers one more waits.
_NOT_WAITING = 4


def look_ahead(
    dataset: tf.data.Dataset,
    model: keras.Model | Callable[[Any], Any],
    steps: int = 2,
) -> tf.data.Dataset:
    """Makes a dataset that has the rows of its next batches read from the disk ahead.

    While a step runs, the keys that the model will ask for in the next batches are found, and the
    rows of these keys that lie on the disk are read into the cache of their storage, on threads of
    their own. Nothing else changes: rows are made, counted by admissions, changed and removed in
    the order of the steps, and all results are those of the dataset itself, bit for bit. For
    `fit`, `evaluate`, `predict` and loops of your own.

    The keys are found by the part of the model between its inputs and its lookups, which runs once
    more for each batch. So this part must be a pure function of the batch: hashes, vocabularies,
    crosses of features. A check in this part, such as that ids are integers, raises where the batch
    is taken.

    Rows that are read ahead, of all tables of a storage, take up to a quarter of its cache until
    their step has used them. Keys whose rows would take more are left to their step, and
    `Table.stats` counts them as `left_behind`. A row that cannot be read is an error of the step
    that needs it.

    With several workers each one tells the owners of rows on disk which of them it will ask for;
    those that look ahead themselves read them. Give `sok_embed.data.join` the dataset that this
    function returns.

    Example:
    >>> import numpy as np
    >>> import sok_embed as sok
    >>> model = keras.Sequential([keras.Input([2], dtype="int64"), sok.DynamicEmbedding(4)])
    >>> dataset = tf.data.Dataset.from_tensor_slices(np.arange(8).reshape(4, 2)).batch(2)
    >>> look_ahead(dataset, model) is dataset  # the table lies in memory
    True

    Args:
        dataset: Batches as `fit` takes them, or whatever `model` takes.
        model: The model, built. Or a function that calls the layers with a batch, for a loop of
            your own, such as `lambda batch: model(batch["features"])`.
        steps: The number of batches that are read ahead, and kept in memory; 1 at least. With
            several workers one more is kept.

    Returns:
        The batches of the dataset, in its order. The dataset itself, where no table of the model
        lies in a storage.

    Raises:
        ValueError: For `steps` below 1; for a model that is not built, that looks no keys up or
            looks them up in a function of its own, such as one of `tf.map_fn`, or whose keys depend
            on vectors of a table; for a dataset that is joined.
    """
    check_integer("steps", steps, 1)
    if is_joined(dataset):
        raise ValueError(
            "Expected a dataset that is not joined, since the batches of a joined one cannot be "
            "made ahead. Received: a dataset of sok_embed.data.join. Join the dataset that "
            "look_ahead returns."
        )
    spec = dataset.element_spec
    prefetch = _prefetch(spec, _caller(model), steps)
    if prefetch is None:
        return dataset

    def ahead(*parts: Any) -> Any:
        flat = tf.nest.flatten(parts, expand_composites=True)
        prefetch(*(each for each in flat if each is not None))
        return tf.nest.pack_sequence_as(spec, tf.nest.flatten(parts))

    # One batch after the other: the next step's rows come first.
    # Owners of rows hear of a batch one step later than its own worker, so that one more waits.
    looking = dataset.map(ahead).prefetch(steps + (communicators.size() > 1))
    setattr(looking, LOOKS_AHEAD, True)
    return looking


def _caller(model: Any) -> Callable[[Any], Any]:
    """Returns the function that calls the model's layers with a batch."""
    if not isinstance(model, keras.Model):
        return model
    if not model.built:
        raise ValueError(
            f"Expected a model that is built. Received: {model.name!r}, which is not. Call it with "
            "a batch once, or build it, before look_ahead."
        )
    return lambda batch: model(keras.utils.unpack_x_y_sample_weight(batch)[0], training=False)


def _prefetch(spec: Any, call: Callable[[Any], Any], steps: int) -> Callable[..., Any] | None:
    """Returns a function of a batch's flat tensors that reads rows ahead.

    `None`: no table lies in a storage.
    """
    reads: list[tf.Operation] = []

    def trace(*flat: tf.Tensor) -> list[tf.Tensor]:
        batch = tf.nest.pack_sequence_as(spec, flat, expand_composites=True)
        # The scope drops what the model would keep of a call, such as losses.
        with keras.StatelessScope(), seen_keys(steps + _NOT_WAITING) as seen:
            call(batch)
        graph = tf.compat.v1.get_default_graph()
        library = graph.as_graph_def().library.function
        bodies = {each.signature.name: each.node_def for each in library}
        asked_for: set[int] = set()  # the keys that requests have
        for tables, of_features, asked in seen.requests:
            if _impure(asked.op, bodies):
                continue
            asked_for.update(map(id, of_features))
            own = tf_ops.collection_own_keys(asked, len(tables))
            reads.extend(
                tf_ops.prefetch(table.resource_handle, keys)
                for table, keys in zip(tables, own, strict=True)
                if is_on_disk(table)
            )
        for table, keys in seen.keys:
            if not is_on_disk(table) or id(keys) in asked_for:
                continue
            if keys.graph is not graph:
                raise ValueError(
                    "Expected a model that looks keys up where it is called. Received: a lookup in "
                    f"table '{table.name}' within a tf.function, or a function of tf.map_fn or "
                    "tf.cond. Give look_ahead a function that calls the layers themselves."
                )
            if impure := _impure(keys.op, bodies):
                raise ValueError(
                    "Expected keys that are a function of the batch alone. Received: a lookup "
                    f"whose keys depend on {', '.join(sorted(impure))}. Give look_ahead a function "
                    "that calls the other layers."
                )
            reads.append(tf_ops.prefetch(table.resource_handle, keys))
        if not seen.keys:
            raise ValueError(
                "Expected a model that looks keys up when it is called. Received: one without a "
                "layer of this package, or that calls its layers on other threads."
            )
        forget_with(trace, seen.keys[0].keys)
        return []

    signature = [
        tf.TensorSpec(each.shape, each.dtype)
        for each in tf.nest.flatten(spec, expand_composites=True)
    ]
    traced = tf.compat.v1.wrap_function(trace, signature)
    # Without the rest of the model, such as its lookups.
    return traced.prune(traced.inputs[: len(signature)], reads) if reads else None


def _impure(operation: tf.Operation, bodies: Mapping[str, Sequence[Any]]) -> set[str]:
    """Returns the types of ops that an op depends on and that would count keys or make rows.

    Args:
        operation: The op.
        bodies: The nodes of each function of its graph, by name.
    """
    found: set[tf.Operation] = set()
    left = [operation]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += [each.op for each in one.inputs]
            left += one.control_inputs
    functions = dict(bodies)  # a function that was looked into is taken out
    types: set[str] = set()
    nodes = [each.node_def for each in found]
    while nodes:
        node = nodes.pop()
        types.add(node.op)
        for value in node.attr.values():
            for called in (value.func, *value.list.func):
                nodes += functions.pop(called.name, ())
    return {each for each in types if each.startswith(("SokEmbed>", "Horovod"))} - _PURE
