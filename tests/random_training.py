"""Trains a table and a dense weight by the same random program, and compares them.

    python tests/random_training.py --cases 5000 --seed 1
    horovodrun -np 2 python tests/random_training.py --cases 500 --seed 1

A case is a model of one or two tables that are called some times in a step, an optimizer with
random options, a way of taking and handing on gradients, and what changes while it trains. Every
call reads every key, so that rules by which rows without a gradient move on in a dense weight are
compared too. On several workers each has data of its own, and the dense weights are averaged.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, fields
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import keras_reference
import numpy as np
import random_session
import tensorflow as tf
from dense_twin import DIM, START, Model, WeightOfRows, adaptive_layer, loss_of, table_layer
from optimizer_cases import CASES

import sok_embed

v1 = tf.compat.v1
KEYS, STEPS = 6, 6
SEVERAL = ("persistent", "two_tapes")
# Rows and the two dense weights start as these values.
STARTS = (START, 0.3, -0.2)
# The largest difference that a case may end with. Rules divide by roots of sums of squares, so a
# rounding of the gradient is as much of the step.
TOLERANCE = 1e-6

RULES: dict[str, Any] = {
    name: functools.partial(case.make, **case.random)
    for name, case in CASES.items()
    if case.random is not None
}
V1_RULES: dict[str, Any] = {
    "v1_sgd": lambda: v1.train.GradientDescentOptimizer(0.02),
    "v1_momentum": lambda: v1.train.MomentumOptimizer(0.01, 0.8),
    "v1_adagrad": lambda: v1.train.AdagradOptimizer(0.05),
    "v1_adam": lambda: v1.train.AdamOptimizer(0.01, epsilon=0.1),
}


class OptimizerOfV1:
    """One of `tf.compat.v1.train` that is called as Keras' are."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def build(self, variables: Any) -> None:
        """Nothing is built before the first step."""

    def scale_loss(self, loss: Any) -> Any:
        return loss

    def apply(self, gradients: Any, variables: Any) -> None:
        natives = [variable.value for variable in variables]
        self.optimizer.apply_gradients(list(zip(gradients, natives, strict=True)))


