"""How this package calls the core."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from sok_embed.kv import _core

RULE_PREFIX = "kv_"  # of the core's names for the rules of this package

_RULE = re.compile(r"((?:optimizer|trained with|got|one of|it has) )(['\"])(\w+)\2")

_Result = TypeVar("_Result")


def call_core(function: Callable[..., _Result], *arguments: Any, **named: Any) -> _Result:
    """Calls the core, and has its errors name optimizers as users do."""
    try:
        return function(*arguments, **named)
    except (ValueError, RuntimeError, OSError) as error:
        message = str(error)
        shown = _RULE.sub(
            lambda found: found[1] + found[2] + shown_rule(found[3]) + found[2], message
        )
        if shown == message:
            raise
        raise type(error)(shown) from None


def shown_rule(rule: str) -> str:
    """The name of one of the core's rules in messages and in `Group`; others as they are."""
    if rule.startswith(RULE_PREFIX):
        return rule.removeprefix(RULE_PREFIX)
    return f"keras.{rule}" if rule in _core.rule_names() else rule
