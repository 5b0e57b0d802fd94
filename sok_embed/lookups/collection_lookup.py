"""Looks keys of many features up and pools vectors: on the host, on GPUs, over workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.lookups.exchange import OnGpu, PooledBatch, pooled_rows
from sok_embed.lookups.lookup import AnchoredLookup, Call, type_of_ops
from sok_embed.lookups.served_bags import served_bags
from sok_embed.tf_ops.served import is_serving
from sok_embed.training.commit import Commit


class CollectionLookup(AnchoredLookup):
    """Pools the vectors of many features, in three messages for any number of tables.

    Args:
        plan: The plan of all calls.
        tables: The part of this worker.
        host: The owner of the tables, as a message begins: `"Layer 'fields'"`.
        name: The name of its exchanges; the same on every worker.
        owner: The number of this worker.
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

    def make_anchor(self, make: Callable[..., Any], commit: Commit, **arguments: Any) -> Any:
        """Makes the variable that stands for all tables.

        Args:
            make: The `add_weight` of a Keras layer.
            commit: The constraint of the anchor.
            **arguments: Further arguments of `make`, such as the name.

        Returns:
            The result of `make`.
        """
        return self._make_anchor(make, commit, **arguments)

    def pooled(
        self,
        call: Call,
        batch: PooledBatch,
        *,
        concat: bool = False,
        dtype: tf.DType = tf.float32,
    ) -> list[tf.Tensor]:
        """Returns a vector of each bag. Collective, if there are several workers.

        Args:
            call: The rights of the call, from `begin`.
            batch: The keys of all features.
            concat: True for one vector an example, as for `tf_ops.collection_pool`.
            dtype: The dtype of the result, `tf.float32`, `tf.bfloat16` or `tf.float16`.

        Returns:
            `[bags, dim]` for each feature; with `concat` one, of `[bags, sum of dims]`.
        """
        if is_serving():
            tables = self._tables.handles.tables
            rows = [
                tf_ops.lookup(tables[table], keys, self._plan.dims[table], False).embeddings
                for table, keys in zip(self._plan.feature_tables, batch.keys, strict=True)
            ]
            return served_bags(self._plan, batch, rows, concat=concat, dtype=dtype)
        self.communicator()  # raises if the tables were made for another
        devices = self._tables.lookup_devices
        if any(devices):
            return self._pooled_by_device(call, batch, devices, concat=concat, dtype=dtype)
        on_gpu = self._on_gpu(call)
        if on_gpu is not None:
            return pooled_rows(
                self._plan,
                batch,
                [self._tables],
                on_gpu,
                self._name,
                trains=call.anchor is not None,
                concat=concat,
                dtype=dtype,
            )
        return self._pooled_on_host(call, self._plan, batch, concat=concat, dtype=dtype)

    def _on_gpu(self, call: Call) -> OnGpu | None:
        """Returns the tables, if their rows lie on a GPU and are exchanged there; else `None`."""
        devices = self._tables.exchange_devices
        used = {devices[table] for table in self._plan.feature_tables}
        device = used.pop()
        if device is None or used or self._packed:
            return None
        trainable = self._tables.trainable
        return OnGpu(self._tables.handles, device, call.trains, trainable, call.anchor)

    def _pooled_by_device(
        self,
        call: Call,
        batch: PooledBatch,
        devices: Sequence[str | None],
        *,
        concat: bool,
        dtype: tf.DType,
    ) -> list[tf.Tensor]:
        """Pools the rows of each feature where they lie; `devices` has each table's device."""
        splits = iter(batch.splits)
        features = [
            tf_ops.PooledFeature(
                number,
                batch.keys[number],
                bags,
                next(splits) if bags == tf_ops.BAG_BY_SPLITS else None,
                batch.combiners[number],
                batch.weights[number],
            )
            for number, bags in enumerate(batch.bags)
        ]
        by_device: dict[str | None, list[tf_ops.PooledFeature]] = {}
        for each in features:
            device = devices[self._plan.feature_tables[each.number]]
            by_device.setdefault(device, []).append(each)
        joins = concat and len(by_device) == 1
        found: dict[int, tf.Tensor] = {}
        for device, theirs in by_device.items():
            if device is None:
                vectors = self._pooled_on_host(
                    call, *_part_of(self._plan, theirs), concat=joins, dtype=dtype
                )
            else:
                vectors = tf_ops.lookup_pooled_on_gpu(
                    self._tables.handles,
                    self._plan,
                    theirs,
                    device,
                    make_rows=call.trains,
                    trainable=self._tables.trainable,
                    anchor=call.anchor,
                    concat=joins,
                    dtype=type_of_ops(dtype),
                )
                vectors = [tf.cast(each, dtype) for each in vectors]
            if joins:
                return vectors
            found |= zip((each.number for each in theirs), vectors, strict=True)
        pooled = [found[number] for number in range(len(features))]
        return [tf.concat(pooled, 1)] if concat else pooled

    def _pooled_on_host(
        self,
        call: Call,
        plan: tf_ops.CollectionPlan,
        batch: PooledBatch,
        *,
        concat: bool,
        dtype: tf.DType,
    ) -> list[tf.Tensor]:
        def serve(
            pools: Sequence[bool], message: tf.Tensor, splits: tf.Tensor
        ) -> tf_ops.CollectionRows:
            return tf_ops.collection_serve(
                self._tables.handles,
                plan,
                pools,
                message,
                splits,
                call.trains,
                self._tables.trainable,
                call.anchor,
                packed=self._packed,
                counted=call.counted,
            )

        return pooled_rows(
            plan,
            batch,
            [self._tables],
            serve,
            self._name,
            trains=call.anchor is not None,
            concat=concat,
            packed=self._packed,
            dtype=dtype,
        )


class CollectedTables(Protocol):
    """One worker's part of the tables of a collection."""

    host: Callable[[], Any]

    @property
    def trainable(self) -> Sequence[bool]:
        """True for each table that is trained."""

    @property
    def handles(self) -> tf_ops.CollectionTables:
        """The handles of the tables for ops."""

    @property
    def lookup_devices(self) -> Sequence[str | None]:
        """TensorFlow's name of the GPU on which each table is looked up; `None`: the CPU."""

    @property
    def exchange_devices(self) -> Sequence[str | None]:
        """TensorFlow's name of the GPU on which one of several workers looks each table up."""


def _part_of(
    plan: tf_ops.CollectionPlan, features: Sequence[tf_ops.PooledFeature]
) -> tuple[tf_ops.CollectionPlan, PooledBatch]:
    """Returns the plan and the batch of some of the features, for one worker."""
    numbers = [each.number for each in features]
    part = dataclasses.replace(
        plan,
        feature_names=tuple(plan.feature_names[number] for number in numbers),
        feature_tables=tuple(plan.feature_tables[number] for number in numbers),
        max_lengths=tuple(plan.max_lengths[number] for number in numbers),
    )
    batch = PooledBatch(
        keys=[each.keys for each in features],
        bags=[each.bags for each in features],
        splits=[each.splits for each in features if each.splits is not None],
        combiners=[each.combiner for each in features],
        weights=[each.weights for each in features],
    )
    return part, batch
