"""Each wrong use gives one clear error: what was expected, what came, what to do."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko
from keras_reference import compile_looks_at_layers, mirrored

from sok_embed import All2AllDenseEmbedding, DynamicEmbedding, kv

DIM = 4


def all2all(**keywords):
    arguments = {
        "max_vocabulary_size_per_gpu": 10,
        "embedding_vec_size": DIM,
        "slot_num": 2,
        "nnz_per_slot": 3,
    }
    return All2AllDenseEmbedding(**{**arguments, **keywords})


def model_of(layer, shape=(3,), dtype="int64"):
    return keras.Sequential(
        [keras.Input(shape, dtype=dtype), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
    )


@pytest.mark.parametrize("shape", [(2, 3), (6,), (1, 2, 3, 1), ()])
def test_keys_of_another_rank_are_refused(shape):
    with pytest.raises(ValueError, match=r"expected keys of shape \[None, 2, 3\].*Received: shape"):
        all2all()(np.zeros(shape, np.int64))


@pytest.mark.parametrize("shape", [(5, 3, 2), (5, 2, 4), (2, 3, 5)])
def test_keys_of_another_inner_shape_are_refused(shape):
    text = re.escape(f"Received: shape [{', '.join(map(str, shape))}]")
    with pytest.raises(
        ValueError, match=rf"expected keys of shape \[None, 2, 3\]. {text}.*dynamic"
    ):
        all2all()(np.zeros(shape, np.int64))


def test_symbolic_keys_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"expected keys of shape \[None, 2, 3\]"):
        all2all()(keras.Input((3, 2), dtype="int64"))


def test_dynamic_input_refuses_more_than_one_dimension():
    with pytest.raises(ValueError, match=r"expected keys of shape \[None\]. .*\[4, 2\]"):
        all2all(dynamic_input=True)(np.zeros((4, 2), np.int64))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "bool"])
@pytest.mark.parametrize("make", [all2all, lambda: DynamicEmbedding(DIM)], ids=["all2all", "dyn"])
def test_keys_that_are_no_integers_are_refused(make, dtype):
    keys = tf.cast(tf.zeros((1, 2, 3)), dtype)
    with pytest.raises(ValueError, match=f"Layer '.*'.*[Ee]xpected integer keys.*dtype {dtype}"):
        make()(keys)


def test_lists_of_floats_are_refused():
    with pytest.raises(ValueError, match="integer keys"):
        DynamicEmbedding(DIM)([1.5, 2.0])


@pytest.mark.parametrize(
    ("key_dtype", "dtype"),
    [("int64", "int32"), ("int32", "int64"), ("uint64", "int64"), ("int64", "uint64")],
)
def test_integers_of_another_dtype_than_key_dtype_are_refused(key_dtype, dtype):
    layer = all2all(key_dtype=key_dtype)
    text = f"expected keys of {key_dtype}.*Received: {dtype}.*key_dtype=tf.{dtype}"
    with pytest.raises(ValueError, match=text):
        layer(np.zeros((1, 2, 3), dtype))


@pytest.mark.parametrize("key", [10, -1, 2**62])
@pytest.mark.parametrize("training", [False, True])
def test_a_key_out_of_range_without_a_hash_table_is_refused(key, training):
    layer = all2all(use_hashtable=False, name="direct")
    layer(np.zeros((1, 2, 3), np.int64))
    keys = np.array([[[0, 1, 2], [3, key, 4]]])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        layer(keys, training=training)
    assert f"table 'direct': expected keys in [0, 10), got {key}" in str(error.value)
    assert "hash" in str(error.value)
    assert layer.table.size() == 1  # key 0 alone: the batch has made no row


def test_a_key_out_of_range_ends_fit_with_an_error():
    # TensorFlow takes an OutOfRangeError for the end of the data, and fit would just stop.
    model = model_of(all2all(use_hashtable=False), (2, 3))
    model.compile("sgd", "mse")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected keys in \[0, 10\), got 99"):
        model.fit(np.full((4, 2, 3), 99), np.zeros((4, 1)), verbose=0)


def full_table():
    layer = all2all(name="small", dynamic_input=True)
    layer(np.arange(8))
    return layer


def test_a_full_table_says_how_full_it_is():
    with pytest.raises(tf.errors.ResourceExhaustedError) as error:
        full_table()(np.arange(100, 105))
    message = str(error.value)
    assert "table 'small'" in message
    assert "holds 8 of at most 10 rows" in message
    assert "5 new keys" in message


def test_a_full_table_is_left_as_it_was():
    layer = full_table()
    keys, rows = layer.table.export()
    with pytest.raises(tf.errors.ResourceExhaustedError):
        layer(np.arange(100, 105))
    keys_after, rows_after = layer.table.export()
    assert layer.table.size() == 8
    np.testing.assert_array_equal(keys[np.argsort(keys)], keys_after[np.argsort(keys_after)])
    np.testing.assert_array_equal(rows[np.argsort(keys)], rows_after[np.argsort(keys_after)])


def test_after_a_batch_that_was_too_large_a_smaller_one_fits():
    layer = full_table()
    with pytest.raises(tf.errors.ResourceExhaustedError):
        layer(np.arange(100, 105))
    layer(np.array([100, 100, 101, 0, 1]))
    assert layer.table.size() == 10


def test_a_full_table_still_takes_keys_that_it_has_and_serves_others_without_training():
    layer = full_table()
    layer(np.array([8, 9]))
    layer(np.arange(10))
    layer(np.arange(100, 200), training=False)
    assert layer.table.size() == 10


def test_a_full_table_ends_fit_with_an_error():
    layer = DynamicEmbedding(DIM, max_rows=5)
    model = model_of(layer)
    model.compile("sgd", "mse")
    with pytest.raises(tf.errors.ResourceExhaustedError, match="0 of at most 5 rows.*6 new keys"):
        model.fit(np.arange(6).reshape(2, 3), np.zeros((2, 1)), verbose=0)
    assert layer.table.size() == 0


class Normed(ko.Adam):
    """Divides by the norm of the gradient of all rows."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient / tf.norm(gradient), variable, learning_rate)


