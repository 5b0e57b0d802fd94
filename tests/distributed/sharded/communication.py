"""What a communicator promises, and `init`, on any number of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from sharded.registry import Here, scenario
from sok_embed import communicators
from sok_embed.communicators.horovod import HorovodCommunicator


@scenario
def communicator(here: Here) -> dict[str, Any]:
    return _asked(here, communicators.current(), "ours")


@scenario
def communicator_of_horovod(here: Here) -> dict[str, Any]:
    """That which leaves everything to Horovod, where Horovod has started the workers."""
    transport = communicators.current()
    if isinstance(transport, HorovodCommunicator):
        transport = HorovodCommunicator("horovod")
    return _asked(here, transport, "horovod")


def _asked(here: Here, transport: communicators.Communicator, whose: str) -> dict[str, Any]:
    """Worker r sends r + q rows of the value 10 r + q to worker q."""
    splits = tf.constant([here.rank + q for q in range(here.size)], tf.int32)
    rows = np.repeat([10.0 * here.rank + q for q in range(here.size)], splits)
    source = tf.constant(np.stack([rows, rows], 1), tf.float32)
    saved: dict[str, Any] = {"class": type(transport).__name__}
    for mode in ("eager", "function"):

        def exchange(tensor: tf.Tensor, name: str = mode) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                received, received_splits = transport.all_to_all(tensor, splits, f"{whose}.{name}")
                loss = tf.reduce_sum(received * (here.rank + 1.0))
            return received, received_splits, tape.gradient(loss, tensor)

        run = exchange if mode == "eager" else tf.function(exchange)
        received, received_splits, gradient = run(source)
        saved[f"{mode}.received"] = received.numpy()
        saved[f"{mode}.splits"] = received_splits.numpy()
        saved[f"{mode}.gradient"] = gradient.numpy()
    own = tf.constant([here.rank + 1.0, 2.0])
    saved["sum"] = transport.all_reduce(own, f"{whose}.sum").numpy()
    saved["average"] = transport.all_reduce(own, f"{whose}.average", average=True).numpy()
    with tf.GradientTape() as tape:
        tape.watch(source)
        gathered, counts = transport.all_gather(source, f"{whose}.gathered")
        loss = tf.reduce_sum(gathered * (here.rank + 1.0))
    saved["gathered"], saved["counts"] = gathered.numpy(), counts.numpy()
    saved["gathered.gradient"] = tape.gradient(loss, source).numpy()
    saved["broadcast"] = transport.broadcast(own, here.size - 1, f"{whose}.broadcast").numpy()
    transport.barrier()
    return saved
