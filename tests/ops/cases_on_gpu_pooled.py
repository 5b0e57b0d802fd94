"""Pooled lookups and collections on a GPU of TensorFlow's, against NumPy and tables of the host.

`test_guarded_device.py` runs this on a device of its own, whose memory only kernels of the stand-in
for a GPU may touch: an op that reads there on the host ends the process. It computes nothing else,
and all other ops are on the CPU.
"""

import os

import guarded_device
import keras
import numpy as np
import pytest
import tensorflow as tf
import test_collections
from collection_cases import (
    CASES,
    KEYS,
    Model,
    assert_pooled,
    data_of,
    inputs_of,
    make_layer,
    random_batch,
    start_of,
    step_of,
    table_configs,
    weights_of,
)
from gpu_tables import DIM, OPTIMIZERS, TARGETS, assert_same, contents, layer, model_with
from gpu_tables import KEYS as IDS
from tensorflow.python.client import device_lib  # noqa: F401, which makes the devices

from sok_embed import DistributedEmbedding, FeatureConfig, TableConfig, tf_ops
from sok_embed.tf_ops.native import ops

guarded_device.let_kernels_touch_memory(os.environ["SOK_CUDA_DRIVER"])

GPU = guarded_device.DEVICE
NAMES = tuple(CASES)
ON_GPU = {name: {"device": "gpu"} for name in KEYS}
DEVICES = {"gpu": ON_GPU, "both": {"items": {"device": "gpu"}}}


@pytest.fixture(autouse=True)
def rest_on_the_cpu():
    with tf.device("/device:CPU:0"):
        yield


@pytest.fixture
def lookups(monkeypatch):
    """Counts the lookups on the GPU and on the host, by what they were asked for."""
    counted = {"gpu": 0, "host": 0}
    for name, kind in (("lookup_pooled_on_gpu", "gpu"), ("collection_serve", "host")):
        original = getattr(tf_ops, name)

        def count(*args, original=original, kind=kind, **kwargs):
            counted[kind] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(tf_ops, name, count)
    return counted


def tables_on(devices):
    return table_configs(**DEVICES.get(devices, {}))


def of_names(given, names):
    return {name: value for name, value in given.items() if name in names}


@pytest.mark.cover("values")
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_every_feature_is_what_numpy_makes_of_its_rows(wrap, devices, lookups):
    embedding = make_layer(tables=tables_on(devices))
    for seed in range(3):
        batch = random_batch(seed)
        call = wrap(lambda keys, weights: embedding(keys, weights))
        assert_pooled(call(inputs_of(batch), weights_of(batch)), batch, start_of())
    assert lookups["gpu"] >= 3
    assert (lookups["host"] == 0) == (devices == "gpu")


def test_vectors_are_on_the_gpu():
    embedding = make_layer(tables=tables_on("gpu"))
    batch = random_batch()
    outputs = embedding(inputs_of(batch), weights_of(batch))
    assert outputs["item_best"].device.endswith(GPU)


