"""What makes a step: calls of a layer, accumulation, schedules, replicas, several models."""

import functools

import keras
import numpy as np
import pytest
from keras import optimizers as ko
from keras_reference import (
    BATCH,
    DIM,
    EIGHT,
    TWO,
    VOCABULARY,
    Batches,
    SummedGradientEmbedding,
    each,
    fit,
    make_model,
    mirrored,
    train_both,
)

import sok_embed

TEN = 10


def with_options(make_optimizer, **options):
    """Makes optimizers of the same configuration but for the options."""

    def make():
        optimizer = make_optimizer()
        return type(optimizer).from_config({**optimizer.get_config(), **options})

    return make


@pytest.mark.cover(1)
@each(EIGHT)
def test_a_layer_called_twice_in_a_step_is_updated_once_with_the_sum(make_optimizer):
    trained = train_both(make_optimizer, batches=Batches(steps=TEN), calls=2)
    trained.assert_equal()
    assert trained.table.stats()["steps"] == TEN


@pytest.mark.cover(1)
@each(EIGHT)
def test_accumulated_gradients_are_applied_in_the_last_of_the_steps(make_optimizer):
    accumulating = with_options(make_optimizer, gradient_accumulation_steps=2)
    trained = train_both(accumulating, batches=Batches(steps=TEN))
    trained.assert_equal()
    assert trained.table.stats()["steps"] == TEN // 2


@pytest.mark.cover(1)
@each(TWO)
def test_what_is_accumulated_and_not_applied_at_the_end_waits(make_optimizer):
    accumulating = with_options(make_optimizer, gradient_accumulation_steps=4)
    trained = train_both(accumulating, batches=Batches(steps=TEN))
    np.testing.assert_allclose(trained.ours, trained.keras, rtol=0, atol=1e-5)
    stats = trained.table.stats()
    assert stats["steps"] == 2
    assert stats["pending_gradients"] > 0


@pytest.mark.cover(1)
@each(EIGHT)
def test_a_learning_rate_schedule_is_followed(make_optimizer):
    schedule = ko.schedules.ExponentialDecay(0.05, 5, 0.8)
    scheduled = with_options(make_optimizer, learning_rate=schedule)
    train_both(scheduled, batches=Batches(steps=TEN)).assert_equal()


@pytest.mark.cover(1)
@each(EIGHT)
def test_replicas_of_a_mirrored_strategy_train_one_table(make_optimizer):
    trained = train_both(make_optimizer, batches=Batches(steps=TEN), make_strategy=mirrored)
    trained.assert_equal()
    assert trained.table.stats()["steps"] == TEN


def test_a_layers_own_optimizer_may_be_made_for_replicas():
    own = functools.partial(ko.SGD, 0.5)
    batches = Batches(steps=TEN)
    train_both(own, batches=batches, own_optimizer=own, make_strategy=mirrored).assert_equal()


# This documents Keras: its accumulation merges replicas inside of a condition, which tf.distribute
# refuses, with any layer. If it fails, Batches under both can be compared like the rest.
def test_keras_does_not_accumulate_gradients_under_a_mirrored_strategy():
    with mirrored().scope():
        model = make_model(keras.layers.Embedding(VOCABULARY, DIM))
        model.compile(ko.SGD(0.1, gradient_accumulation_steps=2), "mse")
    batches = Batches(steps=2)
    with pytest.raises(RuntimeError, match="merge_call"):
        fit(model, batches.keys, batches.targets)


def test_two_models_that_share_a_layer_train_it_in_turns_with_sgd():
    batches = Batches(steps=TEN)
    tables = []
    for layer in (sok_embed.DynamicEmbedding(DIM), SummedGradientEmbedding(VOCABULARY, DIM)):
        models = [make_model(layer), make_model(layer)]
        for scale, model in enumerate(models, start=1):
            model.compile(ko.SGD(0.05 * scale), "mse", run_eagerly=True)
            model.get_layer("dense").set_weights([batches.kernel * scale, np.zeros(1)])
        if isinstance(layer, sok_embed.DynamicEmbedding):
            layer.table.assign(np.arange(VOCABULARY), batches.start)
        else:
            layer.set_weights([batches.start])
        for i in range(TEN):
            batch = slice(i * BATCH, (i + 1) * BATCH)
            models[i % 2].train_on_batch(batches.keys[batch], batches.targets[batch])
        if isinstance(layer, sok_embed.DynamicEmbedding):
            tables.append(layer.table.lookup(np.arange(VOCABULARY)))
        else:
            tables.append(layer.get_weights()[0])
    # The tolerance is that of Trained.assert_equal.
    np.testing.assert_allclose(*tables, rtol=0, atol=1e-5)
    assert np.abs(tables[0] - batches.start).max() > 1e-3
