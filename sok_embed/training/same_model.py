"""Compares the models of all workers before they train: what differs is an error on all of them.

Workers share rows and average gradients, so a table or an optimizer that differs on one of them
would train all of them wrongly, in silence. Models are compared at two moments:

- Before an optimizer applies its first step: all that decides how it trains, which is the
  optimizer, its variables in their order, the layers behind them, and in `fit` the whole model.
- In a lookup: each of its messages has a fingerprint of the layer, which costs nothing. An eager
  lookup compares the layers first, so that the error says what differs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from sok_embed import communicators
from sok_embed.communicators.agreement import Agreement
from sok_embed.communicators.alike import Description, check_alike, flat, number_of
from sok_embed.keras_bridge import callers
from sok_embed.keras_bridge.anchors import is_anchor
from sok_embed.keras_bridge.private_state import all_layers, inputs_of_layers, losses_of
from sok_embed.training.descriptions import of_layer, of_optimizer, plain

_REMEDY = (
    "Build and compile the same model on all workers: names, seeds and options of layers must not "
    "depend on the worker, and layers must be made in the same order, as from a sorted list and "
    "not from a set."
)

_REMEDY_OF_RATES = (
    "Change the rate alike on all workers. A callback that goes by metrics, such as "
    "ReduceLROnPlateau, needs sok_embed.callbacks.AverageMetrics() before it."
)


# The attribute of a dense variable with a function that returns the layers of this package that
# use it.
USERS = "_sok_embed_users"


class Hosted(Protocol):
    """Tables of a layer."""

    host: Callable[[], Any]  # returns the layer, by a weak reference


_compared: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers and layers
_fingerprints: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def take_same_start(model: keras.Model, root_rank: int, variables: Iterable[Any]) -> None:
    """Gives all workers the values that variables of a model and its optimizer have on one of them.

    Collective. It first compares the models, so that workers send each other the same variables.

    Args:
        model: The model, which is built.
        root_rank: The worker that has the values.
        variables: The variables of the model. Those of its optimizer follow.
    """
    communicator = communicators.current()
    if communicator.size == 1:
        return
    check_same_start(model)
    optimizer = model.optimizer
    for i, variable in enumerate([*variables, *(optimizer.variables if optimizer else [])]):
        if variable.dtype not in ("string", "bool"):
            name = f"sok_embed.broadcast.{i}"
            variable.assign(communicator.broadcast(variable.value, root_rank, name))


def check_same_step(optimizer: Any, variables: Sequence[Any], averages: bool) -> None:
    """Raises on all workers if the steps of an optimizer would train otherwise on one of them.

    Collective in the first call for an optimizer, if there are several workers. Later calls do
    nothing. `averages` says whether the gradients of the variables are averaged over the workers.

    Raises:
        ValueError: For models that differ, with what differs, both values and the workers.
    """
    if communicators.size() == 1 or optimizer in _compared:
        return

    def describe() -> Description:
        facts = {**of_optimizer(optimizer), "averaging over workers": averages}
        if isinstance(optimizer, keras.optimizers.Optimizer):
            facts["steps before"] = int(tf.convert_to_tensor(optimizer.iterations))
        found = {
            "the optimizer": facts,
            **(_of_variables(variables, optimizer) if averages else {}),
            **_of_hosts(_hosts_of(variables)),
        }
        model = callers.fitting_model()
        fitted: Any = None if model is None else model.optimizer
        if model is not None and optimizer in (fitted, getattr(fitted, "inner_optimizer", None)):
            found |= _of_model(model)
        return found

    _check("the first step of an optimizer", describe)
    _compared.add(optimizer)


def check_same_start(model: keras.Model) -> None:
    """Raises on all workers unless they can give each other their variables. Collective.

    Learning rates and numbers of steps are among what they give.
    """

    def describe() -> Description:
        optimizer = model.optimizer
        facts = {} if optimizer is None else of_optimizer(optimizer)
        for each in (facts, facts.get("inner", {})):  # that of a `LossScaleOptimizer`
            each.pop("learning_rate", None)
        return {
            "the optimizer": facts,
            **_of_variables(model.variables),
            **_of_hosts(_hosts_of(model.variables)),
            **_of_model(model),
        }

    _check("a broadcast of the variables of a model", describe)


def check_same_rate(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises on all workers if an optimizer has another learning rate on one. Collective."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    _check(
        "the next epoch",
        lambda: {"the optimizer": {"learning_rate": of_optimizer(inner).get("learning_rate")}},
        _REMEDY_OF_RATES,
    )


def check_same_hosts(tables: Iterable[Hosted]) -> None:
    """Raises on all workers unless they look keys up in the same tables. Collective.

    Only for a lookup that all workers make now: an eager one. Does nothing for layers that were
    compared before.
    """
    new = [host for host in _distinct_hosts(tables) if host not in _compared]
    if not new:
        return
    what = " and ".join(_thing(host) for host in new)
    _check(f"the first lookup of {what}", lambda: _of_hosts(new))
    _compared.update(new)


def fingerprint_of(tables: Iterable[Hosted]) -> int:
    """Returns an int64 of all that decides how tables train, the same on every worker."""
    hosts = _distinct_hosts(tables)
    for host in hosts:
        if host not in _fingerprints:
            _fingerprints[host] = number_of(dict(flat(_of_hosts([host]))))
    numbers = [_fingerprints[host] for host in hosts]
    return numbers[0] if len(numbers) == 1 else number_of({"hosts": str(numbers)})


def _check(what: str, describe: Callable[[], Description], remedy: str = _REMEDY) -> None:
    with tf.init_scope():
        check_alike(Agreement(communicators.current()), what, describe, remedy)


def _distinct_hosts(tables: Iterable[Hosted]) -> list[Any]:
    hosts = dict.fromkeys(table.host() for table in tables)
    return [host for host in hosts if host is not None]


def _hosts_of(variables: Iterable[Any]) -> list[Any]:
    """Returns the layers of this package that variables belong to."""
    hosts: dict[Any, None] = {}
    for variable in variables:
        if is_anchor(variable):
            hosts |= dict.fromkeys([variable.constraint.host])
        else:
            hosts |= dict.fromkeys(getattr(variable, USERS, list)())
    return [host for host in hosts if host is not None]


def _of_hosts(hosts: Iterable[Any]) -> Description:
    return {_thing(host): of_layer(host) for host in hosts}


def _of_variables(variables: Iterable[Any], optimizer: Any = None) -> Description:
    """Describes variables in their order, by which workers average and broadcast them."""
    decays = getattr(optimizer, "weight_decay", None)
    described = {}
    for i, each in enumerate(variables):
        text = f"{getattr(each, 'path', each.name)} of shape {tuple(each.shape)} and {each.dtype}"
        if decays and not optimizer._use_weight_decay(each):
            text += " without weight decay"
        described[f"variable {i}"] = text
    return described


def _of_model(model: keras.Model) -> Description:
    """Describes the layers of a model, of which the outputs of which go where, and its losses."""
    return {
        "the loss": plain(losses_of(model)),
        "inputs of layers": inputs_of_layers(model),
        **{_thing(layer): of_layer(layer) for layer in all_layers(model)},
    }


def _thing(layer: Any) -> str:
    # Lookups find each other by the names of layers.
    return f"layer '{layer.name if hasattr(layer, '_training_facts') else layer.path}'"
