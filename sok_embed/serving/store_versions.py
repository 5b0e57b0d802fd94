"""Exports and deltas in an object store, each complete by a manifest that is written last.

No TensorFlow is needed. `docs/reference/serving-stores.md` describes the layout.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.pool import ThreadPool
from typing import NamedTuple

from sok_embed.files import schema
from sok_embed.files.object_store import StoreError, StoreFolder
from sok_embed.files.place_of import place_of
from sok_embed.files.places import LocalFolder, check_record
from sok_embed.files.records import (
    DELTA,
    EXPORT,
    FileRecord,
    checksum_of_json,
    damaged,
    opened,
    record_of,
)
from sok_embed.files.scratch import ScratchFolder
from sok_embed.files.whole_files import sync
from sok_embed.kv import CorruptionError
from sok_embed.serving import rows as rows_files
from sok_embed.serving.delta_files import (
    CURRENT,
    FOLDER,
    MANIFEST,
    MOST_CURRENT,
    Base,
    current_of,
    manifest_of,
    read_current,
    text_of_current,
    write_current,
)
from sok_embed.serving.versions import identity_of, sync_all

PULLED = "pulled"  # begins the names of folders of files that were copied from a store
_FORMAT, _VERSION = "sok-embed export", 1
_MANIFEST = re.compile(r"([0-9]+)\.json")
_FILES = re.compile(r"([0-9]+)-[0-9a-f]{16}")
_AT_ONCE = 4  # files that are under way at the same time
_DELTAS_AT_ONCE = 32  # deltas that get their numbers together

Room = Callable[[int], None]  # makes room for so many bytes, or raises


def stored_at(path: str | os.PathLike[str]) -> StoreVersions | None:
    """Returns the versions under a URL of an object store; `None` for a path of this machine."""
    text = os.fspath(path)
    place = place_of(os.fsdecode(text) if isinstance(text, bytes) else path)
    return StoreVersions(place) if isinstance(place, StoreFolder) else None


class StoreVersions:
    """The versions of a model in an object store.

    Export 7 is there once `7.json` is. That names its files, which lie under `7-` and the first
    digits of its identity, so that exports of two trainings never share a file. Deltas lie there in
    the same way. What is there is never written anew, other than `CURRENT.json`.

    Attributes:
        url: The URL under which all versions are.
    """

    def __init__(self, store: StoreFolder) -> None:
        self._store = store
        self.url = store.path

    def numbers(self) -> list[int]:
        """Returns the numbers of the exports, in order."""
        return _numbers(_MANIFEST, self._store.names())

    def newest(self) -> int:
        """Returns the number of the newest export; raises FileNotFoundError if there is none."""
        numbers = self.numbers()
        if not numbers:
            raise FileNotFoundError(
                f"Expected an export in '{self.url}'. Received: none that is whole. Call "
                "sok_embed.serving.export(model, url), or sok_embed.serving.push(path, url)."
            )
        return numbers[-1]

    def export(self, number: int) -> StoredExport:
        """Reads the manifest of an export."""
        name = f"{number}.json"
        try:
            data = _start_of(self._store, name, schema.MOST_BYTES)
        except FileNotFoundError:
            there = ", ".join(map(str, self.numbers())) or "none"
            raise FileNotFoundError(
                f"Expected export {number} in '{self.url}'. Received: {there}."
            ) from None
        path = self._store.file(name)
        return StoredExport(self.url, number, _parsed(path, data))

    def add(self, folder: str, number: int | None = None) -> StoredExport:
        """Copies an export of this machine, with its deltas, and whatever of both is not there yet.

        Args:
            folder: The folder of the export.
            number: The number that it gets. `None`: one more than the greatest there.

        Raises:
            ValueError: If another export has the number, or another delta one of the numbers.
            sok_embed.kv.CorruptionError: For files that are not as they were written.
        """
        identity = identity_of(folder)
        base = Base(folder, identity, (), {})
        if number in self.numbers():
            assert number is not None
            export = self._same(number, identity)
            export.send_deltas(base)
            return export
        names = _names_of(folder)
        for name in names:
            if os.path.dirname(name) == "assets" and name.endswith(".safetensors"):
                with rows_files.open(os.path.join(folder, name)) as rows:
                    rows.verify()  # damage would stay there for good
        content = _Content(identity, [record_of(folder, name) for name in names])
        while True:
            there = self._store.names() if number is None else []
            goal = max(_numbers(_MANIFEST, there) + _numbers(_FILES, there), default=0) + 1
            export = StoredExport(self.url, goal if number is None else number, content)
            export.send(base)
            try:
                self._store.create(f"{export.number}.json", content.text())
            except FileExistsError:  # another process was faster
                if number is None and self.export(export.number).identity != identity:
                    continue
                self._same(export.number, identity)
            return export

    def _same(self, number: int, identity: str) -> StoredExport:
        export = self.export(number)
        if export.identity != identity:
            raise ValueError(
                f"Expected export {number} of '{self.url}' to be the one that is copied there. "
                "Received: another export of this number. Copy to another URL, or write the export "
                "there by sok_embed.serving.export(model, url), which gives it a free number."
            )
        return export

    def prune(self, keep: int) -> list[int]:
        """Removes all but the newest exports, with their deltas. Returns their numbers."""
        names = self._store.names()
        numbers = _numbers(_MANIFEST, names)
        old = numbers[:-keep]
        self._store.remove([f"{number}.json" for number in old])
        # These may be left of what was removed or copied before and was interrupted.
        for name in names:
            found = _FILES.fullmatch(name)
            if found and numbers and int(found[1]) < numbers[-keep:][0]:
                StoreFolder(f"{self.url}/{name}").remove_all("saved_model.pb")
        return old


class _Content(NamedTuple):
    """The content of the manifest of an export."""

    identity: str  # see `identity_of`
    files: list[FileRecord]  # the files, by their paths in the folder of the export

    def text(self) -> bytes:
        """Returns the JSON of the manifest."""
        files = [record._asdict() for record in self.files]
        content = {"format": _FORMAT, "format_version": _VERSION, "identity": self.identity}
        content = {**content, "files": files}
        return json.dumps({**content, "checksum": checksum_of_json(content)}, indent=1).encode()


class StoredExport:
    """An export in an object store, and its deltas.

    Attributes:
        number: The number of the export.
        identity: A text that no other export has.
        bytes: The length of all its files, without those of deltas.
    """

    def __init__(self, url: str, number: int, content: _Content) -> None:
        self.number = number
        self.identity, self._files = content
        self.bytes = sum(record.bytes for record in self._files)
        self._store = StoreFolder(f"{url}/{number}-{self.identity[:16]}")
        self._deltas = StoreFolder(f"{self._store.path}/{FOLDER}")
        # The number of the last delta that is known to be that of the export of this machine.
        self._sent: int | None = None
        self._named = 0  # the number that `CURRENT.json` had last

    def current(self) -> int:
        """Returns the number of the newest delta; 0: there is none."""
        try:
            data = _start_of(self._deltas, CURRENT, MOST_CURRENT)
        except FileNotFoundError:
            return 0
        return current_of(self._deltas.file(CURRENT), data)

    def last(self) -> int:
        """Returns the number of the last delta that is whole, also if no reader knows of it yet.

        A publisher that was killed has not named it.
        """
        number = self.current()
        while self._has_delta(number + 1):
            number += 1
        return number

    def send(self, base: Base) -> None:
        """Copies everything but the manifest, which makes it an export, into the store."""
        _send(self._store, base.folder, self._files)
        try:
            self._deltas.create(CURRENT, text_of_current(0))
        except FileExistsError:
            pass  # of an earlier try, or of another process
        self.send_deltas(base)

    def send_deltas(self, base: Base) -> None:
        """Copies the deltas of an export of this machine that the store does not have yet.

        Raises:
            ValueError: If the store has another delta of the same number.
            sok_embed.kv.CorruptionError: For a delta with files that are not as they were written.
        """
        last = read_current(base)
        if self._sent is None:
            there = self.current()
            if common := min(there, last):
                data = _start_of(self._deltas, f"{common:08d}.json", schema.MOST_BYTES)
                self._check_same(common, base, data)
            self._sent = self._named = there
        try:
            for number in range(self._sent + 1, last + 1):
                self._send_delta(base, number)
                self._sent = number
        finally:
            if self._sent > self._named:
                self._name_newest(self._sent)
                self._named = self._sent

    def _name_newest(self, number: int) -> None:
        """Writes the number of the newest delta.

        Another process may have sent later ones meanwhile, whose number this has replaced.
        """
        while True:
            self._deltas.write(CURRENT, text_of_current(number), f"{CURRENT}.tmp")
            if not self._has_delta(number + 1):
                return
            number += 1

    def _has_delta(self, number: int) -> bool:
        return self._deltas.has(f"{number:08d}.json")

    def _send_delta(self, base: Base, number: int) -> None:
        folder = base.delta(number)
        digest, files = manifest_of(*_manifest_in(folder))
        for record in files:
            check_record(LocalFolder(folder), record, DELTA)
        _send(StoreFolder(f"{self._deltas.path}/{number:08d}-{digest}"), folder, files)
        name = f"{number:08d}.json"
        try:
            self._deltas.create(name, _manifest_in(folder)[1])
        except FileExistsError:  # of an earlier try, or of another process
            self._check_same(number, base, _start_of(self._deltas, name, schema.MOST_BYTES))

    def _check_same(self, number: int, base: Base, data: bytes) -> None:
        """Raises unless the manifest of a delta in the store is that of this machine."""
        if data != _manifest_in(base.delta(number))[1]:
            raise ValueError(
                f"Expected delta {number} of '{self._store.path}' to be the one of "
                f"'{base.folder}'. Received: another delta of this number. Another process has "
                "published; publish to one export from one process."
            )

    def staged_in(self, root: str) -> str:
        """Returns the folder of the files of the export that have been copied, until all have."""
        return os.path.join(root, f".{PULLED}-{self.number}-{self.identity[:16]}")

    def bring(self, root: str) -> None:
        """Copies the export into a folder of versions, without its deltas.

        It gets its number once all files are there, have their checksums and are on the device.
        Files that a call which failed or was killed has copied are not copied again.
        """
        staged = self.staged_in(root)
        scratch = ScratchFolder(PULLED, root)

        def bring(record: FileRecord) -> None:
            goal = os.path.join(staged, record.name)
            if os.path.exists(goal):
                try:
                    return check_record(LocalFolder(staged), record)
                except CorruptionError:
                    pass  # it did not get to the device
            os.makedirs(os.path.dirname(goal), exist_ok=True)
            folder = os.path.join(scratch.path, secrets.token_hex(8))
            _bring(self._store, folder, record, EXPORT)
            os.replace(os.path.join(folder, record.name), goal)

        try:
            _all_of(bring, self._files)
            sync_all(staged)
            os.rename(staged, os.path.join(root, str(self.number)))
            sync(root)
        finally:
            scratch.end()

    def bring_deltas(self, root: str, last: int, make_room: Room | None = None) -> None:
        """Copies deltas up to a number to the export in a folder of versions.

        Args:
            root: The folder of versions, which has the export.
            last: The number of the last delta.
            make_room: A function that is called with the bytes of deltas before they are copied.
        """
        base = Base(os.path.join(root, str(self.number)), self.identity, (), {})
        os.makedirs(base.deltas, exist_ok=True)
        first = read_current(base) + 1
        while first <= last:
            end = min(first + _DELTAS_AT_ONCE, last + 1)
            scratch = ScratchFolder(PULLED, base.deltas)
            try:
                with _pool() as pool:
                    self._bring_some(pool, base, range(first, end), scratch.path, make_room)
            finally:
                scratch.end()
            first = end

    def _bring_some(
        self, pool: ThreadPool, base: Base, numbers: range, scratch: str, make_room: Room | None
    ) -> None:
        # Folders that are there already were copied by a process that was killed.
        missing = [number for number in numbers if not os.path.isdir(base.delta(number))]
        manifests: dict[int, tuple[bytes, str, list[FileRecord]]] = {}
        failed = None
        try:
            for number, manifest in zip(
                missing, pool.imap(self._manifest_of, missing), strict=True
            ):
                manifests[number] = manifest
        except Exception as error:  # the deltas before can be copied all the same
            failed, numbers = error, range(numbers.start, missing[len(manifests)])
        if make_room is not None:
            make_room(
                sum(
                    len(data) + sum(record.bytes for record in files)
                    for data, _, files in manifests.values()
                )
            )

        def bring(number: int) -> str:
            data, digest, files = manifests[number]
            folder = os.path.join(scratch, f"{number:08d}")
            store = StoreFolder(f"{self._deltas.path}/{number:08d}-{digest}")
            for record in files:
                _bring(store, folder, record, DELTA)
            with open(os.path.join(folder, MANIFEST), "xb") as file:
                file.write(data)
            return folder

        done = numbers.start - 1
        try:
            brought = pool.imap(bring, manifests)
            for number in numbers:
                if number in manifests:
                    os.rename(next(brought), base.delta(number))
                done = number
        finally:
            if done >= numbers.start:
                write_current(base, done)
        if failed is not None:
            raise failed

    def _manifest_of(self, number: int) -> tuple[bytes, str, list[FileRecord]]:
        name = f"{number:08d}.json"
        data = _start_of(self._deltas, name, schema.MOST_BYTES)
        return data, *manifest_of(self._deltas.file(name), data)


def _numbers(pattern: re.Pattern[str], names: Iterable[str]) -> list[int]:
    """Returns the numbers in names of a form, in order."""
    return sorted(int(found[1]) for found in map(pattern.fullmatch, names) if found)


def _names_of(folder: str) -> list[str]:
    """Returns the paths of all files of an export within its folder, without its deltas."""
    paths = [
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
    ]
    return sorted(path for path in paths if not path.startswith(FOLDER + os.sep))


def _is_path_within(name: str) -> bool:
    """Returns whether a name can only lead to a file within its folder."""
    return all(part not in ("", ".", "..") for part in name.split("/")) and "\0" not in name


def _start_of(store: StoreFolder, name: str, most: int) -> bytes:
    """Returns the bytes of a file, and no more than one beyond `most`, by one request."""
    return store.read_range(name, 0, most + 1)


def _parsed(path: str, data: bytes) -> _Content:
    """Reads the manifest of an export; raises CorruptionError for a damaged one."""
    if len(data) > schema.MOST_BYTES:
        raise damaged(path, f"at most {schema.MOST_BYTES} bytes", "more", EXPORT)
    content = schema.parsed(path, data, of=EXPORT)
    fits = schema.record({"format": schema.exactly(_FORMAT), "checksum": schema.text})
    schema.checked(path, content, fits, of=EXPORT)
    if content.get("format_version") != _VERSION:
        raise ValueError(
            f"Expected an export of format {_VERSION} in '{path}'. Received: format "
            f"{schema.brief(content.get('format_version'))}. Read it with the sok-embed that "
            "wrote it, or a newer one."
        )
    if content.pop("checksum") != checksum_of_json(content):
        raise damaged(path, "contents that agree with their checksum", "something else", EXPORT)
    file = {
        "name": schema.text_like(_is_path_within, "the path of a file in a folder"),
        "bytes": schema.integer(),
        "checksum": schema.hexadecimal,
    }
    identity = schema.text_like(re.compile("[0-9a-f]{64}").fullmatch, "64 hexadecimal digits")
    fits = schema.record({"identity": identity, "files": schema.list_of(schema.record(file))})
    schema.checked(path, content, fits, of=EXPORT)
    files = [FileRecord(each["name"], each["bytes"], each["checksum"]) for each in content["files"]]
    return _Content(content["identity"], files)


def _manifest_in(folder: str) -> tuple[str, bytes]:
    """Returns the path and the content of the manifest of a delta of this machine."""
    path = os.path.join(folder, MANIFEST)
    with opened(path, DELTA, links=False) as file:
        return path, file.read(schema.MOST_BYTES + 1)


@contextlib.contextmanager
def _pool() -> Iterator[ThreadPool]:
    """Makes threads, which do nothing any more when this ends, also after an error.

    A process that ends does not wait for them, as it would for those of `concurrent.futures`.
    """
    pool = ThreadPool(_AT_ONCE)
    try:
        yield pool
    finally:
        pool.terminate()
        pool.join()


def _all_of(work: Callable[[FileRecord], object], files: list[FileRecord]) -> None:
    """Calls a function with each of some records, with a few at the same time."""
    with _pool() as pool:
        for _ in pool.imap_unordered(work, files):
            pass


def _send(store: StoreFolder, folder: str, files: list[FileRecord]) -> None:
    """Copies files that are not there yet into the store, and looks that it has all of them.

    No other files ever get these names, so that a file of the same length is the same file.
    """
    for is_last in (False, True):
        there = store.lengths()
        missing = [record for record in files if there.get(record.name) != record.bytes]
        if not missing:
            return
        if is_last:
            raise StoreError(
                f"Expected '{store.file(missing[0].name)}' of {missing[0].bytes} bytes after it "
                f"was written. Received: {there.get(missing[0].name, 'no file')}. The store does "
                "not keep what it is given: look at what is between this machine and the store."
            )
        _all_of(lambda record: store.put(record.name, os.path.join(folder, record.name)), missing)


def _bring(store: StoreFolder, folder: str, record: FileRecord, of: str) -> None:
    """Copies a file into a folder of this machine, and checks it."""
    goal = os.path.join(folder, record.name)
    os.makedirs(os.path.dirname(goal), exist_ok=True)
    try:
        store.get(record.name, goal)
    except FileNotFoundError:
        raise damaged(
            store.file(record.name), f"a file of {record.bytes} bytes", "none", of
        ) from None
    check_record(LocalFolder(folder, store.path), record, of)
