"""The figures of tables that callbacks log: their names, and how they are computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import keras

from sok_embed.binding import _core
from sok_embed.communicators import Communicator
from sok_embed.communicators.agreement import (
    Agreement,
    add_lists,
    bits_of,
    check_same,
    floats_of,
    number_of_text,
)
from sok_embed.keras_bridge.private_state import all_layers
from sok_embed.tables.adaptive_table import AdaptiveTable
from sok_embed.tables.table import Table

AnyTable = Table | AdaptiveTable
# Numbers by name: `"items/rows"`.
Figures = dict[str, float]

# A state is a present count. Maps its name to the name in `stats` of the table.
STATES = {
    "rows": "rows",
    "memory_bytes": "bytes",
    "disk_bytes": "disk_bytes",
    "own_rows": "rows",
    "own_bytes": "own_bytes",
    "static_bytes": "static_bytes",
    "sketch_bytes": "sketch_bytes",
    "sketch_saturation": "sketch_saturation",
}
# An event is the rise of a counter since the window began.
_EVENTS = {
    "new_rows": "made",
    "evicted": "evicted",
    "left_out": "left_out",
    "refused": "refused",
    "promoted": "promoted",
    "demoted": "demoted",
}
# A share is the quotient of the rises of two counters.
_SHARES = {
    "hit_rate": ("found", "looked_up"),
    "cache_hit_rate": ("cache_hits", "found"),
    "own_share": ("own_lookups", "lookups"),
}
NAMES = (*STATES, *_EVENTS, *_SHARES)
# An evaluation counts these.
EVALUATED = ("hit_rate", "cache_hit_rate")

# Figures that make no sum over tables: those of one storage share its files.
_NOT_SUMMED = ("disk_bytes", "sketch_saturation")
# The usual figures of all tables together, which the progress line has, and the most of them.
_OF_ALL_TABLES = ("rows", "new_rows", "hit_rate", "memory_bytes")
_MOST_OF_ALL_TABLES = 4

# Counters of the lookups of each worker, even in a table that every worker holds.
_LOOKUPS = ("looked_up", "found", "cache_hits")
_AVERAGED = ("sketch_saturation", "exchange/seconds")


def tables_of(model: keras.Model) -> Iterator[tuple[str, AnyTable]]:
    """Yields the tables of a model with their names, `<layer>` or `<layer>/<table>`."""
    for layer in all_layers(model):
        table, tables = getattr(layer, "table", None), getattr(layer, "tables", None)
        if isinstance(table, AnyTable):
            yield layer.name, table
        elif isinstance(tables, Mapping):
            for name, one in tables.items():
                if isinstance(one, Table):
                    yield f"{layer.name}/{name}", one


def usual_figures(table: AnyTable) -> tuple[str, ...]:
    """Returns the names of the figures that have a meaning for a table."""
    names = ["rows", "new_rows", "hit_rate", "memory_bytes"]
    if isinstance(table, AdaptiveTable):
        return (*names, "evicted", "sketch_saturation")
    if table.storage is not None:
        names += ["disk_bytes", "cache_hit_rate"]
    if table.evicts_rows:
        names += ["evicted", "left_out"]
    if table.counts_keys:
        names.append("refused")
    return tuple(names)


def counters_of(table: AnyTable, rank: int) -> Figures:
    """Returns the counts of a table on a worker, by the names of `stats`, for a sum over workers.

    Rows of a table that every worker holds count on worker 0 alone; lookups count on each.
    """
    stats: Figures = dict(table.stats())
    if isinstance(table, AdaptiveTable):
        return stats | {"made": stats["promoted"], "evicted": stats["demoted"]}
    if table.storage is not None:
        stats["disk_bytes"] = _core.file_bytes(table.storage.path)
    if rank and table.is_replicated:
        return {name: count if name in _LOOKUPS else 0 for name, count in stats.items()}
    return stats


def exchange_counters(communicator: Communicator) -> Figures:
    """Returns `bytes` and `seconds` of exchanges so far; an empty dict if they are not counted."""
    connections = getattr(communicator, "connections", None)
    if connections is None:
        return {}
    stats = connections.stats()
    return {"bytes": stats["bytes_sent"], "seconds": stats["seconds"]}


def sums_over_workers(numbers: Figures, communicator: Communicator) -> Figures:
    """Returns numbers summed over all workers, the same on each. One collective exchange.

    The share of full cells of sketches and the seconds of exchanges are averaged.

    Raises:
        ValueError: On all workers, if they have other names.
    """
    if communicator.size == 1:
        return numbers
    names = sorted(numbers)
    told = Agreement(communicator).gather_lists(
        [number_of_text(repr(names)), *bits_of([numbers[name] for name in names])], "figures"
    )
    remedy = "Give all of them the same model and callbacks."
    check_same("tables", [each[0] for each in told], remedy, texts=True)
    sums = dict(zip(names, add_lists([floats_of(each[1:]) for each in told]), strict=True))
    return {
        name: total / communicator.size if name.endswith(_AVERAGED) else total
        for name, total in sums.items()
    }


def totals(
    names: Sequence[str] | None,
    states: Iterable[Figures],
    rises: Iterable[Figures],
    in_training: bool,
) -> Figures:
    """Returns at most four figures of all tables together.

    Args:
        names: The names of the figures; `None`: rows, new rows, hit rate, bytes of memory.
        states: The counts of each table at the end of the window.
        rises: The rises of the counters of each table in the window.
        in_training: False if the window is an evaluation, which counts few things.
    """
    wanted = [
        name
        for name in (names or _OF_ALL_TABLES)
        if name not in _NOT_SUMMED and (in_training or name in (*STATES, *EVALUATED))
    ]
    counts, risen = _sums(states), _sums(rises)
    return {name: figure(name, counts, risen) for name in wanted[:_MOST_OF_ALL_TABLES]}


def _sums(tables: Iterable[Figures]) -> Figures:
    """Returns the sum of each count over tables."""
    sums: Figures = {}
    for table in tables:
        for name, count in table.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def figure(name: str, states: Mapping[str, float], rises: Mapping[str, float]) -> float:
    """Returns a figure of a table.

    Args:
        name: The name, one of `NAMES`.
        states: The counts of the table at the end of the window.
        rises: The rises of its counters in the window.

    Returns:
        The figure; a count is an int. 0 where the table has no such count, and for a share of
        nothing.
    """
    if name in _SHARES:
        part, whole = (rises.get(counter, 0) for counter in _SHARES[name])
        return part / max(whole, 1)
    count = states.get(STATES[name], 0) if name in STATES else rises.get(_EVENTS[name], 0)
    return int(count) if name not in _AVERAGED else count
