"""The last checkpoints of a run, in one folder."""

from __future__ import annotations

import os
import re
import shutil

from sok_embed import communicators
from sok_embed.arguments import check_positive
from sok_embed.checkpoint import manifest as manifests
from sok_embed.checkpoint.agreement import Agreement
from sok_embed.checkpoint.checkpoint import Checkpoint, local_path
from sok_embed.checkpoint.files import remove_if_there, sync_folder

_STEP_FOLDER = re.compile(r"step-(\d{9,})")
_MOST = 2**31


class CheckpointManager:
    """Saves checkpoints into folders `step-000012000` of a directory, and keeps the last ones.

    Collective as `Checkpoint` is. A folder without a manifest is what a save has left that did not
    end: it is never taken for a checkpoint, and the next save removes it. Old checkpoints lose
    their manifest first, so that half of one is never taken for one either.

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
        self._checkpoint = checkpoint
        self.directory = local_path(directory)
        for name, number in (("max_to_keep", max_to_keep), ("keep_every", keep_every)):
            if number is not None:
                check_positive(name, number, _MOST)
        self._max_to_keep = max_to_keep
        self._keep_every = keep_every

    @property
    def checkpoints(self) -> list[str]:
        """The folders of whole checkpoints, by their steps."""
        return [self._folder(step) for step in self._steps() if self._is_whole(step)]

    @property
    def latest_checkpoint(self) -> str | None:
        """The folder of the last whole checkpoint; `None`: there is none."""
        return next(reversed(self.checkpoints), None)

    def save(self) -> str:
        """Saves a checkpoint of the step, and removes old ones. Returns its folder.

        Raises:
            Exception: As `Checkpoint.save`. All checkpoints stay.
        """
        agreement = Agreement(communicators.current())
        step = max(agreement.gather(self._checkpoint.step()))
        if agreement.rank == 0:
            self._remove_unfinished(but=step)
        folder = self._checkpoint.save(self._folder(step))
        if agreement.rank == 0:
            for old in self._too_many(step):
                self._remove(old)
        agreement.gather(0)  # so that all see the same checkpoints
        return folder

    def restore_or_initialize(self) -> str | None:
        """Restores the last whole checkpoint.

        Returns:
            Its folder. `None`: there is none, and everything is left as it is.

        Raises:
            Exception: As `Checkpoint.restore`.
        """
        agreement = Agreement(communicators.current())
        whole = [step for step in self._steps() if self._is_whole(step)]
        # Worker 0 says which: others may have an older view of a shared disk.
        chosen = agreement.gather(whole[-1] + 1 if whole and agreement.rank == 0 else 0)[0]
        if not chosen:
            return None
        folder = self._folder(chosen - 1)
        self._checkpoint.restore(folder)
        return folder

    def remove_all(self) -> None:
        """Removes all checkpoints, and the directory if nothing else is in there."""
        agreement = Agreement(communicators.current())
        if agreement.rank == 0:
            for step in self._steps():
                self._remove(step)
            if os.path.isdir(self.directory) and not os.listdir(self.directory):
                os.rmdir(self.directory)
        agreement.gather(0)

    def _folder(self, step: int) -> str:
        return os.path.join(self.directory, f"step-{step:09d}")

    def _steps(self) -> list[int]:
        """The steps of all folders, also of those that did not become whole."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        found = [_STEP_FOLDER.fullmatch(name) for name in names]
        steps = sorted(int(match[1]) for match in found if match is not None)
        return [step for step in steps if os.path.isdir(self._folder(step))]

    def _is_whole(self, step: int) -> bool:
        return manifests.is_whole(self._folder(step))

    def _too_many(self, saved: int) -> list[int]:
        """Steps whose checkpoints are to go."""
        steps = [step for step in self._steps() if self._is_whole(step)]
        if self._max_to_keep is None:
            return []
        kept = set(steps[-self._max_to_keep :]) | {saved}
        if self._keep_every is not None:
            firsts: dict[int, int] = {}
            for step in steps:
                firsts.setdefault(step // self._keep_every, step)
            kept.update(firsts.values())
        return [step for step in steps if step not in kept]

    def _remove_unfinished(self, but: int) -> None:
        for step in self._steps():
            if step != but and not self._is_whole(step):
                self._remove(step)

    def _remove(self, step: int) -> None:
        folder = self._folder(step)
        if os.path.islink(folder):
            return  # what it leads to belongs to somebody else
        remove_if_there(os.path.join(folder, manifests.NAME))
        sync_folder(folder)
        shutil.rmtree(folder)
        sync_folder(self.directory)