@pytest.mark.cover("values")
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("names", [NAMES[:2] + NAMES[3:4], ("user", "user_log", "place")])
def test_outputs_in_one_tensor_are_those_of_the_structure(names, devices):
    batch = of_names(random_batch(), names)
    weights = weights_of(batch)
    apart = make_layer(names=names)(inputs_of(batch), weights)
    found = make_layer(names=names, output="concat", tables=tables_on(devices))(
        inputs_of(batch), weights
    )
    expected = tf.concat([apart[name] for name in sorted(names)], 1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_vectors_of_two_bytes_are_those_of_the_host_rounded(policy):
    batch = random_batch()
    given = inputs_of(batch), weights_of(batch)
    on_host, on_gpu = (
        make_layer(tables=tables_on(devices), dtype=policy)(*given) for devices in ("cpu", "gpu")
    )
    for name, expected in on_host.items():
        found = on_gpu[name]
        assert found.dtype == expected.dtype
        flat = [getattr(each, "flat_values", each) for each in (found, expected)]
        np.testing.assert_allclose(*[tf.cast(each, tf.float32) for each in flat], atol=4e-3)


def gradients_of(devices, eager):
    """Returns the gradients of all weights of a batch, and the rows after a step."""
    batch = random_batch(3)
    embedding = make_layer(tables=tables_on(devices))
    embedding(inputs_of(batch))
    optimizer = keras.optimizers.SGD(1.0)
    given = {name: tf.Variable(getattr(weights, "flat_values", getattr(weights, "values", weights)))
             for name, weights in weights_of(batch).items()}  # fmt: skip

    def step():
        with tf.GradientTape() as tape:
            outputs = embedding(inputs_of(batch), {n: tf.identity(w) for n, w in given.items()},
                                training=True)  # fmt: skip
            flat = [getattr(outputs[name], "flat_values", outputs[name]) for name in NAMES]
            loss = tf.add_n([tf.reduce_sum(tf.sin(3.0 * vectors)) for vectors in flat])
        anchors = embedding.trainable_weights
        found = tape.gradient(loss, [*anchors, *given.values()])
        optimizer.apply(found[: len(anchors)], anchors)
        return found[len(anchors) :]

    optimizer.build(embedding.trainable_weights)
    of_weights = step() if eager else tf.function(step)()
    rows = {name: contents(table) for name, table in embedding.tables.items()}
    return dict(zip(given, of_weights, strict=True)), rows


@pytest.mark.cover("values")
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("devices", DEVICES)
def test_gradients_of_rows_and_weights_are_those_of_the_host(devices, eager):
    expected, rows = gradients_of("cpu", eager)
    found, on_gpu = gradients_of(devices, eager)
    for name, of_weights in expected.items():
        np.testing.assert_allclose(found[name], of_weights, rtol=1e-5, atol=1e-5, err_msg=name)
    for name, table in rows.items():
        assert_same(on_gpu[name], table, 2e-6)


def test_weights_of_a_frozen_layer_have_gradients_and_its_rows_none():
    embedding = layer("gpu", combiner="mean")
    keys = np.arange(12).reshape(4, 3)
    embedding.table.assign(np.arange(12), np.random.default_rng(1).normal(size=[12, DIM]))
    embedding.trainable = False
    weights = tf.Variable(np.random.default_rng(2).uniform(0.5, 2, [4, 3]).astype(np.float32))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embedding(keys, weights=tf.identity(weights)) ** 2)
    found = tape.gradient(loss, weights)
    assert embedding.table.stats()["pending_gradients"] == 0
    x = embedding.table.lookup(keys).astype(np.float64)
    w = weights.numpy().astype(np.float64)[..., None]
    y = (w * x).sum(1, keepdims=True) / w.sum(1, keepdims=True)
    expected = (2 * y * (x - y)).sum(-1) / w[..., 0].sum(1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def trained(devices, optimizer, *, used=None, eager=False, **arguments):
    keras.utils.set_random_seed(4)
    model = Model(make_layer(tables=tables_on(devices), **arguments), used)
    model.compile(optimizer(), "mse", run_eagerly=eager)
    model.fit(data_of(8 * 6), shuffle=False, verbose=0)
    return model


def assert_models_alike(found, expected, tolerance):
    for name, table in expected.layer.tables.items():
        assert_same(contents(found.layer.tables[name]), contents(table), tolerance)
    np.testing.assert_allclose(
        found.dense.get_weights()[0], expected.dense.get_weights()[0], rtol=0, atol=1e-5
    )


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    ("name", "devices"), [*((name, "both") for name in OPTIMIZERS), ("adam", "gpu"), ("sgd", "gpu")]
)
def test_fit_trains_tables_of_a_collection_as_on_the_host(name, devices, lookups):
    expected, found = (trained(each, OPTIMIZERS[name]) for each in ("cpu", devices))
    assert lookups["gpu"] > 0
    assert_models_alike(found, expected, 2e-5)


def test_an_eager_loop_that_clips_by_hand_trains_as_on_the_host():
    found = []
    for devices in ("cpu", "both"):
        keras.utils.set_random_seed(4)
        model = Model(make_layer(tables=tables_on(devices)))
        step = step_of(model, keras.optimizers.Adam(0.01, global_clipnorm=0.1))
        for given, targets in data_of(8 * 3):
            step(given, targets)
        found.append(model)
    assert_models_alike(found[1], found[0], 2e-5)


@pytest.mark.cover(1)
@pytest.mark.parametrize("devices", ["gpu", "both"])
def test_rows_that_no_used_feature_asked_for_stay(devices):
    used = ("user_log", "item", "place_log")
    adam = OPTIMIZERS["adam"]
    expected, found = (trained(each, adam, used=used) for each in ("cpu", devices))
    assert_models_alike(found, expected, 2e-5)


def test_a_run_has_the_bits_of_the_run_before():
    first, second = (trained("gpu", OPTIMIZERS["adam"]) for _ in range(2))
    for name, table in first.layer.tables.items():
        assert_same(contents(second.layer.tables[name]), contents(table))


