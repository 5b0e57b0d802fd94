"""Keeps the progress line of Keras short where a callback adds many figures to the logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras

from sok_embed.files.table_status import text_of_figure
from sok_embed.keras_bridge.callers import callbacks_of_running_list

# Returns logs as the line shows them.
Shorten = Callable[[dict[str, Any]], dict[str, Any]]


class _Printed(float):
    """A number that Keras' progress line prints as a text."""

    text: str

    def __new__(cls, number: float, text: str) -> _Printed:
        """Makes the number with its text."""
        made = super().__new__(cls, number)
        made.text = text
        return made

    def __truediv__(self, _: float) -> _Printed:
        """Returns itself: the line divides what it prints by the number of values, which is 1."""
        return self

    def __format__(self, _: str) -> str:
        """Returns the text."""
        return self.text


def shorten_line(owner: keras.callbacks.Callback, shorten: Shorten) -> None:
    """Has the progress line of the running `fit` or `evaluate` show other logs.

    Must be called by a callback in `on_train_begin` or `on_test_begin`. Other callbacks get the
    logs as they are.

    Args:
        owner: The callback. The line of a later `fit` or `evaluate` without it is that of Keras.
        shorten: The function that returns what the line shows.
    """
    for callback in callbacks_of_running_list():
        if not isinstance(callback, keras.callbacks.ProgbarLogger):
            continue
        ways = callback.__dict__.setdefault("_ways_to_shorten", {})
        if not ways:
            for name in ("on_train_batch_end", "on_test_batch_end", "on_epoch_end", "on_test_end"):
                setattr(callback, name, _shortened(getattr(callback, name), ways))
        ways[owner] = shorten


def _shortened(
    method: Callable[..., None], ways: dict[keras.callbacks.Callback, Shorten]
) -> Callable[..., None]:
    """Returns a method of a callback whose last argument, the logs, is shortened before."""

    def call(*arguments: Any, **named: Any) -> None:
        *others, logs = (*arguments, *named.values())
        logs = dict(logs or {})
        for callback in callbacks_of_running_list():
            if callback in ways:
                logs = ways[callback](logs)
        method(*others, logs)

    return call


def with_totals(
    logs: Mapping[str, Any], figures: Mapping[str, float], totals: Mapping[str, float]
) -> dict[str, Any]:
    """Returns logs with totals in place of the figures of single tables, as texts for people."""
    short = {name: value for name, value in logs.items() if name not in figures}
    for name, total in totals.items():
        label = name.removesuffix("_bytes")
        if label in short and not isinstance(short[label], _Printed):  # a metric of the user
            label = f"tables/{label}"
        short[label] = _Printed(total, text_of_figure(name, total))
    return short
