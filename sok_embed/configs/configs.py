"""Defines the configs of the tables and features of a collection."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras

from sok_embed.arguments import check_choice, check_flag, check_integer, described, shown
from sok_embed.keras_bridge.keras_arguments import function_of_rows
from sok_embed.kv.table_spec import TableOptions
from sok_embed.lookups.padding import padding_keys
from sok_embed.optimizers import row_rules
from sok_embed.tables import row_constraints, storage_copies
from sok_embed.tf_ops.collections import COMBINERS as POOLED

COMBINERS = (*POOLED, None)
PLACEMENTS = ("auto", "key", "worker", "replicated")

_KERAS_RS = ("auto", "sparsecore", "default_device")


@keras.saving.register_keras_serializable(package="sok_embed")
@dataclass(frozen=True, eq=False)
class TableConfig(TableOptions):
    """One table of embeddings, for one feature or for several that share it.

    Example:
    >>> TableConfig("items", None, 16, combiner="sum").embedding_dim
    16

    Args:
        name: The name of the table, which no other table of the layer has. Owners of keys and start
            vectors depend on it. Each layer makes a table of its own from a config, so that
            features that share a table belong in one layer.
        vocabulary_size: Keys are in `[0, vocabulary_size)`. `None`: any 64-bit integer is a key.
        embedding_dim: The length of a vector.
        initializer: A Keras initializer, its name or config. `"uniform"` is -0.05..0.05.
        optimizer: A name, a Keras optimizer or its config, which may clip gradients by value only.
            `None`: the optimizer of the model.
        combiner: The way in which the vectors of several keys of an example become one: `"sum"`,
            `"mean"`, `"sqrtn"`, `"max"`; `None` keeps a vector for each key.
        placement: The places of the rows when there are several workers. `"key"`: spread over all
            of them, by a hash of table and key. `"worker"`: the whole table on one worker, which
            combines the vectors of each bag and sends the combined vector. `"replicated"`: every
            row on every worker, without a storage and evictions by seconds. `"auto"`: the plan
            chooses.
        worker: The rank of the worker that holds the table, with `placement="worker"`. `None`: the
            plan chooses.
        regularizer: A Keras regularizer, as `embeddings_regularizer` of `DynamicEmbedding`. The
            features of the table are then pooled by the workers that asked for their rows. `None`:
            no regularizer.
        constraint: A Keras constraint of rows, as `embeddings_constraint` of `DynamicEmbedding`.
            `None`: no constraint.
        trainable: True if training changes the table, and makes rows for keys that have none.
        **options: The options of `sok_embed.kv.table_spec.TableOptions`, such as `max_rows`,
            `storage` (or its config) and `eviction`.

    Raises:
        ValueError: For a value that is none of the above.
    """

    name: str
    vocabulary_size: int | None
    embedding_dim: int
    initializer: Any = "uniform"
    optimizer: Any = None
    combiner: str | None = "mean"
    placement: str = "auto"
    worker: int | None = field(default=None, kw_only=True)
    regularizer: Any = field(default=None, kw_only=True)
    constraint: Any = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        """Checks the values, and makes objects of names and configs."""
        _check_name("TableConfig", self.name)
        what = f"TableConfig '{self.name}'"
        if isinstance(self.storage, Mapping):
            self._set("storage", storage_copies.storage_of(self.storage))
        self.check(what)
        if self.vocabulary_size is not None:
            self._set("vocabulary_size", check_integer("vocabulary_size", self.vocabulary_size, 1))
        self._set("embedding_dim", check_integer("embedding_dim", self.embedding_dim, 1))
        check_choice("combiner", self.combiner, COMBINERS, what=what)
        check_choice("placement", self.placement, PLACEMENTS, what=what)
        if self.worker is not None:
            self._set("worker", check_integer("worker", self.worker, 0))
            if self.placement != "worker":
                raise ValueError(
                    f"{what}: expected placement='worker' beside worker. Received: "
                    f"placement={self.placement!r}, worker={self.worker}. Give both or neither."
                )
        self._set("optimizer", row_rules.get(self.optimizer))
        regularizer = function_of_rows("Regularizer", keras.regularizers.get, self.regularizer)
        self._set("regularizer", regularizer)
        self._set("constraint", row_constraints.get(self.constraint))
        self._set("trainable", check_flag("trainable", self.trainable))
        self._check_replicated(what)

    def _check_replicated(self, what: str) -> None:
        """Raises for rows that may be removed on one worker and stay on another, by a clock."""
        if self.placement != "replicated":
            return
        for name, by_clock in (
            ("storage", self.storage is not None),
            ("eviction", self.eviction is not None and self.eviction.counts_seconds),
        ):
            if by_clock:
                raise ValueError(
                    f"{what}: expected no {name} whose rows go by a clock, with "
                    "placement='replicated': workers' clocks differ, and so would their rows. "
                    f"Received: {name}={getattr(self, name)!r}. Use placement='key' or 'worker'."
                )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, of types that Keras saves."""
        initializer = keras.initializers.get(self.initializer)
        return {
            "name": self.name,
            "vocabulary_size": self.vocabulary_size,
            "embedding_dim": self.embedding_dim,
            "initializer": (
                self.initializer
                if isinstance(self.initializer, (str, dict))
                else keras.initializers.serialize(initializer)
            ),
            "optimizer": row_rules.serialize(self.optimizer),
            "combiner": self.combiner,
            "placement": self.placement,
            "worker": self.worker,
            **self.options_config(),
            "storage": storage_copies.config_of(self.storage),
            # Earlier releases refuse a group, even 0, without a storage.
            "group": None if self.storage is None else self.group,
            "regularizer": keras.regularizers.serialize(self.regularizer),
            "constraint": keras.constraints.serialize(self.constraint),
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TableConfig:
        """Makes the config from the result of `get_config`."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="sok_embed")
@dataclass(eq=False)
class FeatureConfig:
    """One input of a collection, and the table in which its keys are looked up.

    Args:
        name: The name of the feature, which no other feature of the layer has.
        table: A `TableConfig`. Features that name the same table share its rows.
        input_shape: The shape of the input with the batch, for readers of the config; it is
            optional.
        output_shape: The shape of the output, for readers of the config; it is optional.
        combiner: The combiner of this feature; `"table"`: the combiner of the table.
        mask_zero: True if key 0 is padding, and so is the empty string, with its `fingerprint`: it
            is what Keras' `StringLookup` turns into 0.
        padding_value: The key or string that is padding, as `DynamicEmbedding` has it:
            bags leave it out, in every form of input; with `combiner=None` the vectors of a dense
            input get a mask. `None`: every key is a key.
        max_length: The most keys that an example has; an example with more keys is an error. A
            sharding plan assumes that every bag has this length, unless it knows better. `None`:
            any number.

    Raises:
        ValueError: For a value that is none of the above.
    """

    name: str
    table: TableConfig
    input_shape: Any = None
    output_shape: Any = None
    combiner: str | None = field(default="table", kw_only=True)
    max_length: int | None = field(default=None, kw_only=True)
    mask_zero: bool = field(default=False, kw_only=True)
    padding_value: int | str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Checks the values."""
        _check_name("FeatureConfig", self.name)
        what = f"FeatureConfig '{self.name}'"
        if not isinstance(self.table, TableConfig):
            raise ValueError(
                f"{what}: expected table to be a TableConfig. Received: {self.table!r} (of type "
                f"{type(self.table).__name__})."
            )
        check_choice("combiner", self.combiner, ("table", *COMBINERS), what=what)
        if self.max_length is not None:
            self.max_length = check_integer("max_length", self.max_length, 1)
        try:
            self.padding = padding_keys(self.mask_zero, self.padding_value)
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None

    @property
    def own_combiner(self) -> str | None:
        """The combiner of this feature."""
        return self.table.combiner if self.combiner == "table" else self.combiner

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, of types that Keras saves."""
        return {
            "name": self.name,
            "table": keras.saving.serialize_keras_object(self.table),
            "input_shape": self.input_shape,
            "output_shape": self.output_shape,
            "combiner": self.combiner,
            "max_length": self.max_length,
            "mask_zero": self.mask_zero,
            "padding_value": self.padding_value,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FeatureConfig:
        """Makes the config from the result of `get_config`."""
        config = dict(config)
        if not isinstance(config["table"], TableConfig):
            config["table"] = keras.saving.deserialize_keras_object(config["table"])
        return cls(**config)


def feature_config(given: Any) -> FeatureConfig:
    """Returns a feature's config; a config of keras-rs becomes one of this package.

    The limits of ids for each partition of a keras-rs table are left out, since this package does
    not need them.
    """
    if isinstance(given, FeatureConfig):
        return given
    if type(given).__module__.partition(".")[0] != "keras_rs":
        raise ValueError(
            "Expected feature_configs to be a nest (dicts, lists, tuples) of "
            f"sok_embed.FeatureConfig. Received: {described(given)}."
        )
    return FeatureConfig(
        given.name, _table_config(given.table), given.input_shape, given.output_shape
    )


class _Made(NamedTuple):
    source: weakref.ref[Any]
    arguments: tuple[Any, ...]
    config: TableConfig


_notices: set[str] = set()  # those that this process has given
_made: dict[int, _Made] = {}  # by `id()`, since a table of keras-rs may not be hashable


def _table_config(table: Any) -> TableConfig:
    """Returns the config for a table of keras-rs, the same object each time."""
    what = f"TableConfig '{table.name}'"
    check_choice("placement", table.placement, _KERAS_RS, what=what)
    arguments = (
        table.name,
        table.vocabulary_size,
        table.embedding_dim,
        table.initializer,
        table.optimizer,
        table.combiner,
    )
    made = _made.get(id(table))
    if made is not None and made.source() is table and made.arguments == arguments:
        return made.config
    _notice_own_optimizer(table)
    number = id(table)
    source = weakref.ref(table, lambda gone: _forget(number, gone))
    _made[number] = _Made(source, arguments, TableConfig(*arguments))
    return _made[number].config


def _notice_own_optimizer(table: Any) -> None:
    """Warns, once, that the optimizer of a table of keras-rs trains here, unlike there on a CPU."""
    if table.optimizer is None or "optimizer" in _notices:
        return
    _notices.add("optimizer")
    optimizer = row_rules.get(table.optimizer)
    warnings.warn(
        f"TableConfig '{table.name}' of keras-rs: its own optimizer, {type(optimizer).__name__}, "
        "trains its rows, as on TPUs. On CPUs and GPUs keras-rs leaves the optimizers of tables "
        "unused and trains by that of the model, as a sok_embed.TableConfig with optimizer=None "
        "does. 'adam' is the default of keras-rs. There is one notice for all tables.",
        stacklevel=5,
    )


def _forget(number: int, gone: weakref.ref[Any]) -> None:
    if number in _made and _made[number].source is gone:
        del _made[number]


def distinct_tables(features: Sequence[FeatureConfig]) -> list[TableConfig]:
    """Returns the tables of features, each once, in the order of their first features.

    Raises:
        ValueError: For two features of one name, and for two tables of one name that differ.
    """
    names: set[str] = set()
    tables: dict[str, TableConfig] = {}
    for feature in features:
        if feature.name in names:
            raise ValueError(
                "Expected each feature to have a name of its own. "
                f"Received: '{feature.name}' twice."
            )
        names.add(feature.name)
        table = tables.setdefault(feature.table.name, feature.table)
        if table is not feature.table:
            _check_same(table, feature.table)
    return list(tables.values())


def _check_same(first: TableConfig, second: TableConfig) -> None:
    ours, theirs = (_without_identity(config.get_config()) for config in (first, second))
    different = [name for name in ours if ours[name] != theirs[name]]
    if different:
        raise ValueError(
            f"Expected one config of the table '{first.name}'. Received: two that differ in "
            f"{', '.join(different)}. Give the tables different names, or all features one "
            "TableConfig."
        )


def _without_identity(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a config without the names by which Keras numbers equal objects."""
    if config["optimizer"] is not None:
        # Keras numbers the names of optimizers.
        of_optimizer = dict(config["optimizer"]["config"], name=None)
        config = {**config, "optimizer": {**config["optimizer"], "config": of_optimizer}}

    def plain(part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        # Keras numbers objects while it loads a file.
        return {key: plain(each) for key, each in part.items() if key != "shared_object_id"}

    return {key: plain(each) for key, each in config.items()}


def _check_name(what: str, name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{what}: expected a name. Received: name={shown(name)}.")
