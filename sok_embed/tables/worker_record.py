"""The worker that wrote a `tf.train.Checkpoint`, and the number of workers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sok_embed.tables import contents


class WorkerRecord(tf.__internal__.tracking.Trackable):
    """Saves which worker has written the rows of a table, so that no other worker restores them.

    It is a trackable of its own, so that checkpoints without it can be read.
    """

    def __init__(self, table: str, owner: int, owners: int, rule: str) -> None:
        super().__init__()
        self._table = table
        self._worker = (owner, owners)
        self._rule = rule

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        if contents.are_apart():
            return {}
        return {
            "worker": tf.constant(self._worker, tf.int64),
            "rule": tf.constant(self._rule),
        }

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> Any:
        worker, rule = restored["worker"], restored["rule"]
        if not tf.executing_eagerly():
            same = tf.reduce_all(tf.equal(worker, tf.constant(self._worker, tf.int64)))
            return tf.debugging.Assert(
                tf.logical_and(same, tf.equal(rule, self._rule)),
                [self._message("another", self._rule), worker, rule],
            )
        owner, owners = worker.numpy().tolist()
        written_rule = rule.numpy().decode()
        if ((owner, owners), written_rule) != (self._worker, self._rule):
            raise ValueError(self._message(f"that of worker {owner} of {owners}", written_rule))
        return tf.no_op()

    def _message(self, received: str, rule: str) -> str:
        owner, owners = self._worker
        rules = "" if rule == self._rule else f", which kept keys with {rule}"
        return (
            f"Table '{self._table}': expected the checkpoint of worker {owner} of {owners}, which "
            f"has the keys with {self._rule}. Received: {received}{rules}. A checkpoint has the "
            "rows of the worker that wrote it: start as many workers as wrote it, and have each "
            "restore its own. For another number, join the parts that `table.export()` gives."
        )
