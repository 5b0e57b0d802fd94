"""Arguments of optimizers and schedules."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import keras

import sok_embed.optimizers
from sharded.differing.kinds import Kind, Made, apply


def optimizers() -> Iterator[tuple[str, Kind]]:
    """Yields the optimizers of Keras and of this package; a change of a number is another one."""
    base_arguments = set(inspect.signature(keras.optimizers.SGD).parameters) - {
        "momentum", "nesterov", "learning_rate", "weight_decay", "kwargs"
    }  # fmt: skip
    common = {
        "clipnorm": 1.0,
        "clipvalue": 1.0,
        "global_clipnorm": 1.0,
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 5,
        "loss_scale_factor": 2.0,
        "gradient_accumulation_steps": 2,
        "weight_decay": 0.5,
        "exclude_layers": ["w"],
    }
    names = {"name": "Keras numbers the names of objects."}
    classes = [
        cls
        for module in (keras.optimizers, sok_embed.optimizers)
        for cls in vars(module).values()
        if isinstance(cls, type)
        and issubclass(cls, keras.optimizers.Optimizer)
        and cls.__name__ not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
    ]
    for cls in classes:
        parameters = inspect.signature(cls).parameters
        changed = {
            name: common[name] if name in common else _another(each.default)
            for name, each in parameters.items()
            if name not in ("kwargs", "name")
        }
        alike = dict(names) if "name" in parameters else {}
        if cls is not keras.optimizers.SGD:  # which has been tried with what all of them have
            tried = [name for name in changed if name in base_arguments]
            alike |= {name: "The base class has it, as of SGD." for name in tried}
            changed = {name: value for name, value in changed.items() if name not in alike}
        yield cls.__name__, Kind(cls, apply, {}, changed, alike)
    yield (
        "LossScaleOptimizer",
        Kind(
            keras.optimizers.LossScaleOptimizer,
            apply,
            dict(inner_optimizer=Made(lambda: keras.optimizers.SGD(0.1))),
            dict(
                inner_optimizer=Made(lambda: keras.optimizers.SGD(0.2)),
                initial_scale=8.0,
                dynamic_growth_steps=7,
            ),
            names,
            said={"inner_optimizer": "inner.learning_rate"},
        ),
    )
    for cls in vars(keras.optimizers.schedules).values():
        if not isinstance(cls, type) or cls is keras.optimizers.schedules.LearningRateSchedule:
            continue
        starts = {
            "boundaries": [5],
            "decay_rate": 0.5,
            "decay_steps": 10,
            "first_decay_steps": 10,
            "initial_learning_rate": 0.1,
            "values": [0.1, 0.2],
        }
        others = {"boundaries": [6], "values": [0.1, 0.3], "warmup_target": 0.2}
        parameters = inspect.signature(cls).parameters
        base = {name: value for name, value in starts.items() if name in parameters}
        changed = {
            name: others[name] if name in others else _another(base.get(name, each.default))
            for name, each in parameters.items()
            if name != "name"
        }
        use = lambda schedule: apply(keras.optimizers.SGD(schedule))  # noqa: E731
        yield f"schedules.{cls.__name__}", Kind(cls, use, base, changed, names)


def _another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value / 2 if isinstance(value, float) and value else type(value)(value + 1)
