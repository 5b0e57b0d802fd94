"""Defines a plan: the places of the rows of tables, and the figures that explain them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from sok_embed.arguments import check_choice, check_integer
from sok_embed.planning.given import given_by_configs
from sok_embed.planning.hardware import MESSAGES, Hardware
from sok_embed.planning.sizes import shown_size
from sok_embed.planning.tables import (
    BY_CONFIG,
    BY_HAND,
    BY_PLAN,
    EXCHANGED,
    KEY,
    PLACED,
    WORKER,
    PlannedFeature,
    PlannedTable,
)

_VERSION = 1  # of the JSON


class WorkerLoad(NamedTuple):
    """The work of one worker in a step, and its memory.

    Attributes:
        sent: The bytes that the worker sends in a step, headers included.
        received: The bytes that the worker receives in a step.
        touched: The bytes of rows that the worker reads and writes in its memory in a step.
        memory: The bytes of the worker's rows, and of caches of storages.
        seconds: The worker's part of a step by the cost model, apart from the dense model.
    """

    sent: int
    received: int
    touched: int
    memory: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The places of the rows of tables, and the cost of a step. `sok_embed.plan` makes it.

    `print(plan)` shows a line for each table, and the load of the workers.

    Example:
    >>> from sok_embed import FeatureConfig, TableConfig, plan
    >>> configs = [FeatureConfig("item", TableConfig("items", 1000, 16), max_length=1)]
    >>> made = plan(configs, workers=4, batch_size=256)
    >>> made.placed("items", "worker", worker=3).pinned(configs)[0].table.worker
    3
    >>> Plan.from_json(made.to_json()) == made
    True

    Attributes:
        workers: The number of workers.
        batch_size: The number of examples that each worker has in a step.
        memory: The most bytes of rows on each worker. `None`: no limit.
        hardware: The speed of machines and network.
        tables: `PlannedTable`s, in the order of the features.
        storages: The folder of each storage, and its bytes of memory on each worker.
        notes: The assumptions of the plan, in sentences.
    """

    workers: int
    batch_size: int
    memory: int | None
    hardware: Hardware
    tables: tuple[PlannedTable, ...]
    storages: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks placements, which a person may have edited."""
        check_integer("workers", self.workers, 1)
        check_integer("batch_size", self.batch_size, 1)
        for table in self.tables:
            _check_placement(table, self.workers)

    def __getitem__(self, name: str) -> PlannedTable:
        """Returns the table of a name."""
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(f"Expected a table of the plan: {_names(self)}. Received: '{name}'.")

    def placed(self, name: str, placement: str, *, worker: int | None = None) -> Plan:
        """Returns the plan with one table in another place.

        Args:
            name: The name of the table.
            placement: `"key"`, `"worker"` or `"replicated"`.
            worker: The rank of the worker, with `"worker"`.

        Raises:
            KeyError: For an unknown table.
            ValueError: For an unknown placement, and a worker out of range.
        """
        moved = replace(self[name], placement=placement, worker=worker, decided_by=BY_HAND)
        tables = tuple(moved if table.name == name else table for table in self.tables)
        return replace(self, tables=tables)

    @property
    def placements(self) -> dict[str, tuple[str, int | None]]:
        """The placement of each table by name, and the rank of its holder or `None`."""
        return {table.name: (table.placement, table.worker) for table in self.tables}

    @cached_property
    def loads(self) -> tuple[WorkerLoad, ...]:
        """The load of each worker in a step, and its memory, by rank."""
        header = (self.workers - 1) * _header_bytes(len(self.tables))
        caches = sum(size for _, size in self.storages)
        base, extra = [header, header, 0, caches], [[0] * 4 for _ in range(self.workers)]
        for table in self.tables:
            other, holder = table.cost(self.workers, self.batch_size, table.placement)
            for i in range(4):
                base[i] += other[i]
                if table.worker is not None:
                    extra[table.worker][i] += holder[i] - other[i]
        loads = []
        for more in extra:
            sent, received, touched, memory = (a + b for a, b in zip(base, more, strict=True))
            seconds = float(self.hardware.step_seconds(sent, received, touched))
            loads.append(WorkerLoad(sent, received, touched, memory, seconds))
        return tuple(loads)

    @property
    def hottest(self) -> int:
        """The rank of the worker whose step takes longest; the first of several equal ranks."""
        seconds = [load.seconds for load in self.loads]
        return seconds.index(max(seconds))

    @property
    def step_seconds(self) -> float:
        """The time of a step by the cost model, apart from the dense model."""
        return self.loads[self.hottest].seconds

    def reason(self, name: str) -> str:
        """Returns a sentence that says why a table lies where it does."""
        table = self[name]
        if table.decided_by == BY_CONFIG:
            return "Its config asks for it."
        if table.decided_by == BY_HAND:
            return "It was edited by hand."
        if self.workers == 1:
            return "There is one worker."
        sent = {
            placement: table.mean_sent(self.workers, self.batch_size, placement)
            for placement in (KEY, WORKER)
        }
        spread, pooled = (shown_size(sent[placement]) for placement in (KEY, WORKER))
        if table.placement == WORKER:
            return f"Bags for a worker that pools are {pooled} a step, distinct rows {spread}."
        whole = table.memory(self.workers, WORKER)
        if table.storage is not None:
            return "Its rows lie in the storages of all workers."
        if table.max_rows is not None:
            return "Its max_rows are of each worker, so all of them share its rows."
        if whole is None:
            return "The number of its rows is not given, so all workers share them."
        if sent[KEY] <= sent[WORKER]:
            return f"Distinct rows are {spread} a step, bags for a worker that pools {pooled}."
        if self.memory is not None and whole > self.memory:
            return f"Its {shown_size(whole)} do not fit on one worker that pools."
        return f"Bags would be {pooled} instead of {spread}, but one worker would have them all."

    def pinned(self, feature_configs: Any) -> Any:
        """Returns configs with the placements of the plan.

        Args:
            feature_configs: The nest from which the plan was made, or an equal nest.

        Returns:
            A nest of the same form with new configs. Features that shared a table share it again.

        Raises:
            ValueError: If the plan is for other tables or features; the message names them.
        """
        from sok_embed.configs.configs import TableConfig, feature_config

        self._check_same_tables(feature_configs)
        made: dict[str, TableConfig] = {}

        def with_placement(given: Any) -> Any:
            feature = feature_config(given)
            config = feature.table
            if config.name not in made:
                place = self[config.name]
                made[config.name] = replace(config, placement=place.placement, worker=place.worker)
            return replace(feature, table=made[config.name])

        return _mapped(feature_configs, with_placement)

    def _check_same_tables(self, feature_configs: Any) -> None:
        given = given_by_configs(feature_configs)
        theirs = {table.name: table for table in given.tables}
        names = [table.name for table in self.tables]
        lacking = [name for name in names if name not in theirs]
        more = [name for name in theirs if name not in names]
        if lacking or more:
            parts = [f"without {', '.join(lacking)}"] if lacking else []
            parts += [f"with {', '.join(more)}, which the plan has not"] if more else []
            raise ValueError(
                "Expected the configs of the tables that the plan is for. Received: configs "
                f"{' and '.join(parts)}. Make a plan of these configs."
            )
        of_tables: dict[str, list[str]] = {name: [] for name in names}
        for feature in given.features:
            of_tables[feature.table].append(feature.name)
        for table in self.tables:
            other = theirs[table.name]
            features = [feature.name for feature in table.features]
            compared = {
                "vocabulary_size": (table.vocabulary_size, other.vocabulary_size),
                "embedding_dim": (table.dim, other.dim),
                # Without an optimizer of its own the table follows any optimizer of the model.
                "rule": (table.rule, other.rule or table.rule),
                "max_rows": (table.max_rows, other.max_rows),
                "trainable": (table.trainable, other.trainable),
                "features": (sorted(features), sorted(of_tables[table.name])),
            }
            for name, (ours, received) in compared.items():
                if ours != received:
                    raise ValueError(
                        f"Expected the table '{table.name}' that the plan is for, with {name} "
                        f"{ours}. Received: {received}. Make a plan of these configs."
                    )

    def to_json(self) -> str:
        """Returns the plan as JSON, from which `from_json` makes an equal one.

        A person may edit `placement` and `worker` of a table in it. The fields under `computed` are
        only for people, and are not read back.
        """
        content = {
            "version": _VERSION,
            "workers": self.workers,
            "batch_size": self.batch_size,
            "memory": self.memory,
            "hardware": asdict(self.hardware),
            "tables": [asdict(table) for table in self.tables],
            "storages": dict(self.storages),
            "notes": list(self.notes),
            "computed": {
                "step_seconds": self.step_seconds,
                "hottest": self.hottest,
                "workers": [load._asdict() for load in self.loads],
                "tables": {table.name: self._computed(table) for table in self.tables},
            },
        }
        return json.dumps(content, indent=2)

    def _computed(self, table: PlannedTable) -> dict[str, Any]:
        _, cost = table.cost(self.workers, self.batch_size, table.placement)
        return {
            "sent": cost.sent,
            "received": cost.received,
            "memory": table.memory(self.workers, table.placement),
            "reason": self.reason(table.name),
        }

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Makes a plan from the result of `to_json`.

        Raises:
            ValueError: For anything else, and for unknown placements.
        """
        content = json.loads(text)
        version = content.get("version") if isinstance(content, dict) else None
        if version != _VERSION:
            raise ValueError(
                f"Expected the JSON of a plan, of version {_VERSION}. Received: version "
                f"{version!r}. Make the plan again."
            )
        try:
            return cls(
                content["workers"],
                content["batch_size"],
                content["memory"],
                Hardware(**content["hardware"]),
                tuple(_table_from_json(table) for table in content["tables"]),
                tuple(content["storages"].items()),
                tuple(content["notes"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"Expected the JSON of a plan, as to_json writes it. Received: JSON that "
                f"raises {error!r}. Edit placement and worker of tables alone."
            ) from error

    def __str__(self) -> str:
        """Shows the plan as a table for people."""
        head: tuple[str, ...] = ("table", "rows", "dim", "rule", "features", "placement", "worker")
        head += ("sent", "received", "memory", "reason")
        lines = [head, *(self._line(table) for table in self.tables)]
        right = {1, 2, 6, 7, 8, 9}
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = [
            "  ".join(
                cell.rjust(width) if number in right else cell.ljust(width)
                for number, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([*shown, "", *self._summary()])

    def _line(self, table: PlannedTable) -> tuple[str, ...]:
        _, cost = table.cost(self.workers, self.batch_size, table.placement)
        memory = table.memory(self.workers, table.placement)
        features = [feature.name for feature in table.features]
        if table.storage is not None:
            kept = "storage"
        else:
            kept = "unknown" if memory is None else shown_size(memory)
        return (
            table.name,
            "unknown" if table.rows is None else f"{table.rows:,}",
            str(table.dim),
            table.rule,
            ", ".join(features[:3]) + (f" + {len(features) - 3}" if len(features) > 3 else ""),
            table.placement,
            "all" if table.worker is None else str(table.worker),
            shown_size(cost.sent),
            shown_size(cost.received),
            kept,
            self.reason(table.name),
        )

    def _summary(self) -> list[str]:
        loads, hottest = self.loads, self.loads[self.hottest]
        mean = sum(load.sent for load in loads) / len(loads)
        most = max(range(len(loads)), key=lambda rank: loads[rank].memory)
        limit = "" if self.memory is None else f" of {shown_size(self.memory)}"
        lines = [
            "Figures of a table are those of the worker that holds it, or of each worker.",
            f"{self.workers} workers, {self.batch_size:,} examples on each: a step takes "
            f"{hottest.seconds * 1e3:,.2f} ms, apart from the dense model.",
            f"A worker sends {shown_size(mean)} a step on average. The hottest, {self.hottest}, "
            f"sends {shown_size(hottest.sent)} and receives {shown_size(hottest.received)}.",
            f"Memory: at most {shown_size(loads[most].memory)}{limit}, on worker {most}; at least "
            f"{shown_size(min(load.memory for load in loads))}.",
        ]
        lines += [
            f"The storage {path} takes {shown_size(size)} of that on each worker."
            for path, size in self.storages
        ]
        return [*lines, *self.notes]


def _header_bytes(tables: int) -> int:
    """Returns the bytes of the headers of the three messages from one worker to another."""
    return 8 * (2 + tables) + (MESSAGES - 1) * 256


def _check_placement(table: PlannedTable, workers: int) -> None:
    what = f"the table '{table.name}'"
    check_choice(f"placement of {what}", table.placement, PLACED)
    if table.placement == WORKER:
        check_integer(f"worker of {what}", table.worker, 0, workers)
    elif table.worker is not None:
        raise ValueError(
            f"Expected no worker of {what} beside placement={table.placement!r}. Received: "
            f"{table.worker!r}. Set it to None, or the placement to 'worker'."
        )
    check_choice(f"decided_by of {what}", table.decided_by, (BY_CONFIG, BY_PLAN, BY_HAND))
    table.check(f"Plan, {what}")
    check_choice(f"exchange_dtype of {what}", table.exchange_dtype, EXCHANGED)


def _table_from_json(content: Mapping[str, Any]) -> PlannedTable:
    features = tuple(PlannedFeature(**feature) for feature in content["features"])
    return PlannedTable(**{**content, "features": features})


def _mapped(nest: Any, function: Any) -> Any:
    """Returns a nest of dicts, lists and tuples with the result of a function for each leaf."""
    if isinstance(nest, Mapping):
        return {key: _mapped(part, function) for key, part in nest.items()}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(_mapped(part, function) for part in nest))
    if isinstance(nest, list | tuple):
        return type(nest)(_mapped(part, function) for part in nest)
    return function(nest)


def _names(plan: Plan) -> str:
    return ", ".join(table.name for table in plan.tables)
