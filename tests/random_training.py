"""Trains a table and a dense weight by the same random program, and compares them.

    python tests/random_training.py --cases 5000 --seed 1

A case is a model of one layer that is called some times in a step, an optimizer with random
options, and a way of taking and handing on gradients. Every call reads every key, so that rules by
which rows without a gradient move on in a dense weight are compared too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections import defaultdict
from dataclasses import dataclass, fields
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from dense_twin import DIM, Model, WeightOfRows, adaptive_layer, contents, loss_of, table_layer

KEYS, STEPS = 6, 6
SEVERAL = ("persistent", "two_tapes")
# The largest difference that a case may end with. Rules divide by roots of sums of squares, so a
# rounding of the gradient is as much of the step.
TOLERANCE = 1e-5

RULES: dict[str, Any] = {
    "sgd": lambda **o: keras.optimizers.SGD(0.02, **o),
    "momentum": lambda **o: keras.optimizers.SGD(0.01, momentum=0.8, **o),
    "nesterov": lambda **o: keras.optimizers.SGD(0.01, momentum=0.8, nesterov=True, **o),
    "adagrad": lambda **o: keras.optimizers.Adagrad(0.05, **o),
    "adam": lambda **o: keras.optimizers.Adam(0.01, epsilon=0.1, **o),
    "amsgrad": lambda **o: keras.optimizers.Adam(0.01, amsgrad=True, epsilon=0.1, **o),
    "adamw": lambda **o: keras.optimizers.AdamW(0.01, weight_decay=0.01, epsilon=0.1, **o),
    "rmsprop": lambda **o: keras.optimizers.RMSprop(0.01, epsilon=0.1, **o),
    "centered": lambda **o: keras.optimizers.RMSprop(0.01, centered=True, epsilon=0.1, **o),
    "ftrl": lambda **o: keras.optimizers.Ftrl(0.05, beta=0.1, **o),
}


@dataclass(frozen=True)
class Case:
    """What a program is made of."""

    rule: str
    clip: str
    accumulation: int
    scaling: str
    layer: str
    calls: str
    gradients: str
    guard: str
    mode: str

    @staticmethod
    def draw(random: np.random.Generator) -> Case:
        choices = {
            "rule": list(RULES),
            "clip": ["none", "none", "clipnorm", "global_clipnorm", "clipvalue"],
            "accumulation": [1, 1, 2, 3],
            "scaling": ["none", "none", "none", "factor", "dynamic"],
            "layer": ["table", "table", "own_rows"],
            "calls": ["one", "two", "five", "map_fn", "while", "cond"],
            "gradients": [
                "plain",
                "plain",
                "scaled",
                "persistent",
                "two_tapes",
                "global_norm",
                "norm",
            ],
            "guard": ["none", "none", "cond", "nan"],
            "mode": ["eager", "function", "function", "fit", "fit_eagerly"],
        }
        drawn = {name: values[random.integers(len(values))] for name, values in choices.items()}
        if drawn["calls"] in ("map_fn", "while") and drawn["gradients"] in SEVERAL:
            # TensorFlow raises of a loop that several tapes, or a persistent one, have recorded, if
            # resources other than variables are used in it.
            drawn["gradients"] = "plain"
        return Case(**drawn)

    def __str__(self) -> str:
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    def optimizer(self) -> Any:
        options: dict[str, Any] = {}
        if self.clip != "none":
            options[self.clip] = {"clipnorm": 0.5, "global_clipnorm": 0.7, "clipvalue": 0.1}[
                self.clip
            ]
        if self.accumulation > 1:
            options["gradient_accumulation_steps"] = self.accumulation
        if self.scaling == "factor":
            options["loss_scale_factor"] = 128.0
        made = RULES[self.rule](**options)
        if self.scaling == "dynamic":
            made = keras.optimizers.LossScaleOptimizer(
                made, initial_scale=64, dynamic_growth_steps=2
            )
        return made

    def loss(self, model: Model, keys: Any, targets: Any) -> Any:
        """Of as many calls of the layer as the case says."""
        if self.calls == "map_fn":
            losses = tf.map_fn(
                lambda shift: loss_of(model, (keys + shift) % KEYS, targets),
                tf.range(3, dtype=tf.int64),
                tf.float32,
            )
            return tf.reduce_sum(losses) / 3
        if self.calls == "while":
            return tf.while_loop(
                lambda i, total: i < 3,
                lambda i, total: (i + 1, total + loss_of(model, (keys + i) % KEYS, targets) / 3),
                (tf.constant(0, tf.int64), tf.constant(0.0)),
            )[1]
        if self.calls == "cond":
            return tf.cond(
                tf.reduce_sum(targets) > 0,
                lambda: loss_of(model, keys, targets),
                lambda: loss_of(model, (keys + 1) % KEYS, targets) * 2,
            )
        count = {"one": 1, "two": 2, "five": 5}[self.calls]
        return tf.add_n([loss_of(model, (keys + i) % KEYS, targets) for i in range(count)]) / count

    def step(self, model: Model, optimizer: Any, keys: Any, targets: Any, number: Any) -> Any:
        """Takes gradients and hands them on. Returns the loss."""
        if self.scaling == "dynamic" or self.guard == "nan":
            wrong = np.nan if self.guard == "nan" else np.inf
            targets = tf.where(number == 2, tf.cast(wrong, tf.float32), targets)
        variables = model.trainable_variables
        second = self.gradients in SEVERAL
        with contextlib.ExitStack() as recorded:
            tapes = [
                recorded.enter_context(tf.GradientTape(persistent=self.gradients == SEVERAL[0]))
            ]
            if self.gradients == SEVERAL[1]:
                tapes.append(recorded.enter_context(tf.GradientTape()))
            plain = self.loss(model, keys, targets)
            losses = [optimizer.scale_loss(plain)]
            if second:
                losses.append(optimizer.scale_loss(self.loss(model, keys, 0.5 - targets)))
        taken = [
            tape.gradient(loss, variables) for tape, loss in zip(tapes * 2, losses, strict=False)
        ]
        if self.gradients == "scaled":
            taken = [[-0.3 * g for g in taken[0]]]
        elif self.gradients == "global_norm":
            taken = [tf.clip_by_global_norm(taken[0], 0.9)[0]]
        elif self.gradients == "norm":
            taken = [[tf.clip_by_norm(g, 0.6) for g in taken[0]]]

        def apply() -> int:
            for each in reversed(taken):
                optimizer.apply(each, variables)
            return 0

        if self.guard == "none":
            apply()
        else:
            wanted = number % 3 != 1 if self.guard == "cond" else tf.math.is_finite(plain)
            tf.cond(wanted, apply, lambda: 0)
        return plain


class Trained(Model):
    """A model whose `fit` runs a case."""

    def __init__(self, layer: Any, case: Case) -> None:
        super().__init__(layer)
        self.case = case

    def train_step(self, data: Any) -> dict[str, Any]:
        keys, (targets, number) = data
        return {"loss": self.case.step(self, self.optimizer, keys, targets, number[0, 0])}


def layer_of(case: Case) -> Any:
    return table_layer() if case.layer == "table" else adaptive_layer(1)


def train(layer: Any, case: Case, seed: int) -> list[np.ndarray]:
    """Runs the program, whose data is that of the seed."""
    random = np.random.default_rng(seed)
    model = Trained(layer, case)
    optimizer = case.optimizer()
    model.build()
    optimizer.build(model.trainable_variables)
    keys, targets = [], []
    for _ in range(STEPS):
        drawn = np.concatenate([random.permutation(KEYS), random.integers(0, KEYS, 2)])
        keys.append(drawn.reshape(4, 2))
        targets.append(random.normal(size=(4, 2, DIM)).astype(np.float32))
    if case.mode.startswith("fit"):
        model.compile(optimizer, run_eagerly=case.mode == "fit_eagerly")
        numbers = np.repeat(np.arange(STEPS), 4)[:, None]
        data = tf.data.Dataset.from_tensor_slices(
            (np.concatenate(keys), (np.concatenate(targets), numbers))
        )
        model.fit(data.batch(4), epochs=1, verbose=0)
        return contents(model)

    def run(keys: Any, targets: Any, number: Any) -> None:
        case.step(model, optimizer, keys, targets, number)

    run = tf.autograph.experimental.do_not_convert(run)
    if case.mode == "function":
        run = tf.function(run)
    for number in range(STEPS):
        run(*map(tf.constant, (keys[number], targets[number], number)))
    return contents(model)


def difference(case: Case, seed: int) -> float:
    """The largest between the table and the weight after the program."""
    keras.utils.clear_session(free_memory=False)
    found, expected = (train(layer, case, seed) for layer in (layer_of(case), WeightOfRows()))
    rows, kernel = (
        np.abs(ours[: len(theirs)] - theirs) for ours, theirs in zip(found, expected, strict=True)
    )
    both = np.concatenate([rows[:KEYS].ravel(), kernel.ravel()])
    finite = all(np.isfinite(each[:KEYS]).all() for each in expected)
    return float(both.max()) if finite else float("nan")


def main() -> None:
    """Runs the cases that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    worst: dict[str, float] = defaultdict(float)
    wrong = 0
    for seed in range(arguments.seed, arguments.seed + arguments.cases):
        case = Case.draw(np.random.default_rng(seed))
        try:
            off = difference(case, seed)
        except Exception as error:
            off = float("inf")
            print(f"seed {seed}: {case}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        if not off <= TOLERANCE:
            wrong += 1
            print(f"seed {seed}: off by {off}: {case}", flush=True)
        else:
            worst[case.rule] = max(worst[case.rule], off)
    print(f"{arguments.cases} cases, {wrong} above {TOLERANCE}; largest difference by rule:")
    for rule, off in sorted(worst.items()):
        print(f"  {rule:10} {off:.1e}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
