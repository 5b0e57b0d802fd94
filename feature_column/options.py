"""DeepRec's options of an embedding variable, and the arguments of a table that they become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sok_embed.admission import Admission
from sok_embed.arguments import check_integer, is_number, shown
from sok_embed.eviction import Eviction
from sok_embed.feature_column.evictions import GlobalStepEvict, L2WeightEvict
from sok_embed.feature_column.filters import CBFFilter, CounterFilter
from sok_embed.feature_column.initializers import (
    deserialize_initializer,
    serialize_initializer,
)
from sok_embed.feature_column.storage_options import StorageOption, StorageType
from sok_embed.kv.table_spec import RowOptions


@dataclass(frozen=True)
class InitializerOption:
    """The start of rows.

    Rows of an adaptive column start as its static rows, which the initializer draws. Other rows
    start from one of `default_value_dim` vectors that the initializer draws at once: the row of key
    `k` from vector `k % default_value_dim`.

    Example:
    >>> import tensorflow as tf
    >>> option = InitializerOption(tf.zeros_initializer(), default_value_dim=10000)

    Attributes:
        initializer: The initializer, as for `embedding_column`, to which no other one may be given.
        default_value_dim: The number of vectors. `None`: 4096. Not for adaptive columns.
        default_value_no_permission: The value of each element for an id that a filter holds back.
            `None`: 0. Not for adaptive columns, where such an id reads its static row.

    Raises:
        ValueError: For an initializer that is not callable, a `default_value_dim` below 1, or a
            `default_value_no_permission` that is not a finite number.
    """

    initializer: Any = None
    default_value_dim: int | None = None
    default_value_no_permission: float | None = None

    def __post_init__(self) -> None:
        if self.default_value_dim is not None:
            name = "InitializerOption's default_value_dim"
            dim = check_integer(name, self.default_value_dim, 1, 2**31)
            object.__setattr__(self, "default_value_dim", dim)
        absent = self.default_value_no_permission
        if absent is not None and not is_number(absent):
            raise ValueError(
                "InitializerOption: expected default_value_no_permission to be a finite number. "
                f"Received: {shown(absent)}."
            )
        if isinstance(self.initializer, type):
            object.__setattr__(self, "initializer", self.initializer())
        if self.initializer is not None and not callable(self.initializer):
            raise ValueError(
                "InitializerOption: expected a callable initializer. Received: "
                f"{self.initializer!r}."
            )


@dataclass(frozen=True)
class EmbeddingVariableOption(RowOptions):
    """The place of own rows, and the keys that keep one.

    It takes the options of `sok_embed.kv.table_spec.RowOptions` too: the types in which own rows
    lie, and the device whose memory they lie in, as static rows do unless there is a filter or
    several workers. `partition_num` has no effect on a GPU. TF1 graphs and embedding variables
    cannot use one.

    Example:
    >>> option = EmbeddingVariableOption(
    ...     evict_option=GlobalStepEvict(steps_to_live=1000),
    ...     filter_option=CounterFilter(filter_freq=3),
    ... )

    Attributes:
        evict_option: The rule by which rows are removed: `None`, `GlobalStepEvict` or
            `L2WeightEvict`.
        filter_option: The rule by which keys get a row: `None`, `CounterFilter` or `CBFFilter`.
            Other keys read and train their static row, even with mask 1.
        storage_option: `None` or `StorageOption`.
        init_option: `None` or `InitializerOption`.

    Raises:
        ValueError: For anything else, and for a `GlobalStepEvict` or other types than float32 of
            rows on disk.
    """

    evict_option: GlobalStepEvict | L2WeightEvict | None = None
    filter_option: CounterFilter | CBFFilter | None = None
    storage_option: StorageOption | None = None
    init_option: InitializerOption | None = None

    def __post_init__(self) -> None:
        for name, kinds in _PARTS.items():
            part = getattr(self, name)
            if part is not None and not isinstance(part, kinds):
                raise ValueError(
                    f"EmbeddingVariableOption: expected {name} to be None or one of "
                    f"{', '.join(kind.__name__ for kind in kinds)}. Received: {shown(part)}."
                )
        on_disk = self.storage_option is not None and self.storage_option.on_disk
        self.check("EmbeddingVariableOption")
        if on_disk and isinstance(self.evict_option, GlobalStepEvict):
            raise ValueError(
                "EmbeddingVariableOption: expected no GlobalStepEvict with a storage_option on "
                "disk, where the age of rows is known in seconds and not in steps. Received: "
                "both. Use L2WeightEvict, or rows in memory."
            )

    @property
    def admission(self) -> Admission | None:
        """The admission of the table."""
        return None if self.filter_option is None else self.filter_option.admission()

    @property
    def eviction(self) -> Eviction | None:
        """The eviction of the table."""
        return None if self.evict_option is None else self.evict_option.eviction()

    @property
    def initializer(self) -> Any:
        """The initializer of the static rows; `None`: that of the embedding column."""
        return None if self.init_option is None else self.init_option.initializer

    def refuse_default_values(self, column: str) -> None:
        """Raises ValueError for options that only rows without static rows have."""
        option = self.init_option
        for name in ("default_value_dim", "default_value_no_permission"):
            value = None if option is None else getattr(option, name)
            if value is not None:
                raise ValueError(
                    f"Column '{column}': expected an InitializerOption with no {name}, which has "
                    "no meaning for adaptive columns: own rows start from static rows, and ids "
                    f"without an own row read static rows. Received: {shown(value)}."
                )

    def get_config(self) -> dict[str, Any]:
        """Returns the parts, as JSON can hold them; see `from_config`."""
        parts = {name: _config_of(getattr(self, name)) for name in _PARTS}
        return {**parts, **{name: getattr(self, name) for name in RowOptions.names()}}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> EmbeddingVariableOption:
        """Makes the option that a `get_config` came from."""
        texts = {name: config[name] for name in RowOptions.names() if name in config}
        return cls(**{name: _part_from(config[name]) for name in _PARTS}, **texts)


_PARTS: dict[str, tuple[type[Any], ...]] = {
    "evict_option": (GlobalStepEvict, L2WeightEvict),
    "filter_option": (CounterFilter, CBFFilter),
    "storage_option": (StorageOption,),
    "init_option": (InitializerOption,),
}


def _config_of(part: Any) -> Any:
    if part is None:
        return None
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    if isinstance(part, CBFFilter):
        values["counter_type"] = part.counter_type.name
    if isinstance(part, StorageOption):
        values["storage_type"] = part.storage_type and part.storage_type.name
        del values["reset_slots"]  # it is a permission for one process
    if isinstance(part, InitializerOption):
        values["initializer"] = serialize_initializer(part.initializer)
    return {"kind": type(part).__name__, **values}


def _part_from(config: Any) -> Any:
    if config is None:
        return None
    values = dict(config)
    kinds = {kind.__name__: kind for kinds in _PARTS.values() for kind in kinds}
    kind = kinds[values.pop("kind")]
    if kind is StorageOption and values["storage_type"]:
        values["storage_type"] = StorageType[values["storage_type"]]
    if kind is InitializerOption:
        values["initializer"] = deserialize_initializer(values["initializer"])
    return kind(**values)
