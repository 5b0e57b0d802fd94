"""The tables of a collection on this worker, with the one commit that trains them."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import tensorflow as tf

from sok_embed import communicators, planning, tf_ops
from sok_embed.configs.configs import FeatureConfig, TableConfig, distinct_tables
from sok_embed.configs.shared_configs import check_own_configs
from sok_embed.initializers import derive_seed, row_initializer
from sok_embed.kv.devices import CPU
from sok_embed.kv.table_spec import TableSpec
from sok_embed.optimizers.row_rules import check_own, has_schedule
from sok_embed.planning import Plan, PlannedTable
from sok_embed.planning.tables import KEY, REPLICATED
from sok_embed.tables import group_holders
from sok_embed.tables.base_table import OwnedResource
from sok_embed.tables.changed_rows import commit_and_change
from sok_embed.tables.owners import EveryWorkerRule, MixedRule, OneWorkerRule, OwnerRule, salt_of
from sok_embed.tables.table import Table, table_of
from sok_embed.training.commit import Commit, TrainedTable

# The number of examples in a step of all workers, for a plan that does not know it.
_BATCH_SIZE = 8192
# With so many tables or more, each has fewer shards: threads work on several tables at a time.
_MANY_TABLES = 32
_LEAST_SHARDS = 4


class CollectionQueue(OwnedResource):
    """The queue in which the gradients of a collection wait for its commit.

    Ops take its handle in place of the handles of all tables: TensorFlow would check each of a
    thousand handles in every step.

    Args:
        tables: The tables, which the queue keeps alive.
    """

    def __init__(self, name: str, tables: Sequence[Table]) -> None:
        super().__init__()
        self._name = name
        self._tables = tuple(tables)
        self._make_now()

    def _create_resource(self) -> tf.Tensor:
        handles = [table.resource_handle for table in self._tables]
        return tf_ops.anonymous_collection_queue(self._name, handles)

    def _deserialization_dependencies(self, children: Any) -> dict[str, Any]:
        """Makes a SavedModel load the tables first."""
        return {f"table_{number}": table for number, table in enumerate(self._tables)}

    def _export_to_saved_model_graph(
        self, object_map: Any, tensor_map: Any, **unused: Any
    ) -> list[tf.Tensor]:
        """Makes a queue for the tables of the graph that is saved."""
        saved = copy.copy(self)
        saved._tables = tuple(object_map[table] for table in self._tables)
        saved._resource_handle = saved._create_resource()
        object_map[self] = saved
        tensor_map[self.resource_handle] = saved._resource_handle
        return [self.resource_handle]


class Placed(NamedTuple):
    """The place of the rows of a table.

    Attributes:
        kind: `tf_ops.BY_KEY`, `tf_ops.ON_WORKER` or `tf_ops.ON_ALL`.
        holder: The worker of a table that is on one; else 0.
    """

    kind: int
    holder: int = 0


def _placed(table: PlannedTable, workers: int) -> Placed:
    """Returns the place of a table. With one worker it is that worker, whatever the plan says."""
    if workers == 1 or table.placement == KEY:
        return Placed(tf_ops.BY_KEY)
    if table.placement == REPLICATED:
        return Placed(tf_ops.ON_ALL)
    return Placed(tf_ops.ON_WORKER, table.worker or 0)


def _owner_rule(table: str, placed: Placed) -> OwnerRule:
    if placed.kind == tf_ops.ON_ALL:
        return EveryWorkerRule()
    if placed.kind == tf_ops.ON_WORKER:
        return OneWorkerRule(placed.holder)
    return MixedRule(salt_of(table))


class TableCollection(Mapping[str, Table]):
    """The tables of a layer by name, in the order of their configs. One anchor stands for them.

    Args:
        exchange_dtype: The dtype in which rows are sent between workers: `"float32"` or
            `"bfloat16"`.
    """

    def __init__(
        self, name: str, features: Sequence[FeatureConfig], exchange_dtype: str = "float32"
    ) -> None:
        self.name = name
        self.host: Callable[[], Any] = lambda: None  # returns the layer
        self._exchange_dtype = exchange_dtype
        self.configs = tuple(distinct_tables(features))
        self._features = tuple(features)
        communicator = communicators.current()
        self.owners, self.owner = communicator.size, communicator.rank
        self.placements = {
            table.name: _placed(table, self.owners) for table in self.sharding.tables
        }
        self.seeded: dict[str, TableConfig] = {}  # the configs, with the seeds that tables have
        self._tables = {config.name: self._make(config) for config in self.configs}
        self.queue = CollectionQueue(name, list(self._tables.values()))

    def _make(self, config: TableConfig) -> Table:
        check_own(config.optimizer, config.name)
        _refuse_norms(config)
        placed = self.placements[config.name]
        # Keys that are positions need no hash. But if keys are spread over workers, most positions
        # on a worker would be empty, and a worker without rows needs none.
        plain = config.storage is None and config.max_rows is None and config.eviction is None
        holds_all = placed.kind == tf_ops.ON_ALL or placed == (tf_ops.ON_WORKER, self.owner)
        whole = self.owners == 1 or holds_all
        # Rows on a GPU are found by hash.
        direct = config.vocabulary_size is not None and plain and whole and config.device == CPU
        initializer = row_initializer(config.initializer, config.embedding_dim)
        options = config.options()
        if direct:
            options["max_rows"] = config.vocabulary_size
        spec = TableSpec(
            dim=config.embedding_dim,
            initializer=initializer.bounds,
            direct=direct,
            owners=self.owners,
            owner=self.owner,
            shards=self._shards(),
            name=config.name,
            what=f"TableConfig '{config.name}'",
            **options,
        )
        holder = f"table '{config.name}' of layer '{self.name}'"
        default = initializer.seed
        if default is None:
            default = derive_seed(f"{self.name}/{config.name}")
        spec = group_holders.with_seed(spec, holder, lambda: default)
        table = table_of(spec, _owner_rule(config.name, placed))
        table.constraint = config.constraint
        if config.vocabulary_size is not None and plain:
            # This is set even if the part of this worker has a hash: an export has all keys.
            table.key_limit = config.vocabulary_size
        self.seeded[config.name] = (
            replace(config, seed=spec.seed) if config.seed is None else config
        )
        if spec.storage is not None:
            group_holders.hold(spec.storage, spec.group, table, holder)
        return table

    def _shards(self) -> int:
        """Returns the number of shards of each table; 0: as many as a table by itself has."""
        if len(self.configs) < _MANY_TABLES:
            return 0
        return max(_LEAST_SHARDS, len(os.sched_getaffinity(0)))

    def __getitem__(self, name: str) -> Table:
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def __repr__(self) -> str:
        return repr(self._tables)

    @property
    def trainable(self) -> list[bool]:
        """The tables that training changes: True for each of these."""
        return [config.trainable for config in self.configs]

    @property
    def handles(self) -> tf_ops.CollectionTables:
        """The handles of the tables for ops."""
        tables = [table.resource_handle for table in self._tables.values()]
        return tf_ops.CollectionTables(self.queue.resource_handle, tables)

    @property
    def devices(self) -> list[str | None]:
        """TensorFlow's name of the GPU on which each table is looked up; `None`: the CPU."""
        return [each.lookup_device or each.exchange_device for each in self._tables.values()]

    @functools.cached_property
    def sharding(self) -> Plan:
        """The plan of the places of rows, with its costs; the same on every worker."""
        # The size of batches is not known. It only decides which tables with long bags lie on one
        # worker.
        batch_size = max(1, _BATCH_SIZE // self.owners)
        return planning.plan(
            self._features,
            workers=self.owners,
            batch_size=batch_size,
            exchange_dtype=self._exchange_dtype,
        )

    def plan(self) -> tf_ops.CollectionPlan:
        """Returns the tables and features for ops, which must be the same on all workers."""
        features = self._features
        numbers = {name: number for number, name in enumerate(self._tables)}
        return tf_ops.CollectionPlan(
            table_names=tuple(self._tables),
            dims=tuple(config.embedding_dim for config in self.configs),
            salts=tuple(salt_of(config.name) for config in self.configs),
            key_limits=tuple(config.vocabulary_size or 0 for config in self.configs),
            placements=tuple(self.placements[name].kind for name in self._tables),
            holders=tuple(self.placements[name].holder for name in self._tables),
            feature_names=tuple(feature.name for feature in features),
            feature_tables=tuple(numbers[feature.table.name] for feature in features),
            max_lengths=tuple(feature.max_length or 0 for feature in features),
            workers=self.owners,
            rank=self.owner,
            fingerprint=0,  # messages have that of the layer
            counts=tuple(table.counts_keys for table in self._tables.values()),
        )

    def commit(
        self, anchor: tf.Tensor, steps: tf_ops.RuleSteps, redemption: tf_ops.Redemption
    ) -> tf.Tensor:
        """Applies deposited gradients to all tables, then formulas and constraints."""
        tables = list(self._tables.values())
        return commit_and_change(self.handles, tables, anchor, steps, redemption)

    def step_count(self) -> tf.Tensor:
        """Raises: tables count their own steps."""
        raise TypeError("A collection has no number of steps. Ask its tables.")

    def drop_gradients(self) -> int:
        """Drops gradients that were deposited and not applied. Returns how many there were."""
        return int(tf_ops.drop_deposits(self.handles))


class CollectionCommit(Commit):
    """The constraint of the anchor of a collection: each table is trained by its own rule."""

    def __init__(self, tables: TableCollection) -> None:
        super().__init__(tables, None)
        self._tables = tables
        self._checked: Any = None  # the optimizer that was checked last

    def _rule_steps(self, applying: Any, anchor: Any, rate: Any) -> tf_ops.RuleSteps:
        if applying is not None and applying is not self._checked:
            check_own_configs(self._tables, self._tables.configs, applying)
            self._checked = applying
        made: dict[tuple[int, str | None], tf_ops.RuleStep] = {}  # steps, by what they depend on
        steps: list[tf_ops.RuleStep | None] = []
        for config in self._tables.configs:
            if not config.trainable:
                steps.append(None)
                continue
            own = config.optimizer
            # A schedule of a table's own optimizer follows the steps of that table.
            by = (id(own), config.name if has_schedule(own) else None)
            if by not in made:
                table: TrainedTable = self._tables[config.name]
                made[by] = self._rule_step(own, table, applying, anchor, rate)
            steps.append(made[by])
        return steps


def _refuse_norms(config: TableConfig) -> None:
    for option in ("clipnorm", "global_clipnorm"):
        if getattr(config.optimizer, option, None):
            raise ValueError(
                f"TableConfig '{config.name}': expected an optimizer of the table's own without "
                f"{option}. Received: {option}={getattr(config.optimizer, option)}. Norms are "
                "those of all tables together: give it to the optimizer of the model."
            )
