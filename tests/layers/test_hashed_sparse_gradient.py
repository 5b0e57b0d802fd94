"""When the gradient of a hashed weight is sparse, and that no step is wrong for it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import HashedEmbedding, HashedEmbeddingBag

LARGE = 2**18
IDS = np.random.default_rng(0).integers(0, 50, (8, 3))


def bag(sparse_gradient=None, size=LARGE) -> HashedEmbeddingBag:
    layer = HashedEmbeddingBag(
        1000, 4, size=size, weight="ones", sparse_gradient=sparse_gradient, name="bag"
    )
    layer.build()
    return layer


def gradient_of(layer, loss):
    with tf.GradientTape() as tape:
        value = loss()
    return tape.gradient(value, layer.weight.value)


def after_adagrad(layer, gradient) -> np.ndarray:
    """Returns the weight after a rule that squares the gradient."""
    keras.optimizers.Adagrad(1.0).apply([gradient], [layer.weight])
    return layer.weight.numpy()


def squares(outputs) -> tf.Tensor:
    return tf.reduce_sum(outputs**2)


def test_a_small_part_of_a_weight_has_a_sparse_gradient_in_a_custom_loop():
    assert isinstance(gradient_of(layer := bag(), lambda: squares(layer(IDS))), tf.IndexedSlices)
    small = bag(size=1000)
    assert isinstance(gradient_of(small, lambda: squares(small(IDS))), tf.Tensor)


LOSSES = {
    "called twice": lambda layer, _: squares(layer(IDS)) + squares(layer(IDS)),
    "a compiled call twice": lambda layer, call: squares(call(IDS)) + squares(call(IDS)),
    "an eager and a compiled call": lambda layer, call: squares(layer(IDS)) + squares(call(IDS)),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("loss", list(LOSSES.values()), ids=list(LOSSES))
@pytest.mark.parametrize("compiled", [False, True], ids=["eager_step", "compiled_step"])
def test_two_calls_in_a_step_are_summed_before_they_are_squared(loss, compiled):
    weights = []
    for sparse_gradient in (None, False):
        layer = bag(sparse_gradient)
        call = tf.function(layer)
        call(IDS)  # traced before the step

        def step(layer=layer, call=call):
            # Slices that are to be summed are summed here, as an optimizer would not.
            gradient = gradient_of(layer, lambda: loss(layer, call))
            assert isinstance(gradient, tf.Tensor)
            return gradient

        weights.append(after_adagrad(layer, (tf.function(step) if compiled else step)()))
    np.testing.assert_allclose(*weights, rtol=0, atol=1e-6)


@pytest.mark.cover(2)
@pytest.mark.parametrize("sparse_gradient", [None, True, False])
@pytest.mark.parametrize("both", [False, True], ids=["one_branch", "both_branches"])
def test_a_branch_may_hold_the_layer(sparse_gradient, both):
    layer = bag(sparse_gradient)

    @tf.function
    def step(taken):
        def other():
            return squares(layer(IDS)) if both else tf.constant(0.0)

        return tf.convert_to_tensor(
            gradient_of(layer, lambda: tf.cond(taken, lambda: squares(layer(IDS)), other))
        )

    expected = gradient_of(reference := bag(False), lambda: squares(reference(IDS)))
    np.testing.assert_array_equal(step(tf.constant(True)), expected)


class Recording(keras.optimizers.Optimizer):
    """Notes what kind of gradient the first variable gets."""

    def apply(self, grads, trainable_variables=None):
        Recording.kinds.append(type(grads[0]))
        super().apply(grads, trainable_variables)


def kind_in_fit(optimizer: keras.optimizers.Optimizer, batch_size: int) -> type:
    recording = type("Recording", (Recording, type(optimizer)), {})
    Recording.kinds = []
    model = keras.Sequential([keras.Input((3,), dtype="int64"), bag(size=2**22)])
    model.compile(recording.from_config(optimizer.get_config()), "mse")
    model.fit(IDS, np.zeros((8, 4)), batch_size=batch_size, verbose=0)
    (kind,) = set(Recording.kinds)
    return kind


@pytest.mark.cover(2)
@pytest.mark.parametrize("batch_size", [4, 3], ids=["whole_batches", "a_short_last_batch"])
@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [
        (keras.optimizers.SGD(), tf.IndexedSlices),
        (keras.optimizers.Adagrad(), tf.IndexedSlices),
        (keras.optimizers.SGD(momentum=0.9), tf.Tensor),
        (keras.optimizers.Adam(), tf.Tensor),
        (keras.optimizers.Adagrad(use_ema=True), tf.Tensor),
    ],
    ids=["sgd", "adagrad", "momentum", "adam", "ema"],
)
def test_fit_has_the_gradient_that_its_optimizer_is_fast_with(optimizer, kind, batch_size):
    assert issubclass(kind_in_fit(optimizer, batch_size), kind)


def test_a_layer_that_shared_once_stays_dense():
    layer = bag()
    sharer = HashedEmbedding(50, 4, weight=layer)
    sharer(IDS)
    del sharer
    for _ in range(2):
        assert isinstance(gradient_of(layer, lambda: squares(layer(IDS))), tf.Tensor)
