"""Reads rows that TensorFlow Recommenders Addons (TFRA) has saved: its files of keys and values."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sok_embed.checkpoint.files.rows_file import Rows, rows_a_block
from sok_embed.checkpoint.tools.conversion.tables import Moving
from sok_embed.checkpoint.tools.conversion.tfra_checkpoint import (
    CHECKPOINT_FOLDER,
    checkpoint_prefix,
    unpacked_checkpoint,
)
from sok_embed.checkpoint.tools.saved import TableHead
from sok_embed.files.records import damaged
from sok_embed.files.schema import MOST_DIM

_NAME = re.compile(
    r"(?P<table>.+)_mht_(?P<shard>\d+)of(?P<shards>\d+)_rank(?P<rank>\d+)_size(?P<size>\d+)-keys"
)
# TFRA's names of a rule's slots, in the order of the rule's own slots: first the names of Keras'
# optimizers before version 2.11, then after it. If several rules have the same names, the first of
# them is meant unless the user names another.
_SLOTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "adam": (("m",), ("v",)),
    "adamw": (("m",), ("v",)),
    "adamax": (("m",), ("v", "u")),
    "amsgrad": (("m",), ("v",), ("vhat", "velocity_hat")),
    "adagrad": (("accumulator",),),
    "ftrl": (("accumulator",), ("linear",)),
    "momentum": (("momentum", "m"),),
    "lion": (("momentum", "m"),),
    "rmsprop": (("rms", "velocity"),),
    "rmsprop_momentum": (("rms", "velocity"), ("momentum",)),
    "rmsprop_centered": (("rms", "velocity"), ("mg", "average_gradient")),
    "rmsprop_centered_momentum": (
        ("rms", "velocity"), ("momentum",), ("mg", "average_gradient"),
    ),
    "adadelta": (("accum_grad", "accumulated_grad"), ("accum_var", "accumulated_delta_var")),
}  # fmt: skip
RULES = tuple(_SLOTS)
_SLOT_NAMES = {name for slots in _SLOTS.values() for names in slots for name in names}
_COUNT_STEPS = ("adam", "adamw", "adamax", "amsgrad")  # for the correction of their bias
# Tables of restrict policies, with the columns of rows that they have.
_STATUS = {"frequency": "update_nums", "timestamp": "update_times"}


class Slots(NamedTuple):
    """Says which slots are converted."""

    # A rule of `RULES`; `None`: the rule that has the slots in the files; `"none"`: no slots.
    rule: str | None = None
    # The name of the lookup whose slots are converted; `None`: there is only one lookup.
    lookup: str | None = None
    steps: int | None = None  # the number of the optimizer's steps; `None`: as the checkpoint says


class _Shard(NamedTuple):
    """One pair of files. Values are int32 or float32 `[n, dim]`, mapped."""

    keys: npt.NDArray[np.int64]
    values: Any


class _Stored:
    """A table of TFRA: it holds vectors, one slot, or the counts of a policy.

    In its name `_` stands for each `/`.
    """

    def __init__(self, name: str, shards: Sequence[_Shard]) -> None:
        self.name = name
        self.dim = int(shards[0].values.shape[1])
        self._values = [shard.values for shard in shards]
        self._begins = np.cumsum([0, *(len(shard.keys) for shard in shards)])
        self.keys = np.concatenate([shard.keys for shard in shards])
        self._order = np.argsort(self.keys, kind="stable")
        self._sorted = self.keys[self._order]
        twice = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if twice.size:
            key = self._sorted[twice[0]]
            raise damaged(name, "each key once in the table", f"key {key} twice")

    def of_keys(self, keys: npt.NDArray[np.int64]) -> Any:
        """Returns the values of keys, `[n, dim]`, and which of the keys it has, bool `[n]`."""
        places = np.minimum(np.searchsorted(self._sorted, keys), max(len(self._sorted) - 1, 0))
        found = self._sorted[places] == keys if len(self._sorted) else np.zeros(len(keys), np.bool_)
        values = np.zeros((len(keys), self.dim), self._values[0].dtype)
        rows = self._order[places[found]]
        shards = np.searchsorted(self._begins, rows, "right") - 1
        held = np.empty((len(rows), self.dim), values.dtype)
        for number, of_shard in enumerate(self._values):
            mine = shards == number
            held[mine] = of_shard[rows[mine] - self._begins[number]]
        values[found] = held
        return values, found


def tfra_tables(
    path: str, work: str, names: Sequence[str], slots: Slots, dim: int | None = None
) -> list[Moving]:
    """Returns the tables that TFRA has saved.

    Args:
        path: A folder with files of keys and values, as `save_to_file_system` and checkpoints with
            a `FileSystemSaver` have it; a checkpoint of TensorFlow, named without `.index`; or a
            SavedModel. TensorFlow is imported for the last two.
        work: A folder, into which the tables of a checkpoint are unpacked.
        names: The requested tables. Empty: all tables except tables of slots and policies.
        slots: The slots to convert.
        dim: The length of vectors, to check. `None`: as many numbers as there are for each key.

    Raises:
        ValueError: For slots that may belong to several lookups or rules, and for a rule whose
            number of steps is needed and not known.
    """
    folder, steps = path, None
    prefix = checkpoint_prefix(path)
    if prefix is not None:
        folder, steps = unpacked_checkpoint(prefix, work, names)
    elif not _holds_files(path) and _holds_files(os.path.join(path, CHECKPOINT_FOLDER)):
        folder = os.path.join(path, CHECKPOINT_FOLDER)
    if not _holds_files(folder):
        raise FileNotFoundError(
            f"Expected files of TFRA, TABLE_mht_1of1_rank0_size1-keys and …-values, or a "
            f"checkpoint or SavedModel of TensorFlow with tables of TFRA at '{path}'. Received: "
            "none."
        )
    stored = _stored(folder)
    if slots.steps is None:
        slots = slots._replace(steps=steps)
    vectors = names or [name for name in stored if _owner(name, stored) is None]
    unknown = [name for name in vectors if name not in stored]
    if unknown:
        raise ValueError(
            f"Expected the name of a table in '{path}', which has {', '.join(map(repr, stored))}. "
            f"Received: {', '.join(map(repr, unknown))}."
        )
    for name in vectors:
        if dim not in (None, stored[name].dim):
            raise damaged(folder, f"vectors of dim {dim} in '{name}'", str(stored[name].dim))
    return [_table(stored[name], stored, slots) for name in vectors]


def _holds_files(folder: str) -> bool:
    return os.path.isdir(folder) and any(_NAME.fullmatch(each) for each in os.listdir(folder))


def _stored(folder: str) -> dict[str, _Stored]:
    """Returns the tables of a folder by name."""
    found: dict[str, dict[tuple[int, ...], str]] = {}
    listed = os.listdir(folder)
    for each in sorted(listed):
        match, values = _NAME.fullmatch(each), each.removesuffix("-keys") + "-values"
        keys = each.removesuffix("-values") + "-keys"
        if match is not None:
            numbers = tuple(int(match[part]) for part in ("shards", "size", "rank", "shard"))
            found.setdefault(match["table"], {})[numbers] = os.path.join(folder, each)
            if values not in listed:
                raise damaged(folder, f"'{values}' beside '{each}'", "none")
        elif _NAME.fullmatch(keys) and keys not in listed:
            raise damaged(folder, f"the file of keys beside '{each}'", "none")
    tables = {
        name: _whole(folder, name, files, "<i4" if _is_status(name, found) else "<f4")
        for name, files in found.items()
    }
    kept = {name: _Stored(name, shards) for name, shards in tables.items() if shards}
    if not kept:
        raise ValueError(f"Expected tables with rows in '{folder}'. Received: empty files.")
    return kept


def _whole(folder: str, name: str, files: dict[tuple[int, ...], str], dtype: str) -> list[_Shard]:
    """Returns the shards of a table that have rows; raises unless all files of one save exist."""
    shards, size = next(iter(files))[:2]
    if len(files) != shards * size or any(
        (shards, size, rank, shard + 1) not in files
        for rank in range(size)
        for shard in range(shards)
    ):
        raise damaged(
            folder,
            f"files of {shards} shards on each of {size} workers of table '{name}'",
            ", ".join(sorted(os.path.basename(each) for each in files.values())),
        )
    read = [_shard(path, np.dtype(dtype)) for path in files.values()]
    filled = [shard for shard in read if len(shard.keys)]
    dims = {shard.values.shape[1] for shard in filled}
    if len(dims) > 1:
        raise damaged(folder, f"vectors of one dim in all files of table '{name}'", str(dims))
    return filled


def _shard(path: str, dtype: np.dtype[Any]) -> _Shard:
    values = path.removesuffix("keys") + "values"
    of_keys, of_values = os.path.getsize(path), os.path.getsize(values)
    rows = of_keys // 8
    if of_keys % 8:
        raise damaged(path, "keys of 8 bytes each", f"{of_keys} bytes")
    if rows == 0:
        if of_values:
            raise damaged(values, "no values, as there are no keys", f"{of_values} bytes")
        return _Shard(np.zeros(0, np.int64), np.zeros((0, 0), dtype))
    dim = of_values // (4 * rows)
    if of_values != 4 * rows * dim or not 1 <= dim <= MOST_DIM:
        raise damaged(
            values, f"{rows} vectors of 4-byte numbers, one for each key", f"{of_values} bytes"
        )
    keys = np.fromfile(path, "<i8")
    return _Shard(keys, np.memmap(values, dtype, "r", shape=(rows, dim)))


def _is_status(name: str, names: Iterable[str]) -> bool:
    """Returns whether a table has the counts of a policy, integers."""
    return name.rpartition("_")[2] in _STATUS and _owner(name, names) is not None


def _owner(name: str, names: Iterable[str]) -> str | None:
    """Returns the table whose slots or counts a table holds; `None` if the table holds vectors."""
    if name.rpartition("_")[2] not in {*_SLOT_NAMES, *_STATUS}:
        return None
    owners = [each for each in names if name.startswith(f"{each}_")]
    return max(owners, key=len) if owners else None


def _table(table: _Stored, stored: dict[str, _Stored], slots: Slots) -> Moving:
    beside, status = dict[str, _Stored](), dict[str, _Stored]()
    for name, each in stored.items():
        if _owner(name, stored) == table.name:
            column = _STATUS.get(name.rpartition("_")[2])
            if column is None:
                beside[name] = each
            else:
                status[column] = each
    rule, columns = "", list[_Stored]()
    if slots.rule != "none":
        rule, columns = _slots(table, beside, slots)
    if rule in _COUNT_STEPS and slots.steps is None:
        raise ValueError(
            f"Expected the steps of the optimizer, by which '{rule}' corrects its bias, since the "
            "files do not have them. Received: no steps. Give --steps, the optimizer's iterations."
        )
    dim = table.dim
    head = TableHead(
        label=table.name,
        name=table.name,
        dim=dim,
        rule=rule,
        slot_start=tuple(
            start for slot in range(len(columns)) for start in [_start(rule, slot)] * dim
        ),
        steps=slots.steps if rule and slots.steps else 0,
        step_clock=-1,
        initializer={},
        rows=len(table.keys),
    )
    return Moving(head, partial(_pieces, table, columns, status, head))


def _start(rule: str, slot: int) -> float:
    """Returns the value of a new row's slot that Keras' optimizers have by default."""
    return 0.1 if slot == 0 and rule in ("adagrad", "ftrl") else 0.0


def _slots(table: _Stored, beside: dict[str, _Stored], slots: Slots) -> tuple[str, list[_Stored]]:
    """Returns the rule of a table, and the tables of its slots in order, if it has any."""
    by_lookup: dict[str, dict[str, _Stored]] = {}
    for name, each in beside.items():
        trained_by, _, slot = name[len(table.name) + 1 :].rpartition("_")
        by_lookup.setdefault(trained_by, {})[slot] = each
    if not by_lookup:
        return "", []
    lookup = slots.lookup
    if lookup is None and len(by_lookup) == 1:
        (lookup,) = by_lookup
    if lookup not in by_lookup:
        raise ValueError(
            f"Expected the lookup whose slots table '{table.name}' keeps, one of "
            f"{', '.join(map(repr, by_lookup))}. Received: {slots.lookup!r}. Give --lookup, or "
            "--optimizer none to leave slots out."
        )
    found = by_lookup[lookup]
    rules: Iterable[str] = RULES if slots.rule is None else [slots.rule]
    for rule in rules:
        chosen = [[found[name] for name in names if name in found] for names in _SLOTS[rule]]
        if all(len(each) == 1 for each in chosen) and len(chosen) == len(found):
            columns = [each for (each,) in chosen]
            for each in columns:
                if each.dim != table.dim:
                    raise damaged(each.name, f"slots of dim {table.dim}", str(each.dim))
            return rule, columns
    raise ValueError(
        f"Expected slots of {slots.rule or 'an optimizer'} for table '{table.name}'. Received: "
        f"{', '.join(found)}. Name the rule with --optimizer ({', '.join(RULES)}), or leave slots "
        "out with --optimizer none."
    )


def _pieces(
    table: _Stored, columns: Sequence[_Stored], status: dict[str, _Stored], head: TableHead
) -> Iterator[Rows]:
    start = np.asarray(head.slot_start, np.float32).reshape(len(columns), head.dim)
    now = int(time.time())
    most = rows_a_block(head.dim, head.slot_floats)
    for begin in range(0, head.rows, most):
        keys = table.keys[begin : begin + most]
        slots = []
        for column, initial in zip(columns, start, strict=True):
            values, found = column.of_keys(keys)
            slots.append(np.where(found[:, np.newaxis], values, initial))
        counted = {"update_nums": np.zeros(len(keys), np.int64),
                   "update_times": np.full(len(keys), now)}  # fmt: skip
        for name, of_policy in status.items():
            values, found = of_policy.of_keys(keys)
            counted[name] = np.where(found, values[:, 0].astype(np.int64), counted[name])
        yield Rows(
            keys=keys,
            embeddings=table.of_keys(keys)[0],
            slots=np.concatenate(slots, axis=1) if slots else np.zeros((len(keys), 0), np.float32),
            **counted,
        )
