"""`fit` whose checkpoints are those of a run of Ray Train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import ray.train
import tensorflow as tf

from sok_embed import checkpoint, communicators
from sok_embed.callbacks.averaged_logs import AverageMetrics, averaged_logs
from sok_embed.checkpoint.batches import Position
from sok_embed.checkpoint.files import manifest
from sok_embed.checkpoint.files.step_folders import StepFolders
from sok_embed.communicators.agreement import Agreement
from sok_embed.files.place_of import place_of

# The scheme of a URL by the name that pyarrow gives a filesystem; paths of the first have none.
_SCHEMES = {"local": "", "s3": "s3://", "gcs": "gs://", "abfs": "abfs://"}
_FOLDER = "sok_embed"
# Ray decides which checkpoints stay, and each has to be whole by itself.
_NOT_TAKEN = ("directory", "incremental", "max_deltas", "max_to_keep", "on_saved", "save_when")


def fit(
    model: keras.Model,
    dataset: tf.data.Dataset,
    *,
    epochs: int,
    save_freq: str | int = "epoch",
    position: Position = "count",
    callbacks: Sequence[keras.callbacks.Callback] | None = None,
    verbose: str | int = "auto",
    **arguments: Any,
) -> keras.callbacks.History:
    """Trains as `sok_embed.checkpoint.fit` does, with checkpoints in the storage of Ray's run.

    Where Ray starts the workers again, also more or fewer of them, or goes on with a run of the
    same name, the same call goes on at the batch after the last checkpoint.

    Each checkpoint is reported to Ray once it is whole, with the logs of the batch or epoch before
    it, averaged over the workers: it is a `ray.train.Checkpoint` of the run, which no file is
    copied for. Ray removes old ones by the `CheckpointConfig` of the run, and this function those
    that Ray had taken off its list, but not removed, when it was killed. All are kept without a
    `num_to_keep`. By a score of Ray's, a checkpoint without that figure is the worst; that of the
    beginning is reported with the next one. At the end of an epoch metrics are those of all
    examples, as by `sok_embed.callbacks.AverageMetrics`.

    Where Ray is told that a node will be taken away, all workers save at once and train on.

    Collective: all workers call it with the same arguments, as they do `checkpoint.fit`.

    Args:
        model: The model, compiled and built.
        dataset: This worker's batches, of `sok_embed.ray.dataset` or any other.
        epochs: The number of the last epoch, counted from 1.
        save_freq: `"epoch"`, or the number of batches of an epoch after which to save too.
        position: `"count"`: the place in the dataset is found by the number of batches, so that
            any number of workers can go on. `"iterator"`: by the saved state of the iterator.
        callbacks: Callbacks of Keras.
        verbose: The verbosity, as for `model.fit`. `"auto"`: a line an epoch, of worker 0.
        **arguments: Further arguments of `sok_embed.checkpoint.fit`, such as `steps_per_epoch`,
            `validation_data` and `stop_when`.

    Returns:
        The history of all epochs of the run, also before it was started again.

    Raises:
        TypeError: For an argument that Ray decides about, such as `max_to_keep`.
        ValueError: For a dataset of Ray Data whose order is not known; for a storage that this
            package cannot write to.
        RuntimeError: Outside a worker of Ray Train.
        Exception: As `sok_embed.checkpoint.fit`.
    """
    taken = [each for each in _NOT_TAKEN if each in arguments]
    if taken:
        raise TypeError(
            f"Expected no {', '.join(taken)} in sok_embed.ray.fit: checkpoints are those of Ray's "
            "run, which its RunConfig and CheckpointConfig describe. For others call "
            "sok_embed.checkpoint.fit."
        )
    if isinstance(dataset, tf.data.Dataset) and dataset.options().deterministic is False:
        raise ValueError(
            "Expected a dataset whose order is known, so that training can go on at the right "
            "batch. Received: one with deterministic=False, as Ray's own split gives. Give the "
            "trainer dataset_config=sok_embed.ray.DataConfig(batch_size)."
        )
    validates = arguments.get("validation_data") is not None
    run = _RayRun(ray.train.get_context().get_storage(), validates)
    given = list(callbacks or ())
    if not any(isinstance(each, AverageMetrics) for each in given):
        given.insert(0, AverageMetrics())
    return checkpoint.fit(
        model,
        dataset,
        directory=f"{run.scheme}{run.path}/{_FOLDER}",
        epochs=epochs,
        save_freq=save_freq,
        position=position,
        max_to_keep=None,
        on_saved=run.report,
        save_when=run.is_leaving,
        callbacks=given,
        verbose=(2 if communicators.rank() == 0 else 0) if verbose == "auto" else verbose,
        **arguments,
    )


class _RayRun:
    """The run of Ray Train that this worker is in.

    Attributes:
        path: The folder of the run in its filesystem.
        scheme: The text before the path in a URL.
    """

    def __init__(self, storage: Any, validates: bool = False) -> None:
        self._filesystem = storage.storage_filesystem
        self.path = storage.experiment_fs_path
        kind = self._filesystem.type_name
        if kind not in _SCHEMES:
            raise ValueError(
                "Expected the storage of Ray's run to be a folder, or a URL of S3, Google Cloud "
                f"Storage or Azure. Received: {storage.storage_fs_path!r} in a filesystem of type "
                f"{kind!r}. Set storage_path of RunConfig, or call sok_embed.checkpoint.fit with a "
                "directory."
            )
        self.scheme = _SCHEMES[kind]
        self._leaving: set[str] = set()  # the nodes that were saved for
        self._prefixes = ("", "val_") if validates else ("",)
        self._unreported: list[str] | None = None  # paths; `None`: Ray was not asked yet

    def report(self, folder: str, logs: dict[str, Any]) -> None:
        """Reports a checkpoint that is whole, unless Ray has it already. Collective.

        Ray takes one without a score for the best of all where it keeps the least. So checkpoints
        without figures, such as that of the beginning, wait for the next one, and have NaN for its
        figures, which is worse than any number.
        """
        figures = averaged_logs(logs)
        path = self._path_of(folder)
        if self._unreported is None:
            self._unreported = self._unheard()
        last = ray.train.get_checkpoint()
        if (last is None or last.path != path) and path not in self._unreported:
            self._unreported.append(path)  # else the run goes on from it
        if not figures:
            return
        trained = [name for name in figures if not name.startswith("val_")]
        names = [*figures, *(f"{prefix}{name}" for name in trained for prefix in self._prefixes)]
        for each in self._unreported:
            ray.train.report(
                dict.fromkeys(names, math.nan) | (figures if each == path else {}),
                ray.train.Checkpoint(each, self._filesystem),
                checkpoint_upload_mode=ray.train.CheckpointUploadMode.NO_UPLOAD,
            )
        self._unreported = []

    def _unheard(self) -> list[str]:
        """Returns the paths of whole checkpoints that are newer than all in Ray's list. Collective.

        A worker was killed before Ray had taken up their reports. Older ones that are not in the
        list are removed: Ray was killed when it had taken them off, and before it removed them.
        """
        folders = StepFolders(f"{self.scheme}{self.path}/{_FOLDER}")
        agreement = Agreement(communicators.current())
        _, told = agreement.gather_together(
            "compare checkpoints with Ray's list",
            lambda: self._compared(folders) if agreement.rank == 0 else [],
            list,
        )
        return [self._path_of(folders.folder(step)) for step in told[0]]

    def _compared(self, folders: StepFolders) -> list[int]:
        """Returns the steps of checkpoints that are newer than Ray's list, and removes others."""
        mode = ray.train.CheckpointConsistencyMode.COMMITTED
        reported = ray.train.get_all_reported_checkpoints(consistency_mode=mode)
        listed = {each.checkpoint.path for each in reported}
        unheard: list[int] = []
        for step in folders.by_age():
            if self._path_of(folders.folder(step)) not in listed:
                unheard.append(step)
                continue
            for older in unheard:
                place_of(folders.folder(older)).remove_all(manifest.NAME)
            unheard.clear()
        return unheard

    def _path_of(self, folder: str) -> str:
        return folder.removeprefix(self.scheme)

    def is_leaving(self) -> bool:
        """Returns true once for each node of the run that will be taken away. Collective."""
        info = ray.train.get_preemption_info()
        leaving = set() if info is None else set(info.preempted_node_ids) - self._leaving
        self._leaving |= leaving
        return bool(leaving)
