"""What every table layer promises, as a Keras layer and as a table."""

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

import sok_embed
from sok_embed import AdaptiveEmbedding, All2AllDenseEmbedding, DynamicEmbedding, tf_ops
from sok_embed.layers.key_layer import KeyLayer

DIM = 4


@dataclass
class Case:
    """A layer and an input for it. Keys are below 40."""

    cls: type[keras.layers.Layer]
    arguments: dict[str, Any]
    # The shape of one sample. None: the input has one dimension, whose length is the batch.
    sample: tuple[int, ...] | None

    def make(self, **keywords: Any) -> keras.layers.Layer:
        return self.cls(**{**self.arguments, **keywords})

    def keys(self, batch: int = 6, seed: int = 0) -> np.ndarray:
        shape = (batch, *(self.sample or ()))
        return np.random.default_rng(seed).integers(0, 40, shape)

    def model(self, layer: keras.layers.Layer | None = None) -> keras.Sequential:
        inputs = keras.Input(self.sample or (), dtype="int64")
        return keras.Sequential(
            [
                inputs,
                layer or self.make(),
                keras.layers.Flatten(),
                keras.layers.Dense(1, kernel_initializer="ones"),
            ]
        )

    def fit(self, model: keras.Model, keys: np.ndarray, **arguments: Any) -> None:
        # This trains without a graph, which takes longer to build than these few steps do. What fit
        # does in a graph is the subject of test_training_equals_keras.py.
        model.run_eagerly = True
        targets = np.linspace(-1, 1, len(keys)).astype(np.float32)[:, None]
        model.fit(keys, targets, verbose=0, shuffle=False, **arguments)


SHARDED = {"max_vocabulary_size_per_gpu": 40, "embedding_vec_size": DIM, "slot_num": 2}
CASES = {
    "dynamic": Case(DynamicEmbedding, {"output_dim": DIM}, (3,)),
    "hashed": Case(All2AllDenseEmbedding, {**SHARDED, "nnz_per_slot": 3}, (2, 3)),
    "direct": Case(
        All2AllDenseEmbedding, {**SHARDED, "nnz_per_slot": 3, "use_hashtable": False}, (2, 3)
    ),
    "dynamic_input": Case(
        All2AllDenseEmbedding, {**SHARDED, "nnz_per_slot": 1, "dynamic_input": True}, None
    ),
    # There are so many buckets that no two of the keys have one in common.
    "adaptive": Case(
        AdaptiveEmbedding,
        {"output_dim": DIM, "static_buckets": 10**6, "promote_after": 1, "sketch_capacity": 1000},
        (3,),
    ),
}


@pytest.fixture(params=list(CASES))
def case(request) -> Case:
    return CASES[request.param]


def test_a_symbolic_call_gives_shape_and_dtype(case):
    outputs = case.make()(keras.Input(case.sample or (), dtype="int64"))
    assert tuple(outputs.shape) == (None, *(case.sample or ()), DIM)
    assert outputs.dtype == "float32"


def test_compute_output_shape_adds_the_dimension(case):
    shape = (None, *(case.sample or ()))
    assert case.make().compute_output_shape(shape) == (*shape, DIM)


def test_an_eager_call_gives_the_shape_that_was_computed(case):
    layer, keys = case.make(), case.keys()
    outputs = layer(keys)
    assert tuple(outputs.shape) == layer.compute_output_shape(keys.shape)
    assert outputs.dtype == tf.float32


def test_a_tf_function_gives_what_an_eager_call_gives(case):
    layer, keys = case.make(), case.keys()
    traced = tf.function(lambda k: layer(k, training=False))
    np.testing.assert_array_equal(traced(tf.constant(keys)), layer(keys, training=False))


def test_equal_keys_get_equal_vectors_and_others_do_not(case):
    layer, keys = case.make(), case.keys()
    outputs = layer(keys).numpy().reshape(-1, DIM)
    _, first, inverse = np.unique(keys.ravel(), return_index=True, return_inverse=True)
    np.testing.assert_array_equal(outputs, outputs[first][inverse])
    assert len(np.unique(outputs[first], axis=0)) == len(first)


def test_the_only_weight_is_the_anchor_and_it_stays_zero(case):
    layer = case.make()
    model = case.model(layer)
    model.compile("adam", "mse")
    case.fit(model, case.keys())
    (anchor,) = layer.weights
    assert layer.trainable_weights == [anchor]
    assert anchor.shape == (tf_ops.ANCHOR_SIZE,) and anchor.dtype == "float32"
    np.testing.assert_array_equal(anchor, np.zeros(tf_ops.ANCHOR_SIZE))


