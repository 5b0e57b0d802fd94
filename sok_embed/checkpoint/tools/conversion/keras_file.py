"""Reads rows of tables from a `.keras` file or a file of weights, with h5py and without Keras."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sok_embed.checkpoint.files.rows_file import Rows, rows_a_block
from sok_embed.checkpoint.files.rows_index import row_bytes
from sok_embed.checkpoint.tools.conversion.npz import stored_member
from sok_embed.checkpoint.tools.conversion.tables import Moving
from sok_embed.checkpoint.tools.saved import TableHead
from sok_embed.files.records import damaged
from sok_embed.files.schema import (
    MOST_BYTES,
    MOST_DIM,
    MOST_SLOT_FLOATS,
    brief,
    parsed,
)

WEIGHTS = "model.weights.h5"
HDF5_MAGIC = b"\x89HDF"
_CONFIG = "config.json"

# The entries of a table behind their prefix, as `tf_ops.Export` has them, with the dtype and how
# many dimensions each has.
_FIELDS = {
    "keys": ("<i8", 1), "embeddings": ("<f4", 2), "slots": ("<f4", 2), "update_nums": ("<i8", 1),
    "update_times": ("<i8", 1), "slot_start": ("<f4", 1), "rule": ("|u1", 1), "steps": ("<i8", 0),
    "step_clock": ("<i8", 0), "admission": ("|u1", 1),
}  # fmt: skip
_COLUMNS = Rows._fields
_IN_STORAGE = "storage_rows"  # ends the name of the entry of a table whose rows are in a storage
_OF_COLLECTION = re.compile(r"table_(\d+)_")
_ERRNO = re.compile(r"errno = ([1-9][0-9]*)")  # in messages of HDF5
_MOST_SMALL = 1 << 20  # elements of what is not a column


def is_keras_file(path: str) -> bool:
    """Returns whether a zip archive was written by Keras."""
    try:
        with zipfile.ZipFile(path) as archive:
            return WEIGHTS in archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


def keras_tables(path: str, work: str, names: Sequence[str] = ()) -> list[Moving]:
    """Returns the tables of a file that `model.save`, `save_weights` or `save_model` has written.

    The weights of a `.keras` file are unpacked into the folder `work`.

    Raises:
        ValueError: For tables that an earlier version has written, and for requested tables whose
            rows are in a storage and not in the file.
    """
    weights, config = path, None
    if zipfile.is_zipfile(path):
        weights, config = _unpacked(path, work)
    return _tables(path, weights, config, names)


def _unpacked(path: str, work: str) -> tuple[str, Any]:
    """Returns the path of the weights, which are copied in pieces, and the model's config."""
    weights = os.path.join(work, WEIGHTS)
    try:
        with zipfile.ZipFile(path) as archive:
            found = stored_member(path, archive, WEIGHTS)
            with archive.open(found) as member, open(weights, "wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)
            config = None
            if _CONFIG in archive.namelist() and archive.getinfo(_CONFIG).file_size <= MOST_BYTES:
                config = parsed(path, archive.read(_CONFIG))
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError) as error:
        raise damaged(path, f"a .keras file with {WEIGHTS}", str(error)) from None
    return weights, config


