"""One weight for several layers: whose it is, their seeds, their gradients, their files."""

import gc
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko

from sok_embed import HashedEmbedding, HashedEmbeddingBag


def owner_of(**arguments):
    return HashedEmbeddingBag(100, 8, 0.25, **arguments)


def sharing(weight, **arguments):
    return HashedEmbeddingBag(60, 4, weight=weight, **arguments)


def model_of(owner, sharer, hidden=0):
    """Makes a model of both; with hidden layers above the owner Keras lists the sharer first."""
    inputs = [keras.Input((3,), dtype="int64", name=name) for name in "ab"]
    first, second = owner(inputs[0]), sharer(inputs[1])
    for _ in range(hidden):
        second = keras.layers.Dense(3)(second)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()([first, second])))


def ids_of(seed=0, batch=8):
    random = np.random.default_rng(seed)
    return [tf.constant(random.integers(0, 60, (batch, 3))) for _ in range(2)]


TARGETS = np.linspace(-1, 1, 8).astype(np.float32)[:, None]


@pytest.mark.parametrize("owner_first", [True, False])
def test_layers_share_one_variable_whoever_is_built_first(owner_first):
    owner = owner_of()
    sharer = sharing(owner)
    for layer in (owner, sharer) if owner_first else (sharer, owner):
        layer(ids_of()[0])
    assert sharer.weight is owner.weight
    assert sharer.weights == owner.weights == [owner.weight]
    assert sharer.size == owner.size == 200
    np.testing.assert_array_equal(sharer.weight.shape, [200])


def test_a_sharer_of_a_sharer_shares_with_the_owner():
    owner = owner_of()
    last = HashedEmbedding(9, 16, weight=sharing(owner))
    assert last.weight_layer is owner
    last.build()
    assert last.weight is owner.weight


def test_seeds_are_numbered_by_default():
    owner = owner_of()
    assert [owner.seed] + [sharing(owner).seed for _ in range(3)] == [0, 1, 2, 3]
    owner = owner_of(seed=1)
    chosen = [sharing(owner), sharing(owner, seed=3), sharing(owner), sharing(owner)]
    assert [layer.seed for layer in chosen] == [0, 3, 2, 4]


