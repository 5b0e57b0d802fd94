"""Writes and reads rows of a table as a Parquet file, with pyarrow, which is imported only here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sok_embed.checkpoint.files.rows_file import Rows, rows_a_block
from sok_embed.checkpoint.files.rows_index import row_bytes
from sok_embed.checkpoint.tools.conversion.npz import COLUMNS, shape_of
from sok_embed.checkpoint.tools.conversion.tables import (
    METADATA,
    head_of_metadata,
    in_pieces,
    metadata_of,
)
from sok_embed.checkpoint.tools.saved import TableHead
from sok_embed.files.records import damaged

# Size of a group of rows in the file, before it is compressed.
_GROUP_BYTES = 32 << 20


def _pyarrow() -> Any:
    """Returns `pyarrow` with `pyarrow.parquet`; raises RuntimeError if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RuntimeError(
            f"Expected pyarrow, which reads and writes Parquet. Received: {error}. Run pip install "
            "pyarrow, or convert to .npz."
        ) from None
    return pyarrow


def _columns(head: TableHead) -> list[str]:
    """Returns the columns of a file; Parquet has no vectors of length 0."""
    return [column for column in COLUMNS if column != "slots" or head.slot_floats]


def _type(arrow: Any, column: str, head: TableHead) -> Any:
    shape = shape_of(column, head, 0)
    return arrow.list_(arrow.float32(), shape[1]) if len(shape) == 2 else arrow.int64()


def write_parquet(path: str, head: TableHead, pieces: Iterable[Rows]) -> int:
    """Writes a table. Returns the number of rows."""
    arrow = _pyarrow()
    schema = arrow.schema(
        [
            arrow.field(COLUMNS[column][0], _type(arrow, column, head), nullable=False)
            for column in _columns(head)
        ],
        metadata={METADATA: json.dumps(metadata_of(head))},
    )
    number = 0
    most = max(1, _GROUP_BYTES // row_bytes(head.dim, head.slot_floats))
    # A dictionary would treat all NaNs as one value.
    with arrow.parquet.ParquetWriter(
        path, schema, use_dictionary=False, write_page_checksum=True
    ) as writer:
        for rows in in_pieces(pieces, most):
            number += len(rows.keys)
            arrays = [_array(arrow, column, getattr(rows, column), head)
                      for column in _columns(head)]  # fmt: skip
            writer.write_batch(arrow.record_batch(arrays, schema=schema))
    return number


def _array(arrow: Any, column: str, values: npt.NDArray[Any], head: TableHead) -> Any:
    flat = arrow.array(np.ascontiguousarray(values).reshape(-1))
    if values.ndim == 1:
        return flat
    return arrow.FixedSizeListArray.from_arrays(flat, type=_type(arrow, column, head))


def parquet_head(path: str) -> TableHead:
    """Returns the head of a table in a Parquet file."""
    schema = _pyarrow().parquet.read_schema(path)
    metadata = schema.metadata or {}
    if METADATA.encode() not in metadata:
        raise ValueError(
            f"Expected '{path}' to have the metadata '{METADATA}', which sok-embed writes. "
            f"Received: {', '.join(key.decode(errors='replace') for key in metadata) or 'none'}. "
            "Take a file of sok-embed checkpoint convert; rewriting one must keep the "
            "metadata of its schema."
        )
    return head_of_metadata(path, metadata[METADATA.encode()])


def parquet_rows(path: str, head: TableHead) -> Iterator[Rows]:
    """Yields the rows of a file in pieces."""
    names = [COLUMNS[column][0] for column in _columns(head)]
    most = rows_a_block(head.dim, head.slot_floats)
    with _pyarrow().parquet.ParquetFile(path, page_checksum_verification=True) as file:
        lacking = sorted(set(names) - set(file.schema_arrow.names))
        if lacking:
            raise damaged(path, f"the columns {', '.join(names)}", f"none of {', '.join(lacking)}")
        for batch in file.iter_batches(most, columns=names):
            found = {
                column: _values(path, column, batch.column(COLUMNS[column][0]), head)
                for column in _columns(head)
            }
            found.setdefault("slots", np.zeros((batch.num_rows, 0), np.float32))
            yield Rows(**found)


def _values(path: str, column: str, values: Any, head: TableHead) -> npt.NDArray[Any]:
    """Returns a column of a batch as an array, bit for bit."""
    shape = shape_of(column, head, len(values))
    kind, flat = values.type, values
    fits = str(kind) == "int64"
    if len(shape) == 2:
        width = getattr(kind, "list_size", None)  # only of lists of one length
        fits = width == shape[1] and str(kind.value_type) == "float"
        flat = values.flatten() if fits else values
    if not fits or values.null_count or flat.null_count:
        expected = f"float[{shape[1]}]" if len(shape) == 2 else "int64"
        raise damaged(path, f"'{COLUMNS[column][0]}' of type {expected}, without nulls", str(kind))
    array: npt.NDArray[Any] = flat.to_numpy(zero_copy_only=True).reshape(shape)
    return array
