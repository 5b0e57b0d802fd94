"""Reads tables and features for a plan, from configs of a layer or from JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sok_embed.arguments import check_choice, check_integer
from sok_embed.binding import _core
from sok_embed.binding.rules import rule_of_class
from sok_embed.kv.table_spec import RowOptions, RowTypes, TableOptions
from sok_embed.planning.tables import PLACED

AUTO = "auto"
COMBINERS = ("sum", "mean", "sqrtn", "max", None)
CACHE_BYTES = 256 << 20  # the cache of a storage whose config does not name a size
_TABLE = {
    *("name", "vocabulary_size", "embedding_dim", "initializer", "optimizer", "combiner"),
    *("placement", "worker", "trainable", "regularizer", "constraint", "rows", "distinct"),
    *TableOptions.names(),
}
_FEATURE = {
    *("name", "table", "input_shape", "output_shape", "combiner", "max_length"),
    *("mask_zero", "padding_value", "length", "weighted"),
}


@dataclass(frozen=True)
class GivenFeature:
    """A feature: the name of its table, true if it is combined, and the length of its bags."""

    name: str
    table: str
    combined: bool
    length: float | None


@dataclass(frozen=True)
class GivenTable(RowTypes):
    """A table. Its `rule` is `None` if the optimizer of the model trains it."""

    name: str
    vocabulary_size: int | None
    dim: int
    rule: str | None
    placement: str
    worker: int | None
    max_rows: int | None
    trainable: bool
    storage: tuple[str, int] | None  # path and bytes of cache


@dataclass(frozen=True)
class Given:
    """Tables and features, and the other fields of a file."""

    tables: tuple[GivenTable, ...]
    features: tuple[GivenFeature, ...]
    rows: Mapping[str, int]
    lengths: Mapping[str, float]
    distinct: Mapping[str, float]
    weighted: tuple[str, ...]


def given_by_configs(feature_configs: Any) -> Given:
    """Reads the configs of a layer.

    Raises:
        ValueError: For anything else, for no feature, and for names that occur twice.
    """
    from sok_embed.configs.configs import distinct_tables, feature_config
    from sok_embed.optimizers.row_rules import row_rule

    features = [feature_config(each) for each in flat(feature_configs)]
    if not features:
        raise ValueError("Expected at least one FeatureConfig. Received: none.")
    tables = [
        GivenTable(
            table.name,
            table.vocabulary_size,
            table.embedding_dim,
            None if table.optimizer is None else row_rule(table.optimizer).name,
            table.placement,
            table.worker,
            table.max_rows,
            table.trainable,
            None if table.storage is None else (table.storage.path, table.storage.cache_bytes),
            **table.types(),
        )
        for table in distinct_tables(features)
    ]
    return Given(
        tuple(tables),
        tuple(
            GivenFeature(
                feature.name,
                feature.table.name,
                feature.own_combiner is not None,
                _length(feature.max_length, feature.input_shape),
            )
            for feature in features
        ),
        *({}, {}, {}, ()),
    )


def flat(nest: Any) -> Iterator[Any]:
    """Yields the leaves of a nest of dicts, lists and tuples; dicts by their sorted keys."""
    if isinstance(nest, Mapping):
        for key in sorted(nest):
            yield from flat(nest[key])
    elif isinstance(nest, list | tuple):
        for part in nest:
            yield from flat(part)
    else:
        yield nest


def given_by_json(content: Any) -> Given:
    """Reads tables and features from a JSON file; `docs/reference/cli.md` has the form.

    Raises:
        ValueError: For anything else; the message names the table or feature.
    """
    if isinstance(content, Mapping) and "features" in content:
        _check_known("the file", content, {"features", "tables"})
        nest, listed = content["features"], content.get("tables", [])
    else:
        nest, listed = content, []
    raw_tables: dict[str, Mapping[str, Any]] = {}
    for each in listed if isinstance(listed, list) else [listed]:
        _add_table(raw_tables, each)
    raw_features = list(_leaves(nest))
    if not raw_features:
        raise ValueError("Expected at least one feature. Received: none.")
    table_names = [_add_table(raw_tables, each.get("table")) for each in raw_features]
    tables = {name: _table(raw) for name, raw in raw_tables.items()}
    features: dict[str, GivenFeature] = {}
    for raw, table in zip(raw_features, table_names, strict=True):
        feature = _feature(raw, table, raw_tables[table])
        if feature.name in features:
            raise ValueError(
                f"Expected each feature to have a name of its own. Received: '{feature.name}' "
                "twice."
            )
        features[feature.name] = feature
    used = dict.fromkeys(table_names)
    unused = [name for name in tables if name not in used]
    if unused:
        raise ValueError(
            f"Expected a feature of each table. Received: none of {', '.join(unused)}. Take the "
            "tables out of the file, or give them features."
        )
    return Given(
        tuple(tables[name] for name in used),
        tuple(features.values()),
        {name: raw_tables[name]["rows"] for name in used if "rows" in raw_tables[name]},
        {raw["name"]: raw["length"] for raw in raw_features if "length" in raw},
        {name: raw_tables[name]["distinct"] for name in used if "distinct" in raw_tables[name]},
        tuple(raw["name"] for raw in raw_features if raw.get("weighted")),
    )


def rule_of(name: str, optimizer: Any) -> str | None:
    """Returns the rule of an optimizer, from its name or its config as Keras serializes it.

    Raises:
        ValueError: For an optimizer that cannot train rows of a table.
    """
    if optimizer is None:
        return None
    rule: str | None = None
    if isinstance(optimizer, str):
        rule = optimizer.lower()
    elif isinstance(optimizer, Mapping):
        config = optimizer.get("config") or {}
        rule = rule_of_class(str(optimizer.get("class_name")), config.get)
    rules = [each for each in _core.rule_names() if not each.startswith(_core.RULE_PREFIX)]
    if rule not in rules:
        raise ValueError(
            f"Expected {name} to be one of {', '.join(rules)}, or the config of a Keras optimizer "
            f"that has such a rule. Received: {optimizer!r}."
        )
    return rule


def slot_floats(rule: str, dim: int) -> int:
    """Returns the number of float32 slots that a rule keeps for a row of `dim` floats."""
    return _core.Optimizer(rule, []).slot_floats(dim)


def _length(max_length: int | None, input_shape: Any) -> float | None:
    if max_length is not None:
        return max_length
    if not isinstance(input_shape, list | tuple) or not input_shape:
        return None
    return 1 if len(input_shape) == 1 else input_shape[-1]


def _inner(given: Any) -> Any:
    """Returns the config within Keras' serialization of an object."""
    if isinstance(given, Mapping) and "class_name" in given and "config" in given:
        return given["config"]
    return given


