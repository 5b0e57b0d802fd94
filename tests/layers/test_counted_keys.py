"""An admission counts each occurrence of a key, whatever the form of layer that it comes by."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from counted_forms import FORMS, MIN_COUNT, admitted_of, stream
from seeds import seed_of_test

from sok_embed import DynamicEmbedding, kv
from sok_embed.admission import CountingBloomAdmission, FrequencyAdmission

# Feature columns make no own rows without training=True, and say so.
NEVER_WITHOUT_TRAINING = ("columns",)


def take_step(counted, optimizer, losses):
    """Applies the gradients of all losses as one step: of keys, and whether the call trains."""
    with tf.GradientTape() as tape:
        loss = tf.add_n([counted.loss(keys, training) for keys, training in losses])
    variables = counted.layer.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)


@pytest.mark.cover(8)
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_layer_admits_what_came_often_enough(form, in_function):
    seed = seed_of_test()
    counted, keys = FORMS[form](), stream(seed)
    counted.loss(keys[0], False)  # builds the layer, and counts nothing
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build(counted.layer.trainable_variables)

    def step(batch):
        take_step(counted, optimizer, [(batch, True)])

    run = tf.function(step) if in_function else step
    for i, batch in enumerate(keys):
        run(tf.constant(batch))
        assert counted.admitted() == admitted_of(keys[: i + 1])


@pytest.mark.cover(5)
@pytest.mark.parametrize("form", [form for form in FORMS if form not in NEVER_WITHOUT_TRAINING])
def test_gradients_of_calls_without_training_are_counted_once(form):
    seed = seed_of_test()
    counted, keys = FORMS[form](), stream(seed)
    optimizer = keras.optimizers.SGD(0.5)
    for i, batch in enumerate(keys):
        take_step(counted, optimizer, [(batch, False)])
        assert counted.admitted() == admitted_of(keys[: i + 1])
        counted.loss(batch, False)  # no gradient, no count


@pytest.mark.cover(5)
@pytest.mark.parametrize("form", [form for form in FORMS if form not in NEVER_WITHOUT_TRAINING])
def test_a_step_of_calls_with_and_without_training_counts_each_once(form):
    counted, keys = FORMS[form](), stream(5)
    optimizer = keras.optimizers.SGD(0.5)
    for i, batch in enumerate(keys):
        take_step(counted, optimizer, [(batch[::2], True), (batch[1::2], False)])
        # Keys that the training call has admitted are in the same step no newcomers any more.
        assert counted.admitted() == admitted_of(keys[: i + 1])


def test_several_gradients_of_one_call_count_it_once():
    layer = DynamicEmbedding(1, admission=FrequencyAdmission(3))
    layer.build()
    with tf.GradientTape(persistent=True) as tape:
        vectors = layer(tf.constant([[7, 8, 8]]))
        losses = [tf.reduce_sum(vectors), tf.reduce_sum(vectors**2)]
    optimizer = keras.optimizers.SGD(0.5)
    first, second = (tape.gradient(loss, layer.trainable_variables)[0] for loss in losses)
    optimizer.apply([first + second], layer.trainable_variables)
    assert layer.table.size() == 0
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([[7, 8]])))
    optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    assert layer.table.export()[0].tolist() == [8]


def test_a_key_that_its_gradients_admit_takes_them():
    layer = DynamicEmbedding(1, "zeros", admission=FrequencyAdmission(2))
    optimizer = keras.optimizers.SGD(0.5)
    for expected in ([0.0, 0.0], [-1.0, -0.5]):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([7, 7, 8] if expected[0] else [8])))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        np.testing.assert_array_equal(layer.table.lookup([7, 8])[:, 0], expected)


def test_a_model_whose_compute_loss_calls_without_training_trains_its_rows():
    class Retrieval(keras.Model):
        def __init__(self):
            super().__init__()
            self.rows = DynamicEmbedding(2, admission=FrequencyAdmission(2))

        def call(self, keys, training=None):
            return keys

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return tf.reduce_sum(self.rows(x) ** 2)

    model = Retrieval()
    model.rows.build()
    model.compile(keras.optimizers.SGD(0.1))
    model.fit(np.array([[7, 8], [7, 9]]), batch_size=2, verbose=0)
    assert model.rows.table.export()[0].tolist() == [7]


def test_both_kinds_of_admission_count_alike():
    kinds = FrequencyAdmission(MIN_COUNT), CountingBloomAdmission(MIN_COUNT, 10_000, 1e-6)
    layers = [DynamicEmbedding(2, combiner="sum", admission=kind) for kind in kinds]
    for batch in stream(11):
        for layer in layers:
            layer(batch, training=True)
    first, second = (sorted(layer.table.export()[0].tolist()) for layer in layers)
    assert first == second == admitted_of(stream(11))


def test_updates_of_keys_that_no_lookup_has_counted_warn_once(tmp_path, recwarn):
    with kv.Storage(tmp_path / "rows") as storage:
        embedding = kv.Embedding(
            storage,
            kv.Optimizer("sgd"),
            kv.Initializer("zeros"),
            1,
            admission=FrequencyAdmission(2),
        )
        keys, gradients = np.array([7, 7], np.uint64), np.ones([2, 1], np.float32)
        with pytest.warns(UserWarning, match="gradients of 1 keys were dropped"):
            embedding.apply_gradients(keys, gradients)
        embedding.apply_gradients(keys, gradients)
        assert len(recwarn) == 0 and len(embedding) == 0
