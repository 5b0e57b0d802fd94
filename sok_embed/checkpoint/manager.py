"""The last checkpoints of a run, in one folder."""

from __future__ import annotations

import os
import warnings

from sok_embed import communicators
from sok_embed.arguments import check_integer
from sok_embed.checkpoint.agreement import LARGEST, Agreement
from sok_embed.checkpoint.checkpoint import Checkpoint
from sok_embed.checkpoint.files import local_path
from sok_embed.checkpoint.step_folders import StepFolders


class CheckpointManager(StepFolders):
    """Saves checkpoints into folders `step-000012000` of a directory, and keeps the last ones.

    Collective as `Checkpoint` is. The last checkpoint is the one that was saved last, also where
    training went back to an earlier step and an older checkpoint has a greater one. A folder
    without a manifest is what a save has left that did not end: it is never taken for a checkpoint,
    and the next save removes it. Old checkpoints lose their manifest first, so that half of one is
    never taken for one either.

    Example:
    >>> import tensorflow as tf
    >>> weight = tf.Variable(1.0)
    >>> manager = CheckpointManager(Checkpoint(weight=weight), "checkpoints")
    >>> manager.restore_or_initialize() is None
    True
    >>> os.path.basename(manager.save())
    'step-000000000'

    Args:
        checkpoint: What is saved.
        directory: Where; it is made when it is needed. Nothing else should be in there.
        max_to_keep: The most checkpoints, beside those of `keep_every`. `None`: all of them.
        keep_every: Of each so many steps the first checkpoint is kept for good. `None`: none is.

    Raises:
        ValueError: For numbers that are not positive.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | os.PathLike[str],
        max_to_keep: int | None = 3,
        keep_every: int | None = None,
    ) -> None:
        super().__init__(local_path(directory), max_to_keep, keep_every)
        self._checkpoint = checkpoint
        self._last_step: int | None = None  # of the last save, if no restore came after it

    @property
    def checkpoints(self) -> list[str]:
        """The folders of whole checkpoints, in the order in which they were saved."""
        return [self._folder(step) for step in self._by_age()]

    @property
    def latest_checkpoint(self) -> str | None:
        """The folder of the whole checkpoint that was saved last; `None`: there is none."""
        return next(reversed(self.checkpoints), None)

    def save(self, step: int | None = None) -> str:
        """Saves a checkpoint of the step, and removes old ones. Returns its folder.

        An old checkpoint that cannot be removed is a warning. So is a step that is not given and is
        that of the save before, which is replaced: nothing that is saved has counted it.

        Args:
            step: The number of the folder, not negative. `None`: the iterations of the model's
                optimizer; without one, those of the optimizers among the objects, or 0.

        Raises:
            ValueError: For a negative step.
            Exception: As `Checkpoint.save`. All checkpoints stay.
        """
        agreement = Agreement(communicators.current())
        first = agreement.rank == 0
        own_step = agreement.together("know the step", lambda: self._step_of_save(step))
        step = max(agreement.gather(own_step, "step"))
        serial = agreement.together(
            "find room for a checkpoint", lambda: self._make_room(step) if first else 0
        )
        folder = self._checkpoint._save(self._folder(step), serial, own_step)
        self._last_step = step
        # All wait, so that they see the same checkpoints.
        agreement.together(
            "remove old checkpoints", lambda: self._remove_old(step) if first else None
        )
        return folder

    def restore_or_initialize(self) -> str | None:
        """Restores the whole checkpoint that was saved last.

        Returns:
            Its folder. `None`: there is none, and everything is left as it is.

        Raises:
            Exception: As `Checkpoint.restore`.
        """
        agreement = Agreement(communicators.current())
        # Worker 0 says which: others may have an older view of a shared disk.
        steps = agreement.together(
            "find the last checkpoint", lambda: self._by_age() if agreement.rank == 0 else []
        )
        chosen = agreement.gather(steps[-1] + 1 if steps else 0, "last step")[0]
        if not chosen:
            return None
        folder = self._folder(chosen - 1)
        self._checkpoint.restore(folder)
        self._last_step = None
        return folder

    def remove_all(self) -> None:
        """Removes all checkpoints, and the directory if nothing else is in there."""
        agreement = Agreement(communicators.current())

        def remove() -> None:
            for step in self._steps():
                self._remove(step)
            if os.path.isdir(self.directory) and not os.listdir(self.directory):
                os.rmdir(self.directory)

        agreement.together(
            "remove all checkpoints", lambda: remove() if agreement.rank == 0 else None
        )

    def _step_of_save(self, given: int | None) -> int:
        """The step that this worker saves."""
        if given is not None:
            return check_integer("step", given, 0, LARGEST)
        step = self._checkpoint.step()
        if step == self._last_step:
            warnings.warn(
                f"Expected another step than that of the save before, {step}. Received: the same, "
                "so its checkpoint is replaced. If no optimizer of the checkpoint counts your "
                "steps, give them: manager.save(step=…).",
                stacklevel=5,
            )
        return step

    def _make_room(self, step: int) -> int:
        """Removes what saves have left that did not end. Returns the serial of the next save."""
        for each in self._leftovers():
            if each != step:
                self._remove(each)
        return max(self._serials().values(), default=0) + 1

    def _remove_old(self, saved: int) -> None:
        """Removes the checkpoints that are too many. An error is a warning: the save is done."""
        try:
            for step in self._too_many(saved):
                self._remove(step)
        except OSError as error:
            warnings.warn(
                f"Expected to remove old checkpoints in '{self.directory}'. Received: {error}. The "
                f"checkpoint of step {saved} is whole; remove the old ones yourself.",
                stacklevel=2,
            )