def test_fit_makes_a_row_for_each_key_and_trains_it(case):
    layer, keys = case.make(), case.keys()
    start = layer.table.lookup(np.unique(keys))
    model = case.model(layer)
    model.compile(ko.SGD(0.1), "mse")
    case.fit(model, keys)
    assert layer.table.size() == len(np.unique(keys))
    moved = np.abs(layer.table.lookup(np.unique(keys)) - start).max(axis=1)
    assert (moved > 1e-4).all()


@pytest.mark.cover(1)
def test_training_lowers_the_loss(case):
    model, keys = case.model(), case.keys()
    model.compile(ko.Adam(0.05), "mse")
    targets = np.linspace(-1, 1, len(keys))[:, None]
    losses = model.fit(keys, targets, epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.3 * losses[0]


def test_the_config_round_trip_makes_an_equal_layer(case):
    layer = case.make(name="named", seed=7, optimizer=ko.Adam(0.5))
    config = layer.get_config()
    again = case.cls.from_config(config)
    assert json.dumps(again.get_config()) == json.dumps(config)
    keys = case.keys()
    np.testing.assert_array_equal(layer(keys), again(keys))
    assert again.optimizer is not layer.optimizer
    assert again.optimizer.get_config() == layer.optimizer.get_config()


def test_the_config_names_every_argument(case):
    parameters = set(inspect.signature(case.cls.__init__).parameters) - {"self", "kwargs"}
    parameters -= {"weights"}  # the rows are saved, and not what they started from
    assert parameters <= set(case.make().get_config())


def test_keras_finds_the_registered_class(case):
    layer = case.make()
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    assert config["registered_name"] == f"sok_embed>{case.cls.__name__}"
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is case.cls
    assert again.get_config() == layer.get_config()


@pytest.mark.parametrize(
    "initializer",
    ["ones", "glorot_uniform", keras.initializers.RandomNormal(stddev=0.5, seed=3)],
    ids=["name", "alias", "instance"],
)
def test_an_initializer_survives_the_config(case, initializer):
    sharded = case.cls is All2AllDenseEmbedding
    argument = "embedding_initializer" if sharded else "embeddings_initializer"
    layer = case.make(**{argument: initializer})
    again = case.cls.from_config(json.loads(json.dumps(layer.get_config())))
    keys = case.keys()
    np.testing.assert_array_equal(layer(keys), again(keys))


def test_a_cloned_model_has_a_table_of_its_own_that_starts_alike(case):
    keys = case.keys()
    model = case.model()
    model.compile(ko.SGD(0.1), "mse")
    before = model.layers[0].table.lookup(keys)
    case.fit(model, keys)
    clone = keras.models.clone_model(model)
    assert clone.layers[0].table is not model.layers[0].table
    assert clone.layers[0].table.size() == 0
    np.testing.assert_array_equal(clone.layers[0].table.lookup(keys), before)


@pytest.mark.parametrize(
    ("policy", "compute"),
    [("float32", "float32"), ("bfloat16", "bfloat16"), ("mixed_bfloat16", "bfloat16")],
)
def test_a_dtype_policy_decides_the_output_and_rows_stay_float32(case, policy, compute):
    layer, keys = case.make(dtype=policy), case.keys()
    symbolic = layer(keras.Input(case.sample or (), dtype="int64"))
    outputs = layer(keys)
    assert symbolic.dtype == compute
    assert outputs.dtype == tf.as_dtype(compute)
    assert layer.table.lookup(keys).dtype == np.float32
    # This rounds to the nearest bfloat16, as tf.cast does it.
    np.testing.assert_array_equal(outputs, tf.cast(layer.table.lookup(keys), compute))


@pytest.mark.cover("values")
@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_a_model_of_a_bfloat16_policy_trains(case, policy):
    layer, keys = case.make(dtype=policy), case.keys()
    start = layer.table.lookup(keys)
    model = case.model(layer)
    model.compile(ko.SGD(0.1), "mse")
    case.fit(model, keys)
    assert np.abs(layer.table.lookup(keys) - start).max() > 1e-3


def test_without_training_no_row_is_made(case):
    layer, keys = case.make(), case.keys()
    outputs = layer(keys, training=False)
    assert layer.table.size() == 0
    np.testing.assert_array_equal(outputs, layer.table.lookup(keys))


def test_without_training_a_key_has_the_vector_that_training_would_start_from(case):
    layer, keys = case.make(), case.keys()
    before = layer(keys, training=False)
    trained_on = layer(keys, training=True)
    assert layer.table.size() == len(np.unique(keys))
    np.testing.assert_array_equal(before, trained_on)
    np.testing.assert_array_equal(before, layer(keys, training=False))


@pytest.mark.cover("values")
@pytest.mark.parametrize("method", ["predict", "evaluate", "test_on_batch", "predict_on_batch"])
def test_inference_makes_no_rows(case, method):
    layer, keys = case.make(), case.keys()
    model = case.model(layer)
    model.compile("sgd", "mse")
    targets = [np.zeros((len(keys), 1))] if method in ("evaluate", "test_on_batch") else []
    quiet = {} if method.endswith("on_batch") else {"verbose": 0}
    getattr(model, method)(keys, *targets, **quiet)
    assert layer.table.size() == 0
    assert layer.table.stats()["pending_gradients"] == 0


@pytest.mark.cover(4)
@pytest.mark.parametrize("whole_model", [False, True])
def test_a_frozen_layer_makes_no_rows_and_does_not_train(case, whole_model):
    layer = case.make()
    seen, unseen = case.keys(seed=1), case.keys(seed=2)
    model = case.model(layer)
    model.compile(ko.SGD(0.1), "mse")
    case.fit(model, seen)
    size, rows = layer.table.size(), layer.table.lookup(np.arange(40))
    if whole_model:
        # Something must be left to train.
        model.trainable = False
        model.layers[-1].trainable = True
    layer.trainable = False
    model.compile(ko.SGD(0.1), "mse")
    case.fit(model, unseen)
    assert layer.table.size() == size
    np.testing.assert_array_equal(layer.table.lookup(np.arange(40)), rows)
    assert layer.table.stats()["pending_gradients"] == 0


@pytest.mark.cover(2)
def test_a_layer_that_is_thawed_trains_again(case):
    layer, keys = case.make(), case.keys()
    layer.trainable = False
    model = case.model(layer)
    model.compile(ko.SGD(0.1), "mse")
    case.fit(model, keys)
    assert layer.table.size() == 0
    layer.trainable = True
    model.compile(ko.SGD(0.1), "mse")
    case.fit(model, keys)
    assert layer.table.stats()["steps"] == 1
    assert layer.table.size() == len(np.unique(keys))


@pytest.mark.cover(2)
def test_two_models_can_share_a_layer(case):
    layer = case.make(seed=3)
    start_of = case.make(seed=3).table.lookup
    keys = [case.keys(seed=1), case.keys(seed=2)]
    models = [case.model(layer), case.model(layer)]
    for model, k in zip(models, keys, strict=True):
        model.compile(ko.SGD(0.1), "mse")
        case.fit(model, k)
        seen = layer.table.lookup(np.unique(k))
        assert layer.table.stats()["pending_gradients"] == 0
        assert (np.abs(seen - start_of(np.unique(k))).max(axis=1) > 1e-4).all()
    assert layer.table.size() == len(np.union1d(*keys))
    outputs = [model.layers[0](keys[0], training=False) for model in models]
    np.testing.assert_array_equal(*outputs)


@pytest.mark.cover(2)
def test_compiling_again_with_another_optimizer_keeps_the_rows(case):
    layer, keys = case.make(), case.keys()
    model = case.model(layer)
    model.compile(ko.Adam(0.01), "mse")
    case.fit(model, keys)
    rows = layer.table.lookup(keys)
    model.compile(ko.SGD(0.0), "mse")
    case.fit(model, keys)
    np.testing.assert_array_equal(layer.table.lookup(keys), rows)


@pytest.mark.cover(2)
def test_compiling_again_with_another_optimizer_restarts_slots_and_steps(case):
    layer, keys = case.make(), case.keys()
    model = case.model(layer)
    model.compile(ko.Adam(0.01), "mse")
    case.fit(model, keys, epochs=3)
    assert layer.table.export(slots=True).rule == b"adam"
    assert layer.table.export(slots=True).slots.shape[1] == 2 * DIM
    model.compile(ko.Adagrad(0.0, initial_accumulator_value=0.25), "mse")
    case.fit(model, keys)
    contents = layer.table.export(slots=True)
    assert contents.rule == b"adagrad"
    assert contents.steps == 1
    assert contents.slots.shape == (len(contents.keys), DIM)
    assert (contents.slots >= 0.25).all()


@pytest.mark.cover(6)
@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: "adagrad", b"adagrad"),
        (lambda: ko.Adam(0.1), b"adam"),
        (lambda: keras.optimizers.serialize(ko.SGD(0.1, momentum=0.5)), b"momentum"),
        (lambda: ko.Lion(ko.schedules.ExponentialDecay(0.1, 1, 0.5)), b"lion"),
    ],
    ids=["name", "instance", "config", "with_schedule"],
)
def test_an_optimizer_of_its_own_decides_the_rule(case, make, rule):
    layer, keys = case.make(optimizer=make()), case.keys()
    model = case.model(layer)
    model.compile(ko.SGD(0.1), "mse")
    case.fit(model, keys)
    assert layer.table.export(slots=True).rule == rule