@pytest.mark.parametrize(
    ("optimizer", "text"),
    [
        (ko.Lamb(), "SGD, Adagrad.*Lamb"),
        ("lamb", "sgd, momentum.*'lamb'"),
        (Normed(), "update_step"),
        (ko.Adam, "class Adam"),
        (0.1, "0.1"),
    ],
    ids=["lamb", "name", "needs_all_rows", "class", "number"],
)
@pytest.mark.parametrize("make", [all2all, lambda **k: DynamicEmbedding(DIM, **k)])
def test_an_optimizer_that_rows_cannot_follow_is_refused_when_the_layer_is_made(
    make, optimizer, text
):
    with pytest.raises(ValueError, match=f"Expected an optimizer.*{text}"):
        make(optimizer=optimizer)


@pytest.mark.parametrize("optimizer", [ko.Lamb(), Normed()], ids=["lamb", "needs_all_rows"])
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_model_with_an_optimizer_that_rows_cannot_follow_does_not_train(optimizer, eagerly):
    model = model_of(DynamicEmbedding(DIM))
    optimizer = type(optimizer).from_config(optimizer.get_config())
    text = "Expected an optimizer that can train rows.*optimizer="
    with pytest.raises(ValueError, match=text):
        model.compile(optimizer, "mse", run_eagerly=eagerly)
        model.fit(np.zeros((2, 3), np.int64), np.zeros((2, 1)), verbose=0)  # Keras before 3.15

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(np.zeros((2, 3), np.int64), training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, [each.value for each in variables]), variables)

    with pytest.raises(ValueError, match=text):  # a loop of one's own, which compiles nothing
        (step if eagerly else tf.function(step))()


def test_a_model_may_have_any_optimizer_if_the_layer_has_its_own():
    layer = DynamicEmbedding(DIM, optimizer="adam")
    model = model_of(layer)
    model.compile(ko.Lamb(), "mse")
    model.fit(np.zeros((2, 3), np.int64), np.zeros((2, 1)), verbose=0)
    assert layer.table.stats()["steps"] == 1


