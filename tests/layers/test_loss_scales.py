"""Loss scales from 2^-40 to 2^126 train rows as they train `keras.layers.Embedding`."""

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_steps import CLIPS, IN_FUNCTION, train
from dense_twin import DIM, KEYS, START, Model, WeightOfRows, loss_of, table_layer
from keras_reference import SummedGradientEmbedding, mirrored

import sok_embed
from sok_embed import feature_column as fc

# float32 rounds norms and sums in other orders.
TOLERANCE = 1e-6
EXPONENTS = (-40, 62, 126)
NEVER = 10**6


def keras_rows(keys: Any) -> Any:
    return keras.layers.Embedding(KEYS, DIM, keras.initializers.Constant(START))(keys)


def keras_rows_of_dense_gradients(keys: Any) -> Any:
    """Keras divides no `tf.IndexedSlices` by a `loss_scale_factor`."""
    return SummedGradientEmbedding(KEYS, DIM, keras.initializers.Constant(START))(keys)


def dynamic_rows(keys: Any) -> Any:
    return table_layer()(keys)


def adaptive_rows(keys: Any) -> Any:
    start = keras.initializers.Constant(START)
    layer = sok_embed.AdaptiveEmbedding(
        DIM, 255, promote_after=1, embeddings_initializer=start, name="adaptive"
    )
    return layer(keys)


def all2all_rows(keys: Any) -> Any:
    layer = sok_embed.All2AllDenseEmbedding(
        KEYS, DIM, 2, 1, embedding_initializer=keras.initializers.Constant(START)
    )
    return keras.ops.reshape(layer(keys[:, :, None]), (-1, 2, DIM))


def distributed_rows(keys: Any) -> Any:
    start = keras.initializers.Constant(START)
    table = sok_embed.TableConfig("items", KEYS, DIM, start, combiner=None)
    features = {str(i): sok_embed.FeatureConfig(str(i), table) for i in range(2)}
    rows = sok_embed.DistributedEmbedding(features)({str(i): keys[:, i] for i in range(2)})
    return keras.ops.stack([rows["0"], rows["1"]], 1)


def column_rows(keys: Any, *, adaptive: bool = False) -> Any:
    start = keras.initializers.Constant(START)
    column = fc.categorical_column_with_embedding("c", tf.int64)
    if adaptive:
        column = fc.categorical_column_with_adaptive_embedding("c", 100, tf.int64)
    layer = fc.DenseFeatures([fc.embedding_column(column, DIM, initializer=start)])
    each = keras.ops.reshape(keys, (-1, 1))  # one id an example
    masks = {"c": keras.ops.ones_like(each, "int32")} if adaptive else None
    return keras.ops.reshape(layer({"c": each}, masks), (-1, 2, DIM))


LAYERS = {
    "dynamic": dynamic_rows,
    "adaptive": adaptive_rows,
    "all2all": all2all_rows,
    "distributed": distributed_rows,
    "column": column_rows,
    "adaptive_column": functools.partial(column_rows, adaptive=True),
}


def model_of(rows_of: Any) -> keras.Model:
    keys = keras.Input((2,), dtype="int64")
    kernel = keras.initializers.Constant(0.3)
    dense = keras.layers.Dense(DIM, use_bias=False, kernel_initializer=kernel)
    return keras.Model(keys, dense(rows_of(keys)))


