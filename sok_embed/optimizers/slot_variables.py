"""Finds the slots of a variable in an optimizer, in the order of a row's slots."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sok_embed.binding import _core
from sok_embed.optimizers import v1_optimizers
from sok_embed.optimizers.row_rules import row_rule


def slot_variables(optimizer: Any, variable: Any) -> list[tf.Variable] | None:
    """Finds an optimizer's slots of a variable.

    Example:
    >>> variable = keras.Variable([[1.0, 2.0]])
    >>> optimizer = keras.optimizers.Adagrad(initial_accumulator_value=0.5)
    >>> optimizer.build([variable])
    >>> [slot.numpy().tolist() for slot in slot_variables(optimizer, variable)]
    [[[0.5, 0.5]]]

    Args:
        optimizer: The optimizer, of Keras or of `tf.compat.v1.train`.
        variable: A `keras.Variable` or a `tf.Variable`.

    Returns:
        Resource variables in the order of the slots of a row under `row_rule(optimizer)`. `None`
        if there is no such rule, if the optimizer has an `update_step` of its own, if it has no
        slots of this variable (yet), or if one is not a resource variable.
    """
    try:
        found = row_rule(optimizer)
    except ValueError:
        return None
    if found.formula is not None:
        return None
    rule = found.name
    native = variable.value if isinstance(variable, keras.Variable) else variable
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        slots = [optimizer.get_slot(native, name) for name in v1_optimizers.SLOTS[rule]]
    else:
        slots = _keras_slots(optimizer, native, rule)
    return slots if all(hasattr(slot, "handle") for slot in slots) else None


def slots_beside(optimizer: Any, variable: Any) -> list[tf.Variable] | None:
    """Finds an optimizer's slots of a variable on its device, where an op can read them.

    A Keras optimizer that is built within a function has its slots on the first GPU, if there is
    one, even if the variable is elsewhere. Then this function keeps copies of the slots on the
    device of the variable, and updates them in each call; in a `tf.function`, in each run.
    """
    slots = slot_variables(optimizer, variable)
    if not slots or isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return slots
    native = variable.value if isinstance(variable, keras.Variable) else variable
    return [slot if slot.device == native.device else _copied(slot, native) for slot in slots]


def _copied(slot: tf.Variable, beside: tf.Variable) -> tf.Variable:
    """Returns a copy of a slot on the device of another variable."""
    with tf.init_scope(), tf.device(beside.device):
        copy = getattr(slot, "_sok_embed_copy", None)
        if copy is None:
            zeros = tf.zeros(slot.shape, slot.dtype)
            copy = slot._sok_embed_copy = tf.Variable(zeros, trainable=False)
    copy.assign(slot.read_value())
    return copy


def _keras_slots(optimizer: Any, variable: Any, rule: str) -> list[Any]:
    slots = _core.rule_slots(rule)
    if not optimizer.built:
        return [None] * len(slots)
    index = optimizer._trainable_variables_indices.get(optimizer._var_key(variable))
    if index is None:
        return [None] * len(slots)
    return [_slots_of_all_variables(optimizer, slot)[index].value for slot in slots]


def _slots_of_all_variables(optimizer: Any, slot: str) -> Any:
    """Returns the list in which an optimizer of Keras keeps a slot.

    The attribute is the plural of the slot's name, unless the name is a letter of a formula.
    """
    plural = "velocities" if slot == "velocity" else slot if len(slot) == 1 else f"{slot}s"
    return getattr(optimizer, f"_{plural}" if hasattr(optimizer, f"_{plural}") else plural)
