"""The manifest of a checkpoint, which is written last and makes the checkpoint complete."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sok_embed.checkpoint.files import manifest_schema
from sok_embed.checkpoint.files.names import OWN_NAME
from sok_embed.files.place_of import place_of
from sok_embed.files.places import Place
from sok_embed.files.records import FileRecord, checksum_of_json, damaged
from sok_embed.files.schema import (
    MOST_BYTES,
    brief,
    checked,
    integer,
    list_of,
    parsed,
    text,
)

NAME = "manifest.json"
_FORMAT = "sok-embed checkpoint"
_VERSION = 1
# The features that a reader must know to read a full checkpoint.
_FEATURES = ("full", "rows-1", "tf.train.Checkpoint")
# The features for a checkpoint that only has the changes since another one.
_DELTA_FEATURES = ("delta", "rows-1", "tf.train.Checkpoint")
_KNOWN_FEATURES = frozenset(_FEATURES + _DELTA_FEATURES)


class Parent(NamedTuple):
    """The checkpoint on which another one builds, which has only the changes since then."""

    folder: str  # the name of the checkpoint's folder, beside that of the other one
    state: int  # the number of the state that it has


class Manifest(NamedTuple):
    """The content of a checkpoint's manifest."""

    attempt: int  # the number of the save, in the names of its files
    # The number of the save, which grows from one save of a `CheckpointManager` to the next; 0 for
    # other saves.
    serial: int
    step: int  # the iterations of the optimizer, or the step that a manager was given
    workers: int  # the number of workers that wrote it
    # The file of dense weights: `prefix`; `variables` and `metrics`, lists of `[path, dtype,
    # shape]`; `others`, paths of other saved objects.
    dense: dict[str, Any]
    tables: list[dict[str, Any]]  # a dict for each table; see `docs/reference/checkpoint-format.md`
    rows: list[FileRecord]  # the file of rows of each worker; empty without tables
    files: list[FileRecord]  # the files of dense weights
    # The checkpoint on which this one builds, with the changes since then; `None`: it has
    # everything.
    parent: Parent | None = None
    # The number of the state that it has: the number of the save that captured it, even if its
    # files were rewritten later.
    state: int = 0
    data: Sequence[FileRecord] = ()  # the files that each worker has of its own, worker by worker

    @property
    def names(self) -> set[str]:
        """The names of all files, including the manifest."""
        return {NAME, *(record.name for record in (*self.rows, *self.files, *self.data))}


def write(folder: str | Place, manifest: Manifest) -> None:
    """Writes the manifest, which makes the checkpoint complete, and replaces an older one.

    Raises:
        ValueError: For a manifest that `read` would refuse; nothing is written.
    """
    place = place_of(folder)
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "least_reader": _VERSION,
        "features": list(_DELTA_FEATURES if manifest.parent else _FEATURES),
        **manifest._asdict(),
        "attempt": f"{manifest.attempt:016x}",
        "state": f"{manifest.state:016x}",
        "parent": manifest.parent
        and {"folder": manifest.parent.folder, "state": f"{manifest.parent.state:016x}"},
        **{
            field: [record._asdict() for record in getattr(manifest, field)]
            for field in ("rows", "files", "data")
        },
    }
    content["checksum"] = checksum_of_json(content)
    data = json.dumps(content, indent=1, allow_nan=False).encode()
    _parsed(place.file(NAME), data)
    place.write(NAME, data, f"manifest-{manifest.attempt:016x}.tmp")


def is_whole(folder: str | Place) -> bool:
    """Returns whether a folder has a manifest, readable or not."""
    return place_of(folder).has(NAME)


def read(folder: str | Place) -> Manifest:
    """Reads and checks the manifest of a folder.

    Raises:
        FileNotFoundError: If there is none.
        CorruptionError: For a manifest that is not as it was written.
        ValueError: For a manifest that this version cannot read.
    """
    place = place_of(folder)
    try:
        data = place.read(NAME, MOST_BYTES)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"Expected a checkpoint in '{place.path}'. Received: a path without {NAME}: nothing "
            "is there, it is another folder, or its save did not end. Check the path, or take "
            "another checkpoint."
        ) from None
    except NotADirectoryError:
        raise FileNotFoundError(
            f"Expected a checkpoint, which is a folder. Received: '{place.path}', which is a file. "
            "`sok-embed checkpoint convert` reads .keras files."
        ) from None
    content = _parsed(place.file(NAME), data)
    rows, files, more = (
        [FileRecord(*(each[field] for field in FileRecord._fields)) for each in records]
        for records in (content["rows"], content["files"], content.get("data", ()))
    )
    parent = content.get("parent")
    return Manifest(
        attempt=int(content["attempt"], 16),
        serial=content.get("serial", 0),
        step=content["step"],
        workers=content["workers"],
        dense=content["dense"],
        tables=content["tables"],
        rows=rows,
        files=files,
        parent=Parent(parent["folder"], int(parent["state"], 16)) if parent else None,
        state=int(content.get("state", content["attempt"]), 16),
        data=more,
    )


