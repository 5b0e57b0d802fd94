"""The contract of tables with commits, checkpoints and files of Keras, and what they own.

TensorFlow keeps some graphs for as long as the process lives: Keras sums gradients over replicas by
an op whose gradient function is kept in a registry, and the function refers to the graph of the
training step. A graph refers to the handles that it has captured. So a table that lived as long as
its last handle would stay after its model: its content is destroyed with the Python object.
"""

from __future__ import annotations

import os
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.eager import context

from sok_embed import kv, tf_ops
from sok_embed.arguments import check_integer
from sok_embed.kv.devices import CPU
from sok_embed.kv.table_spec import TableSpec
from sok_embed.tables.changed_rows import commit_and_change
from sok_embed.tables.counts import SketchPlace
from sok_embed.tables.gpus import create_on_device
from sok_embed.tables.row_constraints import Constraint
from sok_embed.tables.tensors import as_keys, eager
from sok_embed.tables.worker_record import WorkerRecord
from sok_embed.tf_ops import served

_MOST_NOTED = 2**62  # removed keys
_Owners = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64] | None]


class OwnedResource(tf.saved_model.experimental.TrackableResource):
    """A resource of the native ops whose content is destroyed with this object.

    Shallow copies, such as those that TensorFlow makes to write a SavedModel, own it too. A graph
    that is run after the last of them has gone gets a `tf.errors.FailedPreconditionError`; ops that
    run at that moment end as they would. The object of a loaded SavedModel does not do this: its
    resources live as long as their last handle.
    """

    @property
    def resource_handle(self) -> Any:
        """The handle of the resource, or its substitute in a graph for serving."""
        stand_in = served.stand_in(self)
        return super().resource_handle if stand_in is None else stand_in

    def _initialize(self) -> None:
        """Does nothing: a resource is ready once it is made."""

    def _make_now(self) -> None:
        """Makes the resource at once.

        At first use it might be made inside of a function's graph.
        """
        with tf.init_scope():
            handle = self.resource_handle
        if hasattr(handle, "numpy"):
            self._lifetime = _Lifetime(handle)


class _Lifetime:
    """Releases the content behind a handle when nothing refers to this object any more."""

    def __init__(self, handle: tf.Tensor) -> None:
        finalizer = weakref.finalize(self, _release, handle, os.getpid())
        # At the end of the process the memory is freed anyway, and TensorFlow may be gone already.
        finalizer.atexit = False


def _release(handle: tf.Tensor, process: int) -> None:
    # A forked child does not have the threads of TensorFlow.
    if os.getpid() != process:
        return
    # The object may be collected while a graph is being traced.
    with context.eager_mode():
        tf_ops.release(handle)


