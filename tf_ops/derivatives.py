"""Errors for derivatives that rows do not have."""

from __future__ import annotations

from typing import Any, NoReturn

import tensorflow as tf


@tf.RegisterGradient("SokEmbed>Deposit")
@tf.RegisterGradient("SokEmbed>DepositOnGpu")
@tf.RegisterGradient("SokEmbed>DepositPooledOnGpu")
def _second_derivative(*_: Any) -> NoReturn:
    raise ValueError(
        "Expected second derivatives by way of the vectors that the layer returns. Received: one "
        "by way of a gradient of layer.anchor, whose elements are not those of the rows. Watch the "
        "vectors with the inner tape and take its gradient by them: inner.watch(vectors), "
        "inner.gradient(loss, vectors)."
    )
