"""The table of a layer, which is also for people to inspect."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sok_embed import kv, tf_ops
from sok_embed.arguments import takes_options
from sok_embed.files.row_views import RowViews
from sok_embed.initializers import RowInitializer
from sok_embed.kv import RemovedKeys
from sok_embed.kv.open_storages import warn_of_another
from sok_embed.kv.table_spec import TableSpec
from sok_embed.tables import contents
from sok_embed.tables.base_table import BaseTable, Part
from sok_embed.tables.contents import warn_of_dropped, warn_of_later_steps
from sok_embed.tables.gpus import logical_device
from sok_embed.tables.owners import ModuloRule, OwnerRule
from sok_embed.tables.row_batches import Batch, batches_in_memory
from sok_embed.tables.stored_owners import check_stored_owners
from sok_embed.tables.tensors import as_errors, as_keys, eager


class Table(BaseTable, RowViews):
    """Rows of floats by 64-bit key, on this worker.

    Layers make their own tables. Use this class to look at what a layer has learned, or to set
    rows. Under Horovod a table holds the rows of this worker only, those with
    `key % size() == rank()`.

    A table is a TensorFlow trackable: `tf.train.Checkpoint` carries its rows, slots, update counts
    and times, its step count and what its admission has counted. A SavedModel has the keys and the
    vectors, and the rest in `sok_embed.whole_saved_models`. For a table in a `storage` both have
    only the path, and flush the storage, so that its rows are at least as new.

    Example:
    >>> import numpy as np
    >>> table = Table(dim=2, initializer=RowInitializer("constant", 0.0, 0.0, None))
    >>> table.assign([7, -1], np.array([[1, 2], [3, 4]], np.float32))
    >>> table.size()
    2
    >>> table.lookup([-1, 5])
    array([[3., 4.],
           [0., 0.]], dtype=float32)

    Args:
        dim: The length of a row.
        initializer: The initializer that rows start from.
        owner_rule: The rule that gives keys to workers, an `OwnerRule`. `None`: the key modulo
            `owners`.
        **options: The other fields of a `TableSpec`, such as `max_rows` and `storage`.

    Attributes:
        spec: The `TableSpec`.
        device: The device whose memory the rows lie in: `"cpu"`, or `"gpu:0"`.
        lookup_device: TensorFlow's name of the GPU on which layers look keys up; `None`: the CPU,
            or one of several workers.
        exchange_device: TensorFlow's name of the GPU on which one of several workers looks up what
            all of them ask for; `None`: the CPU, or one worker.

    Raises:
        RuntimeError: For a GPU that cannot be used; the message says what is missing.
        ValueError: As `TableSpec`, and for another `dim`, types or initializer than the group of
            the storage has. `Storage.table` opens a group as it is.
    """

    kind = "table"
    _join_parts = (
        "To serve, call sok_embed.serving.export(model, path) on all workers; else export the "
        "parts with `table.export(slots=True)`, put them together in one process with "
        "`table.assign`, and save there"
    )
    _copy_rows = "table.export(slots=True)"
    lookup_device: str | None
    exchange_device: str | None

    @takes_options(TableSpec, "what", "step_clock", "gpu")
    def __init__(
        self,
        dim: int,
        initializer: RowInitializer,
        *,
        owner_rule: OwnerRule | None = None,
        **options: Any,
    ) -> None:
        spec = TableSpec(dim=dim, initializer=initializer.bounds, **options)
        self._create(spec, owner_rule)

    def _create(self, spec: TableSpec, owner_rule: OwnerRule | None) -> None:
        rule = owner_rule or ModuloRule()
        super().__init__(
            spec.dim, owners=spec.owners, owner=spec.owner, owner_text=rule.text, name=spec.name
        )
        self.storage = spec.storage
        self._owner_rule = rule
        if not isinstance(rule, ModuloRule):
            # Keys are shared by another rule, so that positions are the keys themselves.
            spec = replace(spec, owners=1, owner=0)
        self.key_limit = spec.max_rows * spec.owners if spec.direct and spec.max_rows else 0
        if spec.seed is None:
            spec = replace(spec, seed=_stored_seed(spec))
        self._create_from(spec)
        gpu = self.spec.gpu
        self.lookup_device = self.exchange_device = None
        if gpu >= 0 and not self.counts_keys and not self.evicts_rows:
            name_of_gpu = logical_device(gpu)
            self.lookup_device = name_of_gpu if self.owners == 1 else None
            self.exchange_device = name_of_gpu if self.owners > 1 else None

    def _create_resource(self) -> tf.Tensor:
        if self.storage is not None:
            self.storage.ready()
            if self.owners > 1:
                check_stored_owners(
                    f"Table '{self.name}'", self.storage, self.spec.group, self._owner_rule
                )
        attributes = self._attributes()
        try:
            return as_errors(lambda: tf_ops.anonymous_table(self.name, self.dim, **attributes))
        except kv.StorageLockedError as error:
            if self.spec.gpu < 0:
                raise
            raise RuntimeError(str(error)) from None

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel" and self.storage is not None:
            self.storage.flush()
        return children

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        if contents.are_apart():
            return {}
        if self.storage is not None:
            # The rows stay in the storage; only its path, id and steps are saved.
            said = [self.storage.path, self.storage.id]
            with tf.init_scope():
                self.storage.flush()
                # In the graph of a SavedModel there are no values, and the steps are not read.
                if tf.executing_eagerly():
                    said.append(str(int(self.step_count())))
            return contents.storage_tensors("\0".join(said))
        if contents.are_vectors_alone():
            vectors = tf_ops.export(self.resource_handle, self.dim, with_slots=False)
            return {"keys": vectors.keys, "embeddings": vectors.embeddings}
        return tf_ops.export(self.resource_handle, self.dim, with_slots=True).by_name()

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> Any:
        if self.storage is not None:
            if tf.executing_eagerly():
                _, *said = os.fsdecode(restored[contents.STORAGE].numpy()).split("\0")
                warn_of_another(self.storage, said[0] if said else "")
                if len(said) > 1:
                    warn_of_later_steps(self, f"Table '{self.name}'", int(said[1]))
            return tf.no_op()
        if "slots" not in restored:
            return tf_ops.assign(self.resource_handle, restored["keys"], restored["embeddings"])
        given = tf_ops.Export.from_names(restored)
        if tf.executing_eagerly():
            self._own_keys(given.keys)
        done = tf_ops.restore(self.resource_handle, given)
        if tf.executing_eagerly():
            warn_of_dropped(self, given)
        return done

    def __repr__(self) -> str:
        return f"<Table '{self.name}', {self.size()} rows of {self.dim}>"

    def owners_of(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Returns the workers that hold keys.

        Args:
            keys: int64 of any shape.

        Returns:
            int64 of the shape of the keys: in [0, owners). `None`: every worker holds all of them.
        """
        return self._owner_rule.owners(keys, self.owners)

    @property
    def parts(self) -> list[Part]:
        """The rows: one part."""
        spec = self.spec
        handle, limit = self.resource_handle, spec.max_rows or 0
        return [Part(self, "rows", handle, limit, self.owners_of, group=spec.group)]

    def _joined(
        self, exports: Sequence[tf_ops.Export], cells: bytes = b"", counters: Any = ()
    ) -> tf_ops.Export:
        """Returns the contents of the one part."""
        (export,) = exports
        return export

    @property
    def is_replicated(self) -> bool:
        """True if every one of several workers holds all rows."""
        return self.owners > 1 and self.owners_of(np.zeros(1, np.int64)) is None

    @property
    def counts_keys(self) -> bool:
        """Returns whether an admission counts the keys of lookups."""
        return self.spec.admission is not None

    @property
    def evicts_rows(self) -> bool:
        """Returns whether an eviction removes rows."""
        return self.spec.eviction is not None

    @eager
    def size(self) -> int:
        """Returns the number of rows."""
        return int(tf_ops.size(self.resource_handle))

    @eager
    def contains(self, keys: Any) -> npt.NDArray[np.bool_]:
        """Returns which keys have a row. Makes no rows.

        Args:
            keys: Integers of any shape.

        Returns:
            bool `keys.shape`. Keys out of the range of a direct table have no row.

        Raises:
            ValueError: For keys that are not integers, or that live on another worker.
        """
        return self.metadata(keys).exists

    @eager
    def metadata(self, keys: Any) -> tf_ops.Metadata:
        """Returns which keys have a row, and how often and when it was trained. Makes no rows.

        Args:
            keys: Integers of any shape.

        Returns:
            `tf_ops.Metadata` of NumPy arrays of the shape of the keys: bool `exists`, int64
            `update_nums`, the commits that touched the row, and int64 `update_times`, of the last
            of them, or of when the row was made, in seconds since 1970; in steps of the table in
            memory with an eviction, unless that counts seconds. Zeros without a row.

        Raises:
            ValueError: As `contains`.
        """
        found = as_errors(lambda: tf_ops.metadata(self.resource_handle, self._own_keys(keys)))
        return tf_ops.Metadata(*(tensor.numpy() for tensor in found))

    def prefetch(self, keys: Any) -> tf.Operation | None:
        """Reads rows that lie on the disk into the cache of the storage, and makes none.

        Call it with the keys of a step to come, on a thread of your own or in a `map` of
        `tf.data`; `sok_embed.data.look_ahead` does so for the tables of a model. Lookups and steps
        run meanwhile, and their results are those without it. A table in memory has nothing to
        read.

        Args:
            keys: Integers of any shape. Keys without a row on this worker are searched for in vain.

        Returns:
            The operation in a graph; eagerly `None`, once the rows have been read. A row that
            cannot be read is an error of the call that needs it.

        Raises:
            ValueError: For keys that are not integers.
        """
        return tf_ops.prefetch(self.resource_handle, as_keys(keys))

    @eager
    def lookup(self, keys: Any) -> npt.NDArray[np.float32]:
        """Reads embeddings, and makes no rows.

        Args:
            keys: Integers of any shape.

        Returns:
            float32 `keys.shape + [dim]`. A key without a row gets the vector that training would
            start from.

        Raises:
            ValueError: For keys that are not integers, that live on another worker, or that are out
                of the range of a direct table.
        """
        found = as_errors(
            lambda: tf_ops.lookup(
                self.resource_handle, self._own_keys(keys), self.dim, make_rows=False
            )
        )
        embeddings: npt.NDArray[np.float32] = found.embeddings.numpy()
        return embeddings

    @eager
    def export(self, slots: bool = False) -> Any:
        """Copies all rows out, in no order, as they are between two training steps.

        Args:
            slots: True to copy optimizer slots too.

        Returns:
            `(keys, embeddings)`: int64 `[n]` and float32 `[n, dim]`. With `slots`, an `Export`
            of NumPy arrays, which also has `slots`, `update_nums`, `update_times`, `slot_start`,
            `rule`, `steps`, `step_clock` and `admission`: all that `restore` takes.
        """
        return self._exported(self.resource_handle, slots)

    @eager
    def snapshot(self) -> tf_ops.Export:
        """Copies everything out: `export(slots=True)`."""
        everything: tf_ops.Export = self.export(slots=True)
        return everything

    @eager
    def batches(self, n: int) -> Iterator[Batch]:
        """Yields all rows of this worker, `n` at a time; a model may train meanwhile.

        Each batch has its rows as they are when the batch is read. A row that exists from the first
        batch to the last comes exactly once. A row that is made or removed meanwhile, in this
        thread or another, may be included or not. Rows in a storage come ascending by key as
        uint64, so that negative keys come last. Rows in memory come in
        no particular order, which stays the same while no row is made or removed. Memory is taken
        for `n` rows, and for the keys of an eighth of a table in memory, or less.

        Example:
        >>> import numpy as np
        >>> table = Table(dim=1, initializer=RowInitializer("constant", 0.0, 0.0, None))
        >>> table.assign([1, 2, 3], np.ones([3, 1]))
        >>> [len(keys) for keys, vectors in table.batches(2)]
        [2, 1]

        Args:
            n: The most rows of a batch.

        Yields:
            Tuples of keys, int64 `[rows]`, and embeddings, float32 `[rows, dim]`.

        Raises:
            ValueError: For an `n` that is not a positive integer.
        """
        if self.storage is None:
            return batches_in_memory(self, self.resource_handle, self.dim, n)
        stored = self.storage.table(self.spec.group).batches(n)
        return ((keys.view(np.int64), vectors) for keys, vectors in stored)

    def restore(self, contents: tf_ops.Export) -> None:
        """Replaces everything in the table by what `export(slots=True)` returned.

        Rows keep the times of their updates; those in the future become now, since the clocks of
        machines differ. Keys without a row keep what the table's admission has counted of them; a
        table without an admission drops the counts, with a warning.

        Raises:
            ValueError: If the arrays do not fit this table, hold keys of another worker, counts of
                another admission, or what no training leaves: a key twice, negative counts, times
                or sums of squares, slots of another rule. It is left as it was.
            sok_embed.kv.CorruptionError: If the counts of the admission are damaged, likewise.
        """
        self._own_keys(contents.keys)
        as_errors(lambda: tf_ops.restore(self.resource_handle, contents))
        warn_of_dropped(self, contents)

    def check_restore(self, contents: tf_ops.Export) -> None:
        """Raises what `restore` would raise of the contents, and changes nothing."""
        as_errors(lambda: tf_ops.check_restore(self.resource_handle, contents))

    def assign(self, keys: Any, embeddings: Any) -> None:
        """Sets embeddings, and makes rows for keys without one. Slots of existing rows stay.

        Args:
            keys: Integers of any shape. Of equal ones the last counts.
            embeddings: float32 `keys.shape + [dim]`.

        Raises:
            ValueError: For other shapes, a key out of range, or a full table from which no rows may
                go, which is left as it was.
        """
        values = tf.convert_to_tensor(embeddings, tf.float32)
        own_keys = self._own_keys(keys)
        expected = own_keys.shape.concatenate([self.dim])
        if not values.shape.is_compatible_with(expected):
            raise ValueError(
                f"Table '{self.name}': expected embeddings of shape {expected}, one row a key. "
                f"Received: shape {values.shape}."
            )
        flat = (tf.reshape(own_keys, [-1]), tf.reshape(values, [-1, self.dim]))
        as_errors(lambda: tf_ops.assign(self.resource_handle, *flat))

    @eager
    def remove(self, keys: Any) -> int:
        """Removes rows. An admission counts their keys from 0 again.

        Args:
            keys: Integers of any shape. Those without a row are ignored, and keep their counts.

        Returns:
            The number of rows that were removed.

        Raises:
            ValueError: For keys that are not integers, or that live on another worker.
        """
        own_keys = tf.reshape(self._own_keys(keys), [-1])
        return int(as_errors(lambda: tf_ops.remove(self.resource_handle, own_keys)))

    @eager
    def removed_keys(self, limit: int = 1_000_000) -> RemovedKeys:
        """Returns the keys whose rows have gone since the call before: evicted, removed or expired.

        Keys are noted from the first call on. Keys whose rows have come back are left out: the
        returned keys have no row when the call returns. With several workers they are keys of this
        worker.

        A row that has expired by the TTL of a storage is noted when a call asks for its key, or
        when the database rewrites its files. All expired rows are noted when the storage is
        compacted.

        A table has one list of such keys, and so has a group of a storage, shared by all callers.
        The list is not saved. `layer.tables` of a `DistributedEmbedding` has its tables.

        Example:
        >>> table = Table(dim=1, initializer=RowInitializer("constant", 0.0, 0.0, None))
        >>> table.removed_keys().complete
        False
        >>> table.assign([7, 8, 9], np.zeros([3, 1], np.float32))
        >>> table.remove([8, 5])
        1
        >>> table.removed_keys()
        RemovedKeys(keys=array([8]), complete=True)

        Args:
            limit: The most keys that are noted until the next call, which take 8 bytes each, and up
                to 32 more to find them by. 0: noting ends.

        Returns:
            `keys`, int64 `[n]`, distinct, in no order; and `complete`, a bool. `False` means that
            the keys are not known, and comes without keys: in the first call, if more rows have
            gone than `limit`, and if `restore`, a loaded checkpoint or a dump has replaced rows.
            Copy the whole table again then.

        Raises:
            ValueError: For a limit below 0.
        """
        return self._removed_keys(self.resource_handle, limit)

    def step_count(self) -> tf.Tensor:
        """Returns the number of commits that found gradients, an int64 scalar tensor."""
        return tf_ops.steps(self.resource_handle)

    @eager
    def stats(self) -> dict[str, int]:
        """Figures of the table: rows, bytes in memory, steps.

        Returns:
            `rows`; `max_rows`, 0 without a limit; `bytes`, the sum of `index_bytes` and
            `row_bytes`; `steps`, the commits so far; `pending_gradients`, those that wait for the
            next commit; `evicted`, the rows that have gone by an eviction since the table was made
            or its group of a storage opened; `left_out`, the keys since then whose gradients a
            commit has dropped, since the table was full and not enough of its rows might go.
            Likewise since then: `looked_up`, the keys of lookups, each as often as it stands in a
            call, and `found`, those of them that had a row before; `refused`, how often the
            admission counted a key in training and gave it no row; `made`, the rows that were made,
            also by `assign` and `restore`; `cache_hits`, the keys of lookups whose row was in the
            cache of the storage; `read_ahead`, the rows that `prefetch` has put there, and
            `left_behind`, the keys that were not there and for which it had no room.
        """
        names, values = tf_ops.stats(self.resource_handle)
        return {
            name.decode(): int(value)
            for name, value in zip(names.numpy(), values.numpy(), strict=True)
        }


def table_of(spec: TableSpec, owner_rule: OwnerRule | None = None) -> Table:
    """Makes the table that a spec describes."""
    table = Table.__new__(Table)
    table._create(spec, owner_rule)
    return table


def _stored_seed(spec: TableSpec) -> int:
    """Returns the seed of the initializer of a table's group in its storage; 0 if it has none."""
    for each in () if spec.storage is None else spec.storage.groups():
        if each.number == spec.group and each.initializer is not None:
            return int(each.initializer["seed"])
    return 0