def _parsed(path: str, data: bytes) -> dict[str, Any]:
    """Returns the content of a manifest, all of which has been checked."""
    content = parsed(path, data)
    if type(content) is not dict or content.get("format") != _FORMAT:
        raise damaged(path, f"the format {_FORMAT!r}", brief(content))
    _check_version(path, content)
    if content.pop("checksum", None) != checksum_of_json(content):
        raise damaged(path, "contents that agree with their checksum", "something else")
    checked(path, content, manifest_schema.manifest)
    for entry in content["tables"]:
        for part in entry["parts"].values():
            part.setdefault("size", part["rows"])  # old manifests lack it
    return content


def remove_attempts(folder: str | Place, goes: Callable[[int], bool]) -> None:
    """Removes the files of saves, except files that the manifest in the folder names."""
    place = place_of(folder)
    try:
        kept = read(place).attempt if is_whole(place) else None
    except (OSError, ValueError):
        return  # the names in a damaged manifest are not known
    gone = []
    for name in place.names():
        found = OWN_NAME.fullmatch(name)
        if found is not None and int(found["attempt"], 16) != kept:
            if goes(int(found["attempt"], 16)):
                gone.append(name)
    place.remove(gone)


class Link(NamedTuple):
    """One of the checkpoints that another one needs."""

    folder: str  # the path of the checkpoint's folder
    manifest: Manifest  # the manifest of the checkpoint


def read_chain(folder: str, reading: Callable[[str], Manifest] = read) -> list[Link]:
    """Reads the manifest of a folder and of those on which it builds, the newest first."""
    chain = [Link(folder, reading(folder))]
    while (parent := chain[-1].manifest.parent) is not None:
        path = os.path.join(os.path.dirname(folder), parent.folder)
        try:
            manifest = reading(path)
        except FileNotFoundError:
            raise damaged(
                chain[-1].folder, f"the checkpoint that it builds on, '{path}'", "none"
            ) from None
        if manifest.state != parent.state or path in [link.folder for link in chain]:
            raise damaged(
                chain[-1].folder,
                f"state {parent.state:016x} in '{path}', which it builds on",
                f"state {manifest.state:016x}, of another chain",
            )
        own = (manifest.workers, [identity(table) for table in manifest.tables])
        first = chain[0].manifest
        if own != (first.workers, [identity(table) for table in first.tables]):
            raise damaged(path, "the tables and workers of the later checkpoints", "others")
        chain.append(Link(path, manifest))
    _check_sizes(chain)
    return chain


def _check_sizes(chain: Sequence[Link]) -> None:
    """Raises CorruptionError for a table with more rows than all files of the chain have."""
    folder, newest = chain[0]
    for i, entry in enumerate(newest.tables):
        for name, part in entry["parts"].items():
            most = sum(manifest.tables[i]["parts"][name]["rows"] for _, manifest in chain)
            if part["size"] > most:
                expected = f"a size of at most {most} as 'tables[{i}].parts.{name}.size'"
                raise damaged(os.path.join(folder, NAME), expected, str(part["size"]))


def identity(table: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns what must be the same for a table in all checkpoints of a chain."""
    return tuple(table[name] for name in ("path", "kind", "dim", "owners"))


def _check_version(path: str, content: dict[str, Any]) -> None:
    """Raises for a manifest that only a later version can read.

    Its checksum may have another form too.
    """
    checked(path, content.get("least_reader"), integer(1), "least_reader")
    checked(path, content.get("features"), list_of(text), "features")
    least, features = content["least_reader"], content["features"]
    unknown = [each for each in features if each not in _KNOWN_FEATURES]
    if least > _VERSION or unknown:
        raise ValueError(
            f"Expected a checkpoint of version {_VERSION} with features of "
            f"{sorted(_KNOWN_FEATURES)} in '{path}', which this sok-embed knows. Received: a "
            f"checkpoint for readers of version {least} or later"
            f"{f', with unknown features {unknown}' if unknown else ''}. Restore it with the "
            "sok-embed that wrote it, or a newer one."
        )
