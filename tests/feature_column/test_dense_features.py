"""DenseFeatures: the Keras layer, with TensorFlow's columns and ours, under `fit`."""

import keras
import keras_reference
import numpy as np
import pytest
import tensorflow as tf
from graph_model import bucket_of, start, v1

from sok_embed import feature_column as fc

BUCKETS, DIM = 6, 3
STATIC = start(BUCKETS, DIM)
OPTIMIZERS = ("sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw", "ftrl", "lion")
random = np.random.default_rng(1)
IDS = random.integers(0, 40, (32, 3))
TARGETS = random.normal(size=(32, 1)).astype(np.float32)


def make_layer(plain=False, dtype=tf.int64, combiner="mean", name="features", **column):
    if plain:
        item = tf.feature_column.categorical_column_with_hash_bucket("c", BUCKETS, dtype)
    else:
        item = fc.categorical_column_with_adaptive_embedding("c", BUCKETS, dtype, **column)
    initializer = v1.constant_initializer(STATIC)
    dense = fc.embedding_column(item, DIM, combiner, initializer=initializer)
    return fc.DenseFeatures([dense], name=name)


def make_model(layer, optimizer="sgd", shape=(3,), dtype="int64"):
    inputs = {"c": keras.Input(shape, dtype=dtype, name="c")}
    masks = None
    if layer.tables:
        inputs["mask"] = keras.Input(shape, dtype="int32", name="mask")
        masks = {"c": inputs["mask"]}
    embedded = layer({"c": inputs["c"]}, masks)
    ones = keras.initializers.Ones()
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer=ones)(embedded))
    model.compile(keras_reference.OPTIMIZERS.get(optimizer, optimizer)(), "mse")
    return model


def fit(model, mask, ids=IDS, epochs=2):
    mask = np.broadcast_to(np.asarray(mask, np.int32), ids.shape)
    features = {"c": ids, "mask": mask}
    features = {tensor.name: features[tensor.name] for tensor in model.inputs}
    model.fit(features, TARGETS, batch_size=8, epochs=epochs, shuffle=False, verbose=0)


@pytest.mark.cover(1)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_with_every_mask_0_it_trains_as_tensorflows_column(optimizer):
    """Each batch has equal buckets: their gradients must be summed before they are squared."""
    weights = []
    for plain in (False, True):
        layer = make_layer(plain)
        fit(make_model(layer, optimizer), 0)
        weights.append(next(w for w in layer.weights if w.shape == STATIC.shape).numpy())
    # Rules that divide by the root of the mean square make much of the rounding of small gradients.
    np.testing.assert_allclose(*weights, rtol=0, atol=5e-5)
    assert np.abs(weights[0] - STATIC).max() > 1e-3


def test_static_rows_of_an_unknown_name_are_an_error_that_lists_the_names():
    with pytest.raises(ValueError, match=r"one of \['c_embedding'\]. Received: 'c'"):
        make_layer().static_rows("c")


@pytest.mark.cover(1)
@pytest.mark.parametrize("slots", ["copy", "zero"])
def test_flips_of_masks_under_fit(slots):
    layer = make_layer(slots=slots, partition_num=4)
    model = make_model(layer, "adam")
    fit(model, 0)
    static = layer.static_rows("c_embedding").numpy()
    before = model.predict({"c": IDS, "mask": np.zeros_like(IDS, np.int32)}, verbose=0)
    assert layer.tables["c_embedding"].size() == 0
    # This step moves nothing.
    model.optimizer.learning_rate = 0.0
    fit(model, 1, epochs=1)
    keys, rows = layer.tables["c_embedding"].export()
    np.testing.assert_array_equal(np.sort(keys), np.unique(IDS))
    np.testing.assert_array_equal(rows, static[[bucket_of(key, BUCKETS) for key in keys]])
    after = model.predict({"c": IDS, "mask": np.ones_like(IDS, np.int32)}, verbose=0)
    np.testing.assert_array_equal(after, before)


