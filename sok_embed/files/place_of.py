"""Finds the kind of place that a path or a URL names."""

from __future__ import annotations

import os
import re

from sok_embed.files.object_store import StoreFolder
from sok_embed.files.places import LocalFolder, Place

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")


def place_of(path: str | os.PathLike[str] | Place) -> Place:
    """Returns the place that a path leads to.

    Args:
        path: The path of a folder, or a URL such as `s3://bucket/run7`.

    Raises:
        ImportError: For a URL, without fsspec or what it needs for the store.
        ValueError: For a URL that does not lead to an object store, and for one that is ambiguous.
    """
    if isinstance(path, Place):
        return path
    text = os.fspath(path)
    found = _SCHEME.match(text)
    if found is None:
        if not isinstance(path, str) and _ONE_SLASH.match(text):
            raise ValueError(
                f"Expected a folder, or a URL as a string. Received: {path!r}, of which pathlib "
                "has taken a slash. Give it as a string."
            )
        if "://" in text:
            raise ValueError(
                "Expected a folder, or a URL that begins with its scheme, as s3://bucket/run7. "
                f"Received: {text!r}."
            )
        return LocalFolder(os.path.abspath(text))
    if found[1].lower() in ("file", "local"):
        return LocalFolder(os.path.abspath(text[found.end() :]))
    return StoreFolder(text)
