"""Joins the datasets of several workers whose data does not end at the same time."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sok_embed import communicators
from sok_embed.communicators import Communicator
from sok_embed.keras_bridge.empty_batches import take_empty_batches
from sok_embed.keras_bridge.training_factors import offer_factors

_PARTS = "Expected batches (x,), (x, y) or (x, y, sample_weight)."
_JOINED = "_sok_embed_joined"  # marks datasets that have been joined
LOOKS_AHEAD = "_sok_embed_ahead"  # marks those of look_ahead, which make enough batches ahead
_last = 0  # the greatest number that a dataset has, by which workers find its exchanges


def join(dataset: tf.data.Dataset, *, training: bool = True) -> tf.data.Dataset:
    """Makes a dataset that has the same number of batches on every worker. Collective.

    Every lookup waits for all workers, so each of them needs a batch in each step. A worker whose
    own dataset has ended, or never had a batch, goes on with batches of 0 examples until the
    datasets of all workers have ended.

    For training, the workers exchange in each step how many examples they have. With n
    workers, b of a step's B examples on this one, each of its examples is weighted by n * b / B.
    A Keras loss that divides its sum by the batch size (`"sum_over_batch_size"`, the default)
    becomes, averaged over the workers, the mean over all B examples: n workers train like one that
    has the B examples in one batch. This is not true of other reductions:
    `"mean_with_sample_weight"` divides the weight of a step out again, so that the mean of each
    worker counts the same, and `"sum"` needs no weights: join with `training=False`.

    What `fit` reports of the dataset, losses and weighted metrics, has the weights of the examples
    without that factor. The factor is in the weights that a loop of your own takes from a batch.

    With one worker the dataset comes back as it is, without `sample_weight` if it had none. In a
    loop of your own, `keras.utils.unpack_x_y_sample_weight` takes a batch of any number of parts.

    Example:
    >>> import numpy as np
    >>> own = tf.data.Dataset.from_tensor_slices((np.arange(5), np.ones([5, 1]))).batch(2)
    >>> joined = join(own.prefetch(tf.data.AUTOTUNE))
    >>> [len(batch[0]) for batch in joined]
    [2, 2, 1]

    Args:
        dataset: This worker's own batches, as tuples `(x,)`, `(x, y)` or `(x, y, sample_weight)`
            whose parts may be nests. Components are dense `[B, ...]`, ragged `[B, ...]` or sparse
            `[B, ...]`. The parts, dtypes and ranks must be the same on all workers; the number of
            batches and their sizes may differ. The dataset may be infinite.
        training: True if examples are weighted. Use `False` for evaluation data: its losses and
            metrics on each worker are then computed from the worker's own examples. The value must
            be the same on every worker.

    Returns:
        Batches of the same parts, on several workers with float `sample_weight` `[B]` added where
        there is `y` and no `sample_weight`. Where each worker knows its number of batches the
        result has a cardinality: the greatest of them.

        Iterators of the dataset exchange messages while they make a batch, so all workers must take
        the same number of batches, in the same order among their other steps. No batch is made
        ahead: prefetch, shuffle, and map in parallel before `join` and not after it.

    Raises:
        ValueError: If elements are not such tuples, or not batches; for a dataset that is joined
            already; if `training` differs between the workers.
        RuntimeError: Within a `tf.function` or a TF1 graph, if there are several workers.
    """
    spec = dataset.element_spec
    _check(spec)
    communicator = communicators.current()
    if communicator.size == 1:
        return dataset
    if is_joined(dataset):
        raise ValueError(
            "Expected a dataset that is not joined yet. Received: a dataset of "
            "sok_embed.data.join. Join it once, after everything else that is done to it."
        )
    if not tf.executing_eagerly():
        raise RuntimeError(
            "Expected sok_embed.data.join to be called eagerly. Received: a call within a "
            "tf.function or a TF1 graph. Call it outside, and give the dataset to the function."
        )
    take_empty_batches()
    # A worker that has not made this call is waited for here.
    name, batches = _agreed(dataset, training, communicator)
    # Reading ahead sends nothing as long as it comes before the exchange.
    if not hasattr(dataset, LOOKS_AHEAD):
        dataset = dataset.prefetch(tf.data.AUTOTUNE)
    own = dataset.map(lambda *batch: (True, batch))
    empty = tf.data.Dataset.from_tensors((False, tf.nest.map_structure(_empty, spec))).repeat()
    endless = own.concatenate(empty)
    joined = _finished(endless, batches, training, communicator, name)
    if training and len(spec) > 1:
        arguments = (endless, batches, training, communicator, name)
        offer_factors(joined, lambda: _finished(*arguments, with_factors=True))
    setattr(joined, _JOINED, True)
    return joined


def is_joined(dataset: tf.data.Dataset) -> bool:
    """Returns whether a dataset comes from `join`, on several workers."""
    return hasattr(dataset, _JOINED)


def _finished(
    endless: tf.data.Dataset,
    batches: int | None,
    training: bool,
    communicator: Communicator,
    name: str,
    with_factors: bool = False,
) -> tf.data.Dataset:
    """Returns the joined batches of `(whether own, batch)`; `with_factors` as `_exchanged`."""
    if batches is None or training:
        joined = _exchanged(endless, training, communicator, name, with_factors)
        if batches is None:
            joined = joined.take_while(lambda goes_on, batch: goes_on)
        joined = joined.map(lambda _, batch: batch)
    else:
        joined = endless.map(lambda _, batch: _weighted(batch, None))
    if batches is not None:
        joined = joined.take(batches)
    # A batch that was made ahead, by a prefetch or a parallel map that tf.data puts in by itself,
    # would be one that other workers may never come to: iterators are dropped in mid-course.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_parallelization = False
    return joined.with_options(options)


def _agreed(
    dataset: tf.data.Dataset, training: bool, communicator: Communicator
) -> tuple[str, int | None]:
    """Returns what all workers call the dataset, and the greatest number of batches of a worker.

    The number of batches is `None` if one has an unknown number.
    """
    global _last
    # An engine may bring together processes that have joined unequally many datasets before.
    own = tf.constant([[_last + 1, int(dataset.cardinality()), training]], tf.int64)
    of_all, _ = communicator.all_gather(own, "sok_embed.join")
    numbers, cardinalities, trains = of_all.numpy().T.tolist()
    _last = max(numbers)
    if len(set(trains)) > 1:
        raise ValueError(
            "Expected the same training= of sok_embed.data.join on all workers. Received: "
            f"{[bool(each) for each in trains]}, by rank. Join the datasets in the same order on "
            "every worker."
        )
    # Infinite datasets, and those of an unknown number of batches, have negative cardinalities.
    return f"sok_embed.join.{_last}", None if min(cardinalities) < 0 else max(cardinalities)


def _exchanged(
    endless: tf.data.Dataset,
    training: bool,
    communicator: Communicator,
    name: str,
    with_factors: bool,
) -> tf.data.Dataset:
    """Elements `(whether any worker has a batch of its own, batch)`, from `(whether own, batch)`.

    With `with_factors`, a batch has a fourth part: by what each weight was multiplied, `[B]`.

    A scan takes one element after the other, where `map` may take several at a time, whose
    messages would meet.
    """

    def exchange(state: tf.Tensor, element: Any) -> tuple[tf.Tensor, Any]:
        is_own, batch = element
        examples = _examples(batch)
        mine = tf.stack([examples, tf.cast(is_own, tf.int64)])
        # Workers find each other's tensors by the names of ops.
        with tf.name_scope("sok_embed.data/"):
            everyones = communicator.all_reduce(mine, name)
        everyones = tf.ensure_shape(everyones, [2])
        factor = None
        if training:
            # At most one rounding: batches of one size have a factor of exactly 1.
            factor = tf.math.divide_no_nan(
                tf.cast(communicator.size * examples, tf.float64),
                tf.cast(everyones[0], tf.float64),
            )
        weighted = _weighted(batch, factor)
        if with_factors:
            weighted = (*weighted, tf.fill([examples], tf.cast(factor, tf.float32)))
        return state, (everyones[1] > 0, weighted)

    return endless.scan(tf.constant(0), exchange)


def _weighted(batch: Any, factor: tf.Tensor | None) -> Any:
    """Returns the batch with its examples' weights times `factor`; with weights of 1 if `None`.

    Weights of 1 change nothing where there are examples. Where there are none they keep a loss that
    is the mean of nothing out of the metrics.
    """
    if len(batch) == 1:
        return batch
    x, y, *given = batch
    if given:
        own = given[0] if factor is None else tf.nest.map_structure(_scaled_by(factor), given[0])
        return x, y, own
    one = 1.0 if factor is None else tf.cast(factor, tf.float32)
    return x, y, tf.fill([_examples(batch)], one)


def _scaled_by(factor: tf.Tensor) -> Any:
    def scaled(weights: tf.Tensor) -> tf.Tensor:
        if not weights.dtype.is_floating:
            weights = tf.cast(weights, tf.float32)
        return weights * tf.cast(factor, weights.dtype)

    return scaled


def _examples(batch: Any) -> tf.Tensor:
    """Returns the number of examples, int64."""
    first = tf.nest.flatten(batch[0])[0]
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    if isinstance(first, tf.RaggedTensor):
        return first.nrows(tf.int64)
    return tf.shape(first, tf.int64)[0]


def _check(spec: Any) -> None:
    """Raises if elements are not tuples of a batch's parts, or components have no batch axis."""
    if not isinstance(spec, tuple) or not 1 <= len(spec) <= 3 or not tf.nest.flatten(spec[0]):
        received = f"{len(spec)} parts" if isinstance(spec, tuple) else f"a {_kind(spec)}"
        raise ValueError(
            f"{_PARTS} Received: {received}. Map the dataset, as in "
            "dataset.map(lambda features: (features, features.pop('label'))), or for prediction "
            "dataset.map(lambda features: (features,))."
        )
    sizes = set()
    for component in tf.nest.flatten(spec):
        if not isinstance(component, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)):
            raise ValueError(
                f"{_PARTS} Received: a component that is neither dense nor ragged nor sparse: "
                f"{component}. Leave it out."
            )
        shape = component.shape
        if shape.rank is None:
            raise ValueError(
                f"Expected components of a known rank. Received: {component}. Use tf.ensure_shape "
                "in a map of the dataset."
            )
        if shape.rank == 0:
            raise ValueError(
                f"Expected batches, whose components have a first axis of examples. Received: "
                f"{component}. Batch the dataset first, as in dataset.batch(64)."
            )
        if shape[0] is not None:
            sizes.add(shape[0])
    if len(sizes) > 1:
        raise ValueError(
            "Expected batches, whose components have one first axis of examples. Received: "
            f"components of {sorted(sizes)} examples. Batch the dataset first, as in "
            "dataset.batch(64)."
        )


def _kind(spec: Any) -> str:
    return "single tensor" if isinstance(spec, tf.TypeSpec) else type(spec).__name__


def _empty(spec: Any) -> Any:
    """Returns a component of 0 examples. Other axes of unknown length have a length of 1."""
    # Some ops refuse an axis of length 0 other than that of the examples.
    lengths = [1 if length is None else length for length in spec.shape[1:]]
    if isinstance(spec, tf.SparseTensorSpec):
        rank = spec.shape.rank
        return tf.SparseTensor(
            tf.zeros([0, rank], tf.int64), tf.zeros([0], spec.dtype), [0, *lengths]
        )
    if isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank > 0:
        flat = tf.zeros([0, *lengths[spec.ragged_rank :]], spec.dtype)
        no_rows = tf.zeros([1], spec.row_splits_dtype)
        return tf.RaggedTensor.from_nested_row_splits(flat, [no_rows] * spec.ragged_rank)
    return tf.zeros([0, *lengths], spec.dtype)
