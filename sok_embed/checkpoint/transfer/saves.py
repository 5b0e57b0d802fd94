"""One save: the capture at a step, the files of each worker, and finally the manifest."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sok_embed.checkpoint.files import manifest as manifests
from sok_embed.checkpoint.files.manifest import Manifest, Parent
from sok_embed.checkpoint.files.names import data_names, dense_prefix
from sok_embed.checkpoint.files.rows_index import total
from sok_embed.checkpoint.state.dense import DenseState
from sok_embed.checkpoint.state.own_state import OwnState
from sok_embed.checkpoint.transfer.worker_rows import WorkerRows, records_of
from sok_embed.checkpoint.transfer.writing import RowsCapture
from sok_embed.communicators.agreement import Agreement
from sok_embed.files.place_of import place_of
from sok_embed.files.places import Place, Work, check_length
from sok_embed.files.records import FileRecord, record_of
from sok_embed.kv import CorruptionError

# The name of threads that write a save while training goes on.
WRITER = "sok_embed.checkpoint"


def is_writing() -> bool:
    """Returns whether this process is writing a save."""
    return any(thread.name == WRITER for thread in threading.enumerate())


def wait_for_writers() -> None:
    """Waits until this process has written all saves: a table can be in only one save at a time."""
    for thread in threading.enumerate():
        if thread.name == WRITER:
            thread.join()


class SaveOptions(NamedTuple):
    """The options of a save."""

    # The number of the save, which grows from one save of a manager to the next; the number on
    # worker 0 is used.
    serial: int
    step: int  # the step of the model
    # The checkpoint since which changes are saved; `None`: all rows are saved.
    parent: Parent | None = None
    notes_changes: bool = False  # true if later saves may save only the changes since this one
    goes_on: bool = False  # true if training goes on while the save is written


class Ready(NamedTuple):
    """Everything that a save needs to begin, once all workers have agreed on it."""

    dense: DenseState  # the state other than rows, and the tables
    own: OwnState  # the state that each worker has of its own
    step: int  # the step of the save
    folder: str  # the path of the checkpoint's folder
    attempt: int  # the number of the save, which worker 0 has chosen


class Save:
    """A save that has begun: it saves the state of the moment when the object was made.

    Making it and `finish` are collective, and are called at the same step by all workers. `write`
    is not, and may run in another thread. Worker 0 has called `make_folder`, and all workers have
    the same attempt.
    """

    def __init__(self, agreement: Agreement, ready: Ready, options: SaveOptions) -> None:
        self.agreement, self.options = agreement, options
        self.folder, self.attempt = ready.folder, ready.attempt
        self._dense, self._own = ready.dense, ready.own
        self._place = place_of(self.folder)
        self._work: Work | None = None
        self._capture: RowsCapture | None = None
        self._dense_names: list[str] = []
        self._rows: FileRecord | None = None
        self._files: list[FileRecord] = []
        self._own_names: list[str] = []
        self._data: list[FileRecord] = []
        self._error: Exception | None = None
        try:
            if options.goes_on:
                agreement.together("begin their parts", self._begin, self._undo)
            else:
                self._keep_error(self._begin)  # nothing happens before `finish`, which raises it
        except BaseException:
            self.end()  # also after an interrupt, or where a worker is lost
            raise

    def _begin(self) -> None:
        hosts = self._dense.found.tables
        agreement, options = self.agreement, self.options
        self._work = self._place.work()
        if hosts:
            self._capture = RowsCapture(
                self._work.folder,
                hosts,
                self.attempt,
                agreement.rank,
                agreement.size,
                mark=self.attempt if options.notes_changes else 0,
                since=options.parent.state if options.parent else 0,
                apart=options.goes_on,
            )
        if agreement.rank == 0:
            self._dense_names = self._dense.write(self._work.folder, dense_prefix(self.attempt))
        self._own_names = self._own.write(self._work.folder, self.attempt)

    def write(self) -> None:
        """Writes the files of this worker. `finish` raises its errors."""
        if self._error is None:
            self._keep_error(self._write)

    def _write(self) -> None:
        assert self._work is not None
        if self._capture is not None:
            self._rows = self._capture.write()
        self._files = [record_of(self._work.folder, name) for name in self._dense_names]
        self._data = [record_of(self._work.folder, name) for name in self._own_names]
        rows = [self._rows] if self._rows else []
        self._work.put([record.name for record in (*rows, *self._files, *self._data)])

    def _keep_error(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            self._error = error

    def finish(self, then: Callable[[], object] | None = None) -> Manifest:
        """Writes the manifest once all workers have written their parts. Returns it.

        Args:
            then: A function that worker 0 calls when the checkpoint is whole, before the other
                workers go on.
        """
        agreement = self.agreement
        try:
            _, numbers = agreement.gather_together(
                "write their parts",
                self._written,
                lambda records: [number for record in records for number in record.numbers()],
                self._undo,
            )
            rows, data = self._records_of_all(numbers)
            manifest = Manifest(
                attempt=self.attempt,
                serial=self.options.serial,
                step=self.options.step,
                workers=agreement.size,
                dense={"prefix": dense_prefix(self.attempt), **self._dense.description()},
                tables=[host.description() for host in self._dense.found.tables],
                rows=rows,
                files=self._files,
                data=data,
                parent=self.options.parent,
                state=self.attempt,
            )

            def end() -> None:
                if agreement.rank == 0:
                    _finish(self._place, manifest)
                    if then is not None:
                        then()

            agreement.together("finish the checkpoint", end, self._undo)
            if self._capture is not None:
                self._capture.keep()
            return manifest
        finally:
            self.end()

    def end(self) -> None:
        """Ends a save that has not been finished. The next save removes its files."""
        if self._capture is not None:
            self._capture.end()
        if self._work is not None:
            self._work.end()

    def _written(self) -> list[FileRecord]:
        """Returns the records of the files of rows and of own state of this worker."""
        if self._error is not None:
            raise self._error
        return [*([self._rows] if self._rows else []), *self._data]

    def _undo(self) -> None:
        self.end()
        manifests.remove_attempts(self._place, lambda each: each == self.attempt)

    def _records_of_all(
        self, numbers: Sequence[Sequence[int]]
    ) -> tuple[list[FileRecord], list[FileRecord]]:
        """Returns the records of rows and own files of all workers, by what each has told."""
        begin = 3 if self._rows else 0
        rows = records_of([each[:3] for each in numbers], self.attempt) if begin else []
        rest = [number for each in numbers for number in each[begin:]]
        names = data_names(len(numbers), self.attempt)[: len(rest) // 3]
        data = [
            FileRecord.of_numbers(name, rest[3 * i : 3 * i + 3]) for i, name in enumerate(names)
        ]
        return rows, data


def make_folder(place: Place) -> None:
    """Makes the folder of a save, or removes files of unfinished saves from it.

    Raises:
        ValueError: For a checkpoint of a later version, which is not replaced.
    """
    place.make()
    if manifests.is_whole(place):
        # The new manifest replaces a damaged one, and the files are removed then.
        with contextlib.suppress(CorruptionError):
            manifests.read(place)
    manifests.remove_attempts(place, lambda _: True)


def _finish(place: Place, manifest: Manifest) -> None:
    """Writes the manifest, once this worker sees the files of all workers."""
    readers = WorkerRows(place, manifest.rows, manifest.attempt).readers
    for record in (*manifest.files, *manifest.data):
        check_length(place, record)
    entries = [entry for reader in readers for entry in reader.tables]
    for table in manifest.tables:
        of_table = [entry for entry in entries if entry["path"] == table["path"]]
        table["parts"] = {
            part: total([entry for entry in of_table if entry["part"] == part])
            for part in sorted({entry["part"] for entry in of_table})
        }
    manifests.write(place, manifest)
    try:
        manifests.remove_attempts(place, lambda attempt: attempt != manifest.attempt)
    except OSError as error:
        warnings.warn(
            f"Expected to remove the files of earlier saves in '{place.path}'. Received: {error}. "
            "The checkpoint is whole, and the next save removes them.",
            stacklevel=6,
        )
