"""Tables of served models: their rows lie in a file, in which an op looks keys up.

The op is in a library of its own, without RocksDB, which this module loads without the other ops.
"""

from __future__ import annotations

import importlib.util
import os
import uuid
from pathlib import Path
from typing import Any

import tensorflow as tf

from sok_embed.arguments import check_integer

__all__ = ["ServedTable", "library_path"]


def library_path(version: str | None = None) -> Path:
    """Returns the path of the library of ops for served models.

    A C program loads it by `TF_LoadLibrary`, and Python by `tf.load_op_library`. Nothing else of
    this package is needed then.

    Args:
        version: The version of TensorFlow, such as `"2.21.0"`. `None`: the one that is installed.

    Raises:
        ImportError: There is none for it.
    """
    version = version or tf.__version__
    major, minor = version.split(".")[:2]
    spec = importlib.util.find_spec("sok_embed.tf_ops")
    folders = (spec.submodule_search_locations if spec else None) or ()
    for folder in folders:
        library = Path(folder) / f"libsok_serving_{major}_{minor}.so"
        if library.exists():
            return library
    raise ImportError(
        f"Expected libsok_serving_{major}_{minor}.so, the ops of served models for TensorFlow "
        f"{version}. Received: no such file in {', '.join(map(str, folders))}. Build it with `make "
        "setup` in the source tree, or install the package with `pip install .`."
    )


_ops: Any = tf.load_op_library(str(library_path()))


tf.no_gradient("SokEmbed>ServedLookup")
tf.no_gradient("SokEmbed>ServedContains")
tf.no_gradient("SokEmbed>PoolServedRows")


def pool(
    rows: tf.Tensor,
    bags: tf.Tensor | int,
    weights: tf.Tensor | None,
    combiner: str,
    max_length: int,
    feature: str,
) -> tf.Tensor:
    """Pools rows by one op: a `sok_embed.tf_ops.served.Pool`."""
    has_splits = not isinstance(bags, int)
    return _ops.sok_embed_pool_served_rows(
        rows,
        tf.cast(bags, tf.int64) if has_splits else tf.zeros([0], tf.int64),
        tf.zeros([0]) if weights is None else weights,
        combiner=combiner,
        is_weighted=weights is not None,
        length=0 if has_splits else bags,
        max_length=max_length,
        feature=feature,
    )


# `ResourceHandle::ANONYMOUS_NAME` of TensorFlow: each call of an op with this name makes a resource
# of its own. TensorFlow keeps a kernel of 34 kB for each other name until the process ends.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


class LayeredRows(tf.saved_model.experimental.TrackableResource):
    """The rows of an open file, with files of newer rows over it.

    Args:
        base: The handle of the file's rows.
        gone: The paths of files of keys whose rows were removed, the oldest layer first; `""`:
            none.
        rows: The paths of files of rows, one for each layer; `""`: none.

    Raises:
        tf.errors.OpError: For files that cannot be opened.
    """

    def __init__(self, base: tf.Tensor, gone: list[str], rows: list[str]) -> None:
        super().__init__(device="/device:CPU:0")
        self._base = base
        _ops.sok_embed_lay_served_rows(
            self.resource_handle,
            base,
            tf.constant(gone, tf.string, [len(gone)]),
            tf.constant(rows, tf.string, [len(rows)]),
        )

    def _create_resource(self) -> tf.Tensor:
        return _ops.sok_embed_served_rows(shared_name=_ANONYMOUS)

    def _destroy_resource(self) -> None:
        tf.raw_ops.DestroyResourceOp(resource=self.resource_handle, ignore_lookup_error=True)


class _Rows(tf.saved_model.experimental.TrackableResource):
    """A file that is open for lookups."""

    def __init__(self, file: tf.saved_model.Asset, dim: int) -> None:
        super().__init__(device="/device:CPU:0")
        self._file = file
        self._dim = dim
        self._shared_name = f"served_rows_{uuid.uuid4().hex}"
        self._initialize()

    def _create_resource(self) -> tf.Tensor:
        # In a graph each run of the op must find the same resource.
        name = _ANONYMOUS if tf.executing_eagerly() else self._shared_name
        return _ops.sok_embed_served_rows(shared_name=name)

    def _initialize(self) -> None:
        _ops.sok_embed_open_served_rows(self.resource_handle, self._file.asset_path, dim=self._dim)

    def _destroy_resource(self) -> None:
        tf.raw_ops.DestroyResourceOp(resource=self.resource_handle, ignore_lookup_error=True)


class ServedTable(tf.Module):
    """A table whose rows lie in a file of `sok_embed.serving.rows.write`.

    A `tf.Module` that has it as an attribute is saved with the file among its assets, and finds it
    there when it is loaded, wherever the SavedModel has been moved. Loading it needs the library of
    `library_path` and nothing else of this package.

    Example:
    >>> import numpy as np
    >>> from sok_embed.serving import rows
    >>> batch = (np.array([42]), np.array([[0.5, 1.0]], np.float32))
    >>> written = rows.write("items.safetensors", [batch], dim=2)
    >>> items = ServedTable("items.safetensors", 2)
    >>> items.lookup(tf.constant([[42, 7]], tf.int64)).numpy().tolist()
    [[[0.5, 1.0], [0.0, 0.0]]]

    Args:
        path: The path of the file.
        dim: The length of a row.

    Raises:
        tf.errors.NotFoundError: For a file that is not there.
        tf.errors.DataLossError: For a file that is damaged, as far as its header shows.
        tf.errors.InvalidArgumentError: For a file of rows of another length.
    """

    def __init__(self, path: str | os.PathLike[str], dim: int) -> None:
        super().__init__()
        self._dim = check_integer("dim", dim, 1, 2**20 + 1)
        self._file = tf.saved_model.Asset(os.fspath(path))
        self._rows = _Rows(self._file, self._dim)

    @property
    def dim(self) -> int:
        """Returns the length of a row."""
        return self._dim

    def lookup(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns the rows of keys; see `sok_embed.serving.rows.RowsFile.lookup`.

        Args:
            keys: int64 or uint64, of any shape.

        Returns:
            float32 `[*keys.shape, dim]`.
        """
        return _ops.sok_embed_served_lookup(self._rows.resource_handle, keys, dim=self._dim)

    def contains(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns which keys the file has, bool of their shape.

        Args:
            keys: int64 or uint64, of any shape.
        """
        return _ops.sok_embed_served_contains(self._rows.resource_handle, keys)