@pytest.mark.cover(2)
def test_the_learning_rate_of_an_optimizer_of_its_own_can_be_changed(case):
    layer, keys = case.make(optimizer=ko.SGD(0.1)), case.keys()
    model = case.model(layer)
    model.compile(ko.SGD(0.1), "mse")
    case.fit(model, keys)
    rows = layer.table.lookup(keys)
    layer.optimizer.learning_rate = 0.0
    case.fit(model, keys)
    np.testing.assert_array_equal(layer.table.lookup(keys), rows)


def test_the_compiler_of_tensorflow_is_not_used(case):
    layer = case.make()
    assert layer.supports_jit is False
    model = case.model(layer)
    model.compile("sgd", "mse")
    assert model.jit_compile is False


def test_the_same_seed_gives_the_same_start_and_another_seed_another(case):
    keys = case.keys()
    one, same, other = (case.make(seed=seed)(keys).numpy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).mean() > 0.9


def test_the_seed_comes_from_the_name_and_the_global_seed(case):
    keys = case.keys()

    def start(name: str, seed: int) -> np.ndarray:
        keras.utils.set_random_seed(seed)
        return case.make(name=name)(keys).numpy()

    np.testing.assert_array_equal(start("a", 1), start("a", 1))
    assert (start("a", 1) != start("b", 1)).mean() > 0.9
    assert (start("a", 1) != start("a", 2)).mean() > 0.9


