"""A checkpoint: all workers write it together, and any number of them reads it."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators
from sok_embed.checkpoint import manifest as manifests
from sok_embed.checkpoint.agreement import Agreement
from sok_embed.checkpoint.dense import DenseState
from sok_embed.checkpoint.files import (
    FileRecord,
    check_length,
    check_record,
    nothing_restored,
    remove_if_there,
    sync_folder,
)
from sok_embed.checkpoint.manifest import Manifest
from sok_embed.checkpoint.own_state import OwnState, data_names
from sok_embed.checkpoint.reading import TablesReader, check_descriptions
from sok_embed.checkpoint.rows_file import RowsReader
from sok_embed.checkpoint.tables import Found
from sok_embed.checkpoint.writing import rows_name, write_rows
from sok_embed.kv import CorruptionError

# What saves write, all with the number of the save in their names.
_OWN_NAME = re.compile(
    r"(?:(?:rows|data)-\d{5,}-of-\d{5,}|dense|manifest)-(?P<attempt>[0-9a-f]{16})[.\w-]*"
)


class Checkpoint:
    """Dense weights, optimizers, seeds, metrics and all rows, in one folder.

    Every method is collective: all workers call it, with the same folder, which must lie on a file
    system that all of them share. Each writes the rows that it has, worker 0 writes everything
    else, and at last a manifest, with which the checkpoint is whole. Any number of workers reads
    it: each takes the rows that are its own by its own placement of tables. Rows come back bit for
    bit, with slots, update counts and times; so do the steps of tables, counts of admissions and
    sketches.

    The objects are those of `tf.train.Checkpoint`. An iterator of `tf.data` that is given as one
    of them is each worker's own: each saves where it stands, and as many workers go on from there;
    others than so many cannot restore it. Rows of tables on disk are copied too, and a
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
        **objects: Others that `tf.train.Checkpoint` takes: variables, layers, optimizers, tables.

    Raises:
        ValueError: Without a model and objects, and for an object of the name `model`.
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
        # The checkpoint of a restore that has begun to change things and has not ended.
        self._half_restored: str | None = None

    def save(self, directory: str | os.PathLike[str]) -> str:
        """Writes everything into a folder, in the place of a checkpoint that is there.

        The checkpoint that is there stays until the new one is whole; a save that fails, or is
        killed, leaves it. What such a save has left, the next one removes.

        Args:
            directory: The folder; it is made if there is none.

        Returns:
            Its absolute path.

        Raises:
            ValueError: If workers have different models or steps, or are in the midst of an
                accumulation of gradients; on all workers.
            OSError: From the file system.
            RuntimeError: If another worker has failed, a table changes meanwhile, or the last
                restore has failed when it had changed something.
        """
        return self._save(local_path(directory))

    def _save(self, folder: str, serial: int = 0, step: int | None = None) -> str:
        """Saves into a folder of an absolute path.

        Args:
            folder: The path.
            serial: Of the save; that of worker 0 counts.
            step: Of the save. `None`: that of `step()`.
        """
        agreement = Agreement(communicators.current())
        dense = agreement.together("be ready for a save", self._prepared)
        step = self.step(dense.found) if step is None else step
        self._check_agreement(agreement, dense, folder, step)
        number = secrets.randbits(62) if agreement.rank == 0 else 0
        attempt = agreement.gather(number, "attempt")[0]
        first = agreement.rank == 0
        agreement.together("find the folder", lambda: _make_folder(folder) if first else None)

        def undo() -> None:
            _remove_attempts(folder, lambda each: each == attempt)

        rows, files, data = agreement.together(
            "write their parts", lambda: self._write(folder, dense, attempt, agreement), undo
        )
        manifest = Manifest(
            attempt=attempt,
            serial=serial,
            step=step,
            workers=agreement.size,
            dense={"prefix": _dense_prefix(attempt), **dense.description()},
            tables=[host.description() for host in dense.found.tables],
            rows=_gathered(agreement, rows, attempt),
            files=files,
            data=_gathered_data(agreement, data, attempt),
        )
        agreement.together(
            "finish the checkpoint", lambda: _finish(folder, manifest) if first else None, undo
        )
        return folder

    def restore(self, directory: str | os.PathLike[str]) -> int:
        """Replaces everything by what a checkpoint has.

        All files that this worker needs are read and checked before anything is changed; if one of
        them is damaged, or is that of another model, all workers are left as they were. What fails
        after that leaves things of two times: `save` refuses them until a restore has ended.

        Args:
            directory: What `save` was given.

        Objects beside a model that were saved and are not given here are left out.

        Returns:
            The step that was saved: the iterations of the model's optimizer, or what a
            `CheckpointManager` was given.

        Raises:
            FileNotFoundError: If there is no whole checkpoint in the folder.
            CorruptionError: For a file that is not as it was written.
            ValueError: For the checkpoint of another model, or of a later version.
            RuntimeError: If another worker has failed, or for an error after something was changed.
        """
        folder = local_path(directory)
        agreement = Agreement(communicators.current())

        def read() -> Manifest:
            with nothing_restored():
                return manifests.read(folder)

        manifest = agreement.together("read the manifest", read)
        agreement.check_same_text(
            "checkpoint",
            f"{manifest.attempt:016x}",
            "Give all workers the same folder, of a shared disk.",
        )

        own = OwnState(self._own_objects())

        def check() -> tuple[DenseState, TablesReader]:
            with nothing_restored():
                own.check(folder, manifest, agreement.rank, agreement.size)
                return self._checked(folder, manifest, agreement)

        dense, tables = agreement.together("find the checkpoint whole", check)
        tables.check_rows(agreement.sums(tables.rows_found(), "rows found"))

        def restore() -> None:
            try:
                tables.restore()
                dense.read(folder, manifest)
                own.read(folder, manifest, agreement.rank, agreement.size)
            except Exception as error:
                raise RuntimeError(
                    f"Expected to take up all of the checkpoint in '{folder}'. Received: "
                    f"{type(error).__name__}: {error} It is restored in part, so rows and weights "
                    "are of two times: restore again, this checkpoint or another."
                ) from error

        self._half_restored = folder
        agreement.together(
            "take up the checkpoint, which is restored in part now and must be restored again",
            restore,
        )
        self._half_restored = None
        return manifest.step

    def _checked(
        self, folder: str, manifest: Manifest, agreement: Agreement
    ) -> tuple[DenseState, TablesReader]:
        """Reads all files that this worker needs, and raises for what cannot be restored."""
        dense = self._prepared()
        check_descriptions(manifest, dense.found.tables)
        for record in manifest.files:
            check_record(folder, record)
        dense.check(folder, manifest)
        tables = TablesReader(folder, manifest, dense.found.tables, agreement.rank, agreement.size)
        tables.check()
        return dense, tables

    def step(self, found: Found | None = None) -> int:
        """The step that a save would have: the iterations of the model's optimizer, or 0."""
        optimizer = getattr(self._model, "optimizer", None)
        if optimizer is not None:
            return int(optimizer.iterations)
        found = found or DenseState(self._model, self._objects).found
        return max((int(each.iterations) for each in found.optimizers), default=0)

    def waiting_calls(self) -> int:
        """How many calls' gradients optimizers have accumulated: with any, a save is refused."""
        return waiting_calls(self._prepared().found)

    def _prepared(self) -> DenseState:
        """Everything that is to be saved, as it can be saved now."""
        dense = DenseState(self._model, self._objects)
        nested = [path for path in dense.found.iterators if path not in self._objects]
        if nested and communicators.size() > 1:
            raise ValueError(
                "Expected each iterator of tf.data as an object of its own with several workers, "
                "each of which is elsewhere in its data. Received: iterators within objects, "
                f"{', '.join(nested)}. Give them as Checkpoint(iterator=iterator, …)."
            )
        return dense

    def _own_objects(self) -> dict[str, Any]:
        """What each worker saves for itself: the iterators among the objects."""
        return {
            name: each for name, each in self._objects.items() if isinstance(each, tf.data.Iterator)
        }

    def _check_agreement(
        self, agreement: Agreement, dense: DenseState, folder: str, step: int
    ) -> None:
        torn = agreement.gather(int(self._half_restored is not None), "half restored")
        if any(torn):
            raise RuntimeError(
                "Expected rows and weights of one time. Received: those that a restore has left "
                f"in part, of '{self._half_restored or 'a checkpoint'}'. Restore it again, or "
                "another one, and save then."
            )
        pending = max(agreement.gather(waiting_calls(dense.found), "accumulated calls"))
        if pending:
            raise ValueError(
                "Expected a step at which the optimizer applies gradients. Received: one at which "
                f"it has accumulated those of {pending} calls, which would be lost. Save after the "
                "call that applies them."
            )
        agreement.check_same("step", step, "Save after the same step on all of them.")
        tables = [host.description() for host in dense.found.tables]
        text = repr((tables, dense.description()["variables"], sorted(self._own_objects())))
        agreement.check_same_text("model", text, "Make the same model on all of them.")
        agreement.check_same_text("folder", folder, "Give all of them the same path.")

    def _write(
        self, folder: str, dense: DenseState, attempt: int, agreement: Agreement
    ) -> tuple[FileRecord | None, list[FileRecord], list[FileRecord]]:
        """Writes what this worker has: its rows, if there are tables, dense weights, its own."""
        rows, files = None, []
        hosts = dense.found.tables
        if hosts:
            rows = write_rows(folder, hosts, attempt, agreement.rank, agreement.size)
        if agreement.rank == 0:
            files = dense.write(folder, _dense_prefix(attempt))
        own = OwnState(self._own_objects())
        data = own.write(folder, attempt, agreement.rank, agreement.size)
        sync_folder(folder)
        return rows, files, data


