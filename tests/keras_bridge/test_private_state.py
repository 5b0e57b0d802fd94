"""What `private_state` reads of objects of Keras."""

import keras
import numpy as np
import tensorflow as tf

from sok_embed.keras_bridge.private_state import (
    all_layers,
    inputs_of_layers,
    losses_of,
    mask_of,
    print_line,
    seed_of,
    symbolic_inputs,
    takes_training,
)


def test_state_of_objects_of_keras(capsys):
    masked = keras.layers.Masking(0.0)(tf.constant([[[1.0], [0.0]]]))
    np.testing.assert_array_equal(mask_of(masked), [[True, False]])
    assert mask_of(tf.constant([1.0])) is None
    assert seed_of(keras.initializers.RandomUniform(seed=3)) == 3

    inputs = keras.Input((2,), name="ids")
    dense = keras.layers.Dense(1)
    inner = keras.Sequential([keras.Input((2,)), dense])
    model = keras.Model({"ids": inputs}, inner(inputs))
    assert {inner, dense} <= set(all_layers(model))
    assert model not in all_layers(model)
    assert symbolic_inputs(model) == {"ids": inputs}
    assert symbolic_inputs(inner) is not None

    class Subclass(keras.Model):
        pass

    assert symbolic_inputs(Subclass()) is None
    assert losses_of(model) == {"loss": None, "loss_weights": None}
    model.compile("sgd", "mse", loss_weights=[2.0])
    assert losses_of(model) == {"loss": "mse", "loss_weights": [2.0]}
    assert takes_training(model) and not takes_training(Subclass())
    print_line("a line")
    assert capsys.readouterr().out == "a line\n"


def test_the_graph_of_a_model_has_the_inputs_of_each_call():
    first, second = keras.Input((2,), name="first"), keras.Input((2,), name="second")
    shared = keras.layers.Dense(2, name="shared")
    joined = keras.layers.Add(name="joined")([shared(second), shared(first)])
    model = keras.Model([first, second], joined)
    assert inputs_of_layers(model) == {
        "first": [[]],
        "second": [[]],
        "shared": [["second"], ["first"]],
        "joined": [["shared", "shared"]],
    }
    ahead = keras.Sequential([keras.Input((2,), name="ids"), keras.layers.Dense(1, name="only")])
    assert inputs_of_layers(ahead) == {"ids": [[]], "only": [["ids"]]}

    class Subclass(keras.Model):
        pass

    assert inputs_of_layers(Subclass()) == {}
