"""Versions in object stores for tests: small exports, and what a store and a folder have."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import fsspec
import live_models as live_tests
import numpy as np

from sok_embed.serving import LiveModel, Publisher, export
from sok_embed.serving.store_cache import StoreCache
from sok_embed.serving.store_versions import stored_at

IDS = np.arange(live_tests.KEYS - 1).reshape(-1, 3)


def published(path: Path, deltas: int, exports: int = 1) -> None:
    """Writes exports of `live_models.telling`, each with deltas; the numbers of versions go on."""
    model, told = live_tests.telling(), live_tests.Told()
    told.put(model)
    for _ in range(exports):
        export(model, path)
        publisher = Publisher(model, path)
        for _ in range(deltas):
            told.advance(model)
            publisher.publish()
        publisher.close()


def told_by(live: LiveModel) -> int:
    """Returns the number that the answer of a model tells; raises if it is not of one version."""
    answer = live(ids=IDS)["output_0"].numpy()
    number = int(answer[0, -1])
    return live_tests.version_of(answer, IDS, live_tests.versions_to(number))


def files_at(url: str) -> dict[str, bytes]:
    """Returns the content of each object under a URL, by its name there."""
    files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    files.invalidate_cache()
    root = root.strip("/")
    return {
        path.strip("/").removeprefix(f"{root}/"): files.cat_file(path) for path in files.find(root)
    }


def files_in(folder: Path) -> dict[str, bytes]:
    """Returns the content of each file below a folder, by its path there."""
    paths = [each for each in folder.rglob("*") if each.is_file()]
    return {str(each.relative_to(folder)): each.read_bytes() for each in paths}


def visible(url: str, into: Path) -> dict[str, bytes]:
    """Returns what a reader that has nothing copies from a store, all of its versions."""
    shutil.rmtree(into, ignore_errors=True)
    versions = stored_at(url)
    assert versions is not None
    into.mkdir()
    for number in versions.numbers():
        stored = versions.export(number)
        stored.bring(str(into))
        stored.bring_deltas(str(into), stored.current())
    return files_in(into)


def assert_part_of(some: dict[str, bytes], all_files: dict[str, bytes]) -> None:
    """Raises unless whole exports and deltas are there, from the first one on, and nothing else."""
    for name, content in some.items():
        assert content == all_files[name] or name.endswith("CURRENT.json"), name
    folders = {name.rpartition("/")[0] for name in some if not name.endswith("CURRENT.json")}
    for name in all_files:
        folder = name.rpartition("/")[0]
        assert name in some or folder not in folders or name.endswith("CURRENT.json"), name
    deltas = sorted(name for name in some if name.endswith("delta.json"))
    expected = sorted(name for name in all_files if name.endswith("delta.json"))
    assert deltas == expected[: len(deltas)]


def cache_of(url: str) -> StoreCache:
    """Returns the cache of a URL."""
    versions = stored_at(url)
    assert versions is not None
    return StoreCache(versions)


def damage(url: str, name: str, how: str) -> Any:
    """Damages an object of a store; returns a function that puts it back as it was."""
    files, root = fsspec.core.url_to_fs(f"{url}/{name}", use_listings_cache=False)
    whole = files.cat_file(root)
    if how == "missing":
        files.rm_file(root)
    elif how == "cut":
        files.pipe_file(root, whole[:-1])
    else:
        at = len(whole) // 2
        files.pipe_file(root, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    return lambda: files.pipe_file(root, whole)
