"""Describes what decides how a model trains, as nests of dicts and lists that workers compare.

Objects of Keras are described by their configs, functions by their names and their code, other
objects by their class and those of their attributes that are numbers or texts; of a layer, those
that are arguments of its constructor too.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sok_embed import kv
from sok_embed.optimizers.row_rules import config_of

# Arguments of this package that may differ between workers, and why they may.
MAY_DIFFER = {
    "device": "A worker holds its rows in the memory that it has; steps are the same there.",
    "input_shape": "It may decide on a placement. Placements are compared.",
    "max_bytes": "It bounds the memory of a worker's GPU, and changes no row.",
    "output_shape": "It is for readers of a config.",
    "partition_num": "It is how many threads of a worker can change rows at once.",
    "reset_slots": "It is a permission to open a folder.",
    "storage_path": "Each worker has a folder of its own.",
    "storage_size": "The cache of a storage changes how fast rows are read, and no row.",
}
# Parts of the configs of Keras that its loader needs, or that the first batch decides. Layers with
# other seeds drop out other elements on each worker, as they should; initial values are compared by
# nobody, and `BroadcastVariables` makes them equal.
_NOT_OF_CONFIGS = {"build_config", "module", "registered_name", "seed", "shared_object_id"}
_SHAPES = {"batch_shape", "batch_input_shape"}  # with the size of the batch
_LONG = 100  # elements of a list, beyond which a digest stands for it


def plain(value: Any) -> Any:
    """Returns a description of a value: what JSON can hold, lists of that, dicts by texts."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return _number(value) if math.isfinite(value) else repr(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, (tf.DType, np.dtype, keras.DTypePolicy)):
        return value.name
    if isinstance(value, (np.ndarray, tf.Tensor, tf.Variable, keras.Variable)):
        return _array(value)
    if isinstance(value, Mapping):
        return _of_config(value) if "class_name" in value else _by_name(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _object(value, value._asdict())  # type: ignore[attr-defined]
    if isinstance(value, (list, tuple)):
        return _shortened([plain(each) for each in value])
    if isinstance(value, (set, frozenset)):
        return sorted((plain(each) for each in value), key=json.dumps)
    if isinstance(value, type):
        return _name(value)
    if isinstance(value, kv.Storage):
        return {"class": _name(type(value)), "ttl": value.ttl}
    if dataclasses.is_dataclass(value):
        fields = [each.name for each in dataclasses.fields(value)]
        return _object(value, {name: getattr(value, name) for name in fields})
    return _function(value) if _is_function(value) else _other(value)


def of_arguments(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the arguments of a layer of this package, as far as they are attributes of it."""
    found = {
        "trainable": layer.trainable,
        "dtype": layer.dtype_policy,
        "activity_regularizer": layer.activity_regularizer,
    }
    for cls in type(layer).__mro__:
        if _is_ours(cls):
            names = [name for name in _arguments(cls) if hasattr(layer, name)]
            found |= {name: getattr(layer, name) for name in names}
    return _object(layer, found)


def of_optimizer(optimizer: Any) -> dict[str, Any]:
    """Returns the class and the hyperparameters of an optimizer, with its rate or its schedule."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):  # of `tf.compat.v1.train`
        return _attributes(optimizer)
    name = _name(optimizer.__class__)  # a `DistributedOptimizer` gives the class that it wraps
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        own = ("initial_scale", "dynamic_growth_steps")
        facts = {each: plain(getattr(optimizer, each)) for each in own}
        return {"class": name, **facts, "inner": of_optimizer(optimizer.inner_optimizer)}
    config = _config(lambda: config_of(optimizer))
    if config is None:
        return {**_attributes(optimizer), "class": name}
    return {"class": name, **_by_name({each: config[each] for each in config if each != "name"})}


def of_layer(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the class of a layer of Keras and its config, if it has one."""
    if isinstance(layer, keras.layers.Lambda):
        return {"class": _name(type(layer)), "function": plain(layer.function)}
    return _other(layer)


def _object(value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the class and the fields of an object of this package, or of another."""
    left_out = MAY_DIFFER if any(map(_is_ours, type(value).__mro__)) else ()
    kept = {name: each for name, each in fields.items() if name not in left_out}
    return {"class": _name(type(value)), **_by_name(kept)}


def _other(value: Any) -> dict[str, Any]:
    """Returns the class of an object, and its config or its simple attributes."""
    if isinstance(value, keras.optimizers.Optimizer):
        return of_optimizer(value)
    if isinstance(value, keras.layers.Layer) and hasattr(value, "_training_facts"):
        return {**of_arguments(value), **value._training_facts()}
    config = _config(value.get_config) if hasattr(value, "get_config") else None
    if config is None:
        return _attributes(value)
    return {"class": _name(type(value)), **_of_config(config)}


def _config(get_config: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Returns a config; `None` of an object that cannot be saved and may train nevertheless.

    Keras looks for the source of a lambda, say, which a notebook does not have.
    """
    try:
        with tf.init_scope(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return get_config()
    except Exception:
        return None


def _attributes(value: Any) -> dict[str, Any]:
    found = getattr(value, "__dict__", {})
    if isinstance(value, keras.layers.Layer):
        # Others may be of the worker, such as its rank, a path or a time.
        given = {name for cls in type(value).__mro__ for name in _arguments(cls)}
        found = {name: each for name, each in found.items() if name.removeprefix("_") in given}
    simple = {
        name: plain(each)
        for name, each in found.items()
        if isinstance(each, (bool, int, float, str, np.generic))
    }
    return {"class": _name(type(value)), **simple}


def _by_name(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): plain(value) for name, value in values.items()}


def _of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config of Keras without what may differ between workers."""
    if config.get("class_name") == "__lambda__":
        return {"class_name": "lambda"}  # the bytes that Keras writes of one function may differ

    def part(name: str, value: Any) -> Any:
        if name in _SHAPES and isinstance(value, (list, tuple)):
            return plain(list(value[1:]))
        if isinstance(value, Mapping):
            return _of_config(value)
        if isinstance(value, (list, tuple)):
            return _shortened([part("", each) for each in value])
        return plain(value)

    return {
        str(name): part(str(name), value)
        for name, value in config.items()
        if name not in _NOT_OF_CONFIGS
    }


def _number(value: float) -> float:
    """Returns a float; the shortest one of those that are one float32, if it is one of them."""
    single = np.float32(value)
    return float(str(single)) if float(single) == value else value


def _shortened(values: list[Any]) -> Any:
    if len(values) <= _LONG:
        return values
    return {"length": len(values), "digest": _digest(json.dumps(values).encode())}


def _array(value: Any) -> dict[str, Any]:
    if isinstance(value, (tf.Variable, keras.Variable)) or not hasattr(value, "__array__"):
        return {"shape": [*map(plain, value.shape)], "dtype": str(value.dtype)}
    if isinstance(value, tf.Tensor) and not hasattr(value, "numpy"):
        return {"shape": [*map(plain, value.shape)], "dtype": value.dtype.name}  # of a graph
    array = np.asarray(value)
    digest = _digest(np.ascontiguousarray(array).tobytes())
    return {"shape": list(array.shape), "dtype": array.dtype.name, "digest": digest}


def _is_function(value: Any) -> bool:
    return isinstance(value, (FunctionType, MethodType, functools.partial)) or inspect.isbuiltin(
        value
    )


def _function(value: Any) -> dict[str, Any]:
    """Returns the name of a function, its code, and the values that it was made with."""
    if isinstance(value, functools.partial):
        given = [plain(value.func), plain(value.args), plain(value.keywords)]
        return dict(zip(("function", "arguments", "keywords"), given, strict=True))
    facts: dict[str, Any] = {"function": f"{value.__module__}.{value.__qualname__}"}
    function = value.__func__ if isinstance(value, MethodType) else value
    if isinstance(function, FunctionType):
        facts["code"] = _digest(repr(_code(function.__code__)).encode())
        made_with = [function.__defaults__ or (), *map(_content, function.__closure__ or ())]
        facts["values"] = [
            each if isinstance(each, (bool, int, float, str)) else type(each).__name__
            for part in made_with
            for each in (part if isinstance(part, tuple) else [part])
        ]
    return facts


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is empty
        return None


def _code(code: CodeType) -> tuple[Any, ...]:
    """Returns what a code does, without the file and the lines that it stands in."""
    constants = [
        _code(each) if isinstance(each, CodeType) else _ordered(each) for each in code.co_consts
    ]
    return (code.co_code, code.co_names, code.co_varnames, constants)


def _ordered(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _name(cls: type) -> str:
    # Keras and this package move their classes between modules.
    home = cls.__module__.partition(".")[0]
    return f"{home if home in ('keras', 'sok_embed') else cls.__module__}.{cls.__qualname__}"


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "sok_embed"


def _arguments(cls: type) -> Iterable[str]:
    """Returns the names of the arguments of a class's own constructor."""
    if "__init__" not in vars(cls):
        return ()
    names = list(inspect.signature(vars(cls)["__init__"]).parameters.values())[1:]
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [each.name for each in names if each.kind not in kinds]