@pytest.mark.parametrize(
    "initializer",
    [keras.initializers.Orthogonal(), "orthogonal", "no_such_thing", np.zeros],
    ids=["instance", "name", "unknown", "function"],
)
def test_an_initializer_that_rows_cannot_be_drawn_from_is_refused(initializer):
    with pytest.raises(ValueError, match="Expected an initializer.*RandomUniform.*Received"):
        DynamicEmbedding(DIM, initializer)
    with pytest.raises(ValueError, match="Expected an initializer.*RandomUniform.*Received"):
        all2all(embedding_initializer=initializer)


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "4", None])
@pytest.mark.parametrize(
    "argument",
    ["max_vocabulary_size_per_gpu", "embedding_vec_size", "slot_num", "nnz_per_slot"],
)
def test_a_size_that_is_no_positive_integer_is_refused(argument, size):
    text = re.escape(f"Expected {argument} to be a positive integer. Received: {size!r}")
    with pytest.raises(ValueError, match=text):
        all2all(**{argument: size})


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "4"])
@pytest.mark.parametrize("argument", ["output_dim", "max_rows"])
def test_a_size_of_a_dynamic_embedding_that_is_no_positive_integer_is_refused(argument, size):
    text = f"Expected {argument} to be a positive integer.*Received: {size!r}"
    with pytest.raises(ValueError, match=text):
        DynamicEmbedding(**{"output_dim": DIM, argument: size})


@pytest.mark.parametrize("size", [np.int32(4), np.int64(4)])
def test_numpy_integers_are_sizes(size):
    assert DynamicEmbedding(size)(np.array([1])).shape == (1, 4)


@pytest.mark.parametrize("on_full", ["evict", None, "ERROR"])
def test_on_full_has_one_choice(on_full):
    text = re.escape(f'Expected on_full to be "error". Received: {on_full!r}')
    with pytest.raises(ValueError, match=text):
        all2all(on_full=on_full)


@pytest.mark.parametrize("key_dtype", ["float32", "int16", "string"])
def test_key_dtype_is_one_of_three(key_dtype):
    text = f"Expected key_dtype to be tf.int64, tf.int32 or tf.uint64. Received: {key_dtype}"
    with pytest.raises(ValueError, match=text):
        all2all(key_dtype=key_dtype)


def test_a_float64_policy_is_refused():
    with pytest.raises(ValueError, match="float32, bfloat16 or float16. Received: float64"):
        DynamicEmbedding(DIM, dtype="float64")


@pytest.mark.parametrize("eagerly", [False, True])
def test_workers_that_would_skip_steps_each_for_itself_are_refused(eagerly, first_of_two):
    layer = DynamicEmbedding(DIM)
    layer.build()
    optimizer = ko.LossScaleOptimizer(ko.SGD(0.1))
    optimizer.build([layer.anchor])

    def step():
        optimizer.apply([tf.zeros(layer.anchor.shape)], [layer.anchor])

    with pytest.raises(ValueError, match="averages gradients before.*DistributedOptimizer"):
        (step if eagerly else tf.function(step))()


def test_a_strategy_whose_replicas_do_not_step_together_is_refused():
    with tf.distribute.experimental.CentralStorageStrategy(["CPU:0"]).scope():
        layer = DynamicEmbedding(DIM, name="emb")
        with pytest.raises(ValueError, match="'emb'.*MirroredStrategy.*Received: Central.*`sok-em"):
            layer(np.array([1]))


def test_a_strategy_that_knows_no_other_workers_is_refused_where_there_are_some(first_of_two):
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        layer = DynamicEmbedding(DIM, name="emb")
        with pytest.raises(
            ValueError, match="'emb': expected one worker.*worker 0 of 2.*TF_CONFIG"
        ):
            layer(np.array([1]))


