"""Checks the files of a `tf.train.Checkpoint` before anything is restored from them."""

from __future__ import annotations

import bisect
import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

from sok_embed.files.places import LocalFolder
from sok_embed.files.records import FileRecord, damaged
from sok_embed.files.schema import brief

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"


class Bundle:
    """The tensors of some files, whose checksums are right, by their names.

    Attributes:
        shapes: The shape of each tensor.
    """

    def __init__(self, folder: LocalFolder, prefix: str, records: Sequence[FileRecord]) -> None:
        self._path = folder.file(prefix)
        self._known: dict[int, dict[str, int]] = {}  # children, by the number of an object
        room = sum(record.bytes for record in records)
        try:
            self._reader = tf.train.load_checkpoint(os.path.join(folder.local, prefix))
            self.shapes: dict[str, list[int]] = self._reader.get_variable_to_shape_map()
            self._dtypes = self._reader.get_variable_to_dtype_map()
        except (tf.errors.OpError, ValueError) as error:
            raise damaged(self._path, "a tf.train.Checkpoint", str(error)) from None
        for name, shape in self.shapes.items():
            if math.prod(shape) > room:  # each element takes a byte at least
                raise damaged(self._path, f"'{name}' to fit into {room} bytes", f"shape {shape}")

    def check(self, dense: Mapping[str, Any], metrics: str) -> None:
        """Raises CorruptionError unless the files have the variables that a manifest lists."""
        for field in ("variables", "metrics"):
            for path, dtype, shape in dense[field]:
                found = self._variable(path)
                if found != (dtype, shape):
                    expected = f"'{path}' of {dtype} {shape}, as 'dense.{field}' says,"
                    raise damaged(self._path, expected, "none" if found is None else brief(found))
        told = {path for path, _, _ in dense["metrics"]}
        there = {name for name in self._children(0) if name.startswith(metrics)}
        if told != there:
            expected = f"the metrics that 'dense.metrics' says, {brief(sorted(told))},"
            raise damaged(self._path, expected, brief(sorted(there)))

    def has(self, path: str) -> bool:
        """Returns whether the files have all entries that an object has saved."""
        node = self._node(path)
        attributes = () if node is None else self._graph.nodes[node].attributes
        # An attribute of some objects is several tensors, whose names begin with its key.
        return node is not None and all(
            any(name.startswith(each.checkpoint_key) for name in self.shapes) for each in attributes
        )

    def _variable(self, path: str) -> tuple[str, list[int]] | None:
        """Returns dtype and shape of the variable that a restore would find.

        `None`: there is no such variable.
        """
        node = self._node(path)
        attributes = () if node is None else self._graph.nodes[node].attributes
        keys = [each.checkpoint_key for each in attributes if each.name == _VALUE]
        if len(keys) != 1 or keys[0] not in self.shapes:
            return None
        return tf.as_dtype(self._dtypes[keys[0]]).name, list(self.shapes[keys[0]])

    def _node(self, path: str) -> int | None:
        """Returns the number of the object at a path; names within the path may contain slashes."""
        ends = [*(i for i, letter in enumerate(path) if letter == "/"), len(path)]
        behind = len(path) + 1
        waiting = [(0, 0)] if path else []  # an object, and where the rest of the path begins
        seen = set()
        while waiting:
            node, begin = waiting.pop()
            if begin == behind and node < len(self._graph.nodes):
                return node
            if begin == behind or (node, begin) in seen:
                continue
            seen.add((node, begin))
            children = self._children(node)
            names = ((end, path[begin:end]) for end in ends[bisect.bisect_right(ends, begin) :])
            found = [(children[name], end + 1) for end, name in names if name in children]
            waiting += reversed(found)  # the shortest name first
        return None

    @functools.cached_property
    def _graph(self) -> Any:
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        try:
            graph.ParseFromString(self._reader.get_tensor(_GRAPH))
        except (tf.errors.OpError, ValueError, TypeError, DecodeError) as error:
            raise damaged(self._path, "a graph of objects", str(error)) from None
        return graph

    def _children(self, node: int) -> dict[str, int]:
        """Returns the numbers of an object's children, by their names."""
        if node not in self._known:
            if not 0 <= node < len(self._graph.nodes):
                raise damaged(self._path, "objects of its graph", f"number {node}")
            children = self._graph.nodes[node].children
            self._known[node] = {each.local_name: each.node_id for each in children}
        return self._known[node]
