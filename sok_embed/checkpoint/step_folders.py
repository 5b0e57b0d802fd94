"""The folders of checkpoints in a directory: which are whole, which are the last, which may go."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable

from sok_embed.arguments import check_positive
from sok_embed.checkpoint import manifest as manifests
from sok_embed.checkpoint.files import is_of_a_save
from sok_embed.checkpoint.manifest import Manifest
from sok_embed.checkpoint.object_store import StoreError
from sok_embed.checkpoint.places import Place, place_of
from sok_embed.kv import CorruptionError

_STEP_FOLDER = re.compile(r"step-(\d{9,})")
MOST = 2**31
_Reading = Callable[[str], Manifest]
# What a manifest raises that is damaged, gone or of a later version, now and ever after.
_UNUSABLE = (CorruptionError, FileNotFoundError, ValueError)


class StepFolders:
    """Folders `step-000012000` of a directory, as a `CheckpointManager` saves them.

    Args:
        directory: An absolute path, or where that leads to.
        max_to_keep: The most checkpoints, beside those of `keep_every`. `None`: all of them.
        keep_every: Of each so many steps the first checkpoint is kept for good. `None`: none is.

    Raises:
        ValueError: For numbers that are not positive.
    """

    def __init__(
        self,
        directory: str | Place,
        max_to_keep: int | None = None,
        keep_every: int | None = None,
    ) -> None:
        self._place = place_of(directory)
        self.directory = self._place.path
        for name, number in (("max_to_keep", max_to_keep), ("keep_every", keep_every)):
            if number is not None:
                check_positive(name, number, MOST)
        self._max_to_keep = max_to_keep
        self._keep_every = keep_every

    def _folder(self, step: int) -> str:
        return os.path.join(self.directory, f"step-{step:09d}")

    def _steps(self) -> list[int]:
        """The steps of all folders, also of those that did not become whole."""
        found = [_STEP_FOLDER.fullmatch(name) for name in self._place.folders()]
        return sorted(int(match[1]) for match in found if match is not None)

    def _is_whole(self, step: int) -> bool:
        return manifests.is_whole(self._folder(step))

    def _serials(self, read: _Reading = manifests.read) -> dict[int, int]:
        """The serials of whole checkpoints, by their steps, ascending.

        A manifest that cannot be read counts as saved after those of smaller steps: a damaged
        checkpoint that may be the last one is not passed over. Where a store does not answer,
        nothing is known of it, and its StoreError is raised.
        """
        serials: dict[int, int] = {}
        for step in self._steps():
            if not self._is_whole(step):
                continue
            try:
                serials[step] = read(self._folder(step)).serial
            except FileNotFoundError:
                continue  # it was removed meanwhile
            except StoreError:
                raise
            except (OSError, ValueError):
                serials[step] = max(serials.values(), default=0)
        return serials

    def _by_age(self, read: _Reading = manifests.read) -> list[int]:
        """The steps of whole checkpoints, the one that was saved first first."""
        serials = self._serials(read)
        return sorted(serials, key=lambda step: (serials[step], step))

    def _too_many(self, saved: int) -> list[int]:
        """Steps whose checkpoints are to go, those that build on others before these.

        Those of which a part was replaced or went are of no use and do not count.

        Raises:
            OSError: If a manifest cannot be read, so that what others need is not known.
        """
        read = functools.cache(manifests.read)  # each belongs to the chains of many
        steps = self._by_age(read)
        builds_on = {step: self._builds_on(step, read) for step in steps}
        orphans = {step for step in steps if builds_on[step] is None} - {saved}
        whole = [step for step in steps if step not in orphans]
        kept = {saved, *(whole if self._max_to_keep is None else whole[-self._max_to_keep :])}
        if self._keep_every is not None:
            firsts: dict[int, int] = {}
            for step in sorted(whole):
                firsts.setdefault(step // self._keep_every, step)
            kept.update(firsts.values())
        needed = kept.union(*(builds_on.get(step) or () for step in kept))
        return [step for step in reversed(steps) if step not in needed]

    def _builds_on(self, step: int, read: _Reading) -> list[int] | None:
        """The steps of the checkpoints that one needs; `None`: one of them was replaced or went."""
        try:
            own = read(self._folder(step))
        except _UNUSABLE:
            return []  # it may be the last one, and is not judged here
        if own.parent is None:
            return []
        try:
            chain = manifests.read_chain(self._folder(step), read)
        except _UNUSABLE:
            return None
        found = [_STEP_FOLDER.fullmatch(os.path.basename(link.folder)) for link in chain[1:]]
        return [int(match[1]) for match in found if match is not None]

    def _leftovers(self) -> list[int]:
        """Steps of folders that saves have left that did not end.

        A folder with other names in it than those that saves give is somebody else's.
        """
        return [
            step
            for step in self._steps()
            if not self._is_whole(step)
            and all(is_of_a_save(name) for name in place_of(self._folder(step)).names())
        ]

    def _remove(self, step: int) -> None:
        place_of(self._folder(step)).remove_all(manifests.NAME)