def test_slots_are_copied_or_new():
    """Adagrad: the accumulators of a new row after its first step tell what they were before."""
    for slots in ("copy", "zero"):
        layer = make_layer(slots=slots)
        model = make_model(layer, lambda: keras.optimizers.Adagrad(0.1, 0.25))
        fit(model, 0)
        accumulators = next(v for v in model.optimizer.variables if v.shape == STATIC.shape).numpy()
        keys = np.array([[3, 3, 3]])
        model.optimizer.learning_rate = 0.0
        mask = np.ones_like(keys, np.int32)
        model.fit({"c": keys, "mask": mask}, np.full((1, 1), 1e3), verbose=0)
        exported = layer.tables["c_embedding"].export(slots=True)
        (slot,) = exported.slots
        begin = accumulators[bucket_of(3, BUCKETS)] if slots == "copy" else np.full(DIM, 0.25)
        kernel, bias = model.layers[-1].get_weights()
        gradient = 2 * (exported.embeddings[0] @ kernel[:, 0] + bias[0] - 1e3) * kernel[:, 0]
        np.testing.assert_allclose(slot, begin + gradient**2, rtol=1e-5)
        assert np.abs(accumulators - 0.25).min() > 0


@pytest.mark.filterwarnings("ignore:.*has an update_step of its own:UserWarning")
def test_an_optimizer_with_its_own_formula_cannot_train_rows_that_start_from_static_rows():
    class Halved(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient, variable, learning_rate / 2)

    model = make_model(make_layer(), Halved)
    model.run_eagerly = True
    with pytest.raises(ValueError, match="copy their slots. Received: Halved"):
        fit(model, 1, epochs=1)


def test_evaluation_and_prediction_make_no_rows():
    layer = make_layer()
    model = make_model(layer)
    ones = np.ones_like(IDS, np.int32)
    model.predict({"c": IDS, "mask": ones}, verbose=0)
    model.evaluate({"c": IDS, "mask": ones}, TARGETS, verbose=0)
    layer({"c": IDS}, {"c": ones})
    assert layer.tables["c_embedding"].size() == 0


