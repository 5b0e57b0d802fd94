"""Columns whose own rows lie in the memory of a GPU, on a stand-in for one, against the host's."""

import os

import gpu_standin
import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_model import start, v1
from seeds import seed_of_test
from tiers import rounds

from sok_embed import feature_column as fc

pytestmark = pytest.mark.skipif(not gpu_standin.is_built(), reason="needs `make test`'s libraries")

BUCKETS, DIM = 6, 3
STATIC = start(BUCKETS, DIM)
Option = fc.EmbeddingVariableOption
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.05, global_clipnorm=1.0),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
}
ADAPTIVE = {
    "plain": ({}, {}),
    "zero": ({"slots": "zero"}, {}),
    "counted": ({}, {"filter_option": fc.CounterFilter(2)}),
    "norms": ({"demote_blend": 0.5}, {"evict_option": fc.L2WeightEvict(0.5)}),
    "ages": ({}, {"evict_option": fc.GlobalStepEvict(2)}),
}


@pytest.fixture(scope="module", autouse=True)
def gpu(tmp_path_factory):
    before = dict(os.environ)
    gpu_standin.use(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.clear()
    os.environ.update(before)


def layer_of(device, kind="plain", dtype=tf.int64, combiner="mean", policy="float32"):
    """Makes a layer of an adaptive column and of one whose ids all have rows."""
    column, option = ADAPTIVE[kind]
    option = Option(**option, device=device)
    adaptive = fc.categorical_column_with_adaptive_embedding(
        "c", BUCKETS, dtype, ev_option=option, **column
    )
    own = fc.categorical_column_with_embedding("e", dtype, ev_option=Option(device=device))
    columns = [
        fc.embedding_column(adaptive, DIM, combiner, v1.constant_initializer(STATIC)),
        fc.embedding_column(own, 2, "sum", tf.keras.initializers.RandomNormal(seed=4)),
    ]
    return fc.DenseFeatures(columns, name="features", dtype=policy)


def held_by(layer):
    """Returns the rows of each table in the order of their keys, and static rows."""
    held = {"static": layer.static_rows("c_embedding").numpy()}
    for name, table in layer.tables.items():
        found = table.export(slots=True)
        order = np.argsort(found.keys)
        for field in ("keys", "embeddings", "slots", "update_nums"):
            held[f"{name} {field}"] = getattr(found, field)[order]
        held[f"{name} steps"] = int(found.steps)
    return held


def assert_same(found, expected, tolerance=0.0):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name.endswith(("static", "embeddings", "slots")):
            np.testing.assert_allclose(found[name], value, tolerance, tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def batches(random, strings):
    """Yields features with their masks, of rows of ids, some of which are missing."""
    while True:
        n = random.integers(0, 7)
        ids = random.integers(-1, 12, [n, 3])
        # 2**62 is beyond the float64's integers, -9 is negative, and -1 is missing.
        ids = np.where(ids == 11, 2**62, np.where(ids == 10, -9, ids))
        mask = random.integers(0, 2, [n, 3]).astype(np.int32)
        if strings:
            ids = np.where(ids == -1, "", ids.astype(str))
        yield {"c": tf.constant(ids), "e": tf.constant(ids[:, :2])}, {"c": mask}


# Static rows of strings do not move.
KINDS_AND_TYPES = [
    (kind, dtype)
    for kind in ADAPTIVE
    for dtype in (tf.int64, tf.string)
    if (kind, dtype) != ("norms", tf.string)
]


@pytest.mark.cover(3)
@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind, dtype", KINDS_AND_TYPES)
def test_random_batches_train_rows_of_a_gpu_as_rows_of_the_host(
    kind, name, traced, combiner, dtype
):
    found = []
    for device in ("cpu", "gpu"):
        random = np.random.default_rng(seed_of_test())
        layer, optimizer = layer_of(device, kind, dtype, combiner), OPTIMIZERS[name]()
        outputs = []

        def step(features, masks, upstream, layer=layer, optimizer=optimizer):
            with tf.GradientTape() as tape:
                vectors = layer(features, masks, training=True)
                loss = tf.reduce_sum(vectors * upstream)
            gradients = tape.gradient(loss, layer.trainable_weights)
            optimizer.apply(gradients, layer.trainable_weights)
            return vectors

        optimizer.build(layer.trainable_weights)
        run = tf.function(step, reduce_retracing=True) if traced else step
        for number, (features, masks) in enumerate(batches(random, dtype == tf.string)):
            if number == rounds(8, 40):
                break
            upstream = random.normal(size=[len(masks["c"]), DIM + 2]).astype(np.float32)
            outputs.append(run(features, masks, upstream).numpy())
            outputs.append(layer(features, masks).numpy())
        found.append((held_by(layer), outputs))
        assert {table.device for table in layer.tables.values()} == {
            "cpu" if device == "cpu" else "gpu:0"
        }
    assert_same(found[1][0], found[0][0], 2e-5)
    for got, expected in zip(found[1][1], found[0][1], strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)
    assert found[0][0]["e_embedding keys"].size > 0


IDS = np.random.default_rng(1).integers(0, 40, (32, 3))
TARGETS = np.random.default_rng(2).normal(size=(32, 1)).astype(np.float32)


def model_of(layer):
    inputs = {name: keras.Input((3,), dtype="int64", name=name) for name in ("c", "e")}
    masks = {"c": keras.Input((3,), dtype="int32", name="mask")}
    vectors = layer(inputs, masks)
    ones = keras.initializers.Ones()
    dense = keras.layers.Dense(1, kernel_initializer=ones, dtype="float32")
    model = keras.Model({**inputs, "mask": masks["c"]}, dense(vectors))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def fit(model):
    features = {"c": IDS, "e": IDS % 7, "mask": (IDS % 3 == 0).astype(np.int32)}
    model.fit(features, TARGETS, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.predict(features, verbose=0)


@pytest.mark.cover(1)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_fit_trains_rows_of_a_gpu_as_rows_of_the_host(policy):
    found = []
    for device in ("cpu", "gpu"):
        layer = layer_of(device, policy=policy)
        fit(model_of(layer))
        found.append(held_by(layer))
    assert_same(found[1], found[0], 1e-5 if policy == "float32" else 2e-2)


def test_a_model_of_columns_goes_to_the_host_and_back(tmp_path, monkeypatch):
    layer = layer_of("gpu")
    first = model_of(layer)
    expected = fit(first)
    saved = held_by(layer)
    first.save(tmp_path / "gpu.keras")
    path = tf.train.Checkpoint(layer=layer).write(str(tmp_path / "checkpoint"))
    monkeypatch.setenv("SOK_DEVICE", "cpu")
    second = keras.models.load_model(tmp_path / "gpu.keras")
    on_host = second.get_layer("features")
    assert {table.device for table in on_host.tables.values()} == {"cpu"}
    assert_same(held_by(on_host), saved)
    second.save(tmp_path / "host.keras")
    monkeypatch.delenv("SOK_DEVICE")
    third = keras.models.load_model(tmp_path / "host.keras")
    assert {table.device for table in third.get_layer("features").tables.values()} == {"gpu:0"}
    assert_same(held_by(third.get_layer("features")), saved)
    np.testing.assert_allclose(fit(third), fit(second), rtol=1e-5)
    for device in ("cpu", "gpu"):
        other = layer_of(device)
        tf.train.Checkpoint(layer=other).read(path)
        assert_same(held_by(other), saved)
    first.export(tmp_path / "saved", verbose=False)
    features = {"c": IDS, "e": IDS % 7, "mask": (IDS % 3 == 0).astype(np.int32)}
    for gpus in ("1", "0"):
        monkeypatch.setenv("SOK_STANDIN_GPUS", gpus)
        loaded = tf.saved_model.load(tmp_path / "saved")
        served = loaded.serve({name: tf.constant(value) for name, value in features.items()})
        np.testing.assert_allclose(served, expected, rtol=1e-5)


def test_an_option_of_old_files_lies_on_the_host_and_a_copy_keeps_the_device():
    config = Option(device="gpu:1").get_config()
    assert Option.from_config(config) == Option(device="gpu:1")
    del config["device"]
    assert Option.from_config(config) == Option()


def test_what_a_gpu_cannot_hold_is_refused_and_auto_takes_the_host(tmp_path):
    with pytest.raises(ValueError, match="EmbeddingVariableOption: expected device to be 'cpu'"):
        Option(device="cuda")
    stored = fc.StorageOption(fc.StorageType.SSDHASH, str(tmp_path / "rows"))

    def made(**options):
        column = fc.categorical_column_with_adaptive_embedding(
            "c", BUCKETS, tf.int64, ev_option=Option(**options)
        )
        layer = fc.DenseFeatures([fc.embedding_column(column, DIM)])
        return layer.tables["c_embedding"]

    with pytest.raises(ValueError, match="expected rows in memory with device='gpu'"):
        made(device="gpu", storage_option=stored)
    with pytest.raises(ValueError, match="expected row_dtype='float32'"):
        made(device="gpu", row_dtype="bfloat16")
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES"):
        made(device="gpu:3")
    assert made(device="auto", row_dtype="bfloat16").device == "cpu"
    assert made(device="auto").device == "gpu:0"


def test_graphs_of_tf1_and_embedding_variables_have_their_rows_on_the_host(monkeypatch):
    message = "expected eager execution around a table on a GPU. Received: a TF1 graph"
    option = Option(device="gpu")
    column = fc.categorical_column_with_adaptive_embedding("c", BUCKETS, tf.int64, ev_option=option)
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        features, masks = {"c": tf.constant([[1], [2]], tf.int64)}, {"c": tf.constant([[1], [0]])}
        fc.input_layer(features, [fc.embedding_column(column, DIM)], adaptive_mask_tensors=masks)
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        fc.get_embedding_variable("items", DIM, ev_option=option)
    monkeypatch.setenv("SOK_DEVICE", "cpu")
    with tf.Graph().as_default():
        fc.get_embedding_variable("items", DIM, ev_option=option)
