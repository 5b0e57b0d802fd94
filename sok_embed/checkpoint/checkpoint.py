"""A checkpoint, which all workers write together and any number of workers can read."""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators
from sok_embed.checkpoint.files.holding import OpenCheckpoint, hold
from sok_embed.checkpoint.files.manifest import Manifest
from sok_embed.checkpoint.files.names import nothing_restored
from sok_embed.checkpoint.state.dense import DenseState
from sok_embed.checkpoint.state.own_state import OwnState
from sok_embed.checkpoint.state.tables import SavedObjects, calls_of, steps_of
from sok_embed.checkpoint.transfer.reading import TablesReader, check_descriptions, workers_needed
from sok_embed.checkpoint.transfer.saves import Ready, Save, SaveOptions, make_folder
from sok_embed.communicators.agreement import Agreement, add_lists, check_same, number_of_text
from sok_embed.files.place_of import place_of
from sok_embed.files.places import check_record
from sok_embed.kv import Storage

_TRIES = 10  # attempts to open the same save on all workers, if another job saves

# Maps what a restore has begun to change, and has not finished, to the checkpoint. Another object
# than the one that restored tables and models may try to save them.
_partially_restored: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


class Checkpoint:
    """Dense weights, optimizers, seeds, metrics and all rows, in one folder.

    Every method is collective: all workers call it, with the same folder, which must lie on a file
    system that all of them share, or be the URL of an object store. Each writes its rows, and
    worker 0 writes everything else and at last a manifest, which makes the checkpoint complete. Any
    number of workers can read it: each takes the rows that belong to it by its own placement of
    tables. Rows come back bit for bit, with slots, update counts and times; so do the steps of
    tables, counts of admissions and sketches.

    The objects are those of `tf.train.Checkpoint`. If an iterator of `tf.data` is one of them, each
    worker saves its own iterator's place, and the same number of workers goes on from there;
    another number cannot restore it. Rows of tables on disk are copied too, and a
    restore replaces what is in the storage.

    Example:
    >>> import sok_embed
    >>> model = keras.Sequential([keras.Input((1,), dtype="int64"),
    ...                           sok_embed.DynamicEmbedding(2), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> checkpoint = Checkpoint(model)
    >>> folder = checkpoint.save("first")
    >>> checkpoint.restore(folder)
    0

    Args:
        model: A Keras model; it must be built when the checkpoint is saved or restored.
        **objects: Other objects for `tf.train.Checkpoint`: variables, layers, optimizers, tables.

    Raises:
        ValueError: Without a model and objects, and for an object whose name is `model` or begins
            with `model_`.
    """

    def __init__(self, model: keras.Model | None = None, **objects: Any) -> None:
        if model is None and not objects:
            raise ValueError("Expected a model or other objects to save. Received: none.")
        reserved = [name for name in objects if name.startswith("model_")]
        if reserved:
            raise ValueError(
                "Expected names of objects that do not begin with 'model_'. Received: "
                f"{', '.join(reserved)}."
            )
        self._model = model
        self._objects = objects
        self._restores = 0  # the number of restores that have changed something

    def save(self, directory: str | os.PathLike[str]) -> str:
        """Writes everything into a folder, and replaces a checkpoint in it.

        An existing checkpoint stays until the new one is complete, and after a save that fails or
        is killed. The next save removes the files that such a save has left.

        Args:
            directory: The folder, which is made if there is none, or the URL of an object store,
                such as `s3://bucket/run7/final`, which fsspec opens.

        Returns:
            The absolute path of the folder, or its URL.

        Raises:
            ImportError: For a URL, without fsspec or the package that it needs for the store.
            ValueError: On all workers, if they have different models or steps, or are in the middle
                of an accumulation of gradients.
            OSError: From the file system or the store.
            RuntimeError: If another worker has failed, a table changes meanwhile, or the last
                restore failed after it had changed something.
        """
        folder = place_of(directory).path
        agreement = Agreement(communicators.current())
        ready = self._ready(agreement, lambda found: (self.step(found), folder))
        first = agreement.rank == 0
        agreement.together(
            "find the folder", lambda: make_folder(place_of(folder)) if first else None
        )
        save = Save(agreement, ready, SaveOptions(0, ready.step))
        save.write()
        save.finish()
        return folder

    def _ready(
        self, agreement: Agreement, where: Callable[[SavedObjects], tuple[int, str]]
    ) -> Ready:
        """Finds and checks everything that is to be saved. Collective.

        The function `where` returns the step and the path of the folder for the objects that were
        found. An error of one worker is an error of all.
        """
        half_restored: str | None = None

        def look() -> Ready:
            nonlocal half_restored
            dense = self._prepared()
            parts = map(_partially_restored.get, self._restored_parts(dense.found))
            half_restored = next(filter(None, parts), None)
            step, folder = where(dense.found)
            for host in dense.found.tables:
                _refuse_folder_of(host.table.storage, folder)
            return Ready(dense, self._own(agreement), step, folder, secrets.randbelow(2**62) + 1)

        def numbers(ready: Ready) -> list[int]:
            tables = [host.description() for host in ready.dense.found.tables]
            variables = ready.dense.description()["variables"]
            return [
                int(half_restored is not None),
                self.waiting_calls(ready.dense.found),
                ready.step,
                number_of_text(repr((tables, variables, sorted(self._own_objects())))),
                number_of_text(ready.folder),
                ready.attempt,
            ]

        ready, told = agreement.gather_together("be ready for a save", look, numbers)
        torn, pending, steps, models, folders, attempts = zip(*told, strict=True)
        if any(torn):
            raise RuntimeError(
                "Expected rows and weights of one point in time. Received: a model that is only "
                f"partly restored, from '{half_restored or 'a checkpoint'}'. Restore that "
                "checkpoint again, or another checkpoint, and then save."
            )
        if any(pending):
            raise ValueError(
                "Expected a step at which the optimizer applies gradients. Received: a step at "
                f"which it has accumulated the gradients of {max(pending)} calls, which would be "
                "lost. Save after the call that applies them."
            )
        check_same("step", steps, "Save after the same step on all of them.")
        check_same("model", models, "Make the same model on all of them.", texts=True)
        check_same("folder", folders, "Give all of them the same path.", texts=True)
        return ready._replace(attempt=attempts[0])

    def restore(self, directory: str | os.PathLike[str]) -> int:
        """Replaces everything by the contents of a checkpoint.

        All files that this worker needs are opened, read and checked before anything is changed. If
        one of them is damaged, or belongs to another model, nothing changes on any worker. A
        failure after that leaves objects of two different times: `save` refuses them until a
        restore has succeeded.

        The files stay open to the end, so another process may save, remove or compact meanwhile;
        files of an object store are copied first. If the checkpoint is removed before all of its
        files are open, a FileNotFoundError is raised.

        Args:
            directory: The folder that `save` was given.

        Objects beside a model that were saved and are not given here are left out.

        Returns:
            The step that was saved: the iterations of the model's optimizer, or the argument of a
            `CheckpointManager`.

        Raises:
            FileNotFoundError: If the folder has no complete checkpoint.
            CorruptionError: For a file that is not as it was written.
            OSError: From the file system or the store.
            ValueError: For the checkpoint of another model, or of a later version.
            RuntimeError: If another worker has failed, or for an error after something was changed.
        """
        folder = place_of(directory).path
        agreement = Agreement(communicators.current())
        dense = agreement.together("be ready for a restore", self._prepared)
        own = self._own(agreement)
        held = self._held(folder, agreement, dense, own)
        try:
            return self._restore(folder, agreement, held, dense, own)
        finally:
            held.end()

    def _held(
        self, folder: str, agreement: Agreement, dense: DenseState, own: OwnState
    ) -> OpenCheckpoint:
        """Opens the files that this worker needs, of the same save as all other workers."""
        rank, size = agreement.rank, agreement.size
        hosts = dense.found.tables

        def needed(number: int, manifest: Manifest) -> list[str]:
            if number == 0:
                check_descriptions(manifest, hosts)
            records = [
                manifest.rows[worker] for worker in workers_needed(hosts, manifest, rank, size)
            ]
            if number == 0:
                records += [*manifest.files, *own.needed(manifest)]
            return [record.name for record in records]

        def open_files() -> OpenCheckpoint:
            with nothing_restored():
                return hold(folder, needed)

        for _ in range(_TRIES):
            held, attempts = agreement.gather_together(
                "open the checkpoint", open_files, lambda held: [held.chain[0].manifest.attempt]
            )
            if min(attempts) == max(attempts):
                return held
            held.end()  # the checkpoint was replaced meanwhile
        raise ValueError(
            "Expected all workers to open the same checkpoint. Received: checkpoints of several "
            "saves. Give all workers the same folder, of a shared disk, into which no job is "
            "saving."
        )

    def _restore(
        self,
        folder: str,
        agreement: Agreement,
        held: OpenCheckpoint,
        dense: DenseState,
        own: OwnState,
    ) -> int:
        """Restores a checkpoint whose files are open."""
        manifest, place = held.chain[0].manifest, held.places[0]

        def check() -> TablesReader:
            with nothing_restored():
                own.check(place, manifest)
                for record in manifest.files:
                    check_record(place, record)
                dense.check(place, manifest)
                tables = TablesReader(held, dense.found.tables, agreement.rank, agreement.size)
                tables.check()
                return tables

        tables, rows = agreement.gather_together(
            "find the checkpoint whole", check, TablesReader.rows_found
        )
        tables.check_rows(add_lists(rows))

        def restore() -> None:
            try:
                tables.restore()
                dense.read(place, manifest)
                own.read(place, manifest)
            except Exception as error:
                raise RuntimeError(
                    f"Expected to restore all of the checkpoint in '{folder}'. Received: "
                    f"{type(error).__name__}: {error} It is restored in part, so rows and weights "
                    "do not fit together: restore this checkpoint again, or another checkpoint."
                ) from error

        for each in self._restored_parts(dense.found):
            _partially_restored[each] = folder
        self._restores += 1
        agreement.together(
            "restore the checkpoint, which is now restored in part and must be restored again",
            restore,
        )
        for each in self._restored_parts(dense.found):
            _partially_restored.pop(each, None)
        return manifest.step

    def step(self, found: SavedObjects | None = None) -> int:
        """Returns the step of a save: the iterations of the model's optimizer, or 0."""
        optimizer = getattr(self._model, "optimizer", None)
        if optimizer is not None:
            return steps_of(optimizer)
        found = found or DenseState(self._model, self._objects).found
        return max((steps_of(each) for each in found.optimizers), default=0)

    def waiting_calls(self, found: SavedObjects | None = None) -> int:
        """Returns the number of calls whose gradients wait in optimizers, which forbid a save."""
        found = found or self._prepared().found
        # `iterations` only counts calls that have applied gradients.
        waiting = (
            calls_of(optimizer) % (optimizer.gradient_accumulation_steps or 1)
            for optimizer in found.optimizers
        )
        return max(waiting, default=0)

    def _prepared(self) -> DenseState:
        """Returns everything that is to be saved, in its present state."""
        dense = DenseState(self._model, self._objects)
        nested = [path for path in dense.found.iterators if path not in self._objects]
        if nested and communicators.size() > 1:
            raise ValueError(
                "Expected each iterator of tf.data as an object of its own with several workers, "
                "each of which is at another place in its data. Received: iterators within "
                f"objects, {', '.join(nested)}. Give them as Checkpoint(iterator=iterator, …)."
            )
        return dense

    def _restored_parts(self, found: SavedObjects) -> Iterator[Any]:
        """Yields this checkpoint, and what others may have too: tables, and the model."""
        yield self
        yield from (host.table for host in found.tables)
        if self._model is not None:
            yield self._model

    def _own(self, agreement: Agreement) -> OwnState:
        return OwnState(self._own_objects(), agreement.rank, agreement.size)

    def _own_objects(self) -> dict[str, Any]:
        """Returns the objects that each worker saves for itself: iterators."""
        return {
            name: each for name, each in self._objects.items() if isinstance(each, tf.data.Iterator)
        }


def _refuse_folder_of(storage: Storage | None, folder: str) -> None:
    """Raises for a checkpoint among the files of a storage, with which it would be removed."""
    if storage is None:
        return
    own = os.path.realpath(storage.path)
    if os.path.commonpath([own, os.path.realpath(folder)]) == own:
        raise ValueError(
            f"Expected a path for the checkpoint outside of the folder of the storage. Received: "
            f"'{folder}', in {storage!r}."
        )