def test_keys_that_are_bags_have_the_bits_of_a_layer_of_one_table():
    table = TableConfig("rows", None, DIM, seed=3, device="gpu")
    found = []
    for made in (
        layer("gpu"),
        DistributedEmbedding(FeatureConfig("f", table, combiner=None), name="fields"),
    ):
        model = model_with(made, keras.optimizers.Adagrad(0.1))
        model.fit(IDS, TARGETS, batch_size=32, epochs=2, shuffle=False, verbose=0)
        of_layer = getattr(made, "table", None) or made.tables["rows"]
        found.append((contents(of_layer), model.predict(IDS, verbose=0)))
    assert_same(found[1][0], found[0][0])
    np.testing.assert_array_equal(found[1][1], found[0][1])


def test_frozen_tables_stay_and_make_no_rows():
    features = {
        name: FeatureConfig(name, TableConfig(name, None, DIM, seed=1, device="gpu",
                                              trainable=name == "a", combiner="sum"))
        for name in ("a", "b")
    }  # fmt: skip
    embedding = DistributedEmbedding(features, name="fields")
    optimizer = keras.optimizers.SGD(0.1)
    with tf.GradientTape() as tape:
        outputs = embedding({"a": IDS, "b": IDS}, training=True)
        loss = tf.reduce_sum(outputs["a"] ** 2) + tf.reduce_sum(outputs["b"] ** 2)
    optimizer.apply(tape.gradient(loss, embedding.trainable_weights), embedding.trainable_weights)
    assert (embedding.tables["a"].size(), embedding.tables["b"].size()) == (len(np.unique(IDS)), 0)


@pytest.mark.cover(2)
@pytest.mark.parametrize(
    ("name", "combiner"),
    [("adam", "sum"), ("clipnorm", "mean"), ("adam", "sqrtn"), ("accumulated", "max")],
)
def test_bags_of_one_table_train_as_on_the_host(name, combiner, lookups):
    found = []
    for device in ("cpu", "gpu"):
        keras.utils.set_random_seed(1)
        embedding = layer(device, combiner=combiner, mask_zero=True)
        model = keras.Sequential([keras.Input((3,), dtype="int64"), embedding])
        model.add(keras.layers.Dense(1))
        model.compile(OPTIMIZERS[name](), "mse")
        model.fit(IDS, TARGETS, batch_size=32, epochs=2, shuffle=False, verbose=0)
        found.append(contents(embedding.table))
    assert lookups["gpu"] > 0
    assert_same(found[1], found[0], 2e-6)


def test_rows_that_go_between_lookup_and_step_are_made_anew():
    found = []
    for devices in ("cpu", "gpu"):
        embedding = make_layer(tables=tables_on(devices), name="fields")
        optimizer = keras.optimizers.SGD(0.1)
        batch = random_batch()
        with tf.GradientTape() as tape:
            outputs = embedding(inputs_of(batch), weights_of(batch), training=True)
            loss = tf.reduce_sum(outputs["item"] ** 2) + tf.reduce_sum(outputs["user"] ** 2)
        gradients = tape.gradient(loss, embedding.trainable_weights)
        gone = KEYS["items"][batch["item"].numbers[0]]
        assert embedding.tables["items"].remove(gone) == 1
        optimizer.apply(gradients, embedding.trainable_weights)
        found.append({name: contents(table) for name, table in embedding.tables.items()})
    for name, table in found[0].items():
        assert_same(found[1][name], table, 2e-6)


