"""Outputs of many tables lie in plain dicts, lists and tuples, as any nest of Keras does."""

import copy
import pickle
from collections import namedtuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import DistributedEmbedding, FeatureConfig, TableConfig

Pair = namedtuple("Pair", ["first", "second"])
KEYS = np.array([3, 4, 5])


def feature(name):
    return FeatureConfig(name, TableConfig(f"{name}_table", None, 2))


NESTS = {
    "dict": ({"b": feature("b"), "a": feature("a")}, {"b": KEYS, "a": KEYS}),
    "list": ([feature("a"), feature("b")], [KEYS, KEYS]),
    "tuple": ((feature("a"), feature("b")), (KEYS, KEYS)),
    "named tuple": (Pair(feature("a"), feature("b")), Pair(KEYS, KEYS)),
    "deep": (
        {"x": [feature("a"), {"y": (feature("b"),)}]},
        {"x": [KEYS, {"y": (KEYS,)}]},
    ),
}


def types_of(nest):
    """Returns the nest with the class of each of its parts."""
    if isinstance(nest, dict):
        return (type(nest), {key: types_of(part) for key, part in nest.items()})
    if isinstance(nest, (list, tuple)):
        return (type(nest), [types_of(part) for part in nest])
    return None


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("traced", [False, True])
def test_the_output_has_the_types_of_the_configs(name, traced):
    configs, inputs = NESTS[name]
    layer = DistributedEmbedding(configs)
    call = tf.function(layer) if traced else layer
    assert types_of(call(inputs)) == types_of(inputs)


@pytest.mark.parametrize("name", NESTS)
def test_shapes_specs_and_masks_have_the_types_of_the_configs(name):
    configs, inputs = NESTS[name]
    layer = DistributedEmbedding(configs)
    symbols = keras.tree.map_structure(lambda _: keras.Input((), dtype="int64"), inputs)
    assert types_of(layer(symbols)) == types_of(inputs)
    assert types_of(layer.compute_mask(inputs, None)) == types_of(inputs)
    # A shape is a tuple itself.
    nest = layer.compute_output_shape(keras.tree.map_structure(lambda _: (None,), inputs))
    shapes = keras.tree.map_shape_structure(lambda shape: np.zeros(1), nest)
    assert types_of(shapes) == types_of(inputs)


def test_the_order_of_a_dict_is_that_of_the_configs():
    configs, inputs = NESTS["dict"]
    assert list(DistributedEmbedding(configs)(inputs)) == ["b", "a"]


def functional():
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in ("a", "b")}
    layer = DistributedEmbedding({name: feature(name) for name in inputs})
    return keras.Model(inputs, layer(inputs))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.fields = DistributedEmbedding({name: feature(name) for name in ("a", "b")})

    def call(self, inputs):
        return self.fields(inputs)


@pytest.mark.cover("values")
@pytest.mark.parametrize("make", [functional, Subclassed])
@pytest.mark.parametrize("loss", [{"a": "mse", "b": "mae"}, "mse"], ids=["each", "one"])
def test_a_model_trains_by_losses_of_its_outputs(make, loss):
    model = make()
    model.compile("sgd", loss)
    inputs = {"a": KEYS, "b": KEYS}
    targets = {"a": np.ones((3, 2)), "b": np.zeros((3, 2))}
    history = model.fit(inputs, targets, epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]


@pytest.mark.parametrize("make", [functional, Subclassed])
def test_predictions_can_be_copied_pickled_and_mapped(make):
    model = make()
    predicted = model.predict({"a": KEYS, "b": KEYS}, verbose=0)
    assert type(predicted) is dict
    for other in (copy.deepcopy(predicted), pickle.loads(pickle.dumps(predicted))):
        keras.tree.map_structure(np.testing.assert_array_equal, other, predicted)
    zeros = keras.tree.map_structure(lambda a, b: a - b, predicted, dict(predicted))
    assert not any(part.any() for part in zeros.values())
