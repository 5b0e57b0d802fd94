"""The Keras optimizers whose rules rows have: one table from which tests of all rules draw.

A new rule needs a row here. The row brings the comparison with Keras over many steps, the slots of
a variable, the round trip of the config, and with `random` the random programs of
`random_training`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras

import sok_embed


class OptimizerCase(NamedTuple):
    """An optimizer, and what the tests make of it.

    Attributes:
        rule: The name of its rule in the core.
        make: The class.
        options: The arguments in comparisons with Keras.
        choosing: The entries of the optimizer's config that choose the rule, and are not
            parameters of the rule.
        random: The arguments in random programs of training, where `epsilon` is large, so that
            a rounding of the gradient is not all of a step. `None` leaves the optimizer out.
        named: The arguments that the name of the rule stands for in `optimizer=`. `None` if
            another row of the rule has them, or if the rule is not such a name.
        has_dense_twin: Whether a dense weight of Keras is trained by the same formula.
    """

    rule: str
    make: Callable[..., keras.optimizers.Optimizer]
    options: Mapping[str, Any]
    choosing: frozenset[str] = frozenset()
    random: Mapping[str, Any] | None = None
    named: Mapping[str, Any] | None = None
    has_dense_twin: bool = True

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Makes the optimizer that is compared with Keras."""
        return self.make(**self.options)


_MOMENTUM = frozenset({"momentum", "nesterov"})
_AMSGRAD = frozenset({"amsgrad"})
_k = keras.optimizers

CASES = {
    "sgd": OptimizerCase(
        "sgd", _k.SGD, {"learning_rate": 0.1}, _MOMENTUM, {"learning_rate": 0.02}, {}
    ),
    "momentum": OptimizerCase(
        "momentum",
        _k.SGD,
        {"learning_rate": 0.01, "momentum": 0.9},
        random={"learning_rate": 0.01, "momentum": 0.8},
        named={"momentum": 0.9},
    ),
    "nesterov": OptimizerCase(
        "momentum",
        _k.SGD,
        {"learning_rate": 0.01, "momentum": 0.9, "nesterov": True},
        random={"learning_rate": 0.01, "momentum": 0.8, "nesterov": True},
    ),
    "adagrad": OptimizerCase(
        "adagrad",
        _k.Adagrad,
        {"learning_rate": 0.1},
        random={"learning_rate": 0.05},
        named={},
    ),
    "adam": OptimizerCase(
        "adam",
        _k.Adam,
        {"learning_rate": 0.01},
        _AMSGRAD,
        random={"learning_rate": 0.01, "epsilon": 0.1},
        named={},
    ),
    "adam_weight_decay": OptimizerCase(
        "adam", _k.Adam, {"learning_rate": 0.01, "weight_decay": 0.1}, _AMSGRAD
    ),
    "amsgrad": OptimizerCase(
        "amsgrad",
        _k.Adam,
        {"learning_rate": 0.01, "amsgrad": True},
        _AMSGRAD,
        random={"learning_rate": 0.01, "amsgrad": True, "epsilon": 0.1},
        named={"amsgrad": True},
    ),
    "adamw": OptimizerCase(
        "adamw",
        _k.AdamW,
        {"learning_rate": 0.01, "weight_decay": 0.1},
        _AMSGRAD,
        random={"learning_rate": 0.01, "weight_decay": 0.01, "epsilon": 0.1},
        named={},
    ),
    "nadam": OptimizerCase(
        "nadam",
        _k.Nadam,
        {"learning_rate": 0.01},
        random={"learning_rate": 0.01, "epsilon": 0.1},
        named={},
    ),
    "rmsprop": OptimizerCase(
        "rmsprop",
        _k.RMSprop,
        {"learning_rate": 0.01},
        frozenset({"momentum", "centered"}),
        random={"learning_rate": 0.01, "epsilon": 0.1},
        named={},
    ),
    "rmsprop_centered": OptimizerCase(
        "rmsprop_centered",
        _k.RMSprop,
        {"learning_rate": 0.01, "centered": True},
        frozenset({"momentum", "centered"}),
        random={"learning_rate": 0.01, "centered": True, "epsilon": 0.1},
    ),
    "rmsprop_momentum": OptimizerCase(
        "rmsprop_momentum",
        _k.RMSprop,
        {"learning_rate": 0.01, "momentum": 0.5},
        frozenset({"centered"}),
    ),
    "rmsprop_centered_momentum": OptimizerCase(
        "rmsprop_centered_momentum",
        _k.RMSprop,
        {"learning_rate": 0.01, "centered": True, "momentum": 0.5},
        frozenset({"centered"}),
    ),
    "ftrl": OptimizerCase(
        "ftrl",
        _k.Ftrl,
        {"learning_rate": 0.1, "beta": 0.1},
        random={"learning_rate": 0.05, "beta": 0.1},
        named={},
    ),
    "ftrl_l1_l2": OptimizerCase(
        "ftrl",
        _k.Ftrl,
        {
            "learning_rate": 0.1,
            "l1_regularization_strength": 0.01,
            "l2_regularization_strength": 0.02,
        },
    ),
    "adadelta": OptimizerCase(
        "adadelta",
        _k.Adadelta,
        {"learning_rate": 1.0, "rho": 0.9},
        random={"learning_rate": 1.0, "epsilon": 1e-3},
        named={},
    ),
    "adadelta_weight_decay": OptimizerCase(
        "adadelta", _k.Adadelta, {"learning_rate": 1.0, "weight_decay": 0.01}
    ),
    "adamax": OptimizerCase(
        "adamax",
        _k.Adamax,
        {"learning_rate": 0.01},
        random={"learning_rate": 0.01, "epsilon": 0.01},
        named={},
    ),
    "adamax_weight_decay": OptimizerCase(
        "adamax", _k.Adamax, {"learning_rate": 0.01, "weight_decay": 0.01}
    ),
    "ftrl_shrinkage": OptimizerCase(
        "ftrl", _k.Ftrl, {"learning_rate": 0.1, "l2_shrinkage_regularization_strength": 0.02}
    ),
    # Keras trains dense weights by Ftrl: see test_group_ftrl.py.
    "group_ftrl": OptimizerCase(
        "group_ftrl",
        sok_embed.optimizers.GroupFtrl,
        {"learning_rate": 0.1},
        named={},
        has_dense_twin=False,
    ),
    "lion": OptimizerCase("lion", _k.Lion, {"learning_rate": 0.001}, named={}),
    "lion_weight_decay": OptimizerCase(
        "lion", _k.Lion, {"learning_rate": 0.001, "weight_decay": 0.1}
    ),
    "rowwise_adagrad": OptimizerCase(
        "rowwise_adagrad",
        sok_embed.optimizers.RowwiseAdagrad,
        {"learning_rate": 0.1},
        named={},
    ),
}
