"""Models that are served in this process, and follow what a training publishes."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from types import TracebackType
from typing import Any

import tensorflow as tf

from sok_embed.arguments import check_number, shown
from sok_embed.files.scratch import ScratchFolder
from sok_embed.serving.delta_files import check_there, read_current
from sok_embed.serving.layers import first_state, next_state
from sok_embed.serving.loaded_export import LoadedExport, Snapshot, Version
from sok_embed.serving.skipped_paths import SkippedPaths, signature_of
from sok_embed.serving.versions import export_folder, export_numbers

_log = logging.getLogger("sok_embed.serving")

_SCRATCH = "sok-served"
# The seconds after which a version is served even if more deltas wait.
_SECONDS_A_STEP = 1.0


def load(
    path: str | os.PathLike[str],
    *,
    version: tuple[int, int] | None = None,
    follow: bool = False,
    poll_seconds: float = 1.0,
) -> LiveModel:
    """Loads the newest version of a model that `sok_embed.serving.export` has written.

    Args:
        path: The folder of all versions, as it was given to `export`.
        version: The version to load, a value of `LiveModel.version`; `None`: the newest.
        follow: True if the model takes up deltas of `sok_embed.callbacks.PublishDeltas`, and new
            exports, while it answers.
        poll_seconds: The seconds between two looks for them.

    Returns:
        The model.

    Raises:
        FileNotFoundError: If the folder has no export, or not that version.
        ValueError: For an export with `ops="stock"`, another SavedModel, and a version with
            `follow=True`.
        sok_embed.kv.CorruptionError: If files of the version are damaged. Without `version=`,
            damaged files are skipped, with a line in the log.
    """
    if version is not None and follow:
        raise ValueError(
            "Expected follow=True without a version, or a version alone. Received: both. A model "
            "that follows has the newest version."
        )
    return LiveModel(path, version, follow, poll_seconds)


class LiveModel:
    """A served model, made by `sok_embed.serving.load`. All methods are safe in several threads.

    Each call answers from one version: all its rows and dense weights are of the same step. With
    `follow=True` a thread reads published deltas, and then replaces the served version by one
    assignment, so that no call waits. Deltas that are damaged or missing, or do not follow the
    served version, are skipped, with one line in the log `sok_embed.serving`, and are looked at
    again when their files change, and at least once a minute: a full disk is an error that passes.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from sok_embed import DynamicEmbedding, serving
    >>> trained = keras.Sequential([keras.Input((2,), dtype="int64", name="items"),
    ...                             DynamicEmbedding(4, "ones"), keras.layers.Flatten()])
    >>> folder = serving.export(trained, "live")
    >>> with serving.load("live", follow=True) as model:
    ...     model.version, model(items=np.array([[7, -1]]))["output_0"].shape
    (Version(export=1, delta=0), TensorShape([1, 8]))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        version: tuple[int, int] | None,
        follow: bool,
        poll_seconds: float,
    ) -> None:
        self._root = os.fsdecode(path)
        self._process = os.getpid()
        self._poll_seconds = check_number("poll_seconds", poll_seconds)
        if self._poll_seconds <= 0:
            raise ValueError(f"Expected positive poll_seconds. Received: {shown(poll_seconds)}.")
        self._scratch = ScratchFolder(_SCRATCH)
        self._skipped = SkippedPaths(self._poll_seconds)
        self._following = follow
        self._lock = threading.Lock()  # held while the version changes
        self._stopped = threading.Event()
        if version is None:
            self._export = LoadedExport(export_folder(self._root))
            self._snapshot = self._export.snapshot(first_state(self._export.base))
            self._take_deltas()
        else:
            export, delta = _checked(version)
            self._export = LoadedExport(export_folder(self._root, export))
            self._snapshot = self._at(delta)
        if follow:
            self._thread = threading.Thread(
                target=_follow,
                args=(weakref.ref(self), self._stopped, self._poll_seconds),
                name="sok_embed.serving",
                daemon=True,
            )
            self._thread.start()
            # The thread must not be within native code when the interpreter ends.
            weakref.finalize(self, _end, self._thread, self._stopped)

    @property
    def version(self) -> Version:
        """The version from which calls answer now."""
        return self._snapshot.version

    @property
    def snapshot(self) -> Snapshot:
        """The model at the present version, for several calls that must use one version."""
        return self._snapshot

    def deltas_behind(self) -> int:
        """Returns how many published deltas of the export are not served yet.

        If it stays above 0, the next delta is damaged or missing, or the model was rolled back or
        does not follow.

        Raises:
            sok_embed.kv.CorruptionError: If `CURRENT.json`, which names the newest, is damaged.
            OSError: From the file system.
        """
        snapshot = self._snapshot
        return max(0, read_current(snapshot.base) - snapshot.version.delta)

    def __call__(self, **inputs: Any) -> dict[str, tf.Tensor]:
        """Returns the outputs of the model, by the signature of the SavedModel.

        Args:
            **inputs: The dense parts of the inputs, as `sok_embed.serving.export` names them.

        Raises:
            TypeError: For inputs of other names, and for values that their dtypes do not hold.
            RuntimeError: In a process that was forked after the model was loaded, in which
                TensorFlow does not run. `update`, `roll_back` and `follow` raise it too.
        """
        return self._snapshot(**inputs)

    def update(self) -> Version:
        """Serves what has been published, without waiting for the next look. Returns the version.

        This works for a model that was loaded without `follow=True` or was rolled back, too. It
        ends the rolling back, but the model does not follow afterwards.
        """
        with self._changing():
            self._update(waits=False)
        return self.version

    def roll_back(self, version: tuple[int, int]) -> None:
        """Answers from an earlier version, and does not follow until `follow` is called.

        Args:
            version: An earlier value of `version`. Its export and its deltas must still exist.

        Raises:
            FileNotFoundError: If the export or one of the deltas is gone.
            sok_embed.kv.CorruptionError: If one of them is damaged. The version stays as it was.
        """
        export, delta = _checked(version)
        with self._changing():
            before = self._export
            if export != before.number:
                self._export = LoadedExport(export_folder(self._root, export))
            try:
                self._snapshot = self._at(delta)
            except BaseException:
                self._export = before
                raise
            self._following = False

    def follow(self) -> None:
        """Follows published deltas again after `roll_back`, in a model that was made to follow."""
        self._export.check_process()
        if not hasattr(self, "_thread"):
            raise RuntimeError(
                "Expected a model that was loaded with follow=True. Received: a model that was "
                "loaded without it. Load it with follow=True, or call update."
            )
        if self._stopped.is_set():
            raise RuntimeError("Expected a model that is open. Received: a closed model.")
        self._following = True

    def close(self) -> None:
        """Stops following: the version stays, and calls answer as before."""
        self._stopped.set()
        if self._process != os.getpid():
            return  # a thread that does not run in this forked child may have the lock
        with self._lock:
            self._following = False

    def __enter__(self) -> LiveModel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _changing(self) -> threading.Lock:
        """Returns the lock to hold while the version changes."""
        # A thread that does not run in a forked child may have had the lock.
        self._export.check_process()
        return self._lock

    def _look(self) -> None:
        """Serves what has been published, if the model follows."""
        with self._lock:
            if self._following:
                self._update()

    def _update(self, waits: bool = True) -> None:
        """Serves what has been published; tries failed paths at once, unless it `waits`."""
        try:
            newest = export_numbers(self._root)[-1]
        except OSError as error:
            self._skipped.skip(f"'{self._root}'", error, str(error), self.version)
            return
        if newest > self._export.number:
            self._take_export(newest, waits)
        self._take_deltas(waits)

    def _take_export(self, number: int, waits: bool) -> None:
        folder = export_folder(self._root, number)
        signature = signature_of(folder)
        if waits and self._skipped.is_waiting(folder, signature):
            return
        try:
            export = LoadedExport(folder)
            if (export.inputs, export.outputs) != (self._export.inputs, self._export.outputs):
                raise ValueError(
                    f"Expected an export with the inputs and outputs of the one that is served. "
                    f"Received: {export.inputs} and {export.outputs}."
                )
            snapshot = export.snapshot(first_state(export.base))
        except Exception as error:
            self._skipped.skip(folder, error, signature, self.version)
            return
        self._skipped.taken(folder)
        snapshot, _ = self._newer_of(export, snapshot, waits)
        self._export, self._snapshot = export, snapshot

    def _take_deltas(self, waits: bool = True) -> None:
        while True:
            before = self._snapshot
            self._snapshot, is_behind = self._newer_of(self._export, before, waits)
            if not is_behind:
                return

    def _newer_of(
        self, export: LoadedExport, snapshot: Snapshot, waits: bool
    ) -> tuple[Snapshot, bool]:
        """Reads deltas of an export for a while.

        Returns:
            The newest version so far, and whether there are more.
        """
        base, state = export.base, snapshot.state
        path = f"{base.deltas}/CURRENT.json"
        try:
            if not (os.path.isdir(self._scratch.path) and state.has_files()):
                # Something has removed the folder of temporary files.
                path = "a folder for temporary files"
                self._scratch = ScratchFolder(_SCRATCH)
                state = first_state(base)
            current = read_current(base)
        except Exception as error:
            self._skipped.skip(path, error, str(error), snapshot.version)
            return snapshot, False
        end = time.monotonic() + _SECONDS_A_STEP
        while state.number < current:
            if time.monotonic() > end and state.number > snapshot.state.number:
                return export.snapshot(state, snapshot), True
            folder = base.delta(state.number + 1)
            signature = signature_of(folder)
            if waits and self._skipped.is_waiting(folder, signature):
                break
            try:
                state = next_state(base, state, self._scratch.path)
            except Exception as error:
                version = Version(export.number, state.number)
                self._skipped.skip(folder, error, signature, version)
                break
            self._skipped.taken(folder)
        if state.number <= snapshot.state.number:
            return snapshot, False
        return export.snapshot(state, snapshot), False

    def _at(self, delta: int) -> Snapshot:
        base = self._export.base
        state = first_state(base)
        if delta:
            check_there(base, delta)
        while state.number < delta:
            state = next_state(base, state, self._scratch.path)
        return self._export.snapshot(state)


def _follow(model: weakref.ref[LiveModel], stopped: threading.Event, poll_seconds: float) -> None:
    """Looks for updates as long as a model lives."""
    while not stopped.wait(poll_seconds):
        live = model()
        if live is None:
            return
        try:
            live._look()
        except Exception:
            _log.exception("version %s goes on, since an update has failed", tuple(live.version))
        del live


def _end(thread: threading.Thread, stopped: threading.Event) -> None:
    stopped.set()
    if thread is not threading.current_thread():
        thread.join()


def _checked(version: Any) -> tuple[int, int]:
    is_pair = isinstance(version, tuple) and len(version) == 2
    if not is_pair or not all(type(each) is int and each >= 0 for each in version):
        raise ValueError(
            "Expected a version as LiveModel.version says it, such as (1, 7): the numbers of an "
            f"export and of a delta. Received: {shown(version)}."
        )
    return version