def local_path(path: str | os.PathLike[str]) -> str:
    """The absolute path of a folder.

    Raises:
        ValueError: For one of another file system than that of the machine.
    """
    text = os.fspath(path)
    if "://" in text:
        raise ValueError(
            f"Expected a folder of a file system that is mounted. Received: {text!r}. Save to a "
            "local or a shared folder, and copy the checkpoint from there."
        )
    return os.path.abspath(text)


def _dense_prefix(attempt: int) -> str:
    return f"dense-{attempt:016x}"


def _gathered(agreement: Agreement, record: FileRecord | None, attempt: int) -> list[FileRecord]:
    """The records of the files of rows of all workers."""
    if record is None:
        return []
    names = [rows_name(worker, agreement.size, attempt) for worker in range(agreement.size)]
    return _of_all_workers(agreement, record, names)


def _gathered_data(
    agreement: Agreement, records: Sequence[FileRecord], attempt: int
) -> list[FileRecord]:
    """The records of the own files of all workers, those of one after those of another."""
    if not records:
        return []
    names = data_names(agreement.size, attempt)
    kinds = [
        _of_all_workers(agreement, record, names[kind :: len(records)])
        for kind, record in enumerate(records)
    ]
    return [record for of_worker in zip(*kinds, strict=True) for record in of_worker]


