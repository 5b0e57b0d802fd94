"""Random models of all kinds that Keras has: what they are made of, and what they are fed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok

layers = keras.layers
WORDS = [f"word {number}" for number in range(150)]
NUMBERS = list(range(1000, 1300))
BATCH = 12

Fed = dict[str, Any]


@keras.saving.register_keras_serializable("tests")
class Ranker(keras.Model):
    """A subclassed model, whose layers give several weights one name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.items = sok.DynamicEmbedding(4, "uniform", seed=3, combiner="sum")
        self.words = sok.DynamicEmbedding(3, "uniform", seed=4, combiner="mean")
        self.hidden = [layers.Dense(5, "relu"), layers.Dense(4)]
        self.norm = layers.BatchNormalization()
        self.head = layers.Dense(1)
        self.scale = tf.Variable(0.5, trainable=False, name="scale")

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Returns scores and the vectors that they are made of, in a nest."""
        vectors = tf.concat([self.items(inputs["items"]), self.words(inputs["words"])], 1)
        for layer in self.hidden:
            vectors = layer(vectors)
        vectors = self.norm(vectors, training=training)
        return {"score": self.head(vectors) * self.scale, "vectors": [vectors]}


class Kinds:
    """Draws the pieces of a functional model.

    Args:
        random: The generator of numbers.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self.inputs: list[Any] = []
        self.fed: Fed = {}

    def _dynamic(self, **options: Any) -> Any:
        seed = int(self._random.integers(99))
        return sok.DynamicEmbedding(
            int(self._random.integers(2, 6)), "uniform", seed=seed, **options
        )

    def _input(self, shape: tuple[int, ...], dtype: str, values: Any) -> Any:
        name = f"input{len(self.inputs)}"
        self.inputs.append(keras.Input(shape, dtype=dtype, name=name))
        self.fed[name] = tf.convert_to_tensor(values)
        return self.inputs[-1]

    def ids(self) -> Any:
        """Ids that a table has as they are."""
        given = self._input((3,), "int64", self._random.integers(-9, 9, [BATCH, 3]))
        return self._dynamic(combiner="mean")(given)

    def normalized(self) -> Any:
        """Numbers of which an export has means and variances as constants."""
        width = int(self._random.choice([3, 200]))  # TensorFlow captures long constants
        numbers = self._random.normal(3, 2, [BATCH, width]).astype(np.float32)
        layer = layers.Normalization()
        layer.adapt(numbers)
        return layer(self._input((width,), "float32", numbers))

    def strings(self) -> Any:
        """Words, which a lookup layer makes ids of."""
        chosen = self._random.choice([*WORDS, "?"], [BATCH, 2])
        given = self._input((2,), "string", chosen.astype(object))
        return layers.Flatten()(self._dynamic()(layers.StringLookup(vocabulary=WORDS)(given)))

    def integers(self) -> Any:
        """Numbers, which a lookup layer makes ids of."""
        given = self._input((2,), "int64", self._random.choice([*NUMBERS, 7], [BATCH, 2]))
        return self._dynamic(combiner="sum")(layers.IntegerLookup(vocabulary=NUMBERS)(given))

    def sequence(self) -> Any:
        """Ids in order, with padding that a mask leaves out."""
        ids = self._random.integers(1, 20, [BATCH, 5])
        ids[self._random.random([BATCH, 5]) < 0.3] = 0
        vectors = self._dynamic(mask_zero=True)(self._input((5,), "int64", ids))
        return layers.LSTM(3)(vectors)

    def constant(self) -> Any:
        """Ids whose vectors are multiplied by a constant that the model captures."""
        vectors = self.ids()
        matrix = tf.constant(self._random.normal(size=[vectors.shape[1], 99]), tf.float32)
        return layers.Lambda(lambda each: tf.matmul(each, matrix))(vectors)


PIECES = ["ids", "normalized", "strings", "integers", "sequence", "constant"]


def functional(random: np.random.Generator) -> tuple[keras.Model, Fed]:
    """Returns a model of some random pieces, with nested outputs."""
    kinds = Kinds(random)
    chosen = random.choice(PIECES, int(random.integers(1, 4)), replace=False)
    vectors = [kinds.ids(), *(getattr(kinds, each)() for each in chosen)]
    print("pieces:", *chosen)
    joined = layers.BatchNormalization()(layers.Concatenate()(vectors))
    heads = [layers.Dense(width)(joined) for width in (1, 2)]
    nests: list[Any] = [
        heads[0],
        heads,
        {"b": heads[0], "a": heads[1]},
        {"all": heads, "rest": {"vectors": vectors[0]}},
        [[heads[0], [vectors[0]]], heads[1]],
    ]
    return keras.Model(kinds.inputs, nests[random.integers(len(nests))]), kinds.fed


def sequential(random: np.random.Generator) -> tuple[keras.Model, Fed]:
    """Returns a sequence of layers after a lookup layer."""
    kinds = Kinds(random)
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="string", name="words"),
            layers.StringLookup(vocabulary=WORDS),
            kinds._dynamic(mask_zero=True),
            layers.GRU(3),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )
    words = random.choice([*WORDS, "?"], [BATCH, 2]).astype(object)
    return model, {"words": tf.constant(words)}


def subclassed(random: np.random.Generator) -> tuple[keras.Model, Fed]:
    """Returns a model of a class of its own, which was called once."""
    fed = {name: tf.constant(random.integers(0, 30, [BATCH, 3])) for name in ("items", "words")}
    model = Ranker()
    model(fed)
    return model, fed


KINDS: list[Callable[[np.random.Generator], tuple[keras.Model, Fed]]]
KINDS = [functional, sequential, subclassed]


def signature(model: keras.Model, fed: Fed) -> Any:
    """Returns the signature that an export of a model needs; `None`: the model's own."""
    if not isinstance(model, Ranker):
        return None
    return [{name: tf.TensorSpec([None, 3], tf.int64, name) for name in fed}]


def given(model: keras.Model, fed: Fed) -> Any:
    """Returns what `fit` and `predict` take."""
    return fed if len(fed) > 1 else next(iter(fed.values()))


def train(model: keras.Model, fed: Fed, steps: int = 2) -> None:
    """Trains a model towards zeros, whatever nest its outputs are."""
    if not model.compiled:
        model.compile(keras.optimizers.Adam(0.05))
    for _ in range(steps):
        with tf.GradientTape() as tape:
            outputs = keras.tree.flatten(model(given(model, fed), training=True))
            loss = sum(tf.reduce_mean((each - 1.0) ** 2) for each in outputs)
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)


def predicted(model: keras.Model, fed: Fed) -> list[np.ndarray]:
    """Returns the outputs of `predict`, of one batch, in the order of a flat nest."""
    outputs = model.predict(given(model, fed), batch_size=BATCH, verbose=0)
    return [np.asarray(each) for each in keras.tree.flatten(outputs)]


def answered(answers: dict[str, Any]) -> list[np.ndarray]:
    """Returns what a served model answers, in the order of a flat nest."""
    return [answers[name].numpy() for name in sorted(answers)]
