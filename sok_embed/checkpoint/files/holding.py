"""Opens all files of a checkpoint, which other processes may replace or remove meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from sok_embed.checkpoint.files import manifest as manifests
from sok_embed.checkpoint.files.manifest import Link, Manifest
from sok_embed.files.place_of import place_of
from sok_embed.files.places import Fetched
from sok_embed.kv import CorruptionError

_Reading = Callable[[str], Manifest]
_TRIES = 100  # in each attempt the checkpoint was replaced meanwhile


class OpenCheckpoint(NamedTuple):
    """A checkpoint whose files stay readable, even if another process removes them."""

    chain: list[Link]  # the checkpoint, and those on which it builds, the newest first
    places: list[Fetched]  # the place from which the files of each of them are read

    def end(self) -> None:
        """Closes the files."""
        for place in self.places:
            place.end()


def hold(
    folder: str,
    needed: Callable[[int, Manifest], Iterable[str]],
    read_chain: Callable[[str, _Reading], list[Link]] = manifests.read_chain,
) -> OpenCheckpoint:
    """Opens all files of a checkpoint that are needed; files that it lacks are left out.

    If another process replaces the checkpoint, or compacts one on which it builds, the manifests
    show it, and the new files are opened. `needed` takes the number of a checkpoint of the chain, 0
    being the newest, and its manifest, and returns the names of the files.
    """
    for _ in range(_TRIES):
        seen: dict[str, Manifest] = {}

        def read(path: str, seen: dict[str, Manifest] = seen) -> Manifest:
            return seen.setdefault(path, manifests.read(path))

        try:
            held = _held(read_chain(folder, read), needed)
        except CorruptionError:
            if folder not in seen or _is_same([Link(folder, seen[folder])]):
                raise
            continue
        if held is not None:
            return held
    raise OSError(
        f"Expected the checkpoint in '{folder}' to stay for as long as its files are opened. "
        f"Received: a checkpoint that was replaced during each of {_TRIES} tries. Stop the process "
        "that saves or compacts it."
    )


def _held(
    chain: list[Link], needed: Callable[[int, Manifest], Iterable[str]]
) -> OpenCheckpoint | None:
    """Opens the files of a chain; returns `None` if the chain has changed."""
    held = OpenCheckpoint(chain, [])
    try:
        is_lacking = False
        for number, (folder, manifest) in enumerate(chain):
            names = list(needed(number, manifest))
            held.places.append(place_of(folder).fetch(names))
            is_lacking |= not all(map(held.places[-1].has, names))
        if is_lacking and not _is_same(chain):
            held.end()
            return None
    except BaseException:
        held.end()
        raise
    return held


def _is_same(chain: list[Link]) -> bool:
    """Returns whether the manifests are still the ones that were read."""
    try:
        return all(manifests.read(folder).attempt == manifest.attempt for folder, manifest in chain)
    except FileNotFoundError:
        return False


def all_files(number: int, manifest: Manifest) -> list[str]:
    """Returns the names of all files but the manifest, for any checkpoint of a chain."""
    return [record.name for record in (*manifest.rows, *manifest.files, *manifest.data)]
