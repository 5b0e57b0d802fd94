"""Numbered folders of a model, which are complete before they get their numbers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sok_embed.arguments import refuse_url
from sok_embed.files.scratch import ScratchFolder
from sok_embed.files.whole_files import sync

# Begins the name of the folder in which a version is made. Model servers load folders with numbers
# as names, and ignore all others.
_STAGED = "version"
ONNX_MODEL = "model.onnx"


class Version(NamedTuple):
    """The version of a served model.

    Attributes:
        export: The number of the folder that `sok_embed.serving.export` has written.
        delta: The number of the last delta; 0: the export itself.
    """

    export: int
    delta: int


def write_version(path: str | os.PathLike[str], write: Callable[[str], None]) -> str:
    """Gives a folder the next number, once it has been written and lies on the device.

    The function `write` writes into an empty folder, whose path it is given.

    Returns:
        The path of the version: `path/1`, or one more than the greatest number there.
    """
    root = made_root(root_of(path))
    with _told_if_unwritable(root):
        work = ScratchFolder(_STAGED, root)  # removes those of killed exports
    try:
        staged = os.path.join(work.path, "made")
        os.mkdir(
            staged
        )  # anybody may read it whom the user lets, other than the folder of the work
        write(staged)
        sync_all(staged)
        version = _numbered(root, staged)
    finally:
        work.end()
    sync(root)
    return version


def root_of(path: str | os.PathLike[str]) -> str:
    """Returns the path of the folder of all versions as text.

    Raises:
        ValueError: For a path that is a URL or a file.
    """
    root = os.fsdecode(path)
    if "://" in root:
        raise ValueError(
            f"Expected a folder, which all workers share. Received: '{root}', a URL. Export to "
            "such a folder, and copy it by sok_embed.serving.push(path, url)."
        )
    if os.path.exists(root) and not os.path.isdir(root):
        raise ValueError(
            f"Expected a folder of versions. Received: '{root}', which is a file. Pass the path of "
            "a folder, which is made if need be."
        )
    return root


def made_root(root: str) -> str:
    """Makes the folder of all versions if there is none, and returns its path."""
    with _told_if_unwritable(root):
        os.makedirs(root, exist_ok=True)
    return root


def export_numbers(root: str) -> list[int]:
    """Returns the numbers of the exports in a folder of versions, in order; raises without any."""
    refuse_url(root)
    names = os.listdir(root) if os.path.isdir(root) else []
    numbers = [
        int(each)
        for each in names
        if re.fullmatch("[0-9]+", each)
        and os.path.isfile(os.path.join(root, each, "saved_model.pb"))
    ]
    if not numbers:
        if os.path.isfile(os.path.join(root, "saved_model.pb")):
            raise FileNotFoundError(
                f"Expected a folder of versions. Received: '{root}', which is one of them. Pass "
                f"'{os.path.dirname(os.path.abspath(root))}'."
            )
        if any(os.path.isfile(os.path.join(root, each, ONNX_MODEL)) for each in ("", *names)):
            raise FileNotFoundError(
                f"Expected an export with ops='native' in '{root}'. Received: one with ops='onnx'. "
                f"Open its {ONNX_MODEL} with onnxruntime, or export the model with ops='native'."
            )
        raise FileNotFoundError(
            f"Expected an export in '{root}', such as '{os.path.join(root, '1')}'. Received: none. "
            "Call sok_embed.serving.export(model, path) first, and pass the same path."
        )
    return sorted(numbers)


def export_folder(root: str, number: int | None = None) -> str:
    """Returns the folder of an export; `None` as the number stands for the greatest there."""
    numbers = export_numbers(root)
    if number is not None and number not in numbers:
        raise FileNotFoundError(
            f"Expected export {number} in '{root}'. Received: {', '.join(map(str, numbers))}."
        )
    return os.path.join(root, str(numbers[-1] if number is None else number))


def identity_of(folder: str) -> str:
    """Returns the identity of an export: a random number that TensorFlow writes into it."""
    with open(os.path.join(folder, "fingerprint.pb"), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


@contextlib.contextmanager
def _told_if_unwritable(root: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # the class stays, such as PermissionError
        raise type(error)(
            f"Expected a folder that this process can write to. Received: '{root}' "
            f"({error.strerror}). Pass the path of another one, or give the user of this process "
            "the right to write there."
        ) from error


def _numbered(root: str, staged: str) -> str:
    """Renames a folder to the next number; others may take numbers meanwhile."""
    while True:
        names = [name for name in os.listdir(root) if re.fullmatch("[0-9]+", name)]
        version = os.path.join(root, str(max(map(int, names), default=0) + 1))
        try:
            os.rename(staged, version)
        except OSError:
            if not os.path.lexists(version):
                raise
        else:
            return version


def sync_all(folder: str) -> None:
    """Syncs a folder with all files and folders in it to disk."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync(os.path.join(parent, name))
        sync(parent)
