"""Layers of every form with an admission, each trained on a share of one stream of keys."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from counted_forms import FORMS, stream

import sok_embed
from sharded.models import share
from sharded.registry import Here, scenario

SEED = 29


def _train(here: Here, training: bool) -> dict[str, Any]:
    admitted: dict[str, Any] = {}
    for name, make in FORMS.items():
        counted = make()
        optimizer = sok_embed.DistributedOptimizer(keras.optimizers.SGD(0.5))
        for step, batch in enumerate(stream(SEED)):
            with tf.GradientTape() as tape:
                loss = counted.loss(share(batch, here), training)
            variables = counted.layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            admitted[f"{name}.{step}"] = counted.admitted()
    return admitted


@scenario
def counted_in_training(here: Here) -> dict[str, Any]:
    return _train(here, True)


@scenario
def counted_by_gradients(here: Here) -> dict[str, Any]:
    return _train(here, False)
