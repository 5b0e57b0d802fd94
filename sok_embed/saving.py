"""Saving models so that a file is the old one or the new one, and never a part."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import keras

from sok_embed.scratch import locked_folder, remove_leftovers


def save_model(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Saves a model as `model.save(path)` does, and replaces the file once the new one is whole.

    Keras writes over the old file: a process that is killed meanwhile leaves neither. Here the file
    is written in a hidden folder beside it, forced to disk, and then takes the old one's place in
    one step. What killed saves have left there, the next one removes.

    Example:
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> save_model(model, "whole.keras")
    >>> keras.saving.load_model("whole.keras").name == model.name
    True

    Args:
        model: A Keras model.
        path: A file that ends in `.keras`. Of a link, the file that it leads to is replaced.

    Raises:
        ValueError: For another name.
        OSError: From the file system. The old file stays.
    """
    if not os.fsdecode(path).endswith(".keras"):
        raise ValueError(f"Expected a path that ends in .keras. Received: {os.fsdecode(path)!r}.")
    with replacing(path) as temporary:
        keras.saving.save_model(model, temporary)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields where to write; afterwards that file takes the place of the one at `path`."""
    target = os.path.realpath(os.fsdecode(path))
    folder, name = os.path.split(target)
    remove_leftovers(folder, name)
    work, lock = locked_folder(folder, name)
    try:
        temporary = os.path.join(work, name)
        yield temporary
        if os.path.isfile(target):
            shutil.copymode(target, temporary)
        _sync(temporary)
        os.replace(temporary, target)
        _sync(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


def _sync(path: Any) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
