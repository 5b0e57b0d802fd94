"""Writes and reads rows of a table as NumPy's `.npz`: a member for each column, in pieces."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from sok_embed.checkpoint.files.rows_file import Rows, rows_a_block
from sok_embed.checkpoint.tools.conversion.tables import (
    METADATA,
    MOST_METADATA_BYTES,
    head_of_metadata,
    metadata_of,
)
from sok_embed.checkpoint.tools.saved import TableHead
from sok_embed.files.records import damaged

# The names of the members, by the columns of `Rows`, with their dtypes in the file.
COLUMNS = {
    "keys": ("key", "<i8"),
    "embeddings": ("embedding", "<f4"),
    "slots": ("slots", "<f4"),
    "update_nums": ("update_num", "<i8"),
    "update_times": ("update_time", "<i8"),
}

# zipfile and NumPy raise these for damaged files, beside OSError, ValueError and RuntimeError.
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, tokenize.TokenError)


def stored_member(path: str, archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """Returns a member that lies in the archive as it is.

    Keras and this package compress nothing. A compressed member could be a thousand times as long
    as the archive, all of which would be written before it turned out not to be a table.
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


def shape_of(column: str, head: TableHead, rows: int) -> tuple[int, ...]:
    """Returns the shape of a column of a table."""
    widths = {"embeddings": head.dim, "slots": head.slot_floats}
    return (rows, widths[column]) if column in widths else (rows,)


def write_npz(path: str, head: TableHead, pieces: Iterable[Rows], work: str) -> int:
    """Writes a table, by way of files of its columns in a folder. Returns the number of rows."""
    number = 0
    with ExitStack() as stack:
        files = {
            column: stack.enter_context(open(os.path.join(work, column), "w+b"))
            for column in COLUMNS
        }
        for rows in pieces:
            number += len(rows.keys)
            for column, (_, dtype) in COLUMNS.items():
                files[column].write(getattr(rows, column).astype(dtype).tobytes())
        archive = stack.enter_context(zipfile.ZipFile(path, "w", zipfile.ZIP_STORED))
        for column, (name, dtype) in COLUMNS.items():
            shape = shape_of(column, head, number)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                header = {"descr": dtype, "fortran_order": False, "shape": shape}
                npy.write_array_header_1_0(member, header)
                files[column].seek(0)
                shutil.copyfileobj(files[column], member, 1 << 20)
        with archive.open(f"{METADATA}.npy", "w") as member:
            npy.write_array(member, np.array(json.dumps(metadata_of(head))), allow_pickle=False)
    return number


def npz_head(path: str) -> TableHead:
    """Returns the head of a table in a `.npz` file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            if METADATA not in names:
                raise ValueError(
                    f"Expected '{path}' to have '{METADATA}', which sok-embed writes. Received: "
                    f"{', '.join(names) or 'nothing'}. Take a file of sok-embed checkpoint "
                    "convert."
                )
            found = stored_member(path, archive, f"{METADATA}.npy")
            with archive.open(found) as member:
                text = _text(path, member)
    except (*_DAMAGE, EOFError, KeyError, NotImplementedError) as error:
        raise damaged(path, "an .npz file", str(error)) from None
    return head_of_metadata(path, text.encode())


def _text(path: str, member: IO[bytes]) -> str:
    """Returns the text of a member. Uses no more memory than the bytes of the member."""
    shape, _, dtype = _read_header(path, member)
    if shape or dtype.kind != "U":
        raise damaged(path, f"a text as '{METADATA}'", f"an array of {dtype} {shape}")
    data = member.read(min(dtype.itemsize, MOST_METADATA_BYTES) + 1)
    if len(data) != dtype.itemsize:
        raise damaged(path, f"{dtype.itemsize} bytes of '{METADATA}'", f"{len(data)}")
    return str(np.frombuffer(data, dtype)[0]) if data else ""


def _read_header(path: str, member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(member)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        return read(member)
    except ValueError as error:
        raise damaged(path, "arrays of NumPy", str(error)) from None


def npz_rows(path: str, head: TableHead) -> Iterator[Rows]:
    """Yields the rows of a file in pieces."""
    most = rows_a_block(head.dim, head.slot_floats)
    try:
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path))
            members = {
                column: stack.enter_context(
                    archive.open(stored_member(path, archive, f"{name}.npy"))
                )
                for column, (name, _) in COLUMNS.items()
            }
            for column, member in members.items():
                _check_header(path, column, member, head)
            for begin in range(0, head.rows, most):
                n = min(most, head.rows - begin)
                yield Rows(**{
                    column: _read(path, column, member, head, n)
                    for column, member in members.items()
                })  # fmt: skip
            for column, member in members.items():
                if member.read(1):  # at its end a member's checksum has been looked at
                    raise damaged(path, f"{head.rows} rows in '{column}'", "more")
    except (*_DAMAGE, EOFError, KeyError) as error:
        raise damaged(path, "an .npz file of a converted table", str(error)) from None


def _check_header(path: str, column: str, member: IO[bytes], head: TableHead) -> None:
    shape, fortran, dtype = _read_header(path, member)
    expected = (shape_of(column, head, head.rows), np.dtype(COLUMNS[column][1]))
    # With one column, or none, both orders are the same.
    ordered = not fortran or len(shape) < 2 or min(shape) < 2
    if (shape, dtype) != expected or not ordered:
        raise damaged(path, f"{column} of shape and dtype {expected}", f"{(shape, dtype)}")


def _read(path: str, column: str, member: IO[bytes], head: TableHead, n: int) -> Any:
    dtype, shape = np.dtype(COLUMNS[column][1]), shape_of(column, head, n)
    wanted = dtype.itemsize * int(np.prod(shape))
    data = member.read(wanted)
    if len(data) != wanted:
        raise damaged(path, f"{head.rows} rows in '{column}'", "fewer")
    return np.frombuffer(data, dtype).reshape(shape)
