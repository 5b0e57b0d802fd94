"""Describes a table: its options, which layers, configs and groups of a storage hand on whole.

A new option is a field of one of the classes here, and a field of `TableSpec` in the core
(`tf_ops/core/tables/table_spec.h`). Everything between takes the options as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sok_embed import admission as admissions
from sok_embed import eviction as evictions
from sok_embed.admission import Admission
from sok_embed.arguments import check_choice, check_integer, described, shown
from sok_embed.binding.spec_text import spec_text
from sok_embed.eviction import Eviction, MaxAge
from sok_embed.kv.devices import CPU, check_device
from sok_embed.kv.group import GROUPS
from sok_embed.kv.storage import Storage

FLOAT32 = "float32"
ROW_DTYPES = {FLOAT32: 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3": 1}  # bytes
SLOT_DTYPES = (FLOAT32, "bfloat16")


@dataclass(frozen=True, kw_only=True, eq=False)
class RowTypes:
    """The types in which rows lie, in memory and in a storage.

    Lookups, gradients, the arithmetic of steps, checkpoints and dumps have float32. A step rounds
    a row at random, without a bias, by draws of the seed, the key and the number of its updates.

    Attributes:
        row_dtype: The type of the embeddings: `"float32"`, `"bfloat16"`, `"float16"`, `"int8"` or
            `"float8_e4m3"`. Each row of the last two has a float32 scale. A group of a storage
            keeps the type that it was made with.
        slot_dtype: The type of the optimizer's slots: `"float32"` or `"bfloat16"`.
    """

    row_dtype: str = FLOAT32
    slot_dtype: str = FLOAT32

    def check(self, what: str) -> None:
        """Raises ValueError for options that no table can have.

        Args:
            what: The beginning of the message, such as `"Layer 'a'"`.
        """
        for name, known in (("row_dtype", ROW_DTYPES), ("slot_dtype", SLOT_DTYPES)):
            check_choice(name, getattr(self, name), known, what=what)

    def types(self) -> dict[str, str]:
        """Returns the types by the names of their options."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(RowTypes)}

    @property
    def has_float32_rows(self) -> bool:
        """True if embeddings and slots lie as float32."""
        return self.row_dtype == self.slot_dtype == FLOAT32

    def stored_bytes(self, dim: int, slot_floats: int) -> int:
        """Returns the bytes of a row's embedding and slots, each a multiple of 4.

        Example:
        >>> RowTypes(row_dtype="int8", slot_dtype="bfloat16").stored_bytes(16, 15)
        52
        """
        return _stored_bytes(self.row_dtype, dim) + _stored_bytes(self.slot_dtype, slot_floats)