def _leaves(nest: Any) -> Iterator[Mapping[str, Any]]:
    nest = _inner(nest)
    if isinstance(nest, Mapping) and "table" in nest and "name" in nest:
        yield nest
    elif isinstance(nest, Mapping):
        for key in sorted(nest):
            yield from _leaves(nest[key])
    elif isinstance(nest, list):
        for part in nest:
            yield from _leaves(part)
    else:
        raise ValueError(
            "Expected features, each an object with a name and a table, in objects and lists. "
            f"Received: {nest!r}."
        )


def _add_table(tables: dict[str, Mapping[str, Any]], given: Any) -> str:
    """Adds a table, and returns its name; a string is the name of a table."""
    if isinstance(given, str):
        if given not in tables:
            raise ValueError(
                f"Expected features of tables that are given ({', '.join(tables) or 'none is'}). "
                f"Received: a feature of '{given}'. Put it into tables."
            )
        return given
    raw = _inner(given)
    if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str) or not raw["name"]:
        raise ValueError(f"Expected a table: an object with a name. Received: {given!r}.")
    name: str = raw["name"]
    first = tables.setdefault(name, raw)
    # Keras numbers objects, so two descriptions of one table may differ in fields that plans do not
    # read.
    if first is not raw and _table_fields(first) != _table_fields(raw):
        ours, theirs = _table_fields(first), _table_fields(raw)
        different = [each for each in ours if ours[each] != theirs[each]]
        raise ValueError(
            f"Expected one description of the table '{name}'. Received: two that differ in "
            f"{', '.join(different)}."
        )
    return name


def _table_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a table that a plan reads."""
    return {**vars(_table(raw)), "rows": raw.get("rows"), "distinct": raw.get("distinct")}


def _table(raw: Mapping[str, Any]) -> GivenTable:
    what = f"table '{raw['name']}'"
    _check_known(what, raw, _TABLE)
    if "embedding_dim" not in raw:
        raise ValueError(f"Expected embedding_dim of the {what}. Received: none.")
    placement, worker = raw.get("placement", AUTO), raw.get("worker")
    check_choice(f"placement of the {what}", placement, (AUTO, *PLACED))
    if worker is not None and placement != "worker":
        raise ValueError(
            f"Expected placement 'worker' of the {what} beside worker. Received: {placement!r}. "
            "Give both or neither."
        )
    storage = _inner(raw.get("storage"))
    if storage is not None and not (isinstance(storage, Mapping) and "path" in storage):
        raise ValueError(
            f"Expected storage of the {what} to be an object with a path. Received: {storage!r}."
        )

    # A plan counts bytes of rows, whichever memory they lie in.
    rows = RowOptions(**{name: raw[name] for name in RowOptions.names() if name in raw})
    rows.check(f"The {what}")

    def positive(name: str) -> int | None:
        return None if raw.get(name) is None else check_integer(f"{name} of {what}", raw[name], 1)

    return GivenTable(
        raw["name"],
        positive("vocabulary_size"),
        check_integer(f"embedding_dim of {what}", raw["embedding_dim"], 1),
        rule_of(f"optimizer of {what}", raw.get("optimizer")),
        placement,
        None if worker is None else check_integer(f"worker of {what}", worker, 0),
        positive("max_rows"),
        bool(raw.get("trainable", True)),
        None
        if storage is None
        else (str(storage["path"]), int(storage.get("cache_bytes", CACHE_BYTES))),
        **rows.types(),
    )


def _feature(raw: Mapping[str, Any], table: str, raw_table: Mapping[str, Any]) -> GivenFeature:
    what = f"feature '{raw['name']}'"
    _check_known(what, raw, _FEATURE)
    if not isinstance(raw["name"], str) or not raw["name"]:
        raise ValueError(f"Expected a name of a feature. Received: {raw['name']!r}.")
    combiner = raw.get("combiner", "table")
    if combiner == "table":
        combiner = raw_table.get("combiner", "mean")
    check_choice(f"combiner of the {what}", combiner, COMBINERS)
    most = raw.get("max_length")
    if most is not None:
        most = check_integer(f"max_length of {what}", most, 1)
    length = _length(most, raw.get("input_shape"))
    return GivenFeature(raw["name"], table, combiner is not None, length)


def _check_known(what: str, raw: Mapping[str, Any], known: set[str]) -> None:
    unknown = [name for name in raw if name not in known]
    if unknown:
        raise ValueError(
            f"Expected {what} to have no more than {', '.join(sorted(known))}. Received: "
            f"{', '.join(unknown)}."
        )
