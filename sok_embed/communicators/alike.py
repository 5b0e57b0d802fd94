"""Compares descriptions of the workers: what differs is an error that all of them raise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sok_embed.communicators.agreement import Agreement

# Values by the names of what they belong to: `{"layer 'items'": {"seed": 1}}`. Values are nests of
# dicts, lists, and what JSON can hold.
Description = Mapping[str, Any]

_MOST_SHOWN = 3  # differences in a message
_LONGEST = 200  # characters of a value in a message
_NOTHING = "nothing"
_WHAT = "what comes next"  # the name of the reason to compare


def check_alike(
    agreement: Agreement, what: str, describe: Callable[[], Description], remedy: str
) -> None:
    """Raises on all workers unless they have one description. Collective.

    Workers send 8 bytes. Only where these differ do they send the descriptions. Where workers
    compare for different reasons (`what`), the message says so.

    Raises:
        ValueError: For descriptions that differ, with the first values that do, and the workers
            that have them.
        Exception: The error of `describe`.
        RuntimeError: If it has failed only on other workers.
    """
    own, numbers = agreement.gather_together(
        "describe their models",
        lambda: {_WHAT: what, **dict(flat(describe()))},
        lambda each: [number_of(each)],
    )
    if len({number for (number,) in numbers}) == 1:
        return
    text = json.dumps(own).encode()
    padded = text + b" " * (-len(text) % 8)
    sent = np.frombuffer(padded, np.int64).tolist()
    texts = agreement.gather_lists(sent, "descriptions of models")
    all_of_them = [json.loads(np.array(each, np.int64).tobytes()) for each in texts]
    raise ValueError(f"{differences(all_of_them)} {remedy}")


def number_of(values: Mapping[str, str]) -> int:
    """Returns an int64 of values; two that differ almost surely have different numbers."""
    digest = hashlib.blake2b(json.dumps(list(values.items())).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def flat(description: Description) -> Iterator[tuple[str, str]]:
    """Yields the values of a description as texts, with their names: `seed of layer 'items'`."""
    for thing, values in description.items():
        for path, text in _leaves(values, ""):
            yield (f"{path} of {thing}" if path else thing), text


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name in sorted(value, key=lambda each: (each != "class", each)):
            yield from _leaves(value[name], f"{path}.{name}" if path else name)
    elif isinstance(value, (list, tuple)) and any(
        isinstance(each, (Mapping, list, tuple)) for each in value
    ):
        for i, each in enumerate(value):
            yield from _leaves(each, f"{path}[{i}]")
    else:
        yield path, json.dumps(value)


def differences(of_workers: Sequence[Mapping[str, str]]) -> str:
    """Returns the sentences of a message that say in what workers differ.

    Args:
        of_workers: The values of each worker, from `flat`.
    """
    names = list(dict.fromkeys(name for values in of_workers for name in values))
    found: list[str] = []
    of_another_class: list[tuple[str, str]] = []  # things, and how paths within them begin
    for name in names:
        workers: dict[str, list[int]] = {}
        for worker, values in enumerate(of_workers):
            workers.setdefault(values.get(name, _NOTHING), []).append(worker)
        path, _, thing = name.partition(" of ")
        hidden = any(thing == other and path.startswith(start) for other, start in of_another_class)
        if len(workers) == 1 or hidden:
            continue
        found.append(f"{name} is {_each(workers)}")
        if name == _WHAT:
            break
        if path.rpartition(".")[2] == "class":
            of_another_class.append((thing, path.removesuffix("class")))
    shown = found[:_MOST_SHOWN]
    if len(found) > len(shown):
        shown.append(f"and {len(found) - len(shown)} more values differ")
    return f"Expected the same model on all workers. Received: {'; '.join(shown)}."


def _each(workers: Mapping[str, Sequence[int]]) -> str:
    """Returns values with the workers that have them: `0.1 on worker 0 and 0.5 on worker 1`."""
    return _listed([f"{_short(value)} on {_numbered(each)}" for value, each in workers.items()])


def _numbered(workers: Sequence[int]) -> str:
    return f"worker{'s' * (len(workers) > 1)} {_listed([str(worker) for worker in workers])}"


def _listed(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