def _stored_bytes(dtype: str, n: int) -> int:
    size = ROW_DTYPES[dtype]
    return -(-n * size // 4) * 4 + (4 if size == 1 else 0)  # rows of bytes have a scale


@dataclass(frozen=True, kw_only=True, eq=False)
class RowOptions(RowTypes):
    """The types of rows, and the memory in which they lie.

    Attributes:
        device: The device whose memory rows lie in: `"cpu"`; `"gpu"`, or `"gpu:1"` for the GPU of
            that number; `"auto"`, a GPU if there is one that can be used and can hold the table,
            else the host's memory. A GPU holds float32 rows alone. The environment variable
            `SOK_DEVICE` overrides it.
    """

    device: str = CPU

    def check(self, what: str) -> None:
        """Raises ValueError for options that no table can have."""
        super().check(what)
        check_device(what, self.device)

    @classmethod
    def names(cls) -> list[str]:
        """Returns the names of the options."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def taken_from(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """Removes the options from the keyword arguments of a constructor, and returns them."""
        return {name: arguments.pop(name) for name in cls.names() if name in arguments}


@dataclass(frozen=True, kw_only=True, eq=False)
class TableOptions(RowOptions):
    """The options of a table that a layer or a config chooses.

    Attributes:
        seed: The seed of the initializer, any integer. `None`: the seed of the group, if the
            storage has the group; else the seed that the Keras initializer has; else one from the
            name of the layer and Keras' global seed. A table without a layer takes 0.
        max_rows: The most rows on each worker; beyond it rows are evicted, or training raises.
            `None`: no limit.
        storage: A `sok_embed.kv.Storage` that the rows live in, to outgrow memory and outlive the
            process. `None`: they live in memory.
        group: The group of the storage, in [0, 256). Each table needs a group of its own.
        admission: The admission of keys, which decides which get a row: a `FrequencyAdmission` or
            `CountingBloomAdmission` of `sok_embed.admission`. Other keys keep the vector that they
            start from. `None`: all keys get rows.
        eviction: The eviction of rows: one of `sok_embed.eviction`, or `"lru"` or `"lfu"`, by which
            a full table evicts the rows that were trained least recently or least often, as many as
            new keys need. `None`: rows stay, and a full table refuses new keys.
        max_bytes: The most bytes of the GPU's memory that the rows and their index take. `None`:
            all of its memory.
    """

    seed: int | None = None
    max_rows: int | None = None
    storage: Any = None
    group: int = 0
    admission: Any = None
    eviction: Any = None
    max_bytes: int | None = None

    def check(self, what: str) -> None:
        """Raises ValueError for options that no table can have; makes objects of configs."""
        super().check(what)
        if self.storage is not None and not isinstance(self.storage, Storage):
            raise ValueError(
                f"{what}: expected storage to be a sok_embed.kv.Storage. Received: "
                f"{described(self.storage)}."
            )
        for name in ("max_rows", "max_bytes"):
            if getattr(self, name) is not None:
                self._set(name, check_integer(name, getattr(self, name), 1, 2**63))
        if self.seed is not None:
            self._set("seed", check_integer("seed", self.seed))
        # Files of earlier releases have None for 0.
        group = 0 if self.group is None else check_integer("group", self.group)
        if not 0 <= group < GROUPS:
            raise ValueError(f"{what}: expected group in [0, {GROUPS}). Received: group={group}.")
        if group > 0 and self.storage is None:
            raise ValueError(
                f"{what}: expected a storage with group={group}. Received: storage=None. A group "
                "is a part of a storage."
            )
        self._set("group", group)
        self._set("admission", admissions.get(self.admission))
        self._set("eviction", evictions.get(self.eviction))

    def options(self) -> dict[str, Any]:
        """Returns the options by name."""
        return {name: getattr(self, name) for name in TableOptions.names()}

    def options_config(self) -> dict[str, Any]:
        """Returns the options by name, as JSON can hold them, without the storage."""
        config = self.options()
        del config["storage"]
        for name in ("admission", "eviction"):
            config[name] = None if config[name] is None else config[name].get_config()
        return config

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class TableSpec(TableOptions):
    """Everything that decides what a table is; checked when it is made.

    Attributes:
        dim: The length of a row.
        initializer: The kind of the initializer and its two numbers, as `kv.Initializer.bounds`
            has them.
        direct: True if keys are in `[0, max_rows * owners)` and are found by position, without a
            hash.
        owners: The number of workers that share the keys.
        owner: The number of this worker.
        shards: The number of parts into which rows in memory are divided by key, so that threads
            can work in parallel. It is rounded up to a power of two from 2 to 1,024; 0: as many as
            suit the machine. With fewer shards the rows of a small table lie nearer to each other.
            Not used with `direct`.
        step_clock: True if the times of rows are steps of the table, not seconds. It is set for an
            eviction that counts no seconds, in memory.
        gpu: The number of the GPU that holds the rows, once it is known; -1: the host's memory.
        name: The name of the table.
        what: The beginning of messages, such as `"Layer 'a'"`. Empty: the table and its name.

    Raises:
        ValueError: For a value that is none of the above; for `direct` without `max_rows`, an
            eviction with `direct`, one that needs `max_rows` without it, one that counts steps in a
            storage.
    """

    dim: int
    initializer: tuple[str, float, float]
    direct: bool = False
    owners: int = 1
    owner: int = 0
    shards: int = 0
    step_clock: bool = False
    gpu: int = -1
    name: str = "table"
    what: str = ""

    def __post_init__(self) -> None:
        """Checks the values, and makes objects of names and configs."""
        if not self.what:
            self._set("what", f"Table '{self.name}'")
        self.check(self.what)
        check_integer("dim", self.dim, 1)
        check_integer("owners", self.owners, 1)
        check_integer("owner", self.owner, 0, self.owners)
        self._set("shards", min(check_integer("shards", self.shards, 0), 2**32 - 1))
        if self.seed is not None:  # 64 bits, as a signed number
            self._set("seed", (self.seed + 2**63) % 2**64 - 2**63)
        if self.direct and self.max_rows is None:
            raise ValueError(
                f"{self.what}: expected max_rows with direct=True, which gives the range of the "
                "keys. Received: max_rows=None."
            )
        if self.eviction is not None:
            self._check_eviction(self.eviction)
            if self.storage is None and not self.eviction.counts_seconds:
                self._set("step_clock", True)

    def _check_eviction(self, eviction: Eviction) -> None:
        if self.direct:
            raise ValueError(
                f"{self.what}: expected no eviction for keys of a fixed range, whose rows all have "
                f"their places. Received: {shown(eviction)}. Use a hash table."
            )
        if eviction.needs_max_rows and self.max_rows is None:
            raise ValueError(
                f"{self.what}: expected max_rows with {shown(eviction)}, which makes room in a "
                "full table. Received: max_rows=None. Give max_rows, or use MaxAge or MinNorm."
            )
        if self.storage is not None and isinstance(eviction, MaxAge) and eviction.steps is not None:
            raise ValueError(
                f"{self.what}: expected MaxAge(seconds=…) for rows in a storage, whose times are "
                f"seconds. Received: {shown(eviction)}."
            )

    def attributes(self) -> dict[str, Any]:
        """Returns what the core reads of the spec, by the names of its fields, without defaults."""
        return dict(self._attributes())

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        yield from zip(
            ("initializer", "initializer_a", "initializer_b"), self.initializer, strict=True
        )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _NOT_OF_CORE or value is None or value == field.default:
                continue
            yield field.name, value
        if self.storage is not None:
            yield "storage", self.storage.path
            yield "storage_id", self.storage.id
        if self.admission is not None:
            yield from _attributes_of_admission(self.admission)
        if self.eviction is not None:
            arguments = evictions.core_arguments(self.eviction)
            yield "eviction", arguments.pop("kind")
            for name, value in arguments.items():
                yield f"eviction_{name}", value

    def serialized(self) -> str:
        """Returns the text that the core reads."""
        return spec_text(self.dim, self.attributes())


# The fields that the core does not read, or reads in another form.
_NOT_OF_CORE = ("dim", "initializer", "name", "what", "device", "storage", "admission", "eviction")


def _attributes_of_admission(admission: Admission) -> Iterator[tuple[str, Any]]:
    for name, value in admission.get_config().items():
        if name == "kind":
            yield "admission", value
        elif isinstance(value, float):
            yield f"admission_{name}", float(np.float32(value))
        else:
            yield f"admission_{name}", value
