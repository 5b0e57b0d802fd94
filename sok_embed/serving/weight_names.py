"""Names of the dense weights of a model, by which an export and a training find each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import keras
import tensorflow as tf


def names_of(model: keras.Model, others: Iterable[tf.Variable] = ()) -> dict[str, tf.Variable]:
    """Returns the variables of a model by names that are all different.

    A weight has TensorFlow's name for it, such as `dense/kernel`. Layers of subclassed models give
    several weights the same one, which then have Keras' paths, such as `ranker/dense_1/kernel`.
    `others` are variables that the model reads without having them as weights.
    """
    weights = {id(each.value): each for each in model.weights}
    short = {number: _short(each.value) for number, each in weights.items()}
    counts = Counter(short.values())
    named: dict[str, tf.Variable] = {}
    for number, each in weights.items():
        wanted = short[number] if counts[short[number]] == 1 else each.path
        named[_free(wanted, named)] = each.value
    tracked = tf.train.TrackableView(model).descendants()
    for each in (*(each for each in tracked if isinstance(each, tf.Variable)), *others):
        if id(each) not in weights:
            weights[id(each)] = each
            named[_free(_short(each), named)] = each
    return named


def _short(variable: tf.Variable) -> str:
    return variable.name.removesuffix(":0")


def _free(name: str, taken: dict[str, tf.Variable]) -> str:
    """Returns a name, with a number if it is taken."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free