def test_layers_of_one_weight_hash_their_ids_each_in_its_own_way():
    owner = owner_of()
    twins = [HashedEmbeddingBag(100, 8, weight=owner) for _ in range(2)]
    ids = np.arange(100)[:, None]
    rows = [layer(ids).numpy() for layer in (owner, *twins)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        # There are 200 values, so two layers agree by chance in one element of 200.
        assert (rows[a] == rows[b]).mean() < 0.03


@pytest.mark.cover(1)
@pytest.mark.parametrize("weight", [0, 1], ids=["of_the_owner", "of_a_sharer"])
def test_a_seed_that_another_table_of_the_weight_has_is_refused(weight):
    owner = owner_of()
    layers = [owner, sharing(owner, name="second")]
    with pytest.raises(ValueError, match=r"hash seed of its own.*seed=\d.*Leave seed=None"):
        HashedEmbeddingBag(70, 4, weight=layers[weight], seed=weight)


def test_the_same_virtual_table_may_be_there_twice():
    owner = owner_of()
    twin = HashedEmbedding(100, 8, weight=owner, seed=owner.seed)
    ids = np.arange(100)
    np.testing.assert_array_equal(twin(ids), owner(ids[:, None]))


def test_another_hash_may_have_the_same_seed():
    owner = owner_of()
    assert sharing(owner, hash="original", seed=0).seed == 0


def test_the_seed_of_a_layer_that_is_gone_is_free_to_be_asked_for():
    owner = owner_of()
    layer = sharing(owner, seed=5)
    with pytest.raises(ValueError, match="seed=5"):
        HashedEmbeddingBag(70, 4, weight=owner, seed=5)
    del layer
    assert HashedEmbeddingBag(70, 4, weight=owner, seed=5).seed == 5


def test_the_number_of_a_default_seed_does_not_depend_on_garbage():
    owner = owner_of()
    assert sharing(owner).seed == 1
    gc.collect()
    assert sharing(owner).seed == 2


def test_a_size_that_is_not_the_shared_one_is_refused():
    owner = owner_of()
    assert sharing(owner, size=200).size == 200
    with pytest.raises(ValueError, match="size to be 200, the size of the weight.*size=201"):
        sharing(owner, size=201)


def test_float64_and_float32_cannot_share():
    with pytest.raises(ValueError, match="compute dtype of float32 and a weight of float64"):
        sharing(owner_of(dtype="float64"))
    mixed = sharing(owner_of(), dtype="mixed_bfloat16")
    assert mixed(ids_of()[0]).dtype == tf.bfloat16


def test_a_shared_weight_is_trained_once_with_the_gradients_of_all_its_layers():
    owner = owner_of()
    sharer = sharing(owner)
    first, second = ids_of()
    with tf.GradientTape(persistent=True) as tape:
        losses = [tf.reduce_sum(owner(first) ** 2), tf.reduce_sum(sharer(second) ** 2)]
        both = losses[0] + losses[1]
    of_both, *of_each = (tape.gradient(y, owner.weight.value) for y in (both, *losses))
    # This allows for float32 sums in another order.
    np.testing.assert_allclose(of_both, of_each[0] + of_each[1], rtol=0, atol=1e-6)
    model = model_of(owner, sharer)
    assert sum(weight is owner.weight for weight in model.trainable_weights) == 1


LARGE = 10**7


def kind_of_gradient(layer, calls):
    """Returns the kind of the gradient of a step that calls the layer so often."""
    with tf.GradientTape() as tape:
        loss = sum(tf.reduce_sum(layer(tf.constant([[i, 2]]))) for i in range(calls))
    return type(tape.gradient(loss, layer.weight.value))


def test_slices_are_for_a_step_that_calls_the_weight_once():
    # Slices of two calls would be appended to each other, and Adagrad would square each.
    layer = HashedEmbeddingBag(100, 8, size=LARGE)
    for _ in range(2):  # the second step is not taken for a part of the first
        assert issubclass(kind_of_gradient(layer, 1), tf.IndexedSlices)
        assert issubclass(kind_of_gradient(layer, 2), tf.Tensor)
    sharer = sharing(layer)
    assert issubclass(kind_of_gradient(layer, 1), tf.Tensor)
    assert issubclass(kind_of_gradient(sharer, 1), tf.Tensor)


def test_slices_are_for_a_function_that_calls_the_weight_once():
    layer = HashedEmbeddingBag(100, 8, size=LARGE)
    layer.build()

    def step(calls, ids):
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(layer(ids + i)) for i in range(calls))
        return tape.gradient(loss, layer.weight.value)

    ids = tf.constant([[1, 2]])
    for _ in range(2):
        assert isinstance(tf.function(lambda i: step(1, i))(ids), tf.IndexedSlices)
        assert isinstance(tf.function(lambda i: step(2, i))(ids), tf.Tensor)
        nested = tf.function(lambda i: tf.function(step)(1, i))
        assert isinstance(nested(ids), tf.IndexedSlices)


def test_two_calls_of_a_large_weight_train_as_with_dense_gradients():
    ids = ids_of()
    trained = []
    for sparse_gradient in (None, False):
        layer = HashedEmbeddingBag(
            60, 8, size=LARGE, weight="ones", sparse_gradient=sparse_gradient
        )
        optimizer = ko.Adagrad(0.1)
        layer.build()
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((layer(ids[0]) + layer(ids[1])) ** 2)
            optimizer.apply([tape.gradient(loss, layer.weight.value)], [layer.weight])
        trained.append(layer(np.arange(60)[:, None]).numpy())
    assert np.abs(trained[0] - 1).max() > 0.1
    np.testing.assert_allclose(*trained, rtol=0, atol=1e-6)