def _tables(path: str, weights: str, config: Any, names: Sequence[str]) -> list[Moving]:
    import h5py

    found: list[Moving] = []
    elsewhere: dict[str, str] = {}  # where the rows of each other table are

    def visit(name: str, group: Any) -> None:
        if isinstance(group, h5py.Group):
            for entry in (each for each in group if each.endswith(_IN_STORAGE)):
                label = _label(group, entry.removesuffix(_IN_STORAGE) or "table_", config)
                elsewhere[label] = _place_of_rows(path, group, entry)
            for prefix in _prefixes(path, name, group):
                head = _head(path, group, prefix, config)
                pieces = partial(_pieces, path, weights, name, prefix, head)
                found.append(Moving(head, pieces))

    try:
        with h5py.File(weights, "r") as file:
            file.visititems(visit)  # this follows no links into other files
    except (OSError, RuntimeError, KeyError, TypeError) as error:
        raise _as_damage(path, error) from None
    room = os.path.getsize(weights)
    wanted = sum(each.head.rows * row_bytes(each.head.dim, each.head.slot_floats) for each in found)
    if wanted > room:  # several tables in the same bytes
        raise damaged(path, f"tables that lie in {room} bytes", f"rows of {wanted} bytes")
    tables = _with_own_labels(found)
    labels = [table.head.label for table in tables]
    for label, place in elsewhere.items():
        if not names or (label in names and label not in labels):
            raise ValueError(
                f"Expected tables whose rows are in '{path}'. Received: '{label}', whose rows are "
                f"in {place}, which convert reads; --table names the tables that the file has: "
                f"{', '.join(map(repr, labels)) or 'none'}."
            )
    return tables


def _place_of_rows(path: str, group: Any, entry: str) -> str:
    """Returns which storage has the rows of a table, as a message says it."""
    copy = group.get(f"{entry}_copy")
    if (getattr(copy, "shape", None), getattr(copy, "dtype", None)) != ((3,), np.uint64):
        return "the storage of the model"
    number, storage, own = (int(value) for value in copy[()])
    return f"group {own} of the storage '{path}.rows/{number:016x}/{storage:016x}'"


def _as_damage(path: str, error: Exception) -> Exception:
    """Turns an error of h5py into one that names the file; errors of sok_embed stay as they are.

    So do errors of the file system, such as too many open files, whose number h5py says.
    """
    if "Expected" in str(error) or getattr(error, "errno", None):
        return error
    if (number := _ERRNO.search(str(error))) is not None:
        return OSError(int(number[1]), os.strerror(int(number[1])), path)
    return damaged(path, "an HDF5 file", str(error))


def _prefixes(path: str, name: str, group: Any) -> list[str]:
    """Returns the prefix of the entries of each table in a group; raises if entries are missing."""
    found = []
    for prefix in sorted(each.removesuffix("embeddings") for each in group if
                         each.endswith("_embeddings")):  # fmt: skip
        lacking = [field for field in _FIELDS if f"{prefix}{field}" not in group]
        if lacking:
            raise ValueError(
                f"Expected all contents of a table in '{name}' of '{path}', with the entries "
                f"{', '.join(prefix + field for field in _FIELDS)}. Received: a file without "
                f"{', '.join(lacking)}, as an earlier version of sok-embed writes it. Load the "
                "model with that version, and save it as a checkpoint."
            )
        found.append(prefix)
    return found


def _head(path: str, group: Any, prefix: str, config: Any) -> TableHead:
    arrays = {field: _array(path, group, prefix, field) for field in _FIELDS}
    rows, dim = arrays["embeddings"].shape
    small = {field: _small(arrays[field]) for field in _FIELDS if field not in _COLUMNS}
    start = small["slot_start"]
    expected = {"keys": (rows,), "slots": (rows, len(start)), "update_nums": (rows,),
                "update_times": (rows,)}  # fmt: skip
    for field, shape in expected.items():
        if arrays[field].shape != shape:
            received = str(arrays[field].shape)
            raise damaged(path, f"'{prefix}{field}' of shape {shape}", received)
    if not 1 <= dim <= MOST_DIM or len(start) > MOST_SLOT_FLOATS:
        raise damaged(path, f"'{prefix}embeddings' of a dim in [1, {MOST_DIM}]", str(dim))
    label = _label(group, prefix, config)
    return TableHead(
        label=label,
        name=label,
        dim=dim,
        rule=small["rule"].tobytes().decode(errors="replace"),
        slot_start=tuple(float(value) for value in start),
        steps=int(small["steps"]),
        step_clock=int(small["step_clock"]),
        initializer={},  # the model's config has it, in Keras' words
        rows=rows,
    )