def batches(batch: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns keys without a key twice in a batch, and targets."""
    random = np.random.default_rng(7)
    keys = np.concatenate([random.permutation(KEYS)[: 2 * batch] for _ in range(steps)])
    targets = random.normal(size=(batch * steps, 2, DIM)).astype(np.float32)
    return keys.reshape(-1, 2), targets


def fitted(rows_of: Any, optimizer: Any, loss: Any = "mse") -> np.ndarray:
    """Returns what a model predicts for all keys after `fit`."""
    model = model_of(rows_of)
    model.compile(optimizer, loss)
    keys, targets = batches(8, 9)
    model.fit(keys, targets, batch_size=8, shuffle=False, verbose=0)
    return np.asarray(model.predict(np.arange(KEYS).reshape(-1, 2), verbose=0))


def scaling(exponent: int, inner: Any = None, **options: Any) -> Any:
    return keras.optimizers.LossScaleOptimizer(
        inner or keras.optimizers.SGD(0.5, **options),
        initial_scale=2.0**exponent,
        dynamic_growth_steps=NEVER,
    )


def check(
    rows_of: Any, make_optimizer: Any, exponent: int, loss: Any = "mse", static: Any = keras_rows
) -> None:
    expected = fitted(static, make_optimizer(), loss)
    optimizer = make_optimizer()
    np.testing.assert_allclose(fitted(rows_of, optimizer, loss), expected, rtol=0, atol=TOLERANCE)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        assert float(optimizer.dynamic_scale) == 2.0**exponent  # no step was skipped
    assert np.abs(expected - START * DIM * 0.3).max() > 1e-3


@pytest.mark.cover(3)
@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("kind", LAYERS)
def test_every_layer_trains_by_any_scale(kind, exponent):
    check(LAYERS[kind], lambda: scaling(exponent), exponent)


OPTIONS = {
    **{name: {name: 0.02} for name in CLIPS},
    "accumulated": {"gradient_accumulation_steps": 3},
    "accumulated_and_clipped": {"gradient_accumulation_steps": 3, "global_clipnorm": 0.02},
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("option", OPTIONS)
def test_scaled_gradients_are_clipped_and_accumulated_as_those_of_a_static_layer(option, exponent):
    make = lambda: scaling(exponent, **OPTIONS[option])  # noqa: E731
    check(dynamic_rows, make, exponent)


@pytest.mark.cover(1)
@pytest.mark.parametrize("exponent", [-40, 120])
@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind != "adaptive_column"])
def test_a_scale_of_the_optimizer_itself(kind, exponent):
    """Buckets of an adaptive column are a weight with `tf.IndexedSlices`, which Keras refuses."""
    make = lambda: keras.optimizers.SGD(0.5, loss_scale_factor=2.0**exponent)  # noqa: E731
    check(LAYERS[kind], make, exponent, static=keras_rows_of_dense_gradients)


@pytest.mark.cover(2)
@pytest.mark.parametrize("exponent", [10, 66])
@pytest.mark.parametrize("kind", [kind for kind in LAYERS if "column" not in kind])
def test_small_losses_in_float16(kind, exponent):
    """Gradients of 2^10 times their size fit into a float16; the loss is as much smaller.

    Columns refuse float16.
    """
    small = 2.0 ** (10 - exponent)

    def loss(targets: Any, outputs: Any) -> Any:
        return small * keras.ops.mean((targets - keras.ops.cast(outputs, "float32")) ** 2)

    policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        check(
            LAYERS[kind],
            lambda: scaling(exponent, keras.optimizers.SGD(0.5 / small)),
            exponent,
            loss,
        )
    finally:
        keras.mixed_precision.set_dtype_policy(policy)


def test_gradients_that_are_next_to_nothing_do_not_end_the_training():
    """A converged model has such gradients; a static layer changes by less than it can hold."""
    tiny = 2.0**-110
    loss = lambda targets, outputs: tiny * keras.ops.mean((targets - outputs) ** 2)  # noqa: E731
    found = fitted(dynamic_rows, scaling(126), loss)
    np.testing.assert_array_equal(found, fitted(keras_rows, scaling(126), loss))


def product(c: float, small: float) -> Any:
    """Scales the loss and the gradients beside the optimizer, too."""

    def step(model, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(small * (c * loss_of(model, keys, targets)))
        taken = [g / c for g in tape.gradient(loss, model.trainable_variables)]
        optimizer.apply(taken, model.trainable_variables)

    return step


@pytest.mark.cover(2)
@IN_FUNCTION
@pytest.mark.parametrize(
    ("c", "exponent"), [(40, 100), (-40, 126), (60, 60), (-20, -40), (15, 46)], ids=str
)
def test_products_of_scales(c, exponent, in_function):
    small = -30
    found, expected = (
        train(
            Model(layer),
            scaling(exponent, keras.optimizers.SGD(0.02 * 2.0**-small)),
            product(2.0**c, 2.0**small),
            in_function,
        )
        for layer in (table_layer(), WeightOfRows())
    )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2 * TOLERANCE)
    assert np.abs(expected[0] - START).max() > 1e-2


@pytest.mark.cover(1)
@pytest.mark.parametrize("exponent", [-40, 62, 120])
@pytest.mark.parametrize("option", [{}, {"global_clipnorm": 0.3}], ids=str)
def test_replicas(option, exponent):
    def step(model, optimizer, keys, targets, number):
        def of_replica():
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(0.1 * loss_of(model, keys, targets))
            optimizer.apply(
                tape.gradient(loss, model.trainable_variables), model.trainable_variables
            )

        mirrored().run(of_replica)

    with mirrored().scope():
        found, expected = (
            train(
                Model(layer()),
                keras.optimizers.SGD(0.1, loss_scale_factor=2.0**exponent, **option),
                step,
            )
            for layer in (table_layer, WeightOfRows)
        )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2 * TOLERANCE)
    assert np.abs(expected[0] - START).max() > 1e-2


def test_a_scale_that_grows_until_it_overflows():
    """Gradients of the dense weight are the larger ones, and overflow in both models alike."""

    def step(model, optimizer, keys, targets, number):
        with tf.GradientTape() as tape:
            loss = 0.1 * loss_of(model, keys, targets) + 1e3 * tf.reduce_sum(model.dense.kernel)
            loss = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    scales, found = [], []
    for layer in (table_layer(), WeightOfRows()):
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1e-5), dynamic_growth_steps=2
        )
        found.append(train(Model(layer), optimizer, step, steps=240))
        scales.append(float(optimizer.dynamic_scale))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2 * TOLERANCE)
    assert scales[0] == scales[1] > 2.0**100