@pytest.mark.cover(1)
@pytest.mark.parametrize("hidden", [0, 3])
@pytest.mark.parametrize("swap", [False, True])
def test_a_keras_file_gives_one_variable_again(tmp_path, hidden, swap):
    owner = owner_of()
    layers = (owner, sharing(owner, mode="mean"))
    model = model_of(*(layers[::-1] if swap else layers), hidden)
    model.compile(ko.Adam(0.01), "mse", run_eagerly=True)
    ids = ids_of()
    model.fit(ids, TARGETS, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    own, shared = sorted(
        (layer for layer in loaded.layers if isinstance(layer, HashedEmbeddingBag)),
        key=lambda layer: layer.seed,
    )
    assert shared.weight is own.weight and shared.weight_layer is own
    assert len(loaded.weights) == len(model.weights)
    np.testing.assert_array_equal(own.weight, owner.weight)
    np.testing.assert_array_equal(loaded(ids), model(ids))
    for m in (model, loaded):
        m.fit(ids, TARGETS, verbose=0)
    np.testing.assert_array_equal(own.weight, owner.weight)


def test_a_keras_file_without_the_owner_carries_the_weight_all_the_same(tmp_path):
    owner = owner_of()
    sharers = sharing(owner), sharing(owner)
    model, ids = model_of(*sharers), ids_of()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    first, second = (layer for layer in loaded.layers if isinstance(layer, HashedEmbeddingBag))
    assert first.weight is second.weight
    np.testing.assert_array_equal(first.weight, owner.weight)
    np.testing.assert_array_equal(loaded(ids), model(ids))


def test_saved_weights_are_loaded_into_a_model_that_shares_alike(tmp_path):
    models = []
    for _ in range(2):
        owner = owner_of()
        models.append(model_of(owner, sharing(owner)))
    ids = ids_of()
    models[0].save_weights(tmp_path / "model.weights.h5")
    models[1].load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(models[1](ids), models[0](ids))
    owner = owner_of()
    other = model_of(owner, sharing(owner, seed=9))
    with pytest.raises(ValueError, match="seed=9.*seed=1"):
        other.load_weights(tmp_path / "model.weights.h5")


def test_the_config_of_a_sharer_holds_the_owner():
    owner = owner_of(sign=True)
    layer = sharing(owner, block_size=2)
    config = json.loads(json.dumps(layer.get_config()))
    again = HashedEmbeddingBag.from_config(config)
    assert json.loads(json.dumps(again.get_config())) == config
    assert again.weight_layer.sign and again.weight_layer is not owner
    assert (again.size, again.seed) == (layer.size, layer.seed) == (200, 1)


def test_an_exported_model_holds_the_weight_once(tmp_path):
    owner = owner_of()
    model, ids = model_of(owner, sharing(owner)), ids_of()
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_array_equal(served.serve(ids), model(ids))
    shapes = [tuple(variable.shape) for variable in served.variables]
    assert shapes.count((200,)) == 1


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", ["original", "modulo"])
def test_a_hash_without_a_seed_holds_one_table(name):
    owner = HashedEmbedding(10, 4, size=40, hash=name)
    with pytest.raises(ValueError, match="hash='mixed' for several tables in one weight"):
        HashedEmbedding(5, 4, weight=owner, hash=name)
    HashedEmbedding(10, 4, weight=owner, hash=name)  # the same table once more
    HashedEmbedding(5, 4, weight=owner)


def test_a_layer_that_could_not_be_made_takes_no_seed():
    owner = HashedEmbedding(10, 4, size=40)
    with pytest.raises(ValueError, match="padding_idx"):
        HashedEmbeddingBag(5, 4, weight=owner, padding_idx=99)
    assert HashedEmbeddingBag(5, 4, weight=owner).seed == 1
