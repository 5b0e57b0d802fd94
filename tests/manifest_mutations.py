"""Manifests and indices with right checksums and wrong contents, made at random from good ones."""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any

from changed_files import xxh3

_Place = tuple[Any, ...]  # keys and positions that lead to a value


def with_checksum(content: dict[str, Any]) -> bytes:
    """The bytes of a manifest whose checksum is right."""
    content = {name: value for name, value in content.items() if name != "checksum"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps(content | {"checksum": f"{xxh3(text, 0):016x}"}).encode()


def with_index(data: bytes, content: Any) -> bytes:
    """The bytes of a file of rows with another index, whose checksum is right."""
    (offset,) = struct.unpack_from("<Q", data, len(data) - 32)
    index = json.dumps(content).encode()
    end = index + struct.pack("<QQ", offset, offset + len(index) + 32)
    return data[:offset] + end + struct.pack("<Q", xxh3(end, offset)) + b"SOKREND\n"


def index_of(data: bytes) -> Any:
    """The index of a file of rows."""
    (offset,) = struct.unpack_from("<Q", data, len(data) - 32)
    return json.loads(data[offset:-32])


def places_in(value: Any, place: _Place = ()) -> list[_Place]:
    """Where there are values in JSON, but for the whole of it."""
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    found = []
    for name, child in children:
        found += [(*place, name), *places_in(child, (*place, name))]
    return found


def value_at(content: Any, place: _Place) -> Any:
    for name in place:
        content = content[name]
    return content


def _odd(chance: random.Random) -> Any:
    """A value of any type."""
    number = chance.choice([0, 1, 2, 3, 255, 2**20, 2**31, 2**32, 2**62, 2**63, 2**64, 10**400])
    nested: Any = []
    for _ in range(chance.choice([1, 5, 300])):
        nested = [nested] if chance.random() < 0.5 else {"a": nested}
    return chance.choice([
        None, True, False, number, -number, number + 0.5 if number < 2**65 else 0.5, 1e308, -0.0,
        float("nan"), float("inf"), "", "x", "x" * 5000, "\ud800", "\0", "a\nb", "..", "../x",
        "/etc/passwd", "a/b", f"{number:016x}"[:16], "key % size", "every worker", "any worker",
        "bucket % size", "7", "1" * 30, "mixed_owners(key, 99999999999999999999, size)",
        [], {}, [number] * chance.choice([1, 3, 2000]), {"a": number}, nested,
    ])  # fmt: skip


def mutated(manifests: list[dict[str, Any]], chance: random.Random) -> dict[str, Any]:
    """The first of some manifests with one to three changes; others lend what they have."""
    content = copy.deepcopy(manifests[0])
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        _change(content, chance.choice(manifests), chance)
    return content


def _change(content: dict[str, Any], other: dict[str, Any], chance: random.Random) -> None:
    places = places_in(content)
    if not places:
        return
    place = chance.choice(places)
    parent, name = value_at(content, place[:-1]), place[-1]
    value = parent[name]
    what = chance.randrange(9)
    if what == 0:
        del parent[name]
    elif what == 1 and isinstance(parent, list):
        parent.insert(chance.randrange(len(parent) + 1), copy.deepcopy(value))
    elif what == 2:
        inner = chance.choice([parent, value, content])
        if isinstance(inner, dict):
            inner[chance.choice(["more", "rows", "size", "own", "name", "whole", "counters"])] = (
                _odd(chance)
            )
        elif isinstance(inner, list):
            inner.append(_odd(chance))
    elif what == 3:  # two values change places
        to = chance.choice([each for each in places if each[: len(place)] != place] or [place])
        if place[: len(to)] != to:
            holder = value_at(content, to[:-1])
            parent[name], holder[to[-1]] = holder[to[-1]], value
    elif what == 4:  # a value of another place, or of another manifest
        source = chance.choice([content, other])
        parent[name] = copy.deepcopy(value_at(source, chance.choice(places_in(source))))
    elif what == 5 and place in places_in(other):
        parent[name] = copy.deepcopy(value_at(other, place))
    elif what == 6 and type(value) in (int, float):
        change = chance.choice([1, -1, 2, -value, -2 * value, value])
        parent[name] = value + change
    elif what == 7 and isinstance(value, str) and value:
        at = chance.randrange(len(value))
        parent[name] = value[:at] + chance.choice("0f./ %z") + value[at + 1 :]
    else:
        parent[name] = _odd(chance)
