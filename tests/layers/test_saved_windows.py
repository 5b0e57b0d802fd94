"""Models that are saved between calls whose gradients an optimizer accumulates train on."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed.training import commit

CALLS, RATE = 3, 0.5
FACTORS = [1.0, -2.0, 4.0, 3.0, -1.0, 5.0, 2.0, -3.0, 1.0]


def collection(keys):
    config = sok.TableConfig("table", None, 2, initializer="ones")
    return sok.DistributedEmbedding([sok.FeatureConfig("key", config)], output="concat")([keys])


LAYERS = ("dynamic", "adaptive", "collection")


def made(kind):
    keys = keras.Input((1,), dtype="int64")
    if kind == "dynamic":
        vectors = sok.DynamicEmbedding(2, embeddings_initializer="ones")(keys)
    elif kind == "adaptive":
        vectors = sok.AdaptiveEmbedding(2, 5, embeddings_initializer="ones", promote_after=2)(keys)
    else:
        vectors = collection(keys)
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="dense")
    model = keras.Model(keys, dense(keras.layers.Flatten()(vectors)))
    model.compile(keras.optimizers.SGD(RATE, gradient_accumulation_steps=CALLS))
    model.optimizer.build(model.trainable_variables)
    return model


def step(model, factor):
    """Multiplies the output for one key by a factor, and takes its gradient."""
    with tf.GradientTape() as tape:
        loss = factor * tf.reduce_sum(model(np.array([[7]]), training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply(gradients, model.trainable_variables)


def row_and_kernel(model):
    vectors = keras.Model(model.input, model.get_layer("dense").input)
    return np.stack([vectors(np.array([[7]]))[0], model.get_layer("dense").kernel[:, 0]])


def expected(lost):
    """The row and the kernel after all calls, where the row misses those that are lost."""
    row, kernel = np.ones(2), np.ones(2)
    for begin in range(0, len(FACTORS), CALLS):
        window = range(begin, begin + CALLS)
        of_row = kernel * sum(FACTORS[call] for call in window if call not in lost) / CALLS
        of_kernel = row * sum(FACTORS[call] for call in window) / CALLS
        row, kernel = row - RATE * of_row, kernel - RATE * of_kernel
    return np.stack([row, kernel])


def by_model(save):
    def moved(model, kind, path):
        save(model, f"{path}/m.keras")
        return keras.saving.load_model(f"{path}/m.keras")

    return moved


def by_weights(model, kind, path):
    model.save_weights(f"{path}/m.weights.h5")
    other = made(kind)
    other.load_weights(f"{path}/m.weights.h5")
    return other


def by_checkpoint(model, kind, path):
    tf.train.Checkpoint(model=model).write(f"{path}/tf")
    other = made(kind)
    tf.train.Checkpoint(model=other).read(f"{path}/tf").assert_existing_objects_matched()
    return other


def into_itself(model, kind, path):
    """Goes on in the same process, which still has the gradients that are not in the file."""
    model.save_weights(f"{path}/m.weights.h5")
    model.load_weights(f"{path}/m.weights.h5")
    return model


WAYS = {
    "save": by_model(lambda model, path: model.save(path)),
    "save_model": by_model(sok.save_model),
    "weights": by_weights,
    "checkpoint": by_checkpoint,
    "pickle": lambda model, kind, path: pickle.loads(pickle.dumps(model)),
    "deepcopy": lambda model, kind, path: copy.deepcopy(model),
    "itself": into_itself,
}


@pytest.mark.cover(3)
@pytest.mark.parametrize(
    ("kind", "way", "saved_after"), list(itertools.product(LAYERS, WAYS, [1, 2, 4, 5]))
)
def test_a_window_goes_on_with_the_calls_that_follow_the_save(kind, way, saved_after, tmp_path):
    model = made(kind)
    for factor in FACTORS[:saved_after]:
        step(model, factor)
    with pytest.warns(UserWarning, match=f"after {saved_after % CALLS} of them"):
        model = WAYS[way](model, kind, tmp_path)
    for factor in FACTORS[saved_after:]:
        step(model, factor)
    lost = range(saved_after // CALLS * CALLS, saved_after)
    np.testing.assert_allclose(row_and_kernel(model), expected(lost), rtol=0, atol=1e-5)


@pytest.mark.cover(2)
@pytest.mark.parametrize("way", [each for each in WAYS if each not in ("save", "itself")])
def test_at_the_end_of_a_window_nothing_is_lost_or_warned_of(way, tmp_path):
    model = made("dynamic")
    for factor in FACTORS[:CALLS]:
        step(model, factor)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = WAYS[way](model, "dynamic", tmp_path)
    for factor in FACTORS[CALLS:]:
        step(model, factor)
    np.testing.assert_allclose(row_and_kernel(model), expected(()), rtol=0, atol=1e-5)


def test_a_save_leaves_the_window_of_the_saved_model_as_it_is(tmp_path):
    model = made("dynamic")
    for call, factor in enumerate(FACTORS):
        step(model, factor)
        if (call + 1) % CALLS:
            with pytest.warns(UserWarning, match="Their gradients of rows stay behind"):
                model.save(tmp_path / "m.keras")
    np.testing.assert_allclose(row_and_kernel(model), expected(()), rtol=0, atol=1e-5)


@pytest.mark.cover(1)
@pytest.mark.parametrize("saved_after", [1, 2, 4])
def test_accumulated_gradients_of_an_older_file_are_not_taken_for_others(
    saved_after, monkeypatch, tmp_path
):
    monkeypatch.setattr(commit, "leave_out_of_files", lambda *_: None)
    model = made("dynamic")
    for factor in FACTORS[:saved_after]:
        step(model, factor)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    with pytest.raises(tf.errors.FailedPreconditionError, match="with a new optimizer"):
        for factor in FACTORS[saved_after:]:
            step(loaded, factor)


def test_the_model_of_a_fit_is_saved_amid_a_window(tmp_path):
    """`fit` ends where its batches end, wherever the window is."""
    model = made("dynamic")
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=CALLS), "mse")
    keys, targets = np.arange(4)[:, None], np.ones((4, 1))
    path = str(tmp_path / "best.keras")
    saving = sok.callbacks.ModelCheckpoint(path)
    with pytest.warns(UserWarning, match="after 1 of them"):
        model.fit(keys, targets, batch_size=1, verbose=0, callbacks=[saving])
    loaded = keras.saving.load_model(path)
    loaded.fit(keys, targets, batch_size=1, epochs=3, verbose=0)
    assert int(loaded.optimizer.iterations) == 5
