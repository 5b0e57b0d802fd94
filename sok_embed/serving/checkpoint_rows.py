"""The rows and dense weights of a checkpoint, for an export in place of the model's own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from sok_embed.checkpoint.files.holding import all_files, hold
from sok_embed.checkpoint.state.dense import DenseState
from sok_embed.checkpoint.tools.saved import saved_of
from sok_embed.checkpoint.transfer.reading import check_descriptions
from sok_embed.files.place_of import place_of
from sok_embed.serving.held_rows import Elsewhere, HeldRows, Piece
from sok_embed.tables.base_table import Part


class CheckpointRows:
    """A checkpoint from which a model is exported, made and compiled like the saved one."""

    def __init__(self, model: keras.Model, source: str | os.PathLike[str]) -> None:
        self._dense = DenseState(model, {})
        self._saved = saved_of(hold(place_of(source).path, all_files))
        try:
            self._paths = {id(host.table): host.path for host in self._dense.found.tables}
            check_descriptions(self._saved.manifest, self._dense.found.tables)
            self._dense.check(self._saved.held.places[0], self._saved.manifest)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the files of the checkpoint."""
        self._saved.held.end()

    @contextlib.contextmanager
    def dense_weights(self) -> Iterator[None]:
        """Sets the dense weights of the model to the checkpoint's, and restores them afterwards."""
        held = [(each, each.numpy()) for each in _variables(self._dense)]
        try:
            self._dense.read(self._saved.held.places[0], self._saved.manifest)
            yield
        finally:
            for variable, value in held:
                variable.assign(value)

    def size(self) -> int:
        """Returns the number of rows of all tables that belong to one key."""
        return sum(table.rows for table in self._saved.tables if table.part != "static")

    def held(
        self, part: Part, min_count: int = 0, taken: Callable[[int], None] | None = None
    ) -> HeldRows:
        """Returns the rows of a part; the arguments are those of `HeldRows`."""
        path = self._paths[id(part.table)]
        (table,) = (
            each for each in self._saved.tables if (each.path, each.part) == (path, part.name)
        )

        def pieces() -> Iterator[Piece]:
            for rows in self._saved.rows(table):
                yield rows.keys, rows.embeddings, rows.update_nums >= min_count

        return HeldRows(part, min_count, taken, Elsewhere(table.rows, pieces))


def _variables(dense: DenseState) -> list[tf.Variable]:
    found: dict[int, Any] = {}
    for each in dense.found.variables.values():
        variable = each.value if isinstance(each, keras.Variable) else each
        found[id(variable)] = variable
    return list(found.values())
