"""The folders of checkpoints in a directory: which are complete, last, or too many."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from sok_embed.arguments import check_integer
from sok_embed.checkpoint.files import manifest as manifests
from sok_embed.checkpoint.files.manifest import Manifest
from sok_embed.checkpoint.files.names import OWN_NAME, ROWS_NAME
from sok_embed.checkpoint.files.rows_file import RowsReader
from sok_embed.files.object_store import StoreError
from sok_embed.files.place_of import place_of
from sok_embed.files.places import Place
from sok_embed.files.records import FileRecord
from sok_embed.kv import CorruptionError

_STEP_FOLDER = re.compile(r"step-(\d{9,})")
MOST = 2**31
_Reading = Callable[[str], Manifest]


class TooMany(NamedTuple):
    """The checkpoints of a directory that are to be removed."""

    # The steps of the checkpoints; a checkpoint comes before those on which it builds.
    steps: list[int]
    # The steps of checkpoints that stay because a manifest that they need cannot be read.
    unreadable: list[int]


class _Chain(NamedTuple):
    """A checkpoint with those on which it builds."""

    steps: list[int]  # the steps of all of them, the newest first
    is_cut: bool = False  # true if one of them was replaced or removed
    unreadable: int | None = None  # the step of the checkpoint whose manifest cannot be read


class StepFolders:
    """Folders `step-000012000` of a directory, as a `CheckpointManager` saves them.

    Args:
        max_to_keep: The most checkpoints that are kept, not counting those of `keep_every`. `None`:
            all are.
        keep_every: A number of steps: of every so many steps the first checkpoint is kept for good.
            `None`: none is.
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
                check_integer(name, number, 1, MOST)
        self._max_to_keep = max_to_keep
        self._keep_every = keep_every

    def folder(self, step: int) -> str:
        """Returns the folder of a step, whether or not there is one."""
        return os.path.join(self.directory, f"step-{step:09d}")

    def _steps(self) -> list[int]:
        """Returns the steps of all folders, also of incomplete ones."""
        found = [_STEP_FOLDER.fullmatch(name) for name in self._place.folders()]
        return sorted(int(match[1]) for match in found if match is not None)

    def _is_whole(self, step: int) -> bool:
        return manifests.is_whole(self.folder(step))

    def _serials(self, read: _Reading = manifests.read) -> dict[int, int]:
        """Returns the serials of complete checkpoints by their steps, ascending.

        A checkpoint whose manifest cannot be read counts as saved after those of smaller steps: a
        damaged checkpoint that may be the last one is not skipped. If a store does not answer, its
        StoreError is raised.
        """
        serials: dict[int, int] = {}
        for step in self._steps():
            if not self._is_whole(step):
                continue
            try:
                serials[step] = read(self.folder(step)).serial
            except FileNotFoundError:
                continue  # it was removed meanwhile
            except StoreError:
                raise
            except (OSError, ValueError):
                serials[step] = max(serials.values(), default=0)
        return serials

    def by_age(self, read: _Reading = manifests.read) -> list[int]:
        """Returns the steps of complete checkpoints, in the order in which they were saved."""
        serials = self._serials(read)
        return sorted(serials, key=lambda step: (serials[step], step))

    def _too_many(self, saved: int) -> TooMany:
        """Returns the checkpoints that are to be removed.

        Checkpoints that build on one that was replaced or removed are useless and do not count.
        Checkpoints that cannot be read stay, and so do those that they may need.
        """
        read = functools.cache(manifests.read)  # many chains have the same manifest
        steps = self.by_age(read)
        chains = {step: self._chain_of(step, read) for step in steps}
        unreadable = [step for step in steps if chains[step].unreadable is not None]
        orphans = {step for step in steps if chains[step].is_cut} - {saved}
        whole = [step for step in steps if step not in orphans and step not in unreadable]
        kept = {saved, *(whole if self._max_to_keep is None else whole[-self._max_to_keep :])}
        if self._keep_every is not None:
            firsts: dict[int, int] = {}
            for step in sorted(whole):
                firsts.setdefault(step // self._keep_every, step)
            kept.update(firsts.values())
        kept.update(unreadable)
        needed = kept.union(*(chains[step].steps for step in kept if step in chains))
        # It is not known on which checkpoints a damaged one builds.
        unknown = {chains[step].unreadable for step in unreadable} - {None}
        if any(not has_all_rows(self.folder(step)) for step in unknown if step is not None):
            needed.update(steps)
        return TooMany([step for step in reversed(steps) if step not in needed], unreadable)

    def _chain_of(self, step: int, read: _Reading) -> _Chain:
        """Returns the checkpoints on which one builds, as far as manifests can be read."""
        steps: list[int] = []
        while True:
            try:
                manifest = read(self.folder(step))
            except FileNotFoundError:
                return _Chain(steps, is_cut=True)
            except (CorruptionError, ValueError):
                return _Chain(steps, unreadable=step)
            steps.append(step)
            if manifest.parent is None:
                break
            found = _STEP_FOLDER.fullmatch(manifest.parent.folder)
            if found is None or int(found[1]) in steps:
                return _Chain(steps, is_cut=True)
            step = int(found[1])
        try:
            manifests.read_chain(self.folder(steps[0]), read)
        except (CorruptionError, FileNotFoundError, ValueError):
            return _Chain(steps, is_cut=True)  # one of them was replaced
        return _Chain(steps)

    def _leftovers(self) -> list[int]:
        """Returns the steps of folders of saves that did not finish.

        A folder with names that saves do not use does not belong to a save.
        """
        return [
            step
            for step in self._steps()
            if not self._is_whole(step)
            and all(map(OWN_NAME.fullmatch, place_of(self.folder(step)).names()))
        ]

    def _remove(self, step: int) -> None:
        place_of(self.folder(step)).remove_all(manifests.NAME)


def has_all_rows(folder: str | Place) -> bool:
    """Returns whether files have all rows of their tables, without asking a manifest."""
    place = place_of(folder)
    found = [ROWS_NAME.fullmatch(name) for name in place.names()]
    try:
        readers = [
            RowsReader(
                place,
                FileRecord(name[0], place.length(name[0]), ""),
                int(name["attempt"], 16),
                int(name["worker"]) - 1,
                int(name["workers"]),
            )
            for name in found
            if name is not None
        ]
    except (OSError, ValueError):
        return False
    return all(entry["whole"] for reader in readers for entry in reader.tables)
