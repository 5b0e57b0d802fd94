"""How many keys a second does a training step serve, against a static keras.layers.Embedding?

    python benchmarks/train_step.py --optimizer adam sgd --dim 16 64

Both train the same model by the same compiled step: embedding, mean over the row, squared error.
Targets: with Adam at least 4 x the static embedding, with SGD 1.5 x. Ends with what
benchmarks/memory.py says of Adam, from a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _common import (
    distinct_keys,
    interleaved,
    options,
    positions,
    rates,
    ratios,
    report,
    table_of,
    tensors,
    use_threads,
)

import sok_embed

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adam": lambda: keras.optimizers.Adam(1e-3),
    "adagrad": lambda: keras.optimizers.Adagrad(0.01),
}
TARGETS = {"adam": 4.0, "sgd": 1.5}
Step = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def training_step(layer: Any, optimizer: Any) -> Step:
    """Returns a compiled step that trains a layer, and returns the loss before it."""
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function
    def step(keys: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            predictions = tf.reduce_mean(model(keys, training=True), -1)
            loss = tf.reduce_mean(tf.square(predictions - targets))
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        optimizer.apply(gradients, variables)
        return loss

    return step


def _call(step: Step, batches: list[tf.Tensor], targets: tf.Tensor, i: int) -> tf.Tensor:
    return step(batches[i], targets)


def run(dim: int, dist: str, optimizer: str, arguments: Any) -> bool:
    """Times one case; returns whether it meets its target, if it has one."""
    rng = np.random.default_rng(arguments.seed)
    keys = distinct_keys(arguments.keys, rng)
    rows = rng.uniform(-0.05, 0.05, (len(keys), dim)).astype(np.float32)
    drawn = positions(dist, len(keys), (arguments.batches, arguments.batch), rng)
    # Targets are out of reach, so that gradients of equal keys have one sign: sums that cancel
    # round badly.
    targets = tf.constant(rng.uniform(9.0, 10.0, arguments.batch).astype(np.float32))
    inputs = {"sok_embed": tensors(list(keys[drawn])), "keras": tensors(list(drawn))}

    ours = sok_embed.DynamicEmbedding(dim)
    static = keras.layers.Embedding(len(keys), dim)
    steps = {
        name: training_step(layer, OPTIMIZERS[optimizer]())
        for name, layer in {"sok_embed": ours, "keras": static}.items()
    }
    table_of(ours, keys, rows)
    static.set_weights([rows])

    # One step on distinct keys leaves equal tables under all rules. From then on Keras' Adam moves
    # also rows that a batch does not contain, and its Adam and Adagrad square the gradients of
    # equal keys one by one.
    first = rng.permutation(len(keys))[: arguments.batch]
    losses = {
        "sok_embed": float(steps["sok_embed"](tf.constant(keys[first]), targets[: len(first)])),
        "keras": float(steps["keras"](tf.constant(first), targets[: len(first)])),
    }
    np.testing.assert_allclose(losses["sok_embed"], losses["keras"], rtol=1e-4)
    trained = static.embeddings.numpy()
    np.testing.assert_allclose(ours.table.lookup(keys), trained, rtol=1e-3, atol=1e-5)
    assert not np.array_equal(trained, rows)

    calls = {name: partial(_call, step, inputs[name], targets) for name, step in steps.items()}
    rate = rates(interleaved(calls, arguments.batches, arguments.repeats), arguments.batch)
    ratio = ratios(rate)
    losses = {name: float(step(inputs[name][0], targets)) for name, step in steps.items()}
    if optimizer == "sgd":
        np.testing.assert_allclose(losses["sok_embed"], losses["keras"], rtol=1e-3)
    report(
        {
            "benchmark": "train_step",
            "dim": dim,
            "dist": dist,
            "optimizer": optimizer,
            "keys": arguments.keys,
            "batch": arguments.batch,
            "threads": arguments.threads,
            "million_keys_per_s": rate,
            "ratio": ratio,
            "target_of_keras": TARGETS.get(optimizer),
        },
        f"train step dim {dim:3} {dist:7} {optimizer:7}: {rate['sok_embed']:6.2f} M keys/s = "
        f"{ratio['keras']:.2f} x keras ({rate['keras']:.2f})"
        + (f"; target {TARGETS[optimizer]}" if optimizer in TARGETS else ""),
    )
    return ratio["keras"] >= TARGETS.get(optimizer, 0.0)


def main() -> None:
    """Runs the cases that the command line asks for."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--optimizer", nargs="+", choices=[*OPTIMIZERS], default=["adam", "sgd"])
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    met = [
        run(dim, dist, optimizer, arguments)
        for optimizer in arguments.optimizer
        for dim in arguments.dim
        for dist in arguments.dist
    ]
    memory = [sys.executable, str(Path(__file__).with_name("memory.py"))]
    memory += ["--keys", str(arguments.keys), *(["--check"] if arguments.check else [])]
    status = subprocess.run(memory, check=False).returncode
    sys.exit(status or (arguments.check and not all(met)))


if __name__ == "__main__":
    main()
