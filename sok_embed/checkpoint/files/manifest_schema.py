"""Checks manifests: each field, and how fields and files agree with each other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from sok_embed.checkpoint.files.names import data_names, dense_prefix, rows_name
from sok_embed.checkpoint.files.rows_index import row_bytes
from sok_embed.files.records import is_plain_name
from sok_embed.files.schema import (
    MOST,
    MOST_DIM,
    MOST_SLOT_FLOATS,
    Misfit,
    brief,
    hexadecimal,
    integer,
    list_of,
    nothing_or,
    number,
    record,
    text,
    text_like,
    tuple_of,
)

MOST_WORKERS = 1 << 20
MOST_PATH = 4096  # letters that lead to an object
MOST_DIMENSIONS = 254  # of a tensor of TensorFlow
_SEED = integer(-(2**63), 2**64 - 1)  # as int64 or as uint64
ONE_WORKER = re.compile(r"[0-9]+")
MIXED_OWNERS = re.compile(r"mixed_owners\(key, (-?[0-9]+), size\)")
# The parts of a table, by its kind, in the order of their entries in an index of rows.
PARTS = {"table": ("rows",), "adaptive": ("own", "static")}
BUCKET_OWNERS = "bucket % size"
ANY_WORKER = "any worker"  # rows may be in the file of any worker: readers search all


def _path(value: Any, field: str) -> None:
    """Checks the path of an object, whose parts a reader follows one by one."""
    text(value, field)
    if len(value) > MOST_PATH:
        raise Misfit(field, f"a text of at most {MOST_PATH} letters", brief(value))


_plain_name = text_like(is_plain_name, "the plain name of a file or a folder")
_variables = list_of(tuple_of(_path, text, list_of(integer(), MOST_DIMENSIONS)))
_file = record({"name": _plain_name, "bytes": integer(), "checksum": hexadecimal})
_part = record(
    {
        "rule": text,
        "slot_floats": integer(0, MOST_SLOT_FLOATS),
        "steps": integer(),
        "rows": integer(),
    },
    {"size": integer()},
)
_table = record(
    {
        "path": _path,
        "name": text,
        "kind": text_like(PARTS.__contains__, f"one of {', '.join(PARTS)}"),
        "dim": integer(1, MOST_DIM),
        "owners": text,
        "initializer": record({"kind": text, "a": number, "b": number}),
        "seed": _SEED,
        "parts": record({}),
    },
)
_adaptive = record(
    {
        "static_buckets": integer(1),
        "sketch_capacity": integer(),
        "counter_bits": integer(0, 64),
    }
)
_fields = record(
    {
        "attempt": hexadecimal,
        "step": integer(),
        # The next save of a manager has a greater serial.
        "workers": integer(1, MOST_WORKERS),
        "dense": record(
            {
                "prefix": _plain_name,
                "variables": _variables,
                "metrics": _variables,
                "others": list_of(_path),
            }
        ),
        "tables": list_of(_table),
        "rows": list_of(_file),
        "files": list_of(_file),
    },
    {
        "serial": integer(0, MOST - 1),
        "state": hexadecimal,
        "data": list_of(_file),
        "parent": nothing_or(record({"folder": _plain_name, "state": hexadecimal})),
    },
)


def manifest(content: Any, field: str = "") -> None:
    """Checks the JSON of a manifest whose version and features are known."""
    _fields(content, field)
    if (content.get("parent") is not None) != ("delta" in content["features"]):
        raise Misfit("parent", "the checkpoint before where features has 'delta'", "the other")
    _check_tables(content)
    _check_names(content)
    _check_lengths(content)


def _check_tables(content: dict[str, Any]) -> None:
    before = None
    for i, entry in enumerate(content["tables"]):
        field = f"tables[{i}]"
        if before is not None and entry["path"] <= before:
            raise Misfit(
                f"{field}.path", f"a text that sorts after {brief(before)}", brief(entry["path"])
            )
        before = entry["path"]
        names = PARTS[entry["kind"]]
        if entry["parts"].keys() != set(names):
            raise Misfit(f"{field}.parts", " and ".join(names), brief(sorted(entry["parts"])))
        for name in names:
            _check_part(entry["parts"][name], f"{field}.parts.{name}", content)
        if entry["kind"] == "adaptive":
            _adaptive(entry, field)
        _check_owners(entry, f"{field}.owners", content["workers"])


def _check_part(part: Any, field: str, content: dict[str, Any]) -> None:
    _part(part, field)
    # If the checkpoint does not build on another, the table has the rows of the files.
    size = part.get("size", part["rows"])
    if content.get("parent") is None and size != part["rows"]:
        raise Misfit(f"{field}.size", f"{part['rows']}, the number of rows", f"{size}")


def _check_owners(entry: dict[str, Any], field: str, workers: int) -> None:
    """Checks the rule of owners, if this version knows it; rules of later versions pass."""
    owners, is_adaptive = entry["owners"], entry["kind"] == "adaptive"
    if is_adaptive and owners not in (BUCKET_OWNERS, ANY_WORKER):
        raise Misfit(field, repr(BUCKET_OWNERS), brief(owners))
    if not is_adaptive and owners == BUCKET_OWNERS:
        raise Misfit(field, "a rule of a table without buckets", brief(owners))
    if ONE_WORKER.fullmatch(owners) and (len(owners) > 10 or int(owners) >= workers):
        raise Misfit(field, f"a worker below {workers}", brief(owners))
    mixed = MIXED_OWNERS.fullmatch(owners)
    if mixed and len(mixed[1]) > 20:
        raise Misfit(field, "a salt of 64 bits", brief(owners))


def _check_names(content: dict[str, Any]) -> None:
    """Checks that files have the names that the attempt gives them, and that none is missing."""
    attempt, workers = int(content["attempt"], 16), content["workers"]
    prefix = dense_prefix(attempt)
    if content["dense"]["prefix"] != prefix:
        raise Misfit("dense.prefix", repr(prefix), brief(content["dense"]["prefix"]))
    expected: dict[str, list[str]] = {"rows": [], "data": []}
    if content["tables"]:
        # The list in the file bounds the length, whatever `workers` says.
        _check_count("rows", content, workers)
        expected["rows"] = [rows_name(worker, workers, attempt) for worker in range(workers)]
    if content.get("data"):
        _check_count("data", content, 2 * workers)
        expected["data"] = data_names(workers, attempt)
    for field, names in expected.items():
        _check_count(field, content, len(names))
        for i, (each, name) in enumerate(zip(content.get(field, ()), names, strict=True)):
            if each["name"] != name:
                raise Misfit(f"{field}[{i}].name", repr(name), brief(each["name"]))
    _check_dense_names(prefix, [each["name"] for each in content["files"]])


def _check_count(field: str, content: dict[str, Any], count: int) -> None:
    found = len(content.get(field, ()))
    if found != count:
        raise Misfit(field, f"{count} files", str(found))


def _check_dense_names(prefix: str, names: list[str]) -> None:
    """Checks that there is an index, and each of the data files that the names count."""
    count = len(names) - 1
    data = [f"{prefix}.data-{i:05d}-of-{count:05d}" for i in range(count)]
    if count < 1 or sorted(names) != [*data, f"{prefix}.index"]:
        raise Misfit("files", f"'{prefix}.index' and its files of data", brief(names))


def _check_lengths(content: dict[str, Any]) -> None:
    """Checks that the files are long enough for their contents."""
    for field, records in (("rows", content["rows"]), ("files", content["files"])):
        total = sum(each["bytes"] for each in records)
        told = _row_bytes(content) if field == "rows" else _elements(content)
        for name, least in told:
            if least > total:
                raise Misfit(name, f"what {total} bytes of '{field}' have room for", f"{least}")


def _row_bytes(content: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yields the least bytes of each part of each table: of some workers rows have no slots."""
    for i, entry in enumerate(content["tables"]):
        for name, part in entry["parts"].items():
            yield f"tables[{i}].parts.{name}.rows", part["rows"] * row_bytes(entry["dim"], 0)


def _elements(content: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yields the elements of each variable, which take a byte at least."""
    for field in ("variables", "metrics"):
        for i, (_, _, shape) in enumerate(content["dense"][field]):
            yield f"dense.{field}[{i}]", math.prod(shape)
