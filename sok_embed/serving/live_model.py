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
from sok_embed.files.object_store import StoreError
from sok_embed.files.scratch import ScratchFolder
from sok_embed.kv import CorruptionError
from sok_embed.serving.delta_files import check_there, read_current
from sok_embed.serving.layers import first_state, next_state
from sok_embed.serving.loaded_export import LoadedExport, Snapshot
from sok_embed.serving.skipped_paths import SkippedPaths, signature_of
from sok_embed.serving.store_cache import StoreCache
from sok_embed.serving.store_versions import stored_at
from sok_embed.serving.versions import Version, export_folder, export_numbers

_log = logging.getLogger("sok_embed.serving")

_SCRATCH = "sok-served"
# The seconds after which a version is served even if more deltas wait.
_SECONDS_A_STEP = 1.0
# The most seconds that the end of the process waits for the answer of an object store.
_SECONDS_AT_END = 5.0


def load(
    path: str | os.PathLike[str],
    *,
    version: tuple[int, int] | None = None,
    follow: bool = False,
    poll_seconds: float = 1.0,
) -> LiveModel:
    """Loads the newest version of a model that `sok_embed.serving.export` has written.

    Versions in an object store are copied to a cache, which all processes of this host share: the
    folder that `SOK_EMBED_CACHE` names, `~/.cache/sok-embed/served` by default. It has at most the
    bytes of `SOK_EMBED_CACHE_BYTES`, by default 64 GiB: versions that no process uses make room.
    All files are checked. While the store fails, a model that follows answers as before, and a new
    one answers from what the host has.

    Args:
        path: The folder of all versions, as it was given to `export`, or their URL in an object
            store, such as `s3://bucket/served`.
        version: The version to load, a value of `LiveModel.version`; `None`: the newest.
        follow: True if the model takes up deltas of `sok_embed.callbacks.PublishDeltas`, and new
            exports, while it answers.
        poll_seconds: The seconds between two looks for them. All processes of a host that follow
            one URL share the looks.

    Returns:
        The model.

    Raises:
        FileNotFoundError: If the folder has no export, or not that version.
        ValueError: For an export with `ops="stock"`, another SavedModel, and a version with
            `follow=True`.
        OSError: From the file system or the store, and if the cache has no room for a version.
        ImportError: For a URL, without fsspec or what it needs for the store.
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

    `model(**inputs)` answers as the signature of the SavedModel: a dict of tensors by name, of
    dense parts of the inputs as `export` names them. `TypeError` for inputs of other names.

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
        store = stored_at(path)
        self._cache = None if store is None else StoreCache(store)
        self._root = os.fsdecode(path) if self._cache is None else self._cache.root
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
            failed = self._brought_first(follow)
            self._load_first()
            self._take_deltas()
            if failed is not None and self._cache is not None:
                self._skipped.skip(self._cache.url, failed, None, self.version)
        else:
            export, delta = _checked(version)
            self._bring_version(export, delta)
            self._export = self._loaded(export)
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
            most = None if self._cache is None else _SECONDS_AT_END
            weakref.finalize(self, _end, self._thread, self._stopped, self._lock, most)

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
        does not follow. An object store is asked anew at each call.

        Raises:
            sok_embed.kv.CorruptionError: If `CURRENT.json`, which names the newest, is damaged.
            OSError: From the file system or the store.
        """
        export, delta = self._snapshot.version
        if self._cache is not None:
            return max(0, self._cache.current(export) - delta)
        return max(0, read_current(self._snapshot.base) - delta)

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
        self._export.check_process()
        self._bring(waits=False)
        with self._changing():
            self._update(waits=False)
        return self.version

    def roll_back(self, version: tuple[int, int]) -> None:
        """Answers from an earlier version, and does not follow until `follow` is called.

        Args:
            version: An earlier value of `version`. Its export and its deltas must still exist, in
                an object store or in the cache of this host.

        Raises:
            FileNotFoundError: If the export or one of the deltas is gone.
            sok_embed.kv.CorruptionError: If one of them is damaged. The version stays as it was.
            OSError: From the file system or the store.
        """
        export, delta = _checked(version)
        self._export.check_process()
        self._bring_version(export, delta)
        with self._changing():
            before = self._export
            if export != before.number:
                self._export = self._loaded(export)
            try:
                self._snapshot = self._at(delta)
            except BaseException:
                self._export = before
                raise
            self._following = False

    def follow(self) -> None:
        """Follows published deltas again after `roll_back`, in a model that was made to follow.

        Raises:
            RuntimeError: For a model that was loaded without `follow=True`, or was closed.
        """
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

    def _load_first(self) -> None:
        """Loads the newest export; of a folder the newest that is not damaged, as `update` does."""
        numbers = [self._newest()] if self._cache is not None else export_numbers(self._root)[::-1]
        damaged: list[tuple[str, OSError]] = []
        for number in numbers:
            try:
                self._export = self._loaded(number)
                self._snapshot = self._export.snapshot(first_state(self._export.base))
            except OSError as error:
                damaged.append((os.path.join(self._root, str(number)), error))
                continue
            for folder, why in damaged:
                self._skipped.skip(folder, why, signature_of(folder), self.version)
            return
        raise damaged[0][1]

    def _newest(self) -> int:
        """Returns the number of the newest export."""
        return export_numbers(self._root)[-1] if self._cache is None else self._cache.newest()

    def _loaded(self, number: int) -> LoadedExport:
        """Loads an export, which stays in the cache of a store as long as it is in use."""
        folder = export_folder(self._root, number)
        if self._cache is None:
            return LoadedExport(folder)
        lock = self._cache.hold(number)
        try:
            export = LoadedExport(folder)
        except BaseException:
            lock.close()
            raise
        weakref.finalize(export, lock.close)
        return export

    def _brought_first(self, follow: bool) -> Exception | None:
        """Copies the newest version from a store; returns the error if an older one will do."""
        if self._cache is None:
            return None
        try:
            self._cache.bring()
        except (OSError, CorruptionError) as error:
            is_damaged_delta = isinstance(error, CorruptionError) and self._cache.has_newest
            try:
                number = self._newest()
            except FileNotFoundError:
                raise error from None
            if not is_damaged_delta and not (follow and self._cache.has(number, 0)):
                raise
            return error
        return None

    def _bring_version(self, number: int, delta: int) -> None:
        """Copies a version from a store; one that the host has will do while the store fails."""
        if self._cache is None:
            return
        try:
            self._cache.bring_version(number, delta)
        except StoreError as error:
            if not self._cache.has(number, delta):
                raise
            text = " ".join(str(error).split())
            _log.warning("version %s is the one of this host: %s", (number, delta), text)

    def _bring(self, waits: bool = True) -> None:
        """Copies what has been published from a store, without the lock: this may take long."""
        if self._cache is None:
            return
        url = self._cache.url
        if waits and self._skipped.is_waiting(url, None):
            return
        try:
            if waits:
                is_asked = self._cache.look(self._poll_seconds)
            else:
                self._cache.bring()
                is_asked = True
        except Exception as error:
            self._skipped.skip(url, error, None, self.version)
        else:
            if is_asked:
                self._skipped.taken(url)

    def _look(self) -> None:
        """Serves what has been published, if the model follows."""
        if self._following:
            self._bring()
        with self._lock:
            if self._following and not self._stopped.is_set():
                self._update()

    def _update(self, waits: bool = True) -> None:
        """Serves what has been published; tries failed paths at once, unless it `waits`."""
        try:
            newest = self._newest()
        except OSError as error:
            self._skipped.skip(f"'{self._root}'", error, str(error), self.version)
            return
        if newest > self._export.number:
            self._take_export(newest, waits)
        self._take_deltas(waits)

    def _take_export(self, number: int, waits: bool) -> None:
        folder = os.path.join(self._root, str(number))
        signature = signature_of(folder)
        if waits and self._skipped.is_waiting(folder, signature):
            return
        try:
            export = self._loaded(number)
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
                if self._cache and isinstance(error, (CorruptionError, FileNotFoundError)):
                    self._cache.drop_delta(export.number, state.number + 1)
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


def _end(
    thread: threading.Thread, stopped: threading.Event, lock: threading.Lock, most: float | None
) -> None:
    stopped.set()
    if thread is threading.current_thread():
        return
    thread.join(most)
    if thread.is_alive():  # it waits for a store, or updates a last time
        with lock:
            pass


def _checked(version: Any) -> tuple[int, int]:
    is_pair = isinstance(version, tuple) and len(version) == 2
    if not is_pair or not all(type(each) is int and each >= 0 for each in version):
        raise ValueError(
            "Expected a version as LiveModel.version says it, such as (1, 7): the numbers of an "
            f"export and of a delta. Received: {shown(version)}."
        )
    return version
