"""Finds members of zip archives that are no longer than the archive."""

from __future__ import annotations

import os
import zipfile

from sok_embed.files.records import damaged


def stored_member(path: str, archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """Returns a member that lies in the archive as it is.

    Keras and this package compress nothing. A compressed member could be a thousand times as long
    as the archive, all of which would be written before it turned out not to be a table.

    Raises:
        ValueError: For a compressed one.
    """
    found = archive.getinfo(name)
    if found.compress_type != zipfile.ZIP_STORED:
        raise ValueError(
            f"Expected '{path}' to have its members as they are, as Keras and sok-embed write "
            f"them. Received: a compressed '{name}'. Unpack the file, and pack it with zip -0."
        )
    length = os.path.getsize(path)
    if found.file_size != found.compress_size or found.file_size > length:
        raise damaged(path, f"'{name}' to lie in {length} bytes", f"{found.file_size} bytes")
    return found
