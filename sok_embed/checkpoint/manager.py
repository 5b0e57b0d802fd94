"""The last checkpoints of a run, in one folder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from sok_embed import communicators
from sok_embed.arguments import check_integer
from sok_embed.binding import _core
from sok_embed.checkpoint.checkpoint import Checkpoint
from sok_embed.checkpoint.files import manifest as manifests
from sok_embed.checkpoint.files.manifest import Parent
from sok_embed.checkpoint.files.step_folders import MOST, StepFolders
from sok_embed.checkpoint.pending import PendingSave
from sok_embed.checkpoint.state.tables import SavedObjects
from sok_embed.checkpoint.transfer.saves import (
    Save,
    SaveOptions,
    make_folder,
    wait_for_writers,
)
from sok_embed.communicators.agreement import LARGEST, Agreement
from sok_embed.files.place_of import place_of

# After so many batches of training, workers ask each other whether they have written a save.
POLL_EVERY = 16


class CheckpointManager(StepFolders):
    """Saves checkpoints into folders `step-000012000` of a directory, and keeps the last ones.

    Collective as `Checkpoint` is. The last checkpoint is the one that was saved last, even if
    training went back to an earlier step and an older checkpoint has a greater step. A folder
    without a manifest comes from a save that did not finish: it is never read as a checkpoint, and
    the next save removes it. Old checkpoints lose their manifest first, so that half of one is
    never read either.

    `save(incremental=True)` writes dense weights, and of tables in memory only the rows that were
    made or changed since the save before, and the keys that went. Such a checkpoint needs those
    before it, back to a full one, and these stay as long as it does. A full checkpoint is saved if
    the chain cannot go on: by the first save of a process, after a restore, if there are other
    tables than before, after `max_deltas`, if the changes together have become longer than the full
    one, and if the save replaces a checkpoint of the chain.

    With `save_on_background`, `save` returns once it has captured the state, and training goes on
    while a thread writes. The checkpoint has the state at the call, bit for bit: code that changes
    a row that is not written yet keeps a copy of it first. Once these copies take 256 MiB (see
    `set_copy_budget`), the next change waits. Call `wait` after the last save. An error of a save
    is raised by the next call of `save`, `poll` or `wait`.

    Example:
    >>> import tensorflow as tf
    >>> weight = tf.Variable(1.0)
    >>> manager = CheckpointManager(Checkpoint(weight=weight), "checkpoints")
    >>> manager.restore_or_initialize() is None
    True
    >>> os.path.basename(manager.save())
    'step-000000000'

    Args:
        checkpoint: The checkpoint that is saved.
        directory: The directory, which is made when it is needed. Nothing else should be in it. It
            may be a URL, as for `Checkpoint.save`.
        max_to_keep: The most checkpoints, beside those of `keep_every`. `None`: all of them.
        keep_every: The number of steps of each of which the first checkpoint is kept for good.
            `None`: none is.
        max_deltas: The most checkpoints of changes, one after another.
        save_on_background: True if training goes on while a checkpoint is written.

    Raises:
        ImportError: For a URL, without fsspec or what it needs for the store.
        ValueError: For numbers that are not positive.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | os.PathLike[str],
        max_to_keep: int | None = 3,
        keep_every: int | None = None,
        max_deltas: int = 40,
        save_on_background: bool = False,
    ) -> None:
        super().__init__(place_of(directory), max_to_keep, keep_every)
        check_integer("max_deltas", max_deltas, 1, MOST)
        self._checkpoint = checkpoint
        self._max_deltas = max_deltas
        self._on_background = save_on_background
        self._last: Parent | None = None  # the last save, if one of changes can build on it
        self._pending: PendingSave | None = None
        self._last_step: int | None = None  # the step of the last save, if no restore came after it
        self._restores = 0  # the checkpoint's number of restores when the last save began

    @property
    def checkpoints(self) -> list[str]:
        """The folders of whole checkpoints, in the order in which they were saved."""
        return [self.folder(step) for step in self.by_age()]

    @property
    def latest_checkpoint(self) -> str | None:
        """The folder of the whole checkpoint that was saved last; `None`: there is none."""
        return next(reversed(self.checkpoints), None)

    def save(self, step: int | None = None, incremental: bool = False) -> str:
        """Saves a checkpoint of the step, and removes old ones. Returns its folder.

        It first waits for a save that is still being written, even by another manager of the
        process. It warns if an old checkpoint cannot be removed. It also warns if the step is not
        given and is that of the save before, which is replaced: no saved optimizer counts steps
        then.

        Args:
            step: The number of the folder, not negative. `None`: the iterations of the model's
                optimizer; without a model, of the optimizers among the objects, or 0.
            incremental: True to save only the changes since the save before, if that is possible.

        Raises:
            ValueError: For a negative step.
            Exception: As `Checkpoint.save`. All checkpoints stay.
        """
        self._wait_for_all()
        if self._restores != self._checkpoint._restores:
            # After a restore the noted changes are not those since the save before.
            self._restores = self._checkpoint._restores
            self._last_step = self._last = None
        agreement = Agreement(communicators.current())

        def where(found: SavedObjects) -> tuple[int, str]:
            own_step = self._step_of_save(step, found)
            return own_step, self.folder(own_step)

        ready = self._checkpoint._ready(agreement, where)

        def find_room() -> tuple[int, int]:
            if agreement.rank:
                return 0, 0
            serial = self._make_room(ready.step)
            tables = [manifests.identity(host.description()) for host in ready.dense.found.tables]
            parent = self._parent(ready.step, tables, agreement.size) if incremental else None
            make_folder(place_of(ready.folder))
            return serial, int(parent is not None)

        _, told = agreement.gather_together("find room for a checkpoint", find_room, list)
        serial, is_chained = told[0]
        options = SaveOptions(
            serial,
            ready.step,
            self._last if is_chained else None,
            notes_changes=incremental or self._last is not None,
            goes_on=self._on_background,
        )
        save = Save(agreement, ready, options)
        self._last_step = ready.step
        self._pending = PendingSave(save, lambda: self._finish(save, ready.step))
        if not self._on_background:
            self.wait()
        return save.folder

    def poll(self) -> bool:
        """Completes a save that all workers have written, if there is one.

        Call it now and then if training goes on for long after a save: several workers complete a
        save together, and it is not a checkpoint before. It takes the time of a small message.

        Returns:
            True if no save is being written any more.

        Raises:
            Exception: The error of the save.
        """
        pending = self._pending
        if pending is None:
            return True
        if not pending.is_written_everywhere():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Waits until the last save is complete.

        Raises:
            Exception: The error of the save. All checkpoints stay, and the next save may follow.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.finish()

    def _finish(self, save: Save, step: int) -> None:
        """Completes a save, after this worker has written its part; collective."""
        # The other workers wait until worker 0 has removed old checkpoints, so that all see the
        # same.
        manifest = save.finish(lambda: self._remove_old(step))
        self._last = None
        if save.options.notes_changes:
            self._last = Parent(os.path.basename(save.folder), manifest.state)

    def _wait_for_all(self) -> None:
        """Waits until no save is being written, such as one of a `fit` that was interrupted.

        Otherwise its tables would be captured twice, and its folder would look like that of a
        killed save.
        """
        self.wait()
        wait_for_writers()

    def _parent(self, step: int, tables: Sequence[tuple[Any, ...]], workers: int) -> Parent | None:
        """Returns the checkpoint on which a save of a step may build.

        The save has tables of these identities, and so many workers write it.
        """
        if self._last is None:
            return None
        try:
            links = manifests.read_chain(os.path.join(self.directory, self._last.folder))
        except (OSError, ValueError):
            return None  # it was removed or damaged meanwhile
        if len(links) > self._max_deltas or self.folder(step) in [link.folder for link in links]:
            return None  # there are enough of them, or the save replaces one
        *deltas, base = (
            sum(record.bytes for record in (*manifest.rows, *manifest.files))
            for _, manifest in links
        )
        last = links[0].manifest
        saved = (last.state, last.workers, [manifests.identity(table) for table in last.tables])
        fits = sum(deltas) <= base and saved == (self._last.state, workers, tables)
        return self._last if fits else None

    def restore_or_initialize(self) -> str | None:
        """Restores the complete checkpoint that was saved last.

        If another process removes the checkpoint before its files are open, the one that was saved
        last by then is restored.

        Returns:
            The folder of the checkpoint. `None`: there is none, and everything is left as it is.

        Raises:
            Exception: As `Checkpoint.restore`.
        """
        self._wait_for_all()
        agreement = Agreement(communicators.current())
        while True:
            # Worker 0 decides which one: others may have an older view of a shared disk.
            _, told = agreement.gather_together(
                "find the last checkpoint",
                lambda: self.by_age()[-1:] if agreement.rank == 0 else [],
                list,
            )
            if not told[0]:
                return None
            (step,) = told[0]
            folder, before = self.folder(step), self._checkpoint._restores
            try:
                self._checkpoint.restore(folder)
            except Exception:
                has_changed = self._checkpoint._restores != before
                if has_changed or not self._is_gone(agreement, step):
                    raise
            else:
                return folder

    def _is_gone(self, agreement: Agreement, step: int) -> bool:
        """Returns whether the checkpoint of a step was removed. Collective."""
        own = agreement.rank == 0 and not self._is_whole(step)
        return agreement.gather(int(own), "removed meanwhile")[0] == 1

    def remove_all(self) -> None:
        """Removes all checkpoints, and the directory if nothing else is in there."""
        self._wait_for_all()
        self._last = None
        agreement = Agreement(communicators.current())

        def remove() -> None:
            for step in self._steps():
                self._remove(step)
            self._place.remove_if_empty()

        agreement.together(
            "remove all checkpoints", lambda: remove() if agreement.rank == 0 else None
        )

    def _step_of_save(self, given: int | None, found: SavedObjects) -> int:
        """Returns the step that this worker saves."""
        if given is not None:
            return check_integer("step", given, 0, LARGEST)
        step = self._checkpoint.step(found)
        if step == self._last_step:
            warnings.warn(
                f"Expected a step other than {step}, the step of the save before. Received: the "
                "same step, so its checkpoint is replaced. If no optimizer of the checkpoint "
                "counts your steps, give them: manager.save(step=…).",
                stacklevel=7,
            )
        return step

    def _make_room(self, step: int) -> int:
        """Removes files of saves that did not finish. Returns the serial of the next save."""
        for each in self._leftovers():
            if each != step:
                self._remove(each)
        for each in self._steps():
            if self._is_whole(each):
                # A save that replaces it, or a compaction, may not have finished.
                manifests.remove_attempts(self.folder(each), lambda _: True)
        return max(self._serials().values(), default=0) + 1

    def _remove_old(self, saved: int) -> None:
        """Removes checkpoints that are too many. Warns after an error, since the save is done."""
        try:
            found = self._too_many(saved)
            for step in found.steps:
                self._remove(step)
            if found.unreadable:
                raise OSError(
                    "manifests that cannot be read, so that their checkpoints stay, with all that "
                    "they may need: "
                    f"{', '.join(repr(self.folder(step)) for step in found.unreadable)}"
                )
        except OSError as error:
            warnings.warn(
                f"Expected to remove old checkpoints in '{self.directory}'. Received: {error}. The "
                f"checkpoint of step {saved} is whole; remove the old ones yourself.",
                stacklevel=2,
            )


def set_copy_budget(mebibytes: int) -> None:
    """Sets how much memory this process may take for copies of rows that change while it saves.

    Beyond it, the next change of rows waits until copies are written; a change that has begun takes
    what it needs. The default is 256.

    Args:
        mebibytes: The memory in units of 2^20 bytes, for all tables together.

    Raises:
        ValueError: For a number that is not positive.
    """
    check_integer("mebibytes", mebibytes, 1, MOST)
    _core.set_capture_budget(mebibytes << 20)