def test_what_is_wrong_is_refused_as_on_the_host():
    table = TableConfig("t", 10, DIM, device="gpu", combiner="sum", max_rows=20)
    embedding = DistributedEmbedding(FeatureConfig("f", table, max_length=2))
    for keys in ([[3, 10]], [[-1, 2]]):
        with pytest.raises(tf.errors.OpError, match=r"feature 'f'.*table 't' in \[0, 10\)"):
            embedding(np.array(keys), training=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_length=2"):
        embedding(tf.ragged.constant([[1], [1, 2, 3]], dtype=tf.int64), training=True)
    values = tf.range(3, dtype=tf.int64)
    broken = tf.RaggedTensor.from_row_splits(values, [0, 2, 1, 3], validate=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="row splits"):
        embedding(broken, training=True)
    assert embedding.tables["t"].size() == 0
    full = DistributedEmbedding(
        FeatureConfig("f", TableConfig("t", None, DIM, device="gpu", max_rows=10, combiner="sum"))
    )
    with pytest.raises(tf.errors.ResourceExhaustedError, match="at most 10 rows"):
        full(IDS, training=True)
    assert full.tables["t"].size() == 0


def test_empty_batches_and_bags_without_keys_are_zeros():
    table = TableConfig("t", None, DIM, device="gpu")
    for combiner in ("sum", "mean", "sqrtn", "max"):
        embedding = DistributedEmbedding(FeatureConfig("f", table, combiner=combiner))
        assert embedding(np.zeros([0, 3], np.int64)).shape == (0, DIM)
        np.testing.assert_array_equal(embedding(np.zeros([3, 0], np.int64)), np.zeros([3, DIM]))
        keys = tf.ragged.constant([[], [5, 7], []], dtype=tf.int64)
        np.testing.assert_array_equal(embedding(keys, training=True)[0], np.zeros(DIM))


@pytest.mark.cover(1)
@pytest.mark.parametrize("device", ["cpu", "gpu:1"])
@pytest.mark.parametrize("eager", [False, True])
def test_rows_that_lie_elsewhere_than_the_lookup_runs_are_trained(device, eager, monkeypatch):
    """Tables of a graph that was saved with another number of GPUs are such."""
    monkeypatch.setenv("SOK_STANDIN_GPUS", "2")
    found = []
    for elsewhere in (False, True):
        of_tables = {"device": device if elsewhere else "cpu"}
        tables = table_configs(**dict.fromkeys(KEYS, of_tables))
        keras.utils.set_random_seed(4)
        embedding = make_layer(tables=tables)
        for table in embedding.tables.values() if elsewhere else ():
            table.lookup_device = GPU
        model = Model(embedding)
        model.compile(OPTIMIZERS["adam"](), "mse", run_eagerly=eager)
        model.fit(data_of(8 * 3), shuffle=False, verbose=0)
        found.append(model)
    assert_models_alike(found[1], found[0], 2e-5)


def test_ops_that_a_graph_has_on_a_gpu_copy_what_a_lookup_on_the_host_made():
    request, found = test_collections.request_of(), []
    for device in ("/device:CPU:0", GPU):
        tables = test_collections.new_tables()
        rows = test_collections.serve(tables, request)
        pooling = {
            "asked": request.asked,
            "rows": rows.message,
            "row_splits": rows.splits,
            "weights": [],
            "weighted": [],
            "combiners": [0, 0, 0],
            "concat": False,
            "packed": False,
            "dtype": tf.float32,
        }
        vectors = ops.sok_embed_collection_pool(**pooling)
        with tf.device(device):
            output = ops.sok_embed_collection_output(
                vectors=vectors, asked=[request.asked], dtype=tf.float32, index=0, width=2
            )
            gradients = ops.sok_embed_collection_output_gradient(
                gradient=output, asked=request.asked, index=0
            )
        assert output.device.endswith(device)
        of_rows = ops.sok_embed_collection_pool_gradient(gradients=gradients, **pooling)[0]
        look_up = tf_ops.lookup(tables.tables[0], tf.constant([1, 2]), 2, True)
        with tf.device(device):
            deposited = ops.sok_embed_deposit(
                receipt=look_up.receipt, gradients=tf.identity(look_up.embeddings), number=0
            )
        tf_ops.commit(tables.tables[0], deposited, [test_collections.STEP])
        found.append([output, of_rows, test_collections.read(tables.tables[0], [1, 2])])
    assert np.count_nonzero(found[0][1]) > 0
    assert not found[0][2].any()
    for on_host, on_gpu in zip(*found, strict=True):
        np.testing.assert_array_equal(on_gpu, on_host)


class Scorer(tf.Module):
    """Pools keys in a function that may be saved."""

    def __init__(self):
        super().__init__()
        table = TableConfig("t", 50, DIM, seed=1, device="gpu", combiner="mean")
        embedding = DistributedEmbedding(FeatureConfig("f", table), name="fields")
        embedding(abs(IDS), training=True)
        embedding.trainable = False
        self.table = embedding.tables["t"]
        self.queue = embedding._collection.queue
        self._look_up = lambda keys, weights: embedding(keys, weights)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64),
                                  tf.TensorSpec([None, 3], tf.float32)])  # fmt: skip
    def __call__(self, keys, weights):
        return self._look_up(keys, weights)


@pytest.mark.parametrize("gpus", ["1", "0"])
def test_a_saved_function_pools_where_it_is_loaded(gpus, tmp_path, monkeypatch, capfd):
    scorer = Scorer()
    given = tf.constant(abs(IDS[:5])), tf.constant(np.arange(15.0).reshape(5, 3), tf.float32)
    expected = scorer(*given)
    operations = scorer.__call__.get_concrete_function().graph.get_operations()
    assert "SokEmbed>LookupPooled" in {operation.type for operation in operations}
    tf.saved_model.save(scorer, tmp_path / "saved")
    monkeypatch.setenv("SOK_STANDIN_GPUS", gpus)
    loaded = tf.saved_model.load(tmp_path / "saved")
    capfd.readouterr()
    for _ in range(2):
        np.testing.assert_allclose(loaded(*given), expected, rtol=1e-6)
    assert capfd.readouterr().err.count("copies its keys") == (gpus == "0")