@pytest.mark.parametrize(
    "make_strategy",
    [
        mirrored,
        tf.distribute.MultiWorkerMirroredStrategy,
        lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
        tf.distribute.get_strategy,
    ],
    ids=["mirrored", "multi_worker_mirrored", "one_device", "default"],
)
def test_a_strategy_of_one_process_is_fine(make_strategy):
    with make_strategy().scope():
        assert DynamicEmbedding(DIM)(np.array([1])).shape == (1, DIM)


def test_a_commit_that_no_keras_optimizer_asks_for_names_the_way_out():
    layer = DynamicEmbedding(DIM, name="emb")
    layer(np.array([1]))
    with pytest.raises(ValueError, match="'emb'.*trained by a Keras optimizer.*optimizer='adam'"):
        layer.anchor.constraint(layer.anchor)


def test_a_commit_that_no_keras_optimizer_asks_for_works_with_an_optimizer_of_its_own():
    layer = DynamicEmbedding(DIM, "zeros", optimizer=ko.SGD(0.5))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([1]), training=True))
    tape.gradient(loss, layer.anchor.value)
    layer.anchor.constraint(layer.anchor)
    np.testing.assert_array_equal(layer.table.lookup([1]), [[-0.5] * DIM])


@pytest.mark.parametrize("wrapped", [lambda it: it, ko.LossScaleOptimizer])
def test_averages_that_would_not_reach_rows_are_refused(wrapped):
    model = model_of(DynamicEmbedding(DIM))
    with pytest.raises(ValueError, match="without use_ema.*SGD.*use_ema=True"):
        model.compile(wrapped(ko.SGD(0.1, use_ema=True)), "mse")
        model.fit(np.zeros((4, 3), np.int64), np.zeros((4, 1)), verbose=0)  # Keras before 3.15
    model = model_of(DynamicEmbedding(DIM, optimizer="sgd"))  # rows do not follow the model's
    model.compile(wrapped(ko.SGD(0.1, use_ema=True)), "mse")
    model.fit(np.zeros((4, 3), np.int64), np.zeros((4, 1)), verbose=0)


@pytest.mark.parametrize("option", [{"gradient_accumulation_steps": 4}, {"loss_scale_factor": 8.0}])
@pytest.mark.parametrize("make", [all2all, lambda **k: DynamicEmbedding(DIM, **k)])
def test_an_optimizer_of_the_layers_own_does_not_decide_what_a_step_is(make, option):
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=f"without {name}. Received: {name}={value}.*the model"):
        make(optimizer=ko.SGD(0.1, **option))


def test_what_an_optimizer_of_the_layers_own_cannot_do_to_rows_is_refused():
    with pytest.raises(ValueError, match="without use_ema.*SGD.*use_ema=True"):
        DynamicEmbedding(DIM, name="emb", optimizer=ko.SGD(0.1, use_ema=True))


@pytest.mark.parametrize("seed", [True, 1.0, "1", np.float32(1), [1]], ids=repr)
@pytest.mark.parametrize("make", [all2all, lambda **k: DynamicEmbedding(DIM, **k)])
def test_a_seed_that_is_no_integer_is_refused(make, seed):
    with pytest.raises(
        ValueError, match=re.escape(f"Expected seed to be an integer. Received: {seed!r}")
    ):
        make(seed=seed)


def test_a_numpy_integer_is_a_seed_and_is_kept_as_an_int():
    layer = DynamicEmbedding(DIM, seed=np.uint32(7))
    assert layer.seed == 7 and type(layer.get_config()["seed"]) is int


@pytest.mark.parametrize("make", [all2all, lambda: DynamicEmbedding(DIM)], ids=["all2all", "dyn"])
@pytest.mark.parametrize("in_graph", [False, True])
def test_training_that_is_a_tensor_is_refused(make, in_graph):
    layer = make()
    call = lambda training: layer(np.zeros((1, 2, 3), np.int64), training=training)  # noqa: E731
    call(False)
    with pytest.raises(ValueError, match="expected training to be a Python bool or None.*Tensor"):
        (tf.function(call) if in_graph else call)(tf.constant(True))


