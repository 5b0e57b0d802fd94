"""Looks keys of many features up and pools vectors: on the host, on GPUs, over workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.lookups.exchange import OnGpu, OnHost, PooledBatch, pooled_rows
from sok_embed.lookups.lookup import Lookup, LookupContext
from sok_embed.lookups.seen_keys import note_keys
from sok_embed.lookups.served_bags import served_bags
from sok_embed.tf_ops.served import is_serving


class CollectionLookup(Lookup):
    """Pools the vectors of many features, in three messages for any number of tables.

    Args:
        name: The name of its exchanges; the same on every worker.
        exchange_dtype: The dtype of rows between workers, `tf.float32` or `tf.bfloat16`.
    """

    def __init__(
        self,
        plan: tf_ops.CollectionPlan,
        tables: CollectedTables,
        host: str,
        name: str,
        owner: int,
        exchange_dtype: tf.DType = tf.float32,
    ) -> None:
        super().__init__(host, owner, plan.workers)
        self._plan = plan
        self._packed = plan.workers > 1 and exchange_dtype == tf.bfloat16
        self._tables = tables
        self._name = name

    def pooled(
        self,
        context: LookupContext,
        batch: PooledBatch,
        *,
        concat: bool = False,
        dtype: tf.DType = tf.float32,
    ) -> list[tf.Tensor]:
        """Returns a vector of each bag. Collective, if there are several workers.

        Args:
            context: The context of the call, from `begin`.
            batch: The keys of all features.
            concat: True for one vector an example, as for `tf_ops.collection_pool`.
            dtype: The dtype of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`.

        Returns:
            `[bags, dim]` for each feature; with `concat` one, of `[bags, sum of dims]`.
        """
        for number, keys in zip(self._plan.feature_tables, batch.keys, strict=True):
            note_keys(self._tables[self._plan.table_names[number]], keys)
        if is_serving():
            tables = self._tables.handles.tables
            rows = [
                tf_ops.lookup(tables[table], keys, self._plan.dims[table], False).embeddings
                for table, keys in zip(self._plan.feature_tables, batch.keys, strict=True)
            ]
            return served_bags(self._plan, batch, rows, concat=concat, dtype=dtype)
        several = self.communicator().size > 1
        devices = self._tables.devices
        by_device: dict[str | None, list[int]] = {}
        for number, table in enumerate(self._plan.feature_tables):
            by_device.setdefault(devices[table], []).append(number)
        if len(by_device) == 1 or several:
            # One exchange for all of them.
            device = None if len(by_device) > 1 or self._packed else next(iter(by_device))
            return self._pooled(context, self._plan, batch, device, concat=concat, dtype=dtype)
        found: dict[int, tf.Tensor] = {}
        for device, numbers in by_device.items():
            part = _part_of(self._plan, batch, numbers)
            vectors = self._pooled(context, *part, device, concat=False, dtype=dtype)
            found |= zip(numbers, vectors, strict=True)
        pooled = [found[number] for number in range(len(found))]
        return [tf.concat(pooled, 1)] if concat else pooled

    def _pooled(
        self,
        context: LookupContext,
        plan: tf_ops.CollectionPlan,
        batch: PooledBatch,
        device: str | None,
        *,
        concat: bool,
        dtype: tf.DType,
    ) -> list[tf.Tensor]:
        """Pools rows that lie on a device; `None`: in the memory of the host."""
        handles, trainable = self._tables.handles, self._tables.trainable

        def serve(
            pools: Sequence[bool], message: tf.Tensor, splits: tf.Tensor
        ) -> tf_ops.CollectionRows:
            return tf_ops.collection_serve(
                handles,
                plan,
                pools,
                message,
                splits,
                context.trains,
                trainable,
                context.anchor,
                packed=self._packed,
                counted=context.counted,
            )

        tables = [self._tables[each] for each in plan.table_names]
        place: OnHost | OnGpu = OnHost(serve, tables, self._packed)
        if device is not None:
            place = OnGpu(handles, device, context.trains, trainable, context.anchor)
        return pooled_rows(
            plan,
            batch,
            [self._tables],
            place,
            self._name,
            trains=context.anchor is not None,
            concat=concat,
            dtype=dtype,
        )


class CollectedTables(Protocol):
    """One worker's part of the tables of a collection."""

    host: Callable[[], Any]

    def __getitem__(self, name: str) -> Any:
        """Returns a table by its name."""

    @property
    def trainable(self) -> Sequence[bool]:
        """True for each table that is trained."""

    @property
    def handles(self) -> tf_ops.CollectionTables:
        """The handles of the tables for ops."""

    @property
    def devices(self) -> Sequence[str | None]:
        """TensorFlow's name of the GPU on which each table is looked up; `None`: the CPU."""


def _part_of(
    plan: tf_ops.CollectionPlan, batch: PooledBatch, numbers: Sequence[int]
) -> tuple[tf_ops.CollectionPlan, PooledBatch]:
    """Returns the plan and the batch of some of the features, for one worker."""
    given = iter(batch.splits)
    splits = [next(given) if kind == tf_ops.BAG_BY_SPLITS else None for kind in batch.bags]
    part = dataclasses.replace(
        plan,
        feature_names=tuple(plan.feature_names[number] for number in numbers),
        feature_tables=tuple(plan.feature_tables[number] for number in numbers),
        max_lengths=tuple(plan.max_lengths[number] for number in numbers),
    )
    return part, PooledBatch(
        keys=[batch.keys[number] for number in numbers],
        bags=[batch.bags[number] for number in numbers],
        splits=[each for each in (splits[number] for number in numbers) if each is not None],
        combiners=[batch.combiners[number] for number in numbers],
        weights=[batch.weights[number] for number in numbers],
    )
