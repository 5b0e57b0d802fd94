"""The rules of the core that are twins of Keras optimizers: one row for each rule and class.

Nothing here imports Keras, so that plans can be made without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

_NONE: Mapping[str, Any] = MappingProxyType({})


class Twin(NamedTuple):
    """A rule of the core, and the Keras optimizer whose arithmetic it has.

    The parameters of the rule are attributes of the optimizer with the same names.

    Attributes:
        rule: The rule's name in the registry of `tf_ops/core/rules/row_optimizer.cc`.
        optimizer: The name of the class, in `keras.optimizers` or `sok_embed.optimizers`.
        options: The options of the class that choose this rule by being true or above 0. Options
            that other rows of the class name must be off.
        arguments: The arguments of the optimizer that `optimizer="<rule>"` makes. `None` if the
            rule is not such a name.
    """

    rule: str
    optimizer: str
    options: tuple[str, ...] = ()
    arguments: Mapping[str, Any] | None = _NONE


TWINS = (
    Twin("sgd", "SGD"),
    Twin("momentum", "SGD", ("momentum",), {"momentum": 0.9}),
    Twin("adagrad", "Adagrad"),
    Twin("rowwise_adagrad", "RowwiseAdagrad"),
    Twin("rmsprop", "RMSprop"),
    Twin("rmsprop_centered", "RMSprop", ("centered",), None),
    Twin("rmsprop_momentum", "RMSprop", ("momentum",), None),
    Twin("rmsprop_centered_momentum", "RMSprop", ("centered", "momentum"), None),
    Twin("adam", "Adam"),
    Twin("adamw", "AdamW"),
    Twin("adadelta", "Adadelta"),
    Twin("adamax", "Adamax"),
    Twin("amsgrad", "Adam", ("amsgrad",), {"amsgrad": True}),
    Twin("amsgrad", "AdamW", ("amsgrad",), None),
    Twin("nadam", "Nadam"),
    Twin("ftrl", "Ftrl"),
    Twin("group_ftrl", "GroupFtrl"),
    Twin("lion", "Lion"),
)
_RULES = {(twin.optimizer, frozenset(twin.options)): twin.rule for twin in TWINS}
_OPTIONS = {
    twin.optimizer: {
        name for each in TWINS if each.optimizer == twin.optimizer for name in each.options
    }
    for twin in TWINS
}


def rule_of_class(optimizer: str, option: Callable[[str], Any]) -> str | None:
    """Returns the rule of an optimizer, or `None` if its class has none."""
    options = _OPTIONS.get(optimizer, ())
    chosen = frozenset(name for name in options if (option(name) or 0) > 0)
    return _RULES.get((optimizer, chosen))
