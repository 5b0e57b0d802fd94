"""Chooses where the rows of each table lie."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sok_embed.arguments import check_choice, check_integer
from sok_embed.planning.given import AUTO, Given, GivenTable, given_by_configs, rule_of, slot_floats
from sok_embed.planning.hardware import Hardware
from sok_embed.planning.search import choose_placements
from sok_embed.planning.sharding_plan import Plan
from sok_embed.planning.sizes import size_in_bytes
from sok_embed.planning.tables import (
    BY_CONFIG,
    BY_PLAN,
    EXCHANGED,
    KEY,
    PlannedFeature,
    PlannedTable,
    expected_distinct,
)
from sok_embed.planning.usage import Usage

# The memory that RocksDB takes in addition to the cache of a storage.
_STORAGE_BYTES = 128 << 20


def plan(
    feature_configs: Any,
    *,
    workers: int,
    batch_size: int,
    memory: int | str | None = None,
    optimizer: Any = "adam",
    rows: Mapping[str, int] | None = None,
    usage: Usage | None = None,
    weighted: Collection[str] = (),
    hardware: Hardware | None = None,
    exchange_dtype: str = "float32",
) -> Plan:
    """Plans where the rows of many tables lie, and computes the costs.

    A table whose config has `placement="auto"` is placed so that a step takes least time by the
    cost model of `docs/guide/many-tables.md`; a table whose config names a placement keeps it. The
    same arguments give the same plan everywhere, so each worker can make it for itself.

    Example:
    >>> from sok_embed import FeatureConfig, TableConfig
    >>> configs = [FeatureConfig("item", TableConfig("items", 1_000_000, 16), max_length=1)]
    >>> made = plan(configs, workers=8, batch_size=4096, memory="1GiB")
    >>> made["items"].placement
    'key'

    Args:
        feature_configs: A nest of `FeatureConfig`, as of `DistributedEmbedding`.
        workers: The number of workers.
        batch_size: The number of examples that each worker has in a step.
        memory: The most bytes of rows on each worker, as a number or a string such as `"16GiB"`.
            `None`: no limit.
        optimizer: The optimizer of the tables without an optimizer of their own: a name or a Keras
            optimizer. It decides how many slots a row has.
        rows: The number of rows that each table will have on all workers together, by its name.
            Needed for the memory of tables that have no `vocabulary_size` and no `max_rows`.
        usage: The lengths of bags and the shares of distinct keys, declared or from `measured`. A
            bag of unknown length is assumed to be as long as `max_length` or the second number of
            `input_shape`, or to have one key; the plan's notes list such bags. If the share of
            distinct keys is unknown, keys are assumed to be drawn uniformly from the rows.
        weighted: The names of features for which the layer is called with weights.
        hardware: The speed of machines and network. `None`: `Hardware()`.
        exchange_dtype: The dtype in which rows are sent, as in the layer: `"float32"` or
            `"bfloat16"`.

    Returns:
        A `Plan`.

    Raises:
        ValueError: For wrong arguments, unknown names of tables and features, a worker out of
            range, and tables that do not fit into `memory`; the message says how much is missing.
    """
    given = given_by_configs(feature_configs)
    if not isinstance(optimizer, str | Mapping):
        from sok_embed.optimizers import row_rules

        optimizer = row_rules.row_rule(row_rules.get(optimizer) or optimizer).name
    return plan_of(
        given,
        workers=workers,
        batch_size=batch_size,
        memory=memory,
        optimizer=optimizer,
        rows=rows,
        usage=usage,
        weighted=weighted,
        hardware=hardware,
        exchange_dtype=exchange_dtype,
    )


def plan_of(
    given: Given,
    *,
    workers: int,
    batch_size: int,
    memory: int | str | None = None,
    optimizer: Any = "adam",
    rows: Mapping[str, int] | None = None,
    usage: Usage | None = None,
    weighted: Collection[str] = (),
    hardware: Hardware | None = None,
    exchange_dtype: str = "float32",
) -> Plan:
    """Makes a plan as `plan` does, for tables that have been read, without TensorFlow."""
    workers = check_integer("workers", workers, 1)
    batch_size = check_integer("batch_size", batch_size, 1)
    limit = None if memory is None else size_in_bytes("memory", memory)
    check_choice("exchange_dtype", exchange_dtype, EXCHANGED)
    usage = usage or Usage()
    if usage.batch_size not in (None, batch_size):
        raise ValueError(
            f"Expected batches of {batch_size} to have been measured, since the share of distinct "
            f"keys depends on it. Received: batches of {usage.batch_size}."
        )
    rule = rule_of("optimizer", optimizer) or "adam"
    rows = {**given.rows, **(rows or {})}
    lengths = {**given.lengths, **usage.lengths}
    distinct = {**given.distinct, **usage.distinct}
    weighted = {*given.weighted, *weighted}
    table_names = [table.name for table in given.tables]
    feature_names = [feature.name for feature in given.features]
    _check_names("rows", "table", rows, table_names)
    _check_names("distinct of usage", "table", distinct, table_names)
    _check_names("lengths of usage", "feature", lengths, feature_names)
    _check_names("weighted", "feature", weighted, feature_names)
    Usage(lengths, distinct)  # this also checks values from a file
    for name, count in rows.items():
        check_integer(f"rows[{name!r}]", count, 1)
    notes = _notes(given, rows, lengths, limit)
    features: dict[str, list[PlannedFeature]] = {name: [] for name in table_names}
    for feature in given.features:
        length = lengths.get(feature.name, feature.length)
        keys = round(batch_size * (1 if length is None else length))
        features[feature.table].append(
            PlannedFeature(feature.name, keys, feature.combined, feature.name in weighted)
        )
    tables = [
        _planned(
            table,
            rule,
            rows.get(table.name),
            distinct.get(table.name),
            tuple(features[table.name]),
            workers,
            exchange_dtype,
        )
        for table in given.tables
    ]
    storages = {
        table.storage[0]: table.storage[1] + _STORAGE_BYTES
        for table in given.tables
        if table.storage is not None
    }
    hardware = hardware or Hardware()
    placed = choose_placements(
        tables,
        workers=workers,
        batch_size=batch_size,
        memory=None if limit is None else limit - sum(storages.values()),
        hardware=hardware,
        limit=limit,
    )
    return Plan(
        workers, batch_size, limit, hardware, tuple(placed), tuple(storages.items()), tuple(notes)
    )


def _planned(
    table: GivenTable,
    model_rule: str,
    declared: int | None,
    share: float | None,
    features: tuple[PlannedFeature, ...],
    workers: int,
    exchange_dtype: str,
) -> PlannedTable:
    vocabulary = table.vocabulary_size
    if declared is not None and vocabulary is not None and declared > vocabulary:
        raise ValueError(
            f"Expected rows of the table '{table.name}' to be at most its vocabulary_size, "
            f"{vocabulary}. Received: {declared}."
        )
    # A single worker has all tables, whatever the config says.
    placement, worker = (AUTO, None) if workers == 1 else (table.placement, table.worker)
    if worker is not None and worker >= workers:
        raise ValueError(
            f"Expected worker of the table '{table.name}' to be one of the {workers} workers. "
            f"Received: {worker}. Take more workers, or leave the choice to the plan."
        )
    count = vocabulary if declared is None else declared
    keys = sum(feature.keys for feature in features)
    if share is None:
        distinct = expected_distinct(keys, count)
        of_all = expected_distinct(workers * keys, count)
    else:
        distinct = round(share * keys)
        distinct = distinct if count is None else min(distinct, count)
        of_all = workers * distinct if count is None else min(workers * distinct, count)
    rule = table.rule or model_rule
    return PlannedTable(
        name=table.name,
        dim=table.dim,
        rule=rule,
        slot_floats=slot_floats(rule, table.dim),
        vocabulary_size=vocabulary,
        rows=count,
        max_rows=table.max_rows,
        trainable=table.trainable,
        storage=None if table.storage is None else table.storage[0],
        features=features,
        distinct=distinct,
        distinct_of_all=of_all,
        placement=KEY if placement == AUTO else placement,
        worker=worker,
        decided_by=BY_PLAN if placement == AUTO else BY_CONFIG,
        exchange_dtype=exchange_dtype,
        **table.types(),
    )


def _notes(
    given: Given, rows: Mapping[str, int], lengths: Mapping[str, float], limit: int | None
) -> list[str]:
    """Returns the assumptions of a plan; raises if a limit of memory could not be kept."""
    unknown = [
        table.name
        for table in given.tables
        if table.storage is None
        and table.vocabulary_size is None
        and table.max_rows is None
        and table.name not in rows
    ]
    if unknown and limit is not None:
        raise ValueError(
            "Expected to know how many rows each table will have, since memory has a limit. "
            f"Received: no number of rows for {shown_names(unknown)}. Give them rows, max_rows or "
            "a vocabulary_size."
        )
    notes = []
    if unknown:
        notes.append(
            f"The memory of {shown_names(unknown)} is unknown and in no sum: the number of their "
            "rows is not given."
        )
    short = [
        feature.name
        for feature in given.features
        if feature.length is None and feature.name not in lengths
    ]
    if short:
        notes.append(
            f"An example is taken to have one key of {shown_names(short)}, without a length."
        )
    return notes


def shown_names(names: list[str], most: int = 8) -> str:
    """Returns names for a message, the first of many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _check_names(what: str, kind: str, given: Collection[str], known: list[str]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(
            f"Expected {what} to name {kind}s of the configs: {shown_names(known)}. Received: "
            f"{shown_names(unknown)}."
        )
