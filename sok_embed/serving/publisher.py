"""Publishes the changes of a training, for served models that follow it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from sok_embed import communicators
from sok_embed.binding import _core
from sok_embed.checkpoint.files.rows_file import RowsWriter
from sok_embed.checkpoint.state.tables import begin_capture, step_of
from sok_embed.checkpoint.transfer.saves import is_writing, wait_for_writers
from sok_embed.checkpoint.transfer.worker_rows import WorkerRows, records_of, write_file
from sok_embed.communicators.agreement import Agreement, check_same
from sok_embed.files.forks import HeldFile, check_process
from sok_embed.files.scratch import ScratchFolder, locked_folder, remove_leftovers, work_folder
from sok_embed.kv import CorruptionError
from sok_embed.serving import rows as rows_files
from sok_embed.serving.delta_files import STAGED, DeltaWriter, write_current
from sok_embed.serving.layers import State, TableState, first_state, next_state
from sok_embed.serving.loaded_export import LoadedExport
from sok_embed.serving.moments import Moment
from sok_embed.serving.published_model import check_adapted, matched_parts, matched_weights
from sok_embed.serving.pushing import prune
from sok_embed.serving.store_versions import StoredExport, stored_at
from sok_embed.serving.versions import export_folder, export_numbers
from sok_embed.serving.workers_export import PartWriter
from sok_embed.tables.base_table import Part
from sok_embed.tables.row_batches import Batch

_SCRATCH = "sok-published"
_READER = 1  # the reader of the marks of changed rows; checkpoints are 0
_NEW_EXPORT, _NEW_DELTA = 2, 1  # what has come since the last delta
_ROWS_AT_ONCE = 1 << 13  # few, since their memory is cleared for each table of each delta


class Publisher:
    """Writes deltas of a model that trains, beside the newest export of it.

    A delta has the rows that have changed since the delta before, the keys whose rows were removed,
    and all dense weights. If it is not known which rows have changed, as at first, after a restore,
    and for tables in a storage, all rows are compared with the published ones. After a newer export
    of the model, deltas go on there, from 1.

    With several workers, making it, `publish` and `is_blocked` are collective: all workers call
    these at the same step, for a folder that they share. Each writes its changes, and worker 0
    makes the delta. An error of one worker is an error of all.

    In an object store, deltas are written by one process alone. It copies the newest export with
    its deltas to a temporary folder first, where each delta is made before it is copied to the
    store: so it needs nothing of the publisher before it, which may have been on another machine.

    Args:
        model: The Keras model, made as the one that was exported.
        path: The folder of all versions, as it was given to `sok_embed.serving.export`, or their
            URL in an object store.

    Raises:
        FileNotFoundError: If there is no export.
        ValueError: For an export of another model, or with `ops="stock"`, one whose layers have
            adapted to other data since, and for a URL with several workers.
        BlockingIOError: If another process publishes to the export, other than in a store.
        OSError: From the file system or the store.
        sok_embed.kv.CorruptionError: If an earlier delta is damaged, so that none can follow it.
        RuntimeError: If another worker has failed.
    """

    _unlock: weakref.finalize[Any, Any]  # releases the lock, so that another process can publish
    _number: int  # of the newest delta
    _digest: str
    _published: dict[str, bytes]  # its dense weights
    _marks: list[int]  # for each table, the mark under which its changes are noted
    _told: int  # the number in `CURRENT.json`; -1: unknown

    def __init__(self, model: keras.Model, path: str | os.PathLike[str]) -> None:
        self._agreement = Agreement(communicators.current())
        self._model = model
        self._store = stored_at(path)
        self._stored: StoredExport | None = None  # the newest export in the store
        self._process = os.getpid()
        self._scratch = ScratchFolder(_SCRATCH)
        if self._store is None:
            self._root = os.fsdecode(path)
        elif self._agreement.size > 1:
            raise ValueError(
                f"Expected a folder that all {self._agreement.size} workers share. Received: "
                f"'{self._store.url}', a URL. Publish to such a folder, and copy it every few "
                "seconds by another process: sok-embed push."
            )
        else:
            self._copy = ScratchFolder(_SCRATCH)  # which has the export of the store
            self._root = self._copy.path
        self._bring()
        self._open()

    def _bring(self) -> None:
        """Copies the newest export of a store, if it is not there."""
        if self._store is None:
            return
        number = self._store.newest()
        folder = os.path.join(self._root, str(number))
        if self._stored is None or self._stored.number != number or not os.path.isdir(folder):
            stored = self._store.export(number)
            os.makedirs(self._root, exist_ok=True)
            if not os.path.isdir(folder):
                stored.bring(self._root)
            # The publisher before may have been killed before it named its last delta.
            stored.bring_deltas(self._root, stored.last())
            self._stored = stored

    def _open(self) -> None:
        """Begins to publish to the newest export. Collective."""
        number = self._of_first("look for the export", lambda: export_numbers(self._root)[-1])
        self._unlock = weakref.finalize(self, _nothing)  # on worker 0 a lock replaces it
        self._agreement.together(
            "open the export", lambda: self._open_export(number), lambda: self._unlock()
        )

    def _of_first(self, what: str, number: Callable[[], int]) -> int:
        """Returns the number that a function has found on worker 0. Collective."""

        def found() -> int:
            return number() if self._agreement.rank == 0 else 0

        return self._agreement.gather_together(what, found, lambda each: [each])[1][0][0]

    def _open_export(self, number: int) -> None:
        export = LoadedExport(export_folder(self._root, number))
        self._export = export.number
        self._base = export.base
        self._adapted = export.folder, export.adapted
        check_adapted(self._model, *self._adapted)
        self._variables = matched_weights(self._model, export)
        self._parts = matched_parts(self._model, export, self._scratch.path)
        os.makedirs(self._base.deltas, exist_ok=True)
        if self._agreement.rank == 0:
            self._unlock = weakref.finalize(self, _locked(self._base.deltas).close)
        try:
            if self._agreement.rank == 0:
                remove_leftovers(self._base.deltas, STAGED)
            self._exported = {name: each.numpy().tobytes() for name, each in export.weights.items()}
            self._state = first_state(self._base)
            self._go_on()
            self._tell()
        except BaseException:
            self._unlock()
            raise

    @property
    def number(self) -> int:
        """The number of the newest delta; 0: there is none."""
        return self._number

    def is_blocked(self) -> bool:
        """Returns whether `publish` would wait for a checkpoint that a worker writes."""
        return any(self._agreement.gather(int(is_writing()), "deltas that wait"))

    def publish(self) -> int:
        """Publishes the changes since the last delta. Returns the number of the newest delta.

        It is 0 if a newer export has everything already.

        Nothing is written if nothing has changed. It waits for a checkpoint that is being written
        in the background.

        Raises:
            OSError: From the file system or the store. Nothing is lost: the next delta has the
                changes too, or the next call copies the delta to the store.
            ValueError: For rows that are not finite, or that the dtype of the export cannot hold,
                for another delta of the same number in a store, which another process has
                published, for workers at different steps, and for a layer that has adapted to
                other data since the export.
            RuntimeError: After `close`, in a process that was forked, if another thread changes
                the model meanwhile, and if another worker has failed.
        """
        check_process(self._process, "a publisher", "Publish in the process that trains.")
        if not self._unlock.alive:
            raise RuntimeError("Expected a publisher that is open. Received: a closed publisher.")
        self._bring()
        agreement, ahead = self._agreement, self._of_first("look for the export", self._ahead)
        if ahead == _NEW_EXPORT:
            self._unlock()
            try:
                self._open()
            except BaseException:
                self._export = -1  # the next call tries again
                self._unlock = weakref.finalize(self, _nothing)
                raise
            if self._store is not None:
                prune(self._root, keep=1)
        elif ahead == _NEW_DELTA:
            agreement.together("read the newest delta", self._go_on)
        wait_for_writers()
        captures: list[tuple[int, _core.Capture]] = []
        marks = [secrets.randbits(62) | 1 for _ in self._parts]
        moment = agreement.together("look at the model", lambda: Moment(self._model, False))
        with contextlib.ExitStack() as stack:
            folder, drawn, delta = self._folders(stack)

            def write_changes(writer: DeltaWriter | PartWriter) -> None:
                check_adapted(self._model, *self._adapted)
                for i, mark in enumerate(marks):
                    self._write_table(writer, i, mark, captures, stack)
                moment.check()

            def write_part(file: RowsWriter) -> list[dict[str, Any]]:
                part = PartWriter(file, [held.source for held in self._parts])
                write_changes(part)
                return part.entries

            def write_own() -> list[int]:
                if agreement.size == 1:
                    write_changes(delta)
                    return []
                return write_file(
                    folder, drawn, agreement.rank, agreement.size, write_part
                ).numbers()

            _, told = agreement.gather_together(
                "write what has changed", write_own, lambda own: [step_of(self._model), *own]
            )
            steps = [each[0] for each in told]
            check_same("step", steps, "Publish after the same step on all of them.")

            def finish() -> None:
                if agreement.size > 1:
                    records = records_of([each[1:] for each in told], drawn)
                    self._join(delta, WorkerRows(folder, records, drawn))
                self._finish(delta, moment, steps[0])

            agreement.first_alone("write the delta", finish)
            self._marks = [0] * len(self._parts)
            for i, capture in captures:
                capture.keep()
                self._marks[i] = marks[i]
        self._number = agreement.gather(self._number, "number of the delta")[0]
        agreement.together("name the newest delta", self._tell)
        return self._number

    def _ahead(self) -> int:
        """Returns what has come since the last call: a new export, a new delta, or 0."""
        is_gone = self._store is not None and not os.path.isdir(self._base.deltas)
        if is_gone or export_numbers(self._root)[-1] > self._export:
            return _NEW_EXPORT
        # A call that failed may have renamed the folder before.
        return _NEW_DELTA if os.path.lexists(self._base.delta(self._number + 1)) else 0

    def _folders(self, stack: contextlib.ExitStack) -> tuple[str, int, Any]:
        """Makes a folder for the changes of each worker, and one for the delta. Collective.

        Returns:
            The folder of all workers, its number, and, on worker 0, the writer of the delta.
        """
        drawn = self._of_first("draw a number", lambda: secrets.randbits(62))

        def made() -> DeltaWriter | None:
            if self._agreement.rank:
                return None
            self._staged(stack, drawn)
            return DeltaWriter(self._base, self._staged(stack))

        delta = self._agreement.together("make a folder for their changes", made)
        return work_folder(self._base.deltas, STAGED, drawn), drawn, delta

    def _staged(self, stack: contextlib.ExitStack, number: int | None = None) -> str:
        """Makes a folder for files, which goes with the stack unless it gets another name."""
        folder, lock = locked_folder(self._base.deltas, STAGED, number)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(lock.close)
        return folder

    def _join(self, writer: DeltaWriter, changes: WorkerRows) -> None:
        """Writes the changes of all workers."""
        for i in range(len(self._parts)):
            writer.put_rows(i, ((rows.keys, rows.embeddings) for rows in changes.rows(i)))
            if len(gone := changes.removed(i)):
                writer.put_gone(i, gone.view(np.uint64))

    def _finish(self, writer: DeltaWriter, moment: Moment, step: int) -> None:
        """Completes the delta, if anything has changed."""
        weights = {name: each.numpy() for name, each in self._variables.items()}
        moment.check()
        values = {name: each.tobytes() for name, each in weights.items()}
        if writer.is_empty and values == self._published:
            return
        number = self._number + 1
        self._digest = writer.finish(number, self._digest, step, weights)
        self._number, self._published = number, values

    def close(self) -> None:
        """Ends the publishing, so that another process can publish."""
        self._unlock()

    def _go_on(self) -> None:
        """Reads the newest delta, which the next one follows."""
        state = self._catch_up()
        self._number, self._digest = state.number, state.digest
        self._published = state.weights or self._exported
        self._marks = [0] * len(self._parts)
        self._told = -1

    def _tell(self) -> None:
        """Writes the newest delta to `CURRENT.json`, on worker 0, and copies it to a store."""
        if self._agreement.rank == 0 and self._told != self._number:
            write_current(self._base, self._number)
            if self._stored is not None:
                self._stored.send_deltas(self._base)
            self._told = self._number

    def _write_table(
        self,
        writer: DeltaWriter | PartWriter,
        number: int,
        mark: int,
        captures: list[tuple[int, _core.Capture]],
        stack: contextlib.ExitStack,
    ) -> None:
        """Writes the changes of a table, and adds the capture from which on changes are noted."""
        part, since = self._parts[number].source, self._marks[number]
        if part.shared and self._agreement.rank:
            return  # worker 0 has the same rows
        if since and (capture := _begun(part, mark, since)):
            captures.append((number, capture))
            stack.callback(capture.end)
            self._write_noted(writer, number, capture)
            return
        capture = _begun(part, mark, 0)
        if capture is not None:
            captures.append((number, capture))
            stack.callback(capture.end)
            capture.release()
        self._write_difference(writer, number)

    def _write_noted(
        self, writer: DeltaWriter | PartWriter, number: int, capture: _core.Capture
    ) -> None:
        held = self._parts[number]
        left: list[npt.NDArray[np.uint64]] = []
        went = [np.frombuffer(capture.removed_keys(), np.uint64)]

        def batches() -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.float32]]]:
            size = _ROWS_AT_ONCE
            while True:
                keys = np.empty([size], np.uint64)
                vectors = np.empty([size, held.dim], np.float32)
                count = capture.next(keys, np.empty([size], np.uint32), vectors.reshape(-1))
                keys, vectors = keys[:count], vectors[:count]
                exported = held.is_exported(keys.view(np.int64))
                went.append(keys[~exported])
                left.append(keys[exported])
                yield keys[exported], vectors[exported]
                if count < size:
                    return

        writer.put_rows(number, batches())
        gone = np.setdiff1d(np.concatenate(went), np.concatenate(left))
        if len(gone):
            writer.put_gone(number, gone)

    def _write_difference(self, writer: DeltaWriter | PartWriter, number: int) -> None:
        """Writes all rows of this worker that differ from the published ones, and removed keys."""
        held = self._parts[number]
        table = self._catch_up().tables[number]

        def batches() -> Iterator[Batch]:
            for keys, vectors in held.batches():
                differ = self._differ(table, keys, vectors)
                yield keys[differ], vectors[differ]

        writer.put_rows(number, batches())
        mine = (keys[held.source.mine(keys.view(np.int64))] for keys in table.keys())
        gone = [keys[~held.is_exported(keys.view(np.int64))] for keys in mine]
        if gone and len(keys := np.unique(np.concatenate(gone))):
            writer.put_gone(number, keys)

    def _differ(
        self, table: TableState, keys: npt.NDArray[np.int64], vectors: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.bool_]:
        """Returns which rows differ from the published ones, in the dtype of the export."""
        unsigned = keys.view(np.uint64)
        base = table.base
        if base.dtype != "float32":
            path = os.path.join(self._scratch.path, "compared.safetensors")
            rows_files.write(path, [(keys, vectors)], dim=base.dim, dtype=base.dtype)
            with rows_files.open(path) as rounded:
                vectors = rounded.lookup(keys)
        same = np.all(table.lookup(unsigned).view(np.uint32) == vectors.view(np.uint32), axis=1)
        return ~(table.contains(unsigned) & same)

    def _catch_up(self) -> State:
        """Reads new deltas, and returns the newest published version."""
        if not (os.path.isdir(self._scratch.path) and self._state.has_files()):
            # Something has cleaned the folder of temporary files.
            self._scratch = ScratchFolder(_SCRATCH)
            self._state = first_state(self._base)
        while os.path.lexists(self._base.delta(self._state.number + 1)):
            number = self._state.number + 1
            try:
                self._state = next_state(self._base, self._state, self._scratch.path)
            except (FileNotFoundError, ValueError, CorruptionError) as error:
                raise CorruptionError(
                    f"{error} No delta can follow delta {number} of '{self._base.folder}', which "
                    "cannot be read. Call sok_embed.serving.export(model, path), which begins a "
                    "new version, and publish to that."
                ) from error
        return self._state


def _begun(part: Part, mark: int, since: int) -> _core.Capture | None:
    """Begins a capture; returns `None` if changes since that state are not known."""
    if part.table.storage is not None:
        return None
    try:
        return begin_capture(part, mark, since, _READER)[2]
    except RuntimeError:
        return None


def _nothing() -> None:
    """Does nothing, in place of a lock, on a worker that has none."""


def _locked(folder: str) -> HeldFile:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BlockingIOError(
            f"Expected '{folder}' to be free. Received: a folder that another process, or another "
            "callback of this one, publishes to. End that one first."
        ) from None
    return HeldFile(descriptor)