def test_a_frozen_layer_makes_no_rows_and_moves_none():
    layer = make_layer()
    model = make_model(layer)
    fit(model, 1, IDS[:, :1].repeat(3, 1))
    before = layer.tables["c_embedding"].export()
    layer.trainable = False
    model.compile("sgd", "mse")
    fit(model, 1)
    for got, expected in zip(layer.tables["c_embedding"].export(), before, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_column_that_is_not_trainable():
    item = fc.categorical_column_with_adaptive_embedding("c", BUCKETS, tf.int64)
    layer = fc.DenseFeatures([fc.embedding_column(item, DIM, trainable=False)])
    before = layer.static_rows("c_embedding").numpy()
    fit(make_model(layer), 1)
    assert layer.tables["c_embedding"].size() == 0
    np.testing.assert_array_equal(layer.static_rows("c_embedding"), before)


def all_columns():
    f = tf.feature_column
    price = f.numeric_column("price")
    bins = f.bucketized_column(price, [0.0, 1.0])
    words = f.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
    hashed = f.categorical_column_with_hash_bucket("other", 5, tf.int64)
    item = fc.categorical_column_with_adaptive_embedding("c", BUCKETS, tf.int64)
    twin = fc.categorical_column_with_adaptive_embedding("other", BUCKETS, tf.int64)
    third = fc.categorical_column_with_adaptive_embedding("third", BUCKETS, tf.int64)
    identity = f.categorical_column_with_identity("fourth", 50)
    return [
        price,
        bins,
        f.indicator_column(words),
        f.embedding_column(words, 2),
        f.embedding_column(hashed, 2, "sum"),
        f.indicator_column(f.crossed_column([bins, "word"], 4)),
        fc.embedding_column(item, DIM),
        *fc.shared_embedding_columns([twin, third], 4),
        *fc.shared_embedding_columns(
            [f.weighted_categorical_column(identity, "weight"), identity], 2
        ),
    ]


def all_features(n=16):
    rng = np.random.default_rng(4)
    ids = {name: rng.integers(0, 40, (n, 2)) for name in ("c", "other", "third", "fourth")}
    return {
        **ids,
        "price": rng.normal(size=(n, 1)).astype(np.float32),
        "word": rng.choice(["a", "b", "c", "d"], (n, 2)),
        "weight": rng.uniform(0.1, 2, (n, 2)).astype(np.float32),
    }


def model_of_all_columns():
    features = all_features()
    inputs = {
        name: keras.Input(
            array.shape[1:],
            dtype="string" if array.dtype.kind == "U" else array.dtype.name,
            name=name,
        )
        for name, array in features.items()
    }
    masks = {
        name: keras.Input((2,), dtype="int32", name=f"{name}_mask")
        for name in ("c", "other", "third")
    }
    layer = fc.DenseFeatures(all_columns(), name="features")
    embedded = layer(inputs, adaptive_mask_tensors=masks)
    inputs |= {f"{name}_mask": tensor for name, tensor in masks.items()}
    model = keras.Model(inputs, keras.layers.Dense(1)(embedded))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def all_batches():
    features = all_features()
    for name in ("c", "other", "third"):
        features[f"{name}_mask"] = (features[name] % 3 == 0).astype(np.int32)
    targets = np.random.default_rng(5).normal(size=(16, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, targets)).batch(8)


def same_predictions(first, second):
    batches = all_batches()
    np.testing.assert_array_equal(
        first.predict(batches, verbose=0), second.predict(batches, verbose=0)
    )


def test_all_columns_of_tensorflow_give_what_their_input_layer_gives():
    """Own rows aside, in a TF1 graph with the same weights."""
    layer = fc.DenseFeatures(all_columns())
    features = all_features()
    masks = {name: np.zeros([16, 2], np.int32) for name in ("c", "other", "third")}
    got = layer(features, masks).numpy()
    weights = {w.path.split("/")[-1]: w.numpy() for w in layer.weights}
    with tf.Graph().as_default(), v1.Session() as session:
        # TensorFlow has shared columns of its own in a graph, from the same function.
        columns = all_columns()
        tensors = {name: tf.constant(value) for name, value in features.items()}
        output = fc.input_layer(
            tensors, columns, adaptive_mask_tensors={k: tf.constant(m) for k, m in masks.items()}
        )
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        for variable in v1.global_variables():
            if variable.shape.rank != 2:
                continue
            # The name reads: input_layer/<column>/embedding_weights
            scope = variable.op.name.split("/")[1]
            variable.load(weights[f"{scope}_embedding_weights"], session)
        expected = session.run(output)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_a_model_of_all_columns_trains():
    model = model_of_all_columns()
    history = model.fit(all_batches(), epochs=8, verbose=0).history["loss"]
    assert history[-1] < 0.7 * history[0]
    tables = model.get_layer("features").tables
    assert sorted(tables) == ["c_embedding", "other_third_shared_embedding"]
    features = all_features()
    expected = {i for name in ("other", "third") for i in features[name].ravel() if i % 3 == 0}
    assert set(tables["other_third_shared_embedding"].export()[0]) == expected


def test_a_keras_file_brings_everything_back(tmp_path):
    model = model_of_all_columns()
    model.fit(all_batches(), epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    other = keras.models.load_model(tmp_path / "model.keras")
    same_predictions(model, other)
    for each in (model, other):
        each.fit(all_batches(), epochs=2, verbose=0)
    same_predictions(model, other)


def test_weights_go_to_another_model(tmp_path):
    model = model_of_all_columns()
    model.fit(all_batches(), verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    other = model_of_all_columns()
    other.load_weights(tmp_path / "model.weights.h5")
    same_predictions(model, other)


def test_a_checkpoint_brings_everything_back(tmp_path):
    model = model_of_all_columns()
    model.fit(all_batches(), verbose=0)
    path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    other = model_of_all_columns()
    other.fit(all_batches(), verbose=0)
    tf.train.Checkpoint(model=other).restore(path).assert_existing_objects_matched()
    for each in (model, other):
        each.fit(all_batches(), verbose=0)
    same_predictions(model, other)


def test_a_saved_model_predicts_the_same(tmp_path):
    model = model_of_all_columns()
    model.fit(all_batches(), verbose=0)
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    batch, _ = next(iter(all_batches().unbatch().batch(16)))
    np.testing.assert_allclose(
        loaded.serve(batch), model.predict(batch, verbose=0), rtol=0, atol=1e-6
    )


def test_weights_of_a_layer_without_own_rows_are_refused(tmp_path):
    make_model(make_layer(plain=True)).save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(ValueError, match="expected own rows of 1 columns"):
        make_model(make_layer()).load_weights(tmp_path / "model.weights.h5")


def test_the_config_makes_the_same_layer():
    layer = fc.DenseFeatures(all_columns(), name="features")
    again = fc.DenseFeatures.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert [w.shape for w in again.weights] == [w.shape for w in layer.weights]


def test_bfloat16():
    layer = make_layer()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        narrow = make_layer()
    finally:
        keras.config.set_dtype_policy("float32")
    mask = {"c": np.ones_like(IDS, np.int32)}
    output = narrow({"c": IDS}, mask, training=True)
    assert output.dtype == tf.bfloat16
    np.testing.assert_allclose(
        tf.cast(output, tf.float32), layer({"c": IDS}, mask), rtol=0, atol=1e-2
    )


def test_float16_is_refused():
    item = fc.categorical_column_with_adaptive_embedding("c", BUCKETS, tf.int64)
    with pytest.raises(ValueError, match="float32 or bfloat16. Received: float16"):
        fc.DenseFeatures([fc.embedding_column(item, DIM)], dtype="float16")


@pytest.mark.parametrize("replicas", [1, 2])
def test_strategies_are_refused(replicas):
    devices = [f"/cpu:{number}" for number in range(replicas)]
    with tf.distribute.MirroredStrategy(devices).scope():
        with pytest.raises(
            ValueError, match="no strategy, or.*the adaptive column 'c'.*MirroredStr"
        ):
            make_layer()
        make_layer(plain=True)


def test_strings_and_sparse_features_under_fit():
    words = np.array([f"w{i}" for i in range(20)])[np.random.default_rng(3).integers(0, 20, 32)]
    ids = tf.ragged.constant([[w] * (i % 3) for i, w in enumerate(words)]).to_sparse()
    layer = make_layer(dtype=tf.string)

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.features = layer
            self.dense = keras.layers.Dense(1)

        def call(self, inputs, training=None):
            mask = tf.ones(tf.shape(inputs["c"].values), tf.int32)
            return self.dense(self.features({"c": inputs["c"]}, {"c": mask}, training=training))

    model = Model()
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices(({"c": ids}, TARGETS)).batch(8)
    model.fit(data, verbose=0)
    seen = {w for i, w in enumerate(words) if i % 3}
    keys = tf.strings.to_hash_bucket_fast(sorted(seen), 2**63 - 1).numpy()
    assert set(layer.tables["c_embedding"].export()[0]) == set(keys)


def test_columns_that_are_not_dense():
    item = fc.categorical_column_with_adaptive_embedding("c", BUCKETS, tf.int64)
    with pytest.raises(ValueError, match="expected dense columns"):
        fc.DenseFeatures([item])
    items = fc.sequence_categorical_column_with_adaptive_embedding("c", BUCKETS, tf.int64)
    layer = fc.DenseFeatures([fc.embedding_column(items, DIM)])
    with pytest.raises(ValueError, match="not a sequence.*SequenceFeatures"):
        layer({"c": IDS}, {"c": np.zeros_like(IDS, np.int32)})


def test_ids_of_another_type():
    layer = make_layer()
    with pytest.raises(ValueError, match="Column 'c': expected ids of int64.*string"):
        layer({"c": np.array([["a"]])}, {"c": np.zeros([1, 1], np.int32)})


@pytest.mark.cover(1)
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_slots_that_a_function_makes_on_another_device_are_copied(optimizer):
    """As those that Keras makes on a GPU, though static rows are in the host's memory."""
    exported, devices = [], []
    for device in ("CPU:0", "CPU:1"):
        layer, training = make_layer(), keras_reference.OPTIMIZERS[optimizer]()
        layer({"c": IDS}, {"c": np.zeros_like(IDS, np.int32)})

        @tf.function
        def step(mask, layer=layer, training=training):
            with tf.GradientTape() as tape:
                vectors = layer({"c": IDS}, {"c": tf.fill(IDS.shape, mask)}, training=True)
                loss = tf.reduce_mean((vectors - 1) ** 2)
            weights = layer.trainable_variables
            training.apply(tape.gradient(loss, weights), weights)

        with tf.device(device):
            for mask in (0, 0, 1, 1):
                step(tf.constant(mask))
        exported.append(layer.tables["c_embedding"].export(slots=True))
        static = layer.static_rows("c_embedding")
        slots = [slot for slot in training.variables if slot.shape == static.shape]
        devices.append({slot.value.device for slot in slots})
    assert devices[0] != devices[1]
    orders = [np.argsort(rows.keys) for rows in exported]
    for name in ("keys", "embeddings", "slots"):
        columns = [getattr(rows, name)[order] for rows, order in zip(exported, orders, strict=True)]
        np.testing.assert_array_equal(*columns)