class Part(NamedTuple):
    """Rows under one handle: the rows of a table, or own or static rows of an adaptive table.

    Attributes:
        table: The table.
        name: `"rows"`, `"own"` or `"static"`.
        handle: The handle of the rows, for ops.
        max_rows: The most rows on this worker; 0: no limit.
        owners_of: A function that returns the workers that hold keys, or `None` if every worker
            holds all rows.
        group: The number of the group of the table's storage.
        sketch: The buckets that the sketch of an adaptive table counts; only for the part with own
            rows.
    """

    table: BaseTable
    name: str
    handle: tf.Tensor
    max_rows: int
    owners_of: _Owners
    group: int = 0
    sketch: SketchPlace | None = None

    @property
    def shared(self) -> bool:
        """True if every worker has all of the rows."""
        return self.owners_of(np.zeros(1, np.int64)) is None

    def mine(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns bool of the shape of the keys, true for keys that this worker holds."""
        owners = self.owners_of(keys)
        return np.ones(keys.shape, np.bool_) if owners is None else owners == self.table.owner


class BaseTable(OwnedResource):
    """A table, or an adaptive table, on this worker.

    Attributes:
        kind: The kind of table, as text for manifests.
        spec: The spec of the table's rows.
        fixed: The names of further attributes that must be equal in a checkpoint and a table.
        storage: The folder that rows live in; `None`: they live in memory.
        host: A function that returns the layer of the table, which describes how it trains; or
            `None`, without one.
        constraint: A function of rows `[n, dim]`, float32, whose result replaces the rows that a
            commit has changed; `None`: there is none.
    """

    kind: ClassVar[str]
    spec: TableSpec
    device: str
    fixed: ClassVar[tuple[str, ...]] = ()
    storage: kv.Storage | None = None
    host: Callable[[], Any] = staticmethod(lambda: None)  # a weak reference, for layers
    constraint: Constraint | None = None
    # The advice of errors: the way to export a model, and the way to copy a table.
    _join_parts: ClassVar[str]
    _copy_rows: ClassVar[str]

    def __init__(self, dim: int, *, owners: int, owner: int, owner_text: str, name: str) -> None:
        super().__init__()
        self.dim = dim
        self.name = name
        self.owners = owners
        self.owner = owner
        self.owner_text = owner_text
        self._track_trackable(WorkerRecord(name, owner, owners, owner_text), "worker")

    def _create_from(self, spec: TableSpec) -> None:
        """Makes the rows on the device that the spec asks for; keeps the spec with the place."""

        def create(placed: TableSpec) -> None:
            self.spec = placed
            self._make_now()

        create_on_device(spec, create)
        self.device = CPU if self.spec.gpu < 0 else f"gpu:{self.spec.gpu}"

    def _attributes(self) -> dict[str, Any]:
        """Returns the attributes of the op that makes the table."""
        attributes = self.spec.attributes()
        if not tf.executing_eagerly():
            # A saved graph makes its table where it is loaded, with a GPU or without one.
            attributes["gpu_optional"] = True
        return attributes

    def _own_keys(self, keys: Any) -> tf.Tensor:
        """Returns the keys as a tensor; raises if one of them lives on another worker."""
        tensor = as_keys(keys)
        if self.owners == 1:
            return tensor
        values = tensor.numpy()
        workers = self.parts[0].owners_of(values)
        if workers is not None and (workers != self.owner).any():
            foreign = workers != self.owner
            rule = self.owner_text.replace("size", str(self.owners))
            rule = rule.replace("bucket %", "buckets(key) %")  # which a user can compute
            raise ValueError(
                f"Table '{self.name}': expected keys of worker {self.owner}, those with "
                f"{rule} == {self.owner}. Received: key {values[foreign][0]}, "
                f"which lives on worker {workers[foreign][0]}."
            )
        return tensor

    def _exported(self, handle: tf.Tensor, slots: bool) -> Any:
        """Returns keys and vectors, or an `Export`, of the rows under a handle as NumPy arrays."""
        exported = tf_ops.export(handle, self.dim, with_slots=slots)
        if not slots:
            return exported.keys.numpy(), exported.embeddings.numpy()
        return tf_ops.Export(*(tensor.numpy() for tensor in exported))

    def _removed_keys(self, handle: tf.Tensor, limit: int) -> kv.RemovedKeys:
        """Returns the keys that were noted under a handle, and has the next ones noted."""
        taken = tf_ops.removed_keys(handle, check_integer("limit", limit, 0, _MOST_NOTED))
        return kv.RemovedKeys(taken.keys.numpy(), bool(taken.complete))

    @property
    @abstractmethod
    def parts(self) -> list[Part]:
        """The parts of the table, in the order in which files have them."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Returns all that the table holds: an `Export` or an `AdaptiveExport` of NumPy arrays."""

    @abstractmethod
    def _joined(
        self, exports: Sequence[tf_ops.Export], cells: bytes = b"", counters: Any = ()
    ) -> Any:
        """Returns the contents that a table restores.

        Args:
            exports: The contents of each part.
            cells: The bytes of the sketch of an adaptive table.
            counters: The integers that go with the sketch.
        """

    @abstractmethod
    def restore(self, contents: Any) -> None:
        """Replaces everything in the table by what `snapshot` returned."""

    @abstractmethod
    def check_restore(self, contents: Any) -> None:
        """Raises what `restore` would raise, and changes nothing."""

    @abstractmethod
    def size(self) -> int:
        """Returns the number of rows that belong to a single key."""

    @property
    def resource_handle(self) -> Any:
        """The table, for ops.

        Raises:
            RuntimeError: In a process that was forked after the storage of the table was opened.
        """
        if self.storage is not None:
            self.storage.check_process()
        return super().resource_handle

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        if save_type == "savedmodel" and self.owners > 1:
            raise ValueError(
                f"Table '{self.name}': expected all rows in this process, to write a SavedModel. "
                f"Received: one part of {self.owners}. {self._join_parts}."
            )
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel":
            del children["worker"]  # the table has all rows, so no worker needs to be named
        return children

    def __deepcopy__(self, memo: Any) -> Any:
        # A deep copy would be a second name for the same rows.
        raise TypeError(
            f"Table '{self.name}': expected no copy of a table. Received: copy.deepcopy. Make "
            f"another table, and fill it by `other.restore({self._copy_rows})`; a deep copy of a "
            "layer or a model has rows of its own."
        )

    def __copy__(self) -> BaseTable:
        # TensorFlow makes shallow copies to write a SavedModel.
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"Table '{self.name}': expected a table to stay in its process. Received: pickle. "
            f"Pickle `{self._copy_rows}`, and fill another table by its `restore`; a pickle of a "
            "layer or a model has their rows."
        )

    def __len__(self) -> int:
        return self.size()

    def __bool__(self) -> bool:
        return True  # an empty table is true, too

    @eager
    def drop_gradients(self) -> int:
        """Drops gradients that were deposited and not applied.

        They would wait for 16 more steps. In an eager loop, `GradientTape.gradient` hands gradients
        to the table even if the anchor of the layer is not among its sources.

        Returns:
            The number of gradients.
        """
        return int(tf_ops.drop_deposits(self.resource_handle))

    def commit(
        self, anchor: tf.Tensor, steps: tf_ops.RuleSteps, redemption: tf_ops.Redemption
    ) -> tf.Tensor:
        """Applies deposited gradients, then formulas and constraints.

        Args:
            anchor: A float32 that was computed after the gradients were deposited.
            steps: One `tf_ops.RuleStep`.
            redemption: The deposits that are applied.

        Returns:
            Zeros of the shape of `anchor`.
        """
        return commit_and_change(self.resource_handle, [self], anchor, steps, redemption)
