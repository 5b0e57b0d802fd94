"""Trains by a loop over TCP until something happens to worker 1; the others tell what they see.

python faulty_worker.py FAULT FOLDER LEVELS    # with RANK, WORLD_SIZE and the like
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.hosts import init_on_host

TIMEOUT_S = 4.0
FAULT_AT, STEPS = 3, 6
WORKERS = 4


def happen(fault: str, folder: Path) -> None:
    """What befalls worker 1."""
    if fault == "killed with a child":
        if os.fork() == 0:  # as a loader of data does
            end = time.monotonic() + 20 * TIMEOUT_S
            while time.monotonic() < end and not all(
                (folder / f"{rank}.json").exists() for rank in range(WORKERS) if rank != 1
            ):
                time.sleep(0.05)
            os._exit(0)
    if fault.startswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "paused":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "raises":
        raise RuntimeError("a fault of this worker's own")
    elif fault == "ends":
        sys.exit(0)


def main() -> None:
    """Trains, and writes down what became of it."""
    fault, folder = sys.argv[1], Path(sys.argv[2])
    rank = int(os.environ["RANK"])
    if fault == "late" and rank == 1:
        time.sleep(1.5)
    timeout = TIMEOUT_S if fault != "late" else 60.0
    init_on_host(rank // 2, timeout=timeout, levels=int(sys.argv[3]))
    layers = [
        sok_embed.DynamicEmbedding(4, embeddings_initializer="zeros", name=name)
        for name in ("users", "items")
    ]
    optimizer = sok_embed.DistributedOptimizer(keras.optimizers.SGD(1.0))

    @tf.function
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(layer(ids, training=True)) for layer in layers)
        variables = [layer.trainable_variables[0] for layer in layers]
        optimizer.apply(tape.gradient(loss, variables), variables)

    for layer in layers:
        layer.build()
    ids = tf.constant(np.arange(64))
    told: dict[str, object] = {"error": None, "steps": 0}
    begin = time.monotonic()
    try:
        for number in range(STEPS):
            if number == FAULT_AT and rank == 1:
                happen(fault, folder)
            begin = time.monotonic()
            step(ids)
            told["steps"] = number + 1
    except tf.errors.AbortedError as error:
        told["error"] = str(error.message)
        told["seconds"] = time.monotonic() - begin
        again = time.monotonic()
        try:
            step(ids)
        except tf.errors.AbortedError:
            told["seconds_of_the_next"] = time.monotonic() - again
    if told["error"] is None:
        told["row"] = float(layers[0](ids[:1])[0, 0])
    (folder / f"{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