def _of_all_workers(
    agreement: Agreement, record: FileRecord, names: Sequence[str]
) -> list[FileRecord]:
    """The records of a file that each worker has written; the names are those of the workers."""
    checksum_bits = int(record.checksum, 16)
    lengths = agreement.gather(record.bytes, "lengths of files")
    high = agreement.gather(checksum_bits >> 32, "checksums of files, high")
    low = agreement.gather(checksum_bits & 0xFFFFFFFF, "checksums of files, low")
    return [
        FileRecord(name, lengths[worker], f"{high[worker] << 32 | low[worker]:016x}")
        for worker, name in enumerate(names)
    ]


def _make_folder(folder: str) -> None:
    """Makes the folder, or removes what saves have left in there that did not end.

    Raises:
        ValueError: For a checkpoint of a later version, which is not replaced.
    """
    if os.path.isdir(folder):
        if manifests.is_whole(folder):
            # The new manifest takes the place of a damaged one, and the files go then.
            with contextlib.suppress(CorruptionError):
                manifests.read(folder)
        _remove_attempts(folder, lambda _: True)
        return
    made = []
    while not os.path.isdir(folder):
        made.append(folder)
        folder = os.path.dirname(folder)
    os.makedirs(made[0])
    for each in made:
        sync_folder(os.path.dirname(each))


def is_of_a_save(name: str) -> bool:
    """Whether a file or a folder has a name that saves give."""
    return _OWN_NAME.fullmatch(name) is not None


def _finish(folder: str, manifest: Manifest) -> None:
    """Writes the manifest, once the files of all workers are seen to be there."""
    readers = []
    for worker, record in enumerate(manifest.rows):
        path = os.path.join(folder, record.name)
        if not os.path.exists(path):
            raise FileNotFoundError(
                f"Expected '{path}', which worker {worker} has written. Received: nothing there. "
                "Save into a folder that all workers share."
            )
        readers.append(RowsReader(folder, record, manifest.attempt, worker, manifest.workers))
    for record in (*manifest.files, *manifest.data):
        check_length(os.path.join(folder, record.name), record.bytes)
    entries = [entry for reader in readers for entry in reader.tables]
    for table in manifest.tables:
        of_table = [entry for entry in entries if entry["path"] == table["path"]]
        table["parts"] = {
            part: _total([entry for entry in of_table if entry["part"] == part])
            for part in sorted({entry["part"] for entry in of_table})
        }
    manifests.write(folder, manifest)
    try:
        _remove_attempts(folder, lambda attempt: attempt != manifest.attempt)
    except OSError as error:
        warnings.warn(
            f"Expected to remove the files of earlier saves in '{folder}'. Received: {error}. The "
            "checkpoint is whole, and the next save removes them.",
            stacklevel=6,
        )


def _total(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a manifest says of rows that several workers have."""
    return {
        "rule": max(entry["rule"] for entry in entries),
        "slot_floats": max(entry["slot_floats"] for entry in entries),
        "steps": max(entry["steps"] for entry in entries),
        "rows": sum(entry["rows"] for entry in entries),
    }


def _remove_attempts(folder: str, goes: Callable[[int], bool]) -> None:
    """Removes the files of saves, but those that the manifest in the folder names."""
    try:
        kept = manifests.read(folder).attempt if manifests.is_whole(folder) else None
    except (OSError, ValueError):
        return  # what a damaged manifest names is not known
    for name in os.listdir(folder):
        found = _OWN_NAME.fullmatch(name)
        if found is None or int(found["attempt"], 16) == kept:
            continue
        path = os.path.join(folder, name)
        if goes(int(found["attempt"], 16)):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                remove_if_there(path)


def waiting_calls(found: Found) -> int:
    """How many calls' gradients optimizers have accumulated and not applied."""
    return max(
        (
            # `iterations` are those in which gradients were applied.
            int(optimizer._iterations) % (optimizer.gradient_accumulation_steps or 1)
            for optimizer in found.optimizers
        ),
        default=0,
    )
