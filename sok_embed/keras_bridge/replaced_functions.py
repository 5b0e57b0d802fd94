"""Replaces functions of Keras by ones that call them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MARK = "_sok_embed_replacements"


def replace_function(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replaces a function of a class or module, in this process from now on.

    Doing it again with the same replacement changes nothing. The replacement receives the function
    that was there, and then the arguments of the call, for a method `self` first.
    """
    replaced = getattr(owner, name)
    replacements: tuple[Any, ...] = getattr(replaced, _MARK, ())
    if replacement in replacements:
        return

    @functools.wraps(replaced)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return replacement(replaced, *args, **kwargs)

    setattr(wrapper, _MARK, (*replacements, replacement))
    setattr(owner, name, wrapper)
