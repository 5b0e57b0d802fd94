"""Copies versions of a model into an object store, and removes old ones."""

from __future__ import annotations

import os
from collections.abc import Callable

from sok_embed.arguments import check_integer
from sok_embed.files.scratch import ScratchFolder
from sok_embed.serving.delta_files import Base, read_current
from sok_embed.serving.store_versions import StoreVersions, stored_at
from sok_embed.serving.versions import (
    Version,
    export_folder,
    export_numbers,
    root_of,
    write_version,
)

_REMOVED = "removed"  # begins the name of a folder in which versions lie that are being removed
_SCRATCH = "sok-exported"


def push(path: str | os.PathLike[str], url: str) -> Version:
    """Copies versions of a model, with their deltas, into an object store.

    The files of an export or a delta come first, and its manifest, without which it is not there
    for readers, comes last. So a copy that was interrupted is never taken up, and the next call
    goes on where it ended. What is there already is not copied again, and never written anew.
    Exports that are older than the oldest one there have been pruned, and are left out.

    Several processes may copy the same folder at once: they write the same bytes. Of two that copy
    different exports under one number the second one fails, and the first one is as it should be.

    Args:
        path: The folder of all versions, as it was given to `sok_embed.serving.export`.
        url: The URL of all versions in an object store, such as `s3://bucket/served`.

    Returns:
        The newest version of the folder, which the store has now.

    Raises:
        FileNotFoundError: If the folder has no export.
        ValueError: For a URL that does not lead to an object store, another export or another delta
            there of the same number, and a folder in which all exports are older than those there.
        OSError: From the store, or the file system.
        sok_embed.kv.CorruptionError: For rows or deltas that are not as they were written.
        ImportError: Without fsspec, or what it needs for the store.
    """
    root = root_of(path)
    store = _stored_at(url)
    numbers, there = export_numbers(root), store.numbers()
    if there and numbers[-1] < there[0]:
        raise ValueError(
            f"Expected an export in '{root}' that is not older than export {there[0]}, the oldest "
            f"of '{store.url}'. Received: export {numbers[-1]} as the newest. Copy to another URL, "
            "or write the export there by sok_embed.serving.export(model, url), which gives it a "
            "free number."
        )
    for number in numbers:
        if not there or number >= there[0]:
            store.add(export_folder(root, number), number)
    newest = export_folder(root, numbers[-1])
    return Version(numbers[-1], read_current(Base(newest, "", (), {})))


def prune(path: str | os.PathLike[str], keep: int = 3) -> list[int]:
    """Removes all but the newest exports, each with its deltas.

    In an object store the manifests go first. A model that is served from one of these versions
    answers as before, and follows the newest.

    Args:
        path: The folder of all versions, or their URL in an object store.
        keep: The number of exports that stay, 1 or more.

    Returns:
        The numbers of the exports that were removed.

    Raises:
        ValueError: For a `keep` that is not positive.
        OSError: From the store, or the file system.
    """
    check_integer("keep", keep, 1)
    store = stored_at(path)
    if store is not None:
        return store.prune(keep)
    root = root_of(path)
    old = export_numbers(root)[:-keep]
    work = ScratchFolder(_REMOVED, root)
    try:
        for number in old:
            os.rename(export_folder(root, number), os.path.join(work.path, str(number)))
    finally:
        work.end()
    return old


def write_to_store(store: StoreVersions, write: Callable[[str], None]) -> str:
    """Gives an export the next number in a store, once it has been written and copied there.

    The function `write` writes into an empty folder, whose path it is given.

    Returns:
        The URL of the version, such as `s3://bucket/served/3`.
    """
    work = ScratchFolder(_SCRATCH)
    try:
        return f"{store.url}/{store.add(write_version(work.path, write)).number}"
    finally:
        work.end()


def _stored_at(url: str) -> StoreVersions:
    store = stored_at(url)
    if store is None:
        raise ValueError(
            f"Expected the URL of an object store, such as s3://bucket/served. Received: '{url}'. "
            "Folders of this machine are copied by other programs."
        )
    return store