def test_a_communicator_that_is_chosen_after_the_layer_was_made_is_refused(request):
    layer = DynamicEmbedding(DIM, name="emb")
    layer(np.array([1]))
    request.getfixturevalue("first_of_two")
    text = r"'emb'.*worker 0 of 1.*Received: worker 0 of 2.*init\(\) before layers are made"
    with pytest.raises(ValueError, match=text):
        layer(np.array([1]))


@pytest.mark.parametrize(
    "make",
    [lambda: DynamicEmbedding(1000, 16), lambda: DynamicEmbedding(input_dim=1000, output_dim=16)],
    ids=["by position", "by name"],
)
def test_the_arguments_of_the_keras_layer_are_refused(make):
    with pytest.raises(ValueError, match="(has no|without) input_dim"):
        make()


def test_an_optimizer_that_does_not_average_is_warned_of_on_several_workers(first_of_two):
    layer = DynamicEmbedding(DIM)
    layer.build()
    optimizer = ko.SGD(0.1)
    with pytest.warns(UserWarning, match=r"drift apart\. Wrap it in sok_embed\.Distributed"):
        optimizer.apply([tf.zeros(layer.anchor.shape)], [layer.anchor])


def refused_model(layer, cls=keras.Sequential):
    return cls([keras.Input((2,), dtype="int64"), layer, keras.layers.Dense(1)])


class OwnStep(keras.Sequential):
    def train_step(self, data):
        raise NotImplementedError


@pytest.mark.parametrize(
    "compiled",
    [
        {"optimizer": "adafactor"},
        {"optimizer": ko.LossScaleOptimizer(ko.Adafactor())},
        {"optimizer": "adafactor", "run_eagerly": True},
        {"optimizer": "adafactor", "jit_compile": False},
    ],
    ids=["plain", "scaled", "eager", "no jit"],
)
@compile_looks_at_layers
def test_compile_refuses_an_optimizer_that_rows_cannot_follow(compiled):
    text = r"(?s)Layer 'emb': .*Received: Adafactor.*layer\.trainable = False"
    with pytest.raises(ValueError, match=text):
        refused_model(DynamicEmbedding(4, name="emb")).compile(loss="mse", **compiled)


def test_compile_takes_any_optimizer_for_rows_that_it_does_not_train():
    frozen = DynamicEmbedding(4, name="emb")
    frozen.trainable = False
    own = DynamicEmbedding(4, optimizer="adam")
    for layer in (frozen, own):
        refused_model(layer).compile("adafactor", "mse")
    refused_model(DynamicEmbedding(4), OwnStep).compile("adafactor", "mse")
    assert frozen.trainable is False
    assert own.trainable is True


def told_by_keras(error):
    """Returns the paragraph of an error of a layer's call that Keras has put around our text."""
    first, text, arguments = re.sub(r"\x1b\[\dm", "", str(error)).split("\n\n")
    assert first.startswith("Exception encountered when calling")
    assert arguments.startswith("Arguments received by")
    return text


def test_keras_leaves_our_text_whole_as_a_paragraph():
    with pytest.raises(ValueError) as raised:
        DynamicEmbedding(DIM)(np.zeros((2, 3), np.float32))
    text = told_by_keras(raised.value)
    assert re.fullmatch(r"Layer '\w+': Expected integer keys .* Received: .*\.", text)
    weights = np.zeros((2, 2))
    with pytest.raises(ValueError) as raised:
        DynamicEmbedding(DIM, combiner="sum")(np.zeros((2, 3), np.int64), weights=weights)
    text = told_by_keras(raised.value)
    assert re.fullmatch(r"Layer '\w+': expected weights .*\[2, 3\]\. Received: .*\[2, 2\]\.", text)


def test_keras_leaves_our_types_of_errors_as_they_are():
    class Failing(keras.layers.Layer):
        def call(self, inputs):
            raise kv.CorruptionError("Expected a whole file. Received: a part.")

    with pytest.raises(kv.CorruptionError) as raised:
        Failing()(np.zeros((2, 3)))
    assert told_by_keras(raised.value) == "Expected a whole file. Received: a part."
