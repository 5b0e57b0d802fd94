"""Checks of the arguments of an adaptive embedding."""

from __future__ import annotations

from typing import Any

from sok_embed.arguments import check_choice, check_integer, is_integer, is_number, shown
from sok_embed.lookups.combining import COMBINERS

_ROUTES = (-1, 0, 1)
_SLOTS = ("copy", "zero")
_COUNTER_BITS = (8, 16)
_UINT32, _INT64, _MOST_KEYS = 2**32, 2**63, 2**40


def check_adaptive_arguments(**arguments: Any) -> None:
    """Raises ValueError for an argument that an adaptive embedding cannot have."""
    check_integer("output_dim", arguments["output_dim"], 1)
    check_integer("promote_after", arguments["promote_after"], 1)
    check_integer("static_buckets", arguments["static_buckets"], 1, _UINT32)
    check_integer("sketch_capacity", arguments["sketch_capacity"], 1, _MOST_KEYS)
    for name, limit in (("max_rows", _INT64), ("decay_every", _INT64), ("ttl", _UINT32)):
        if arguments[name] is not None:
            check_integer(name, arguments[name], 1, limit)
    check_integer("counter_bits", arguments["counter_bits"])
    for name, choices in (
        ("combiner", (None, *COMBINERS)),
        ("slots", _SLOTS),
        ("counter_bits", _COUNTER_BITS),
    ):
        check_choice(name, arguments[name], choices)
    if arguments["mask"] is not None:
        check_route(arguments["mask"])
    most = 2 ** arguments["counter_bits"] - 1
    if arguments["promote_after"] > most:
        raise ValueError(
            f"Expected promote_after to be at most {most}, to which {arguments['counter_bits']} "
            f"bits count. Received: promote_after={arguments['promote_after']}. "
            + ("Use counter_bits=16." if arguments["counter_bits"] == 8 else "")
        )
    blend = arguments["demote_blend"]
    if not is_number(blend) or not 0 <= blend <= 1:
        raise ValueError(f"Expected demote_blend to be in [0, 1]. Received: {shown(blend)}.")


def check_route(mask: Any) -> int:
    """Returns the number that routes all keys. Raises ValueError unless it is -1, 0 or 1."""
    if not is_integer(mask) or mask not in _ROUTES:
        raise ValueError(f"Expected mask to be -1, 0 or 1. Received: {shown(mask)}.")
    return int(mask)
