"""Opens Parquet files, and checks that the columns of all of them are the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow
from pyarrow import dataset as arrow
from pyarrow import types

from sok_embed.arguments import described
from sok_embed.data.arrow import widened

_FIRST = 256  # so many rows tell how many bytes a row has


def opened(source: Any) -> Any:
    """Returns the `pyarrow.dataset.Dataset` of a path, of a list of paths or of a dataset.

    Only the folders below a folder that is the source name partitions.

    Raises:
        TypeError: For a dataset of other files.
        ValueError: For a column that is both in the first file and in the names of folders.
        OSError: If there is no such file.
    """
    found = source
    if not isinstance(source, arrow.Dataset):
        one = isinstance(source, str | os.PathLike)
        paths: Any = os.fspath(source) if one else [os.fspath(each) for each in source]
        found = arrow.dataset(paths, format="parquet")
        if not found.files:
            raise FileNotFoundError(f"Expected Parquet files. Received: {paths!r} without any.")
        if one and not _is_file(paths, found.files) and any("=" in each for each in found.files):
            try:
                found = arrow.dataset(paths, format="parquet", partitioning="hive")
            except pyarrow.ArrowException:
                for name in found.schema.names:
                    if _folder_of(found.files[0], name) is not None:
                        raise _twice(found.files[0], name) from None
                raise
    if not isinstance(getattr(found, "format", None), arrow.ParquetFileFormat):
        raise TypeError(
            f"Expected paths or a pyarrow.dataset.Dataset of Parquet files. Received: "
            f"{described(source)}. Other files are read by pyarrow or pandas, for from_arrow or "
            "from_pandas."
        )
    return found


def _is_file(path: str, files: Sequence[str]) -> bool:
    """Returns whether a path or URL is itself the file that was found under it."""
    if os.path.exists(path):
        return os.path.isfile(path)
    return len(files) == 1 and unquote(path.partition("?")[0]).endswith(files[0])


def _folder_of(path: str, name: str) -> str | None:
    """Returns the text of the nearest folder `name=text` of a file."""
    for folder in reversed(os.path.dirname(path).split("/")):
        key, equals, text = folder.partition("=")
        if equals and key == name:
            return unquote(text)
    return None


def _twice(path: str, name: str) -> ValueError:
    return ValueError(
        f"Expected column '{name}' either in the files or in the names of their folders. Received: "
        f"both, of {path}. Give the files as a list to read the column of the files, or write them "
        "without it."
    )


def files_of(dataset: Any, whole: bool) -> list[Any]:
    """Returns the fragments of a dataset, one a file.

    Args:
        dataset: The `pyarrow.dataset.Dataset`.
        whole: True if all columns are read.

    Raises:
        ValueError: For a dataset with a filter; if all columns are read, also for a file with a
            column that the dataset lacks.
    """
    try:
        files = list(dataset.get_fragments())
    except ValueError as error:
        raise ValueError(
            f"Expected a dataset without a filter. Received: one with it: {error} Write the rows "
            "to files by pyarrow.dataset.write_dataset, or read them by its method to_table for "
            "from_arrow."
        ) from error
    for file in files if whole else ():
        more = [name for name in file.physical_schema.names if name not in dataset.schema.names]
        if more:
            raise ValueError(
                f"Expected the columns {dataset.schema.names} in each file. Received: {more}, too, "
                f"in {file.path}. Name the columns that are read, by features=, or write {more} to "
                "all files."
            )
    return files


def check_files(files: Sequence[Any], schema: Any, name: str, inferred: bool) -> None:
    """Raises if Arrow would read other values of a column than a file has.

    Args:
        files: The fragments, one a file.
        schema: The schema of the dataset.
        name: The column.
        inferred: True if the types of partitions were found in the names of folders.

    Raises:
        ValueError: For a file without the column, with another type of it, or with it in the names
            of folders, too; for a folder whose text is not that of the value.
    """
    wanted = schema.field(name).type
    for file in files:
        own = file.physical_schema
        keys = arrow.get_partition_keys(file.partition_expression)
        if name in own.names:
            if name in keys:
                raise _twice(file.path, name)
            found = own.field(name).type
            if not _fits(found, wanted):
                raise ValueError(
                    f"Expected values of {wanted} in column '{name}' of each file, as in the "
                    f"first. Received: {found} in {file.path}. Write the files with one type, or "
                    "leave the column out by features=."
                )
        elif name not in keys:  # Arrow would make missing values
            raise ValueError(
                f"Expected column '{name}' in each file. Received: {file.path} without it. Leave "
                "the column out by features=, or write it to all files."
            )
        elif inferred and keys[name] is not None:
            text = _folder_of(file.path, name)
            if text != str(keys[name]):
                raise ValueError(
                    f"Expected folders of column '{name}' whose text is that of a number. "
                    f"Received: '{text}', which would be read as {keys[name]}, of {file.path}. To "
                    "read strings, give pyarrow.dataset.dataset(path, partitioning="
                    "pyarrow.dataset.partitioning(pyarrow.schema("
                    f"[('{name}', pyarrow.string())]), flavor='hive')); to read numbers, give it "
                    "partitioning='hive'."
                )


def _fits(found: Any, wanted: Any) -> bool:
    """Returns whether values of a type are the same ones in another type."""
    while types.is_dictionary(found):
        found = found.value_type
    while types.is_dictionary(wanted):
        wanted = wanted.value_type
    if found.equals(wanted) or types.is_null(found):
        return True
    for kinds in (_TEXTS, _BYTES, _LISTS):
        if any(kind(wanted) for kind in kinds):
            alike = any(kind(found) for kind in kinds)
            return alike and (kinds != _LISTS or _fits(found.value_type, wanted.value_type))
    if types.is_fixed_size_list(wanted):
        alike = types.is_fixed_size_list(found) and found.list_size == wanted.list_size
        return alike and _fits(found.value_type, wanted.value_type)
    for is_kind in (types.is_integer, types.is_floating):
        if is_kind(wanted):
            return is_kind(found) and np.can_cast(
                found.to_pandas_dtype(), wanted.to_pandas_dtype(), "safe"
            )
    return False


_TEXTS = (types.is_string, types.is_large_string, types.is_string_view)
_BYTES = (types.is_binary, types.is_large_binary, types.is_binary_view)
_LISTS = (types.is_list, types.is_large_list)


def nulls(groups: Sequence[Any], name: str) -> tuple[int, int]:
    """Returns how many values of a flat column are missing, and how many rows were looked at.

    Files without such statistics count as files without missing values.

    Args:
        groups: The fragments, one a row group.
        name: The column.
    """
    missing = rows = 0
    for group in groups:
        of_group = group.metadata.row_group(group.row_groups[0].id)
        names = [of_group.column(i).path_in_schema for i in range(of_group.num_columns)]
        if name in names:
            statistics = of_group.column(names.index(name)).statistics
            rows += of_group.num_rows
            if statistics is not None and statistics.has_null_count:
                missing += statistics.null_count
    return missing, rows


def row_bytes(groups: Sequence[Any], dataset: Any, names: list[str]) -> float:
    """Returns how many bytes a row of columns has in memory, at least as many as in the file.

    The file may hold each text once, for all rows that have it, so the first rows are read.

    Args:
        groups: The fragments, one a row group.
        dataset: The `pyarrow.dataset.Dataset`.
        names: The columns.
    """
    sizes = [(each.row_groups[0].num_rows, each.row_groups[0].total_byte_size) for each in groups]
    stored = sum(size for _, size in sizes) / max(1, sum(rows for rows, _ in sizes))
    for group, (rows, _) in zip(groups, sizes, strict=True):
        if rows:
            found = arrow.FileSystemDataset(
                [group], dataset.schema, dataset.format, dataset.filesystem
            )
            first = found.head(
                _FIRST, columns=names, batch_size=_FIRST, batch_readahead=1, fragment_readahead=1
            )
            return max(stored, sum(widened(each).nbytes for each in first.columns) / len(first))
    return stored
