"""Checks that a model has stayed as it is while it was exported or published."""

from __future__ import annotations

import keras
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.checkpoint.state.tables import step_of
from sok_embed.files.records import checksum
from sok_embed.tables.base_table import BaseTable


class Moment:
    """The moment at which an export of a model begins, or a delta.

    Rows are read a table at a time, and dense weights after them: if another thread trains the
    model meanwhile, they are of different steps. Without `reads_weights` a change is noticed by
    numbers of steps alone, in less time.
    """

    def __init__(self, model: keras.Model, reads_weights: bool = True) -> None:
        self._model = model
        self._weights = model.weights if reads_weights else []
        found = tf.train.TrackableView(model).descendants()
        self._parts = [part for each in found if isinstance(each, BaseTable) for part in each.parts]
        self._step = step_of(self._model)
        self._state = self._look()

    def check(self) -> None:
        """Raises RuntimeError if rows or weights have changed since."""
        if self._look() == self._state:
            return
        steps = f"from step {self._step} to step {step_of(self._model)}"
        raise RuntimeError(
            f"Expected model '{self._model.name}' to stay as it is while its rows and dense "
            "weights are read, so that all are of one step. Received: a model that another thread "
            f"has changed meanwhile, {steps}. Call it between two steps, as in a callback of fit; "
            "or export a checkpoint in another process, by source=."
        )

    def _look(self) -> list[int]:
        """Returns numbers that change when rows or weights do."""
        numbers = [step_of(self._model)]
        numbers += [int(tf_ops.steps(part.handle)) for part in self._parts]
        for each in self._weights:
            numbers.append(checksum(each.value.numpy().tobytes(), 0))
        return numbers
