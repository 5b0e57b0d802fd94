"""Makes datasets of `tf.data` from a source, and passes on the errors of the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from ctr.batches import InputError, Source, Split, steps
from ctr.embeddings import EmbeddingRows
from ctr.workers import Workers


class Pipeline:
    """This worker's share of a source as datasets of inputs, labels and weights."""

    def __init__(
        self, source: Source, batch_size: int, embedding: EmbeddingRows, workers: Workers
    ) -> None:
        self._source = source
        self._batch_size = batch_size
        self._embedding = embedding
        self._workers = workers
        self._failure = ""

    def dataset(
        self, split: Split, epoch: Callable[[], int] = lambda: 0, is_counted: bool = True
    ) -> tf.data.Dataset:
        """Returns the batches of a split; each pass asks `epoch` for its number, from 0 on.

        Passes that are counted have all rows of the split; others may have any number of them.
        """
        source = self._source
        inputs = {"keys": tf.TensorSpec((None, source.fields), tf.int64)}
        if source.dense_width:
            inputs["dense"] = tf.TensorSpec((None, source.dense_width), tf.float32)
        labels, weights = tf.TensorSpec((None, 1), tf.float32), tf.TensorSpec((None,), tf.float32)
        stream = tf.data.Dataset.from_generator(
            lambda: self._batches(split, epoch(), is_counted),
            output_signature=(inputs, labels, weights),
        )
        if not is_counted:
            return stream
        count = steps(source.rows(split), self._batch_size)
        return stream.apply(tf.data.experimental.assert_cardinality(count)).prefetch(2)

    @contextmanager
    def source_errors(self) -> Iterator[None]:
        """Raises errors of the source within the `with` block as `InputError`."""
        try:
            yield
        except tf.errors.OpError:
            if not self._failure:
                raise
        # The error is raised only here, where TensorFlow's is gone: its traceback holds the
        # iterator, and one whose prefetching thread still waits for Python when Python ends never
        # returns.
        if self._failure:
            raise InputError(self._failure)

    def _batches(
        self, split: Split, epoch: int, is_counted: bool
    ) -> Iterator[tuple[dict[str, Any], Any, Any]]:
        """Yields batches; an error ends them early, which the asserted cardinality notices."""
        rank, size = self._workers.rank, self._workers.size
        try:
            for batch in self._source.batches(split, self._batch_size, rank, size, epoch):
                inputs: dict[str, Any] = {"keys": self._embedding.inputs(batch.keys)}
                if self._source.dense_width:
                    inputs["dense"] = batch.dense
                yield inputs, batch.labels[:, None], batch.weights(size)
        except InputError as error:
            self._failure = str(error)
            if not is_counted:
                raise
