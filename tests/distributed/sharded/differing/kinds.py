"""Callables whose arguments one worker changes, and uses of what they make."""

from __future__ import annotations

import inspect
import itertools
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok


class Made:
    """A value that each worker makes for itself."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class Both(NamedTuple):
    """A change that needs other arguments too: those of all workers, and those of the odd one."""

    all: Mapping[str, Any]
    odd: Mapping[str, Any]


@dataclass
class Kind:
    """A callable with arguments, and the use of what it makes.

    Attributes:
        make: Its signature has the arguments.
        use: Trains, or begins to, with what `make` made.
        base: The arguments of all workers.
        changed: Those of one worker instead, by the argument that is changed.
        alike: Why an argument cannot change training, by its name.
        more: Other callables whose arguments `make` takes by **kwargs.
        said: How messages call an argument, where they do not call it by its name.
    """

    make: Callable[..., Any]
    use: Callable[[Any], object]
    base: Mapping[str, Any]
    changed: Mapping[str, Any]
    alike: Mapping[str, str] = field(default_factory=dict)
    more: tuple[Callable[..., Any], ...] = ()
    said: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> set[str]:
        """Returns the names of all public arguments."""
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return {
            name
            for each in (self.make, *self.more)
            for name, parameter in inspect.signature(each).parameters.items()
            if name != "self" and parameter.kind not in kinds
        }

    def run(self, argument: str, is_odd: bool) -> None:
        """Makes the thing as one worker does, and uses it."""
        change = self.changed[argument]
        both = change if isinstance(change, Both) else Both({}, {argument: change})
        given = {**self.base, **both.all, **(both.odd if is_odd else {})}
        values = {
            name: value.make() if isinstance(value, Made) else value
            for name, value in given.items()
        }
        self.use(self.make(**values))


KEYS = np.array([[3, 5], [4, 3]])


_numbers = itertools.count()


def folder() -> str:
    return os.path.join(tempfile.gettempdir(), f"differing-{os.getpid()}-{next(_numbers)}")


def storage(**arguments: Any) -> Made:
    return Made(lambda: sok.Storage(folder(), **arguments))


def look_up(layer: Any) -> None:
    layer(KEYS, training=True)


def collection(feature: sok.FeatureConfig, **arguments: Any) -> None:
    sok.DistributedEmbedding({"f": feature}, name="fields", **arguments)(
        {"f": tf.constant(KEYS)}, training=True
    )


def table(**arguments: Any) -> sok.TableConfig:
    return sok.TableConfig(
        **{"name": "t", "vocabulary_size": None, "embedding_dim": 2, **arguments}
    )


def apply(optimizer: Any, *variables: Any) -> None:
    """Applies one step to dense variables, whose gradients are averaged."""
    chosen = variables or [keras.Variable(np.ones([2, 2], np.float32), name="w")]
    averaging = sok.DistributedOptimizer(optimizer)
    averaging.apply([tf.ones(each.shape) for each in chosen], list(chosen))


def train_weight(layer: Any) -> None:
    layer.build(None)
    apply(keras.optimizers.SGD(0.1), layer.weight)


def rows(**arguments: Any) -> Any:
    return sok.DynamicEmbedding(2, name="items", **arguments)