@dataclass(frozen=True)
class Case:
    """What a program is made of."""

    rule: str
    clip: str
    accumulation: int
    scaling: str
    layer: str
    model: str
    calls: str
    gradients: str
    guard: str
    change: str
    mode: str

    @staticmethod
    def draw(random: np.random.Generator) -> Case:
        """One that TensorFlow and Keras run with a dense weight, on so many workers."""
        choices = {
            "rule": [*RULES, *V1_RULES],
            "clip": ["none", "none", "clipnorm", "global_clipnorm", "clipvalue"],
            "accumulation": [1, 1, 2, 3],
            "scaling": ["none", "none", "none", "factor", "dynamic"],
            "layer": ["table", "table", "own_rows"],
            "model": ["one", "one", "shared", "two_tables"],
            "calls": ["one", "two", "five", "map_fn", "while", "cond", "rnn"],
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
            "change": ["none", "none", "freeze", "recompile", "retrace"],
            "mode": ["eager", "function", "function", "fit", "fit_eagerly", "mirrored", "session"],
        }
        drawn = {name: values[random.integers(len(values))] for name, values in choices.items()}
        several = sok_embed.size() > 1
        if several:
            # What a tape returns has the norm of the rows of each worker.
            if drawn["gradients"] in ("global_norm", "norm"):
                drawn["gradients"] = "scaled"
            if drawn["mode"] in ("mirrored", "session"):
                drawn["mode"] = "function"
            if drawn["calls"] == "rnn" and drawn["mode"] in ("function", "fit"):
                # Keras lets iterations run at a time, which then exchange by the same names.
                drawn["calls"] = "while"
            if drawn["scaling"] == "dynamic" and "norm" in drawn["clip"]:
                # DistributedOptimizer refuses it beside accumulation.
                drawn["accumulation"] = 1
        if drawn["rule"] in V1_RULES or drawn["mode"] == "session":
            drawn.update(clip="none", accumulation=1, scaling="none")
            if several or drawn["mode"] in ("fit", "fit_eagerly", "mirrored"):
                drawn["rule"] = drawn["rule"].removeprefix("v1_")
            elif drawn["rule"] in RULES:
                drawn["rule"] = list(V1_RULES)[random.integers(len(V1_RULES))]
        if drawn["mode"] == "session":
            drawn.update(layer="table", model="one", guard="none", change="none")
            drawn["calls"] = ["one", "two", "five", "map_fn", "while"][random.integers(5)]
        if drawn["mode"] == "mirrored":
            drawn.update(model="one", calls="one", gradients="plain", guard="none", change="none")
            # Keras refuses accumulation there, and clips the values of each replica's gradients.
            drawn["accumulation"] = 1
            drawn["clip"] = "none" if drawn["clip"] == "clipvalue" else drawn["clip"]
        if (drawn["change"], drawn["guard"], drawn["accumulation"]) == ("recompile", "cond", 3):
            # No window would ever end.
            drawn["accumulation"] = 2
        if drawn["change"] == "retrace" and drawn["mode"] in ("fit", "fit_eagerly"):
            drawn["change"] = "none"
        if drawn["calls"] in ("map_fn", "while", "rnn") and drawn["gradients"] in SEVERAL:
            # TensorFlow raises for a loop that several tapes, or a persistent one, have recorded,
            # if resources other than variables are used in it.
            drawn["gradients"] = "plain"
        return Case(**drawn)

    def __str__(self) -> str:
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    def optimizer(self) -> Any:
        options: dict[str, Any] = {}
        if self.rule in V1_RULES:
            return OptimizerOfV1(V1_RULES[self.rule]())
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
        return sok_embed.DistributedOptimizer(made) if sok_embed.size() > 1 else made

    def loss(self, model: Model, keys: Any, targets: Any, number: Any) -> Any:
        """Returns the loss of the calls of the layer that the case has, and of the second part."""
        loss = self.loss_of_calls(model, keys, targets, number)
        if self.model != "one":
            vectors = model.second(model.other_layer((keys * 5) % KEYS, training=True))
            loss += tf.reduce_sum((vectors - targets / 3) ** 2)
        return loss

    def loss_of_calls(self, model: Model, keys: Any, targets: Any, number: Any) -> Any:
        if self.calls == "rnn":
            vectors = keras.layers.RNN(Cell(model.layer))(keys[..., None])
            return tf.reduce_sum((model.dense(vectors) - targets[:, 0]) ** 2)
        # Iterations that run at a time would exchange by the same names.
        at_a_time = 1 if sok_embed.size() > 1 else 10
        if self.calls == "map_fn":
            losses = tf.map_fn(
                lambda shift: loss_of(model, (keys + shift) % KEYS, targets),
                tf.range(3, dtype=tf.int64),
                parallel_iterations=at_a_time,
                fn_output_signature=tf.float32,
            )
            return tf.reduce_sum(losses) / 3
        if self.calls == "while":
            return tf.while_loop(
                lambda i, total: i < 3,
                lambda i, total: (i + 1, total + loss_of(model, (keys + i) % KEYS, targets) / 3),
                (tf.constant(0, tf.int64), tf.constant(0.0)),
                parallel_iterations=at_a_time,
            )[1]
        if self.calls == "cond":
            return tf.cond(
                number % 2 == 0,
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
            plain = self.loss(model, keys, targets, number)
            losses = [optimizer.scale_loss(plain)]
            if second:
                losses.append(optimizer.scale_loss(self.loss(model, keys, 0.5 - targets, number)))
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


class Cell(keras.layers.Layer):
    """Adds the vectors of keys to what is left of those before."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.state_size = self.output_size = DIM

    def call(self, keys: Any, states: Any, training: Any = None) -> Any:
        sums = 0.5 * states[0] + self.layer(tf.cast(keys, tf.int64)[:, 0], training=True)
        return sums, [sums]


class Trained(Model):
    """A model whose `fit` runs a case."""

    def __init__(self, layer: Any, case: Case, other: Any) -> None:
        super().__init__(layer)
        self.case = case
        self.other_layer = layer if other is None else other
        if case.model != "one":
            start = keras.initializers.Constant(STARTS[2])
            self.second = keras.layers.Dense(DIM, kernel_initializer=start, use_bias=False)

    def build(self, input_shape: Any = None) -> None:
        super().build(input_shape)
        if self.case.model != "one":
            self.second.build((None, DIM))
        if self.case.model == "two_tables":
            self.other_layer.build((None, 2))

    def train_step(self, data: Any) -> dict[str, Any]:
        keys, (targets, number) = data
        return {"loss": self.case.step(self, self.optimizer, keys, targets, number[0, 0])}

    def contents(self) -> list[np.ndarray]:
        """Returns the rows of all keys of all tables, and the dense weights."""
        layers = {id(layer): layer for layer in (self.layer, self.other_layer)}.values()
        dense = [self.dense, *([self.second] if self.case.model != "one" else [])]
        keys = tf.range(KEYS, dtype=tf.int64)
        return [np.asarray(layer(keys, training=False)) for layer in layers] + [
            np.asarray(layer.kernel) for layer in dense
        ]


def layer_of(case: Case) -> Any:
    return table_layer() if case.layer == "table" else adaptive_layer(1)


def data_of(case: Case, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Draws keys and targets of each step, others on each worker."""
    random = np.random.default_rng([seed, sok_embed.rank()])
    keys, targets = [], []
    for number in range(STEPS):
        more = 4 if case.change == "retrace" and number % 2 else 2
        drawn = np.concatenate([random.permutation(KEYS), random.integers(0, KEYS, more)])
        keys.append(drawn.reshape(-1, 2))
        targets.append(random.normal(size=(*keys[-1].shape, DIM)).astype(np.float32))
    return keys, targets


# First and last step of each part of a program, and whether the layer is frozen in it.
PARTS = {
    "freeze": [(0, 2, False), (2, 4, True), (4, STEPS, False)],
    "recompile": [(0, 3, False), (3, STEPS, False)],
}


def train(make: Any, case: Case, seed: int) -> list[np.ndarray]:
    """Runs the program, whose data is that of the seed. `make` makes a layer."""
    keys, targets = data_of(case, seed)
    if case.mode == "mirrored":
        return train_replicas(make, case, np.concatenate(keys), np.concatenate(targets))
    if case.mode == "session":
        return random_session.train(make is WeightOfRows, case, keys, targets)
    model = Trained(make(), case, make() if case.model == "two_tables" else None)
    optimizer = None
    model.build()
    for first, last, frozen in PARTS.get(case.change, [(0, STEPS, False)]):
        model.layer.trainable = True
        if optimizer is None or case.change == "recompile":
            optimizer = case.optimizer()
            optimizer.build(model.trainable_variables)
        model.layer.trainable = not frozen
        if case.mode.startswith("fit"):
            model.compile(optimizer, run_eagerly=case.mode == "fit_eagerly")
            numbers = np.repeat(np.arange(first, last), 4)[:, None]
            data = tf.data.Dataset.from_tensor_slices(
                (
                    np.concatenate(keys[first:last]),
                    (np.concatenate(targets[first:last]), numbers),
                )
            )
            model.fit(data.batch(4), epochs=1, verbose=0)
            continue

        def run(keys: Any, targets: Any, number: Any, optimizer: Any = optimizer) -> None:
            case.step(model, optimizer, keys, targets, number)

        run = tf.autograph.experimental.do_not_convert(run)
        if case.mode == "function":
            run = tf.function(run)
        for number in range(first, last):
            run(*map(tf.constant, (keys[number], targets[number], number)))
    return model.contents()


def train_replicas(
    make: Any, case: Case, keys: np.ndarray, targets: np.ndarray
) -> list[np.ndarray]:
    """Runs the program by `fit` on two replicas; Keras builds models by their inputs there."""
    with keras_reference.mirrored().scope():
        parts = Trained(make(), case, None)
        inputs = keras.Input((2,), dtype="int64")
        model = keras.Model(inputs, parts.dense(parts.layer(inputs)))
        model.compile(case.optimizer(), "mse")
    model.fit(keys, targets, batch_size=4, shuffle=False, verbose=0)
    return parts.contents()


def difference(case: Case, seed: int) -> float:
    """Returns the largest difference between the table and the weight after the program."""
    keras.utils.clear_session(free_memory=False)
    found, expected = (train(make, case, seed) for make in (lambda: layer_of(case), WeightOfRows))
    both = np.concatenate(
        [np.abs(ours - theirs).ravel() for ours, theirs in zip(found, expected, strict=True)]
    )
    # A program that trains nothing, or to no numbers, would compare nothing.
    values = np.concatenate([each.ravel() for each in expected])
    trained = np.isfinite(values).all() and not np.isin(values, np.float32(STARTS)).all()
    return float(both.max()) if trained else float("nan")


def main() -> None:
    """Runs the cases that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # Two replicas need two devices, which can only be made before TensorFlow has started.
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.get_logger().setLevel(logging.ERROR)
    sok_embed.init()
    worst: dict[str, float] = defaultdict(float)
    of_modes, wrong_of_modes = Counter[str](), Counter[str]()
    for seed in range(arguments.seed, arguments.seed + arguments.cases):
        case = Case.draw(np.random.default_rng(seed))
        try:
            off = difference(case, seed)
        except Exception as error:
            off = float("inf")
            print(f"seed {seed}: {case}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        of_modes[case.mode] += 1
        if not off <= TOLERANCE:
            wrong_of_modes[case.mode] += 1
            print(f"seed {seed}: off by {off}: {case}", flush=True)
        else:
            worst[case.rule] = max(worst[case.rule], off)
    print(f"cases, and those above {TOLERANCE}, by mode:")
    for mode, cases in sorted(of_modes.items()):
        print(f"  {mode:11} {cases:5} {wrong_of_modes[mode]:5}")
    print("largest difference of the others by rule:")
    for rule, off in sorted(worst.items()):
        print(f"  {rule:11} {off:.1e}")
    sys.exit(wrong_of_modes.total() > 0)


if __name__ == "__main__":
    main()
