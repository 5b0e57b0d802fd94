"""What both hashed layers promise as Keras layers."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko

from sok_embed import HashedEmbedding, HashedEmbeddingBag

IDS, DIM = 40, 4


@dataclass
class Case:
    """A layer for ids `[batch, 3]`, and the shape that it gives to a sample."""

    cls: type[keras.layers.Layer]
    output: tuple[int, ...]
    # These arguments differ from their defaults.
    special: dict[str, Any]

    def make(self, **arguments: Any) -> keras.layers.Layer:
        return self.cls(
            **{"num_embeddings": IDS, "embedding_dim": DIM, "compression": 0.5, **arguments}
        )

    def ids(self, batch: int = 6, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, IDS, (batch, 3))

    def model(self, layer: keras.layers.Layer | None = None) -> keras.Sequential:
        inputs = keras.Input((3,), dtype="int64")
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        return keras.Sequential([inputs, layer or self.make(), keras.layers.Flatten(), dense])


COMMON = {"size": 33, "hash": "original", "seed": 7, "sign": True, "block_size": 3}
CASES = {
    "bag": Case(
        HashedEmbeddingBag,
        (DIM,),
        {
            **COMMON,
            "mode": "max",
            "padding_idx": 5,
            "include_last_offset": True,
            "sparse_gradient": True,
        },
    ),
    "embedding": Case(
        HashedEmbedding, (3, DIM), {**COMMON, "mask_zero": True, "sparse_gradient": False}
    ),
}


@pytest.fixture(params=list(CASES))
def case(request) -> Case:
    return CASES[request.param]


def fit(model: keras.Model, ids: np.ndarray, **arguments: Any) -> dict[str, list[float]]:
    targets = np.linspace(-1, 1, len(ids)).astype(np.float32)[:, None]
    return model.fit(ids, targets, verbose=0, shuffle=False, **arguments).history


def as_json(config: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(config))


def test_a_symbolic_call_gives_shape_and_dtype(case):
    outputs = case.make()(keras.Input((3,), dtype="int32"))
    assert tuple(outputs.shape) == (None, *case.output)
    assert outputs.dtype == "float32"


def test_an_eager_call_gives_the_shape_that_was_computed(case):
    layer = case.make()
    outputs = layer(case.ids())
    assert tuple(outputs.shape) == layer.compute_output_shape((6, 3)) == (6, *case.output)
    assert outputs.dtype == tf.float32


def test_symbolic_offsets_say_how_many_bags_there_are():
    bag = CASES["bag"]
    ids, ends = keras.Input((), dtype="int64"), keras.Input(batch_shape=(9,), dtype="int64")
    assert tuple(bag.make()(ids, ends).shape) == (9, DIM)
    assert tuple(bag.make(include_last_offset=True)(ids, ends).shape) == (8, DIM)
    assert tuple(bag.make()(ids, keras.Input((), dtype="int64")).shape) == (None, DIM)


def test_a_tf_function_gives_what_an_eager_call_gives(case):
    layer, ids = case.make(), case.ids()
    np.testing.assert_array_equal(tf.function(layer)(tf.constant(ids)), layer(ids))


def test_the_only_weight_has_the_size_that_the_compression_says(case):
    layer = case.make(compression=0.3)
    layer(case.ids())
    assert layer.weights == layer.trainable_weights == [layer.weight]
    assert layer.weight.shape == (int(IDS * DIM * 0.3),)
    assert layer.weight.name == "weight" and layer.count_params() == 48


def test_the_weight_starts_uniform_within_the_root_of_one_by_the_rows(case):
    layer = case.make(num_embeddings=2500, embedding_dim=16, compression=0.5)
    layer.build()
    values, bound = layer.weight.numpy(), 1 / 50
    assert len(values) == 20_000
    assert np.abs(values).max() <= bound
    # The values have the standard deviation of a uniform variable, within 4 deviations of its
    # estimate.
    assert values.std() == pytest.approx(bound / 3**0.5, rel=0.015)
    assert abs(values.mean()) < 4 * bound / (3 * 20_000) ** 0.5


@pytest.mark.parametrize(
    "initializer",
    ["ones", keras.initializers.RandomNormal(stddev=0.5, seed=3), {"class_name": "Zeros"}],
    ids=["name", "instance", "config"],
)
def test_an_initializer_fills_the_weight_and_survives_the_config(case, initializer):
    if isinstance(initializer, dict):
        initializer = keras.initializers.serialize(keras.initializers.Zeros())
    layer = case.make(weight=initializer)
    again = case.cls.from_config(as_json(layer.get_config()))
    ids = case.ids()
    np.testing.assert_array_equal(layer(ids), again(ids))
    expected = keras.initializers.get(initializer)((80,))
    np.testing.assert_array_equal(again.weight, expected)


@pytest.mark.parametrize("convert", [np.array, list, tf.constant, tf.Variable, keras.Variable])
def test_an_array_gives_the_weight_its_values_and_its_size(case, convert):
    values = np.linspace(-1, 1, 51).astype(np.float32)
    layer = case.make(weight=convert(values))
    layer.build()
    np.testing.assert_array_equal(layer.weight, values)
    # The values are no part of the config, their number is.
    config = layer.get_config()
    assert config["weight"] is None and config["size"] == 51
    assert case.cls.from_config(as_json(config)).size == 51


def test_the_config_round_trip_makes_an_equal_layer(case):
    for arguments in ({}, case.special):
        layer = case.make(**arguments)
        config = as_json(layer.get_config())
        again = case.cls.from_config(config)
        assert as_json(again.get_config()) == config
        assert arguments.items() <= config.items()
        ids = case.ids()
        layer(ids), again(ids)
        again.set_weights(layer.get_weights())
        np.testing.assert_array_equal(again(ids), layer(ids))


def test_the_config_names_every_argument(case):
    parameters = set(inspect.signature(case.cls.__init__).parameters) - {"self", "kwargs"}
    assert parameters <= set(case.make().get_config())


def test_keras_finds_the_registered_class(case):
    config = as_json(keras.saving.serialize_keras_object(case.make()))
    assert config["registered_name"] == f"sok_embed>{case.cls.__name__}"
    assert type(keras.saving.deserialize_keras_object(config)) is case.cls


def test_a_negative_padding_idx_counts_from_the_end():
    assert CASES["bag"].make(padding_idx=-1).padding_idx == IDS - 1


@pytest.mark.cover(1)
def test_a_keras_file_gives_the_model_again(case, tmp_path):
    model, ids = case.model(case.make(**case.special)), case.ids()
    model.compile(ko.Adam(0.1), "mse")
    fit(model, ids)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(ids, verbose=0), model.predict(ids, verbose=0))
    fit(model, ids)
    fit(loaded, ids)
    np.testing.assert_array_equal(loaded.layers[0].weight, model.layers[0].weight)


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_weights_of_a_model_are_loaded_into_another(case, tmp_path, dtype):
    ids = case.ids()
    saved, loaded = (case.model(case.make(dtype=dtype)) for _ in range(2))
    saved.save_weights(tmp_path / "model.weights.h5")
    loaded.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(loaded(ids), saved(ids))


@pytest.mark.cover(5)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": 8}, "seed=8.*seed=7"),
        ({"hash": "mixed"}, "hash='mixed'.*hash='original'"),
        ({"sign": False, "block_size": 2}, "sign=False, block_size=2.*sign=True, block_size=3"),
        ({"num_embeddings": 41}, "num_embeddings=41.*num_embeddings=40"),
        ({"embedding_dim": 5}, "embedding_dim=5.*embedding_dim=4"),
        ({"size": 34}, "33"),
    ],
)
def test_weights_of_another_hash_or_size_are_refused(case, tmp_path, arguments, message):
    case.model(case.make(**case.special)).save_weights(tmp_path / "model.weights.h5")
    other = keras.Sequential(
        [keras.Input((3,), dtype="int64"), case.make(**{**case.special, **arguments})]
    )
    with pytest.raises(ValueError, match=rf"(?s){message}"):
        other.load_weights(tmp_path / "model.weights.h5")


def test_weights_of_a_static_embedding_are_refused(case, tmp_path):
    static = keras.layers.Embedding(IDS, DIM)
    keras.Sequential([keras.Input((3,), dtype="int64"), static]).save_weights(
        tmp_path / "model.weights.h5"
    )
    other = keras.Sequential([keras.Input((3,), dtype="int64"), case.make()])
    with pytest.raises(ValueError, match="signature.*weight=array"):
        other.load_weights(tmp_path / "model.weights.h5")


POLICIES = {
    "float32": ("float32", "float32"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "mixed_bfloat16": ("float32", "bfloat16"),
    "float16": ("float16", "float16"),
    "mixed_float16": ("float32", "float16"),
    "float64": ("float64", "float64"),
}


@pytest.mark.cover(5)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_dtype_policy_decides_the_weight_and_the_output(case, policy):
    variable, compute = POLICIES[policy]
    layer, ids = case.make(dtype=policy), case.ids()
    assert layer(keras.Input((3,), dtype="int64")).dtype == compute
    assert layer(ids).dtype == tf.as_dtype(compute)
    assert layer.weight.dtype == variable
    exact = case.make(dtype="float64", seed=0)
    exact.build()
    exact.set_weights([np.asarray(layer.weight, np.float64)])
    # A sum has three entries of at most 1/6, is made in 24 bits, and is rounded to 8, 11 or 24.
    tolerance = {"bfloat16": 2e-3, "float16": 2.5e-4, "float32": 1e-7, "float64": 0}[compute]
    np.testing.assert_allclose(tf.cast(layer(ids), tf.float64), exact(ids), rtol=0, atol=tolerance)


@pytest.mark.cover(4)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_of_a_policy_trains(case, policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = case.model()
    finally:
        keras.config.set_dtype_policy("float32")
    start = model.layers[0].get_weights()[0]
    model.compile(ko.SGD(0.1), "mse")
    fit(model, case.ids())
    assert np.abs(model.layers[0].get_weights()[0] - start).max() > 1e-3


def test_float64_goes_with_float64_only(case):
    policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    policy._variable_dtype = "float64"
    with pytest.raises(ValueError, match="both of float64.*a compute dtype of float16.*float64"):
        case.make(dtype=policy)


@pytest.mark.cover(1)
def test_training_lowers_the_loss(case):
    model = case.model()
    model.compile(ko.Adam(0.05), "mse")
    losses = fit(model, case.ids(), epochs=30)["loss"]
    assert losses[-1] < 0.3 * losses[0]


def test_a_frozen_layer_does_not_train(case):
    layer = case.make()
    layer.trainable = False
    model = case.model(layer)
    start = layer.get_weights()[0]
    model.compile(ko.SGD(0.1), "mse")
    fit(model, case.ids())
    np.testing.assert_array_equal(layer.weight, start)


def test_a_stateless_call_takes_the_weight_that_it_is_given(case):
    layer, ids = case.make(), case.ids()
    outputs = layer(ids)
    doubled, _ = layer.stateless_call([layer.weight * 2.0], [], ids)
    np.testing.assert_array_equal(doubled, outputs * 2.0)
    weight = tf.constant(layer.weight.numpy())
    with tf.GradientTape() as tape:
        tape.watch(weight)
        loss = tf.reduce_sum(layer.stateless_call([weight], [], ids)[0])
    assert float(tf.reduce_sum(tape.gradient(loss, weight))) == 6 * 3 * DIM


def test_the_compiler_of_tensorflow_is_not_used(case):
    model = case.model()
    assert model.layers[0].supports_jit is False
    model.compile("sgd", "mse")
    assert model.jit_compile is False


@pytest.mark.cover(1)
def test_an_exported_model_serves_what_the_model_predicts(case, tmp_path):
    model, ids = case.model(), case.ids()
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_array_equal(served.serve(ids), model(ids))


@pytest.mark.parametrize(
    "spec", [tf.RaggedTensorSpec([None, None], tf.int64), tf.SparseTensorSpec([None, 9], tf.int64)]
)
def test_a_saved_model_serves_ragged_and_sparse_bags(spec, tmp_path):
    # `model.export` has signatures of dense inputs only.
    module = tf.Module()
    module.bag = CASES["bag"].make()
    module.bag.build()
    module.serve = tf.function(module.bag, input_signature=[spec])
    tf.saved_model.save(module, tmp_path / "served")
    ids = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64)
    if isinstance(spec, tf.SparseTensorSpec):
        ids = tf.sparse.reset_shape(ids.to_sparse(), [3, 9])
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_array_equal(served.serve(ids), module.bag(ids))


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_a_functional_model_takes_ragged_and_sparse_bags(kind, tmp_path):
    inputs = keras.Input((None if kind == "ragged" else 9,), dtype="int64", **{kind: True})
    bag = CASES["bag"].make(mode="mean")
    model = keras.Model(inputs, keras.layers.Dense(1)(bag(inputs)))
    rows = [[1, 2], [], [3], [4, 4, 5]]
    ids = tf.ragged.constant(rows, dtype=tf.int64)
    if kind == "sparse":
        ids = tf.sparse.reset_shape(ids.to_sparse(), [4, 9])
    expected = [bag(np.array([row], np.int64)) for row in rows]
    np.testing.assert_allclose(bag(ids), np.concatenate(expected), rtol=1e-6)
    model.compile(ko.Adam(0.05), "mse")
    targets = np.array([[1.0], [0], [-1], [2]], np.float32)
    data = tf.data.Dataset.from_tensors((ids, targets))
    losses = model.fit(data, epochs=20, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    predicted = model.predict(data, verbose=0)
    np.testing.assert_array_equal(predicted, model(ids))
    assert model.evaluate(data, verbose=0) == pytest.approx(((predicted - targets) ** 2).mean())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(ids), model(ids))


def test_an_embedding_of_a_symbolic_ragged_input_is_ragged():
    outputs = CASES["embedding"].make()(keras.Input((None,), dtype="int64", ragged=True))
    assert outputs.ragged and tuple(outputs.shape) == (None, None, DIM)


def test_mask_zero_masks_id_zero_for_later_layers():
    layer = CASES["embedding"].make(mask_zero=True)
    ids = np.array([[3, 0, 5], [0, 0, 1]])
    outputs = layer(ids)
    np.testing.assert_array_equal(keras.src.backend.get_keras_mask(outputs), ids != 0)
    assert layer.compute_mask(tf.ragged.constant([[0], [1, 2]])) is None
    assert CASES["embedding"].make().compute_mask(ids) is None
