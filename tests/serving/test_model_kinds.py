"""Models of all kinds export, load and follow a training, with the bits of `predict`."""

from __future__ import annotations

import keras
import model_kinds as kinds
import numpy as np
import pytest
import tensorflow as tf
from seeds import seed_of_test
from served_models import assert_same_bits
from tiers import few_or_many

import sok_embed as sok
from sok_embed.serving import Publisher, export, load, served_model


@pytest.mark.cover(2)
@pytest.mark.parametrize("make", kinds.KINDS)
@pytest.mark.parametrize("rounds", few_or_many(1, 30))
def test_a_model_that_follows_answers_as_predict(make, rounds, tmp_path):
    random = np.random.default_rng(seed_of_test())
    # Models of random pieces differ in more than their numbers, so there is one more of them.
    for number in range(rounds + (make is kinds.functional)):
        model, fed = make(random)
        kinds.train(model, fed)
        path = tmp_path / str(number)
        export(model, path, input_signature=kinds.signature(model, fed))
        live = load(path)
        assert_same_bits(kinds.answered(live(**fed)), kinds.predicted(model, fed))
        publisher = Publisher(model, path)
        for delta in (1, 2):
            kinds.train(model, fed)
            assert publisher.publish() == delta
            assert live.update() == (1, delta)
            assert_same_bits(kinds.answered(live(**fed)), kinds.predicted(model, fed))
        publisher.close()
        # A new export is followed from the deltas of the old one.
        export(model, path, input_signature=kinds.signature(model, fed))
        assert live.update() == (2, 0)
        assert_same_bits(kinds.answered(live(**fed)), kinds.predicted(model, fed))
        keras.utils.clear_session()


def test_weights_of_a_subclassed_model_that_is_made_anew_are_found(tmp_path):
    random = np.random.default_rng(1)
    model, fed = kinds.subclassed(random)
    kinds.train(model, fed)
    export(model, tmp_path, input_signature=kinds.signature(model, fed))
    keras.utils.clear_session()
    again, _ = kinds.subclassed(random)
    kinds.train(again, fed)
    publisher = Publisher(again, tmp_path)
    publisher.publish()
    assert_same_bits(kinds.answered(load(tmp_path)(**fed)), kinds.predicted(again, fed))


ADAPTED = {
    "Normalization": lambda: keras.layers.Normalization(),
    "StringLookup": lambda: keras.layers.StringLookup(),
    "Discretization": lambda: keras.layers.Discretization(num_bins=4),
    "tf_idf": lambda: keras.layers.TextVectorization(output_mode="tf_idf", name="text"),
}


@pytest.mark.parametrize("kind", ADAPTED)
def test_a_model_whose_layers_have_adapted_since_is_refused(kind, tmp_path):
    words = keras.Input((1,), dtype="string", name="words")
    numbers = keras.Input((1,), name="numbers")
    layer = ADAPTED[kind]()

    def adapt(data):
        if kind == "StringLookup":
            layer.adapt(tf.constant([f"word {each}" for each in data]))
        elif kind == "tf_idf":
            layer.adapt(tf.constant([f"a b {'c' * (each % 2)}" for each in data]))
        else:
            layer.adapt(np.array(data, np.float32).reshape(-1, 1))

    adapt(range(9))
    if kind == "StringLookup":
        part = sok.DynamicEmbedding(2, "ones", combiner="sum", name="rows")(layer(words))
    elif kind == "tf_idf":
        part = keras.layers.Flatten()(layer(words))
    else:
        part = keras.ops.cast(layer(numbers), "float32")
    joined = keras.layers.Concatenate()([part, numbers])
    model = keras.Model([words, numbers], keras.layers.Dense(1, name="head")(joined))
    export(model, tmp_path)
    publisher = Publisher(model, tmp_path)
    publisher.publish()
    adapt(range(5, 15))
    refused = r"had learned by adapt. Received: .* adapted to other"
    with pytest.raises(ValueError, match=refused):
        publisher.publish()
    publisher.close()
    with pytest.raises(ValueError, match=refused):
        Publisher(model, tmp_path)


def test_nested_outputs_of_one_name_are_refused(tmp_path):
    ids = keras.Input((2,), dtype="int64", name="ids")
    vectors = sok.DynamicEmbedding(2, "ones", combiner="sum")(ids)
    model = keras.Model(ids, {"a_0": vectors, "a": [vectors]})
    with pytest.raises(ValueError, match="different names. Received: a_0, a_0. Name the outputs"):
        export(model, tmp_path)


def test_ragged_outputs_do_not_hide_others(tmp_path):
    ids = keras.Input((None,), dtype="int64", name="ids", ragged=True)
    vectors = sok.DynamicEmbedding(2, "ones")(ids)
    pooled = sok.DynamicEmbedding(2, "ones", combiner="sum")(ids)
    model = keras.Model(ids, {"a": vectors, "a_values": pooled})
    with pytest.raises(ValueError, match="different names.*Name the outputs"):
        sok.export_model(model, tmp_path / "served")


def test_an_export_of_an_earlier_version_is_followed(tmp_path, monkeypatch):
    """It has a list of weights, and does not say what layers had learned."""
    made = served_model._served

    def earlier(*arguments):
        served = made(*arguments)
        served.weights = list(served.weights.values())
        del served.adapted
        return served

    model, fed = kinds.sequential(np.random.default_rng(1))
    kinds.train(model, fed)
    with monkeypatch.context() as patched:
        patched.setattr(served_model, "_served", earlier)
        export(model, tmp_path)
    live, publisher = load(tmp_path), Publisher(model, tmp_path)
    kinds.train(model, fed)
    assert publisher.publish() == 1 and live.update() == (1, 1)
    assert_same_bits(kinds.answered(live(**fed)), kinds.predicted(model, fed))
    publisher.close()
