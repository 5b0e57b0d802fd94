"""The table of an adaptive layer: own rows, static rows and the sketch that decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.arguments import takes_options
from sok_embed.initializers import RowInitializer
from sok_embed.kv import RemovedKeys
from sok_embed.kv.table_spec import RowOptions, TableSpec
from sok_embed.tables import contents
from sok_embed.tables.base_table import BaseTable, Part
from sok_embed.tables.counts import SketchPlace
from sok_embed.tables.row_batches import Batch, batches_in_memory
from sok_embed.tables.tensors import as_errors, as_keys, eager

# Figures that are not counts.
_SHARES = ("sketch_saturation",)
# The names of the tensors of an `AdaptiveExport` that go into a SavedModel.
_VECTORS = ("own_keys", "own_embeddings", "static_keys", "static_embeddings")


class AdaptiveTable(BaseTable):
    """Rows of floats that frequent keys own and all other keys share, on this worker.

    A layer makes its own table; use this class to inspect it. Each key has a *static row*, the row
    of its bucket, which it shares with the other keys of the bucket. A count-min sketch with
    conservative update counts keys that are trained on. In the step in which the count of a key
    reaches `promote_after`, the key gets an *own row*, which starts as its static row, bit for bit.

    Under Horovod the buckets are spread over the workers. The own row of a key, its static row and
    its counts lie on worker `bucket % size()`.

    An adaptive table is a TensorFlow trackable: `tf.train.Checkpoint` carries its own rows, static
    rows, slots, counts, times of updates and figures. A SavedModel has the rows' vectors, and the
    rest in `sok_embed.whole_saved_models`.

    Example:
    >>> zeros = RowInitializer("constant", 0.0, 0.0, None)
    >>> table = AdaptiveTable(2, zeros, static_buckets=10)
    >>> table.promote([7, 8])
    2
    >>> table.size(), table.demote([7])
    (2, 1)
    >>> table.lookup([7, 8])
    array([[0., 0.],
           [0., 0.]], dtype=float32)

    Args:
        dim: The length of a row.
        initializer: The initializer of static rows.
        static_buckets: The number of static rows of all workers together.
        seed: The seed of the initializer; any integer.
        promote_after: The number of times that a key is seen in training before it gets its own
            row.
        max_rows: The most own rows on this worker. Beyond it the least used keys lose their own
            rows. `None`: no limit.
        decay_every: Counts are halved after so many steps. `None`: never.
        ttl: Keys lose own rows that were not updated for so many seconds; the table looks for them
            after steps, so that a row may stay a sixteenth longer. `None`: never.
        copy_slots: True if an own row starts with the optimizer slots of its static row, rather
            than with new ones.
        demote_blend: The share of `row - static row` by which the static row of a key moves when
            the key loses its row.
        sketch_capacity: The number of distinct keys that the sketch is sized for, over all workers.
        counter_bits: The bits of a cell of the sketch: 8 or 16.
        owners: The number of workers that share the buckets.
        owner: The number of this worker.
        name: The name for messages.
        **options: The types of own and static rows and the device whose memory they lie in, as of a
            `TableSpec`.

    Attributes:
        spec: The `TableSpec` of own and static rows.
        device: The device whose memory the rows lie in: `"cpu"`, or `"gpu:0"`.
    """

    kind = "adaptive"
    fixed = ("static_buckets", "sketch_capacity", "counter_bits")
    _join_parts = (
        "To serve, call sok_embed.serving.export(model, path) on all workers; else train in one "
        "process"
    )
    _copy_rows = "table.snapshot()"

    @takes_options(RowOptions)
    def __init__(
        self,
        dim: int,
        initializer: RowInitializer,
        *,
        static_buckets: int,
        seed: int = 0,
        promote_after: int = 2,
        max_rows: int | None = None,
        decay_every: int | None = None,
        ttl: int | None = None,
        copy_slots: bool = True,
        demote_blend: float = 0.0,
        sketch_capacity: int = 1_000_000,
        counter_bits: int = 8,
        owners: int = 1,
        owner: int = 0,
        name: str = "adaptive_table",
        **options: Any,
    ) -> None:
        super().__init__(dim, owners=owners, owner=owner, owner_text="bucket % size", name=name)
        self.static_buckets = static_buckets
        self.max_rows = max_rows
        self.sketch_capacity = sketch_capacity
        self.counter_bits = counter_bits
        self._adaptive: dict[str, Any] = {
            "static_buckets": static_buckets,
            "promote_after": promote_after,
            "max_rows": max_rows or 0,
            "decay_every": decay_every or 0,
            "ttl": ttl or 0,
            "copy_slots": copy_slots,
            "demote_blend": demote_blend,
            "sketch_capacity": sketch_capacity,
            "counter_bits": counter_bits,
            "owners": owners,
            "owner": owner,
        }

        spec = TableSpec(
            dim=dim,
            initializer=initializer.bounds,
            seed=seed,
            name=name,
            what=f"AdaptiveTable '{name}'",
            **options,
        )
        self._create_from(spec)

    def _create_resource(self) -> tf.Tensor:
        attributes = {**self._attributes(), **self._adaptive}
        return as_errors(lambda: tf_ops.anonymous_adaptive_table(self.name, self.dim, **attributes))

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        if contents.are_apart():
            return {}
        whole = tf_ops.adaptive_export(self.resource_handle, self.dim)
        tensors = whole.by_name()
        if contents.are_vectors_alone():
            return {name: tensors[name] for name in _VECTORS}
        return tensors

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> Any:
        if "cells" not in restored:
            return tf.group(
                tf_ops.assign(self._own, restored["own_keys"], restored["own_embeddings"]),
                tf_ops.assign(self._static, restored["static_keys"], restored["static_embeddings"]),
            )
        given = tf_ops.AdaptiveExport.from_names(restored)
        return tf_ops.adaptive_restore(self.resource_handle, given)

    def __repr__(self) -> str:
        return (
            f"<AdaptiveTable '{self.name}', {self.size()} own rows of {self.dim}, "
            f"{self.static_buckets} static>"
        )

    @property
    def counts_keys(self) -> bool:
        """True: the sketch counts the keys of lookups."""
        return True

    @eager
    def size(self) -> int:
        """Returns the number of own rows."""
        return int(tf_ops.size(self._own))

    @eager
    def buckets(self, keys: Any) -> npt.NDArray[np.int64]:
        """Returns the buckets in which keys share static rows, int64 of the shape of the keys."""
        found: npt.NDArray[np.int64] = tf_ops.adaptive_buckets(
            as_keys(keys), self.static_buckets
        ).numpy()
        return found

    @eager
    def lookup(self, keys: Any) -> npt.NDArray[np.float32]:
        """Reads what evaluation reads: own rows, or static rows of keys without one.

        Args:
            keys: Integers of any shape.

        Returns:
            float32 `keys.shape + [dim]`.

        Raises:
            ValueError: For keys that are not integers, or that live on another worker.
        """
        return self._read(keys, None)

    @eager
    def lookup_static(self, keys: Any) -> npt.NDArray[np.float32]:
        """Reads the static rows of keys, even of keys with own rows; otherwise as `lookup`."""
        return self._read(keys, 0)

    @eager
    def export(self, slots: bool = False) -> Any:
        """Copies all own rows out, in no order, as they are between two training steps.

        Args:
            slots: True to copy optimizer slots too.

        Returns:
            `(keys, embeddings)`: int64 `[n]` and float32 `[n, dim]`. With `slots`, an `Export` of
            NumPy arrays.
        """
        return self._exported(self._own, slots)

    @eager
    def export_static(self, slots: bool = False) -> Any:
        """Copies the static rows that were trained or shared, as `export` does.

        Keys are buckets.
        """
        return self._exported(self._static, slots)

    @eager
    def batches(self, n: int) -> Iterator[Batch]:
        """Yields all own rows of this worker, `n` at a time, as `Table.batches` does.

        A key that gets or loses its row between two batches may be included or not.
        """
        return batches_in_memory(self, self._own, self.dim, n)

    @eager
    def batches_static(self, n: int) -> Iterator[Batch]:
        """Yields the static rows that were trained or shared, as `batches` does.

        Keys are buckets.
        """
        return batches_in_memory(self, self._static, self.dim, n)

    @eager
    def snapshot(self) -> tf_ops.AdaptiveExport:
        """Copies everything out, as it is between two training steps: an `AdaptiveExport`."""
        exported = tf_ops.adaptive_export(self.resource_handle, self.dim)
        held: tf_ops.AdaptiveExport = tf.nest.map_structure(lambda each: each.numpy(), exported)
        return held

    def restore(self, contents: tf_ops.AdaptiveExport) -> None:
        """Replaces everything in the table by what `snapshot()` returned; rows keep their times.

        Raises:
            ValueError: If it does not fit this table, which is left as it was.
            sok_embed.kv.CorruptionError: If its sketch is damaged; the table is left as it was.
        """
        as_errors(lambda: tf_ops.adaptive_restore(self.resource_handle, contents))

    def check_restore(self, contents: tf_ops.AdaptiveExport) -> None:
        """Raises what `restore` would raise, and changes nothing."""
        as_errors(lambda: tf_ops.adaptive_check_restore(self.resource_handle, contents))

    @eager
    def promote(self, keys: Any) -> int:
        """Gives keys rows of their own, as if they had been seen often enough.

        Args:
            keys: Integers `[n]`. Those that have a row keep it.

        Returns:
            The number of them that got a row: with `max_rows`, instead of the least used keys.

        Raises:
            ValueError: For keys that are not integers, or that live on another worker.
        """
        before = self.stats()["promoted"]
        own_keys = self._own_keys(keys)
        ones = tf.ones_like(own_keys, tf.int32)
        as_errors(
            lambda: tf_ops.adaptive_lookup(
                self.resource_handle,
                own_keys,
                self.dim,
                True,
                counts=tf.zeros_like(own_keys),  # they are not looked up
                mask=ones,
            )
        )
        return int(self.stats()["promoted"] - before)

    @eager
    def demote(self, keys: Any) -> int:
        """Removes the own rows of keys, which then use their static rows again.

        Args:
            keys: Integers `[n]`. Those without a row are ignored.

        Returns:
            The number of rows that were removed.

        Raises:
            ValueError: For keys that are not integers, or that live on another worker.
        """
        own_keys = self._own_keys(keys)
        return int(as_errors(lambda: tf_ops.adaptive_demote(self.resource_handle, own_keys)))

    @eager
    def removed_keys(self, limit: int = 1_000_000) -> RemovedKeys:
        """Returns keys that have lost their own rows: see `Table.removed_keys`."""
        return self._removed_keys(self._own, limit)

    @eager
    def stats(self) -> dict[str, float]:
        """Returns figures of the table, for this worker.

        Returns:
            `rows`, own rows, and `max_rows`, 0 without a limit; `static_rows`, those that were
            trained or that an own row started as, of `static_buckets`; `promoted` and `demoted`,
            keys so far that got a row and that lost it; `lookups`, positions looked up in training,
            `own_lookups`, those that read an own row, and `own_share`, their quotient;
            `sketch_saturation`, the share of cells of the sketch that are full; `bytes`, the sum of
            `own_bytes`, `static_bytes` and `sketch_bytes`; `steps`, the commits so far;
            `pending_gradients`, those that wait for the next commit; `looked_up`, the keys of
            lookups since the table was made, in evaluation too, that did not ask for static rows,
            and `found`, those of them that had an own row.
        """
        names, values = tf_ops.adaptive_stats(self.resource_handle)
        figures: dict[str, float] = {}
        for name, value in zip(names.numpy(), values.numpy(), strict=True):
            text = name.decode()
            figures[text] = float(value) if text in _SHARES else int(value)
        figures["own_share"] = figures["own_lookups"] / max(figures["lookups"], 1)
        return figures

    def step_count(self) -> tf.Tensor:
        """Returns the number of commits so far, an int64 scalar."""
        return tf_ops.steps(self._own)

    @property
    def parts(self) -> list[Part]:
        """The own rows, to which the sketch belongs, and the static rows."""
        own, static = tf_ops.adaptive_tables(self.resource_handle)
        place = SketchPlace(self.static_buckets, self.owners, self.owner)
        limit = self.max_rows or 0
        return [
            Part(self, "own", own, limit, lambda keys: self.buckets(keys) % place.owners, 0, place),
            Part(self, "static", static, 0, lambda buckets: buckets % place.owners),
        ]

    def _joined(
        self, exports: Sequence[tf_ops.Export], cells: bytes = b"", counters: Any = ()
    ) -> tf_ops.AdaptiveExport:
        """Returns own rows, static rows and the sketch as the table restores them."""
        own, static = exports
        sketch = np.frombuffer(cells, np.uint8)
        return tf_ops.AdaptiveExport(own, static, sketch, np.asarray(counters, np.int64))

    @property
    def _own(self) -> tf.Tensor:
        return tf_ops.adaptive_tables(self.resource_handle)[0]

    @property
    def _static(self) -> tf.Tensor:
        return tf_ops.adaptive_tables(self.resource_handle)[1]

    def _read(self, keys: Any, route: int | None) -> npt.NDArray[np.float32]:
        own_keys = self._own_keys(keys)
        mask = None if route is None else tf.fill(tf.shape(own_keys), route)
        found = as_errors(
            lambda: (
                tf_ops.adaptive_lookup(
                    self.resource_handle, own_keys, self.dim, False, mask=mask
                ).embeddings
            )
        )
        embeddings: npt.NDArray[np.float32] = found.numpy()
        return embeddings