def _array(path: str, group: Any, prefix: str, field: str) -> Any:
    """Returns an entry whose bytes are all in the file, and are not made when they are read."""
    array = group[f"{prefix}{field}"]
    dtype, dimensions = _FIELDS[field]
    fits = getattr(array, "dtype", None) == np.dtype(dtype) and array.ndim == dimensions
    if not fits or array.chunks is not None or array.external or array.is_virtual:
        raise damaged(path, f"'{prefix}{field}' as Keras writes it", brief(str(array)))
    stored = array.id.get_storage_size()
    if array.nbytes != stored:
        raise damaged(path, f"{array.nbytes} bytes of '{prefix}{field}'", str(stored))
    room = os.path.getsize(array.file.filename)
    if stored and (array.id.get_offset() or room) + stored > room:
        raise damaged(path, f"'{prefix}{field}' within {room} bytes", f"{stored} bytes behind them")
    return array


def _small(array: Any) -> Any:
    if array.size > max(_MOST_SMALL, MOST_SLOT_FLOATS):
        return np.zeros(0, np.uint8)  # counts of an admission, which are not converted
    return array[()]


def _label(group: Any, prefix: str, config: Any) -> str:
    """Returns the name of a table: its layer's, and its own within the layer."""
    layer = str(group.attrs.get("name", group.name.removesuffix("/vars").strip("/")))
    if prefix == "table_":
        return layer
    if prefix in ("adaptive_own_", "adaptive_static_"):
        return f"{layer}:{prefix.split('_')[1]}"
    found = _OF_COLLECTION.fullmatch(prefix)
    if found is None:
        return f"{layer}:{prefix.rstrip('_')}"
    number, names = int(found[1]), _tables_of(layer, config)
    return names[number] if number < len(names) else f"{layer}:{number}"


def _tables_of(layer: str, config: Any) -> list[str]:
    """Returns the names of the tables of a `DistributedEmbedding`, in order of their entries."""
    for each in _objects(config):
        settings = each.get("config")
        if each.get("class_name") == "DistributedEmbedding" and isinstance(settings, dict):
            if settings.get("name") == layer:
                return list(dict.fromkeys(_flat_tables(settings.get("feature_configs"))))
    return []


def _objects(config: Any) -> Iterator[dict[str, Any]]:
    """Yields every object in JSON, without recursion."""
    waiting = [config]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _flat_tables(configs: Any) -> Iterator[str]:
    """Yields the name of each feature's table, as `keras.tree.flatten` orders features."""
    if isinstance(configs, list):
        for each in configs:
            yield from _flat_tables(each)
    elif isinstance(configs, dict):
        inner = configs.get("config")
        if configs.get("class_name") == "__tuple__":
            yield from _flat_tables(configs.get("items"))
        elif configs.get("class_name") == "FeatureConfig" and isinstance(inner, dict):
            yield str(inner["table"]["config"]["name"])
        else:
            for name in sorted(configs):
                yield from _flat_tables(configs[name])


def _pieces(path: str, weights: str, name: str, prefix: str, head: TableHead) -> Iterator[Rows]:
    import h5py

    most = rows_a_block(head.dim, head.slot_floats)
    try:
        with h5py.File(weights, "r") as file:
            columns = [_array(path, file[name], prefix, column) for column in _COLUMNS]
            for begin in range(0, head.rows, most):
                end = min(begin + most, head.rows)
                yield Rows._make(column[begin:end] for column in columns)
    except (OSError, RuntimeError, KeyError, TypeError) as error:
        raise _as_damage(path, error) from None


def _with_own_labels(tables: Sequence[Moving]) -> list[Moving]:
    """Returns the same tables; where several have one label, a number is added to it."""
    labels = [table.head.label for table in tables]
    seen: dict[str, int] = {}
    found = []
    for table in tables:
        label = table.head.label
        number = seen[label] = seen.get(label, -1) + 1
        if labels.count(label) > 1:
            label = f"{label}#{number}"
        found.append(table._replace(head=replace(table.head, label=label)))
    return found