def test_lists_and_tensors_are_keys_as_well_as_arrays(case):
    layer, keys = case.make(), case.keys()
    expected = layer(keys)
    np.testing.assert_array_equal(layer(keys.tolist()), expected)
    np.testing.assert_array_equal(layer(tf.constant(keys)), expected)


def masking(mask_zero: bool = True) -> DynamicEmbedding:
    return DynamicEmbedding(DIM, mask_zero=mask_zero)


def test_mask_zero_masks_key_zero_for_later_layers():
    layer = masking()
    keys = np.array([[3, 0, 5], [0, 0, 1]])
    outputs = layer(keys)
    np.testing.assert_array_equal(layer.compute_mask(keys), keys != 0)
    np.testing.assert_array_equal(keras.src.backend.get_keras_mask(outputs), keys != 0)


def test_mask_zero_gives_what_keras_embedding_gives_to_a_pooling_layer():
    keys = np.array([[3, 0, 5], [2, 0, 1]])
    ours, theirs = masking(), keras.layers.Embedding(6, DIM, mask_zero=True)
    theirs.build()
    theirs.set_weights([ours.table.lookup(np.arange(6))])
    pooling = keras.layers.GlobalAveragePooling1D()
    # This allows for float32, with the same operations.
    np.testing.assert_allclose(pooling(ours(keys)), pooling(theirs(keys)), rtol=1e-6)


def test_without_mask_zero_there_is_no_mask():
    layer = masking(mask_zero=False)
    assert layer.compute_mask(np.array([0, 1])) is None
    assert not layer.supports_masking


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 4)])
def test_dynamic_embedding_takes_keys_of_any_shape(shape):
    layer = DynamicEmbedding(DIM)
    assert layer(np.zeros(shape, np.int64)).shape == (*shape, DIM)


def test_all_table_layers_have_a_case():
    layers = {
        value
        for value in vars(sok_embed.layers).values()
        if isinstance(value, type) and issubclass(value, KeyLayer)
    }
    assert layers == {case.cls for case in CASES.values()}


def test_a_direct_table_holds_as_many_keys_as_it_was_made_for():
    layer = CASES["direct"].make()
    layer.table.assign(np.arange(40), np.zeros((40, DIM), np.float32))
    assert layer.table.size() == 40
