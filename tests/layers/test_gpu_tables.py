"""Layers whose rows lie in the memory of a GPU, on a stand-in for one, against the host's rows."""

import os
import subprocess

import forked
import gpu_standin
import keras
import numpy as np
import pytest
import tensorflow as tf
from gpu_tables import (
    DIM,
    KEYS,
    OPTIMIZERS,
    TARGETS,
    assert_same,
    contents,
    fit,
    layer,
    model_with,
)
from limits import HANG_S

from sok_embed import (
    All2AllDenseEmbedding,
    DistributedEmbedding,
    FeatureConfig,
    Table,
    TableConfig,
    kv,
)
from sok_embed.admission import FrequencyAdmission
from sok_embed.checkpoint import Checkpoint
from sok_embed.eviction import LeastRecentlyUsed
from sok_embed.initializers import RowInitializer
from sok_embed.tf_ops import nvrtc

pytestmark = pytest.mark.skipif(not gpu_standin.is_built(), reason="needs `make test`'s libraries")


@pytest.fixture(scope="module", autouse=True)
def gpu(tmp_path_factory):
    before = dict(os.environ)
    gpu_standin.use(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fit_trains_rows_on_a_gpu_as_it_trains_those_of_the_host(name):
    models = [model_with(layer(device), OPTIMIZERS[name]()) for device in ("cpu", "gpu")]
    of_host, of_gpu = [contents(fit(model).layers[0].table) for model in models]
    assert [model.layers[0].table.device for model in models] == ["cpu", "gpu:0"]
    assert of_gpu["steps"] == (1 if name == "accumulated" else 3)
    assert_same(of_gpu, of_host, 1e-6)
    np.testing.assert_allclose(*[model.predict(KEYS, verbose=0) for model in models], atol=1e-6)


def test_an_eager_loop_trains_bags_and_clips_by_hand():
    found = []
    for device in ("cpu", "gpu"):
        embedding = layer(device, combiner="mean")
        optimizer = keras.optimizers.Adagrad(0.1)
        for step in range(3):
            with tf.GradientTape() as tape:
                vectors = embedding(KEYS[32 * step : 32 * step + 32], training=True)
                loss = tf.reduce_sum(vectors**2)
            gradients = tape.gradient(loss, embedding.trainable_weights)
            gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
            optimizer.apply(gradients, embedding.trainable_weights)
        found.append(contents(embedding.table))
    assert_same(found[1], found[0], 1e-6)


def test_a_model_goes_to_the_host_and_back_by_keras_files(tmp_path, monkeypatch):
    first = fit(model_with(layer("gpu", max_bytes=2**30), "adam"))
    saved = contents(first.layers[0].table)
    first.save(tmp_path / "gpu.keras")
    monkeypatch.setenv("SOK_DEVICE", "cpu")
    second = keras.models.load_model(tmp_path / "gpu.keras")
    assert second.layers[0].table.device == "cpu"
    assert second.layers[0].get_config()["device"] == "gpu"
    assert second.layers[0].get_config()["max_bytes"] == 2**30
    assert_same(contents(second.layers[0].table), saved)
    second.save(tmp_path / "host.keras")
    monkeypatch.delenv("SOK_DEVICE")
    third = keras.models.load_model(tmp_path / "host.keras")
    assert third.layers[0].table.device == "gpu:0"
    assert_same(contents(third.layers[0].table), saved)
    # They train on alike: the slots and the step came along.
    of_host, of_gpu = [contents(fit(model).layers[0].table) for model in (second, third)]
    assert_same(of_gpu, of_host, 1e-6)


def test_where_no_gpu_is_a_saved_model_asks_for_one_and_its_files_load_on_the_host(
    tmp_path, monkeypatch
):
    first = fit(model_with(layer("gpu"), "adam"))
    saved = contents(first.layers[0].table)
    first.save(tmp_path / "gpu.keras")
    first.save_weights(tmp_path / "gpu.weights.h5")
    Checkpoint(first).save(tmp_path / "step")
    monkeypatch.setenv("SOK_STANDIN_GPUS", "0")
    # Keras makes a TypeError of all that a layer raises.
    with pytest.raises(TypeError, match="Expected a GPU.*SOK_DEVICE=cpu"):
        keras.models.load_model(tmp_path / "gpu.keras")
    for load in (
        lambda model: model.load_weights(tmp_path / "gpu.weights.h5"),
        lambda model: Checkpoint(model).restore(tmp_path / "step"),
    ):
        model = model_with(layer("auto"), "adam")
        load(model)
        assert model.layers[0].table.device == "cpu"
        assert_same(contents(model.layers[0].table), saved)
    monkeypatch.setenv("SOK_DEVICE", "cpu")
    assert_same(contents(keras.models.load_model(tmp_path / "gpu.keras").layers[0].table), saved)


def test_tables_of_a_collection_train_on_a_gpu_as_on_the_host():
    found = []
    for device in ("cpu", "gpu"):
        users = TableConfig("users", None, DIM, seed=1, combiner="sum", device=device)
        items = TableConfig("items", 100, DIM, seed=2, device=device, max_bytes=2**30)
        assert TableConfig.from_config(items.get_config()).device == device
        features = {
            "user": FeatureConfig("user", users),
            "item": FeatureConfig("item", items),
            "last": FeatureConfig("last", items),
        }
        embedding = DistributedEmbedding(features, name="fields")
        inputs = {name: keras.Input((3,), dtype="int64", name=name) for name in features}
        hidden = keras.layers.Concatenate()(list(embedding(inputs).values()))
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(hidden))
        model.compile(keras.optimizers.Adagrad(0.1, clipnorm=1.0), "mse")
        keys = {"user": KEYS, "item": abs(KEYS), "last": abs(KEYS[::-1])}
        model.fit(keys, TARGETS, batch_size=32, shuffle=False, verbose=0)
        found.append(embedding.tables)
    for name, table in found[1].items():
        assert table.device == "gpu:0"
        assert_same(contents(table), contents(found[0][name]), 1e-6)


def test_checkpoints_of_tensorflow_carry_rows_between_devices(tmp_path):
    trained = fit(model_with(layer("gpu"), "adagrad")).layers[0].table
    saved = contents(trained)
    path = tf.train.Checkpoint(table=trained).write(str(tmp_path / "checkpoint"))
    for device in ("cpu", "gpu"):
        table = layer(device).table
        tf.train.Checkpoint(table=table).read(path).assert_consumed()
        assert_same(contents(table), saved)


def test_checkpoints_of_runs_carry_rows_between_devices(tmp_path):
    trained = fit(model_with(layer("gpu"), "adam"))
    saved = contents(trained.layers[0].table)
    Checkpoint(trained).save(tmp_path / "step")
    for device in ("cpu", "gpu"):
        model = model_with(layer(device), "adam")
        Checkpoint(model).restore(tmp_path / "step")
        assert_same(contents(model.layers[0].table), saved)


def test_a_table_on_a_gpu_assigns_removes_lists_and_tells():
    table = layer("gpu").table
    values = np.arange(5 * DIM, dtype=np.float32).reshape(5, DIM)
    table.assign([5, -1, 2**62, 7, 8], values)
    assert (table.size(), table.remove([7, 99])) == (5, 1)
    np.testing.assert_array_equal(table.contains([5, 7, 8]), [True, False, True])
    np.testing.assert_array_equal(table.lookup([2**62, -1]), values[[2, 1]])
    start = layer("cpu").table.lookup([7])
    np.testing.assert_array_equal(table.lookup([7]), start)
    batches = list(table.batches(3))
    assert [len(keys) for keys, _ in batches] == [3, 1]
    assert sorted(np.concatenate([keys for keys, _ in batches])) == [-1, 5, 8, 2**62]
    stats = table.stats()
    assert (stats["rows"], stats["made"]) == (4, 5)
    assert stats["index_bytes"] > 0


@pytest.mark.cover(1)
@pytest.mark.parametrize("arguments", [{"eviction": LeastRecentlyUsed(), "max_rows": 60},
                                       {"admission": FrequencyAdmission(min_count=2)}],
                         ids=["eviction", "admission"])  # fmt: skip
def test_policies_choose_the_rows_that_they_choose_on_the_host(arguments):
    found = []
    for device in ("cpu", "gpu"):
        embedding = layer(device, **arguments)
        fit(model_with(embedding, "sgd"), epochs=2)
        found.append(embedding.table)
    assert found[0].size() == found[1].size() > 0
    if "admission" in arguments:
        assert_same(contents(found[1]), contents(found[0]), 1e-6)


def test_a_full_table_on_a_gpu_is_an_error_that_makes_no_row():
    with pytest.raises(tf.errors.ResourceExhaustedError, match="at most 10 rows"):
        layer("gpu", max_rows=10)(KEYS, training=True)
    with pytest.raises(ValueError, match="max_bytes"):
        table = layer("gpu", max_bytes=2**20).table
        table.assign(np.arange(200_000), np.zeros([200_000, DIM], np.float32))
    assert table.size() == 0


def test_what_does_not_fit_leaves_the_rows_of_a_gpu_as_they_were():
    """The host's calls go to a GPU in pieces of 262,144 keys."""
    table = layer("gpu", max_bytes=2**24).table
    table.assign(np.arange(1000), np.full([1000, DIM], 7, np.float32))
    before = contents(table)
    many = np.arange(600_000), np.ones([600_000, DIM], np.float32)
    on_host = layer("cpu").table
    on_host.assign(*many)
    for change in (lambda: table.assign(*many), lambda: table.restore(on_host.export(slots=True))):
        with pytest.raises(ValueError, match="Raise max_bytes"):
            change()
        assert_same(contents(table), before, 0)
        assert table.size() == 1000


def test_keys_that_a_full_gpu_cannot_list_are_an_error(monkeypatch):
    table = layer("gpu").table
    table.assign(np.arange(1000), np.full([1000, DIM], 7, np.float32))
    monkeypatch.setenv("SOK_STANDIN_BYTES", "1000")
    with pytest.raises((ValueError, tf.errors.OpError), match="Leave more of the GPU's memory"):
        list(table.batches(300))
    monkeypatch.delenv("SOK_STANDIN_BYTES")
    assert sum(len(keys) for keys, *_ in table.batches(300)) == 1000


def test_what_a_gpu_cannot_hold_is_refused_and_auto_takes_the_host(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        refused = [({"storage": storage}, "rows in memory"), ({"row_dtype": "int8"}, "float32")]
        for arguments, part in refused:
            with pytest.raises(ValueError, match=part):
                layer("gpu", **arguments)
            assert layer("auto", **arguments).table.device == "cpu"
            storage.close() if "storage" in arguments else None
    start = RowInitializer("constant", 0.0, 0.0, None)
    with pytest.raises(ValueError, match="hash index"):
        Table(DIM, start, direct=True, max_rows=5, device="gpu")
    with pytest.raises(ValueError, match="use_hashtable"):
        All2AllDenseEmbedding(10, DIM, 1, 1, use_hashtable=False, device="gpu")
    for device in ("cuda", "gpu:", "gpu:x", None, 0):
        with pytest.raises(ValueError, match="'cpu', 'gpu', 'auto'"):
            layer(device)
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES"):
        layer("gpu:3")
    with pytest.raises(ValueError, match="max_bytes"):
        layer("gpu", max_bytes=0)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="TF1 graph"):
        Table(DIM, start, device="gpu")
    assert layer("auto").table.device == "gpu:0"


WITHOUT_A_GPU = """
import os
import tensorflow as tf
from sok_embed import DynamicEmbedding
for name, value, part in [
    ("SOK_CUDA_DRIVER", "/none/libcuda.so.1", "NVIDIA's driver"),
    ("SOK_STANDIN_GPUS", "0", "Expected a GPU"),
    ("SOK_NVRTC", "/none/libnvrtc.so.12", "NVRTC"),
    ("SOK_STANDIN_BYTES", "1000", "Leave more of the GPU's memory"),
]:
    before = os.environ.get(name)
    os.environ[name] = value
    assert DynamicEmbedding(4, device="auto").table.device == "cpu"
    try:
        DynamicEmbedding(4, device="gpu")
    except (RuntimeError, ValueError, tf.errors.OpError) as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"a table was made without {part}")
    del os.environ[name]
    os.environ |= {} if before is None else {name: before}
assert DynamicEmbedding(4, device="auto").table.device == "gpu:0"
"""


def test_an_error_says_what_a_gpu_table_misses():
    run = subprocess.run(
        forked.program(WITHOUT_A_GPU), capture_output=True, text=True, timeout=HANG_S
    )
    assert run.returncode == 0, run.stderr[-2000:]


def test_the_compiler_is_found_among_python_packages(tmp_path, monkeypatch):
    library = tmp_path / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SOK_NVRTC", "given")
    nvrtc.find_compiler()
    assert os.environ["SOK_NVRTC"] == "given"
    monkeypatch.delenv("SOK_NVRTC")
    nvrtc.find_compiler()
    found = os.environ.pop("SOK_NVRTC", "")
    monkeypatch.setenv("SOK_NVRTC", str(gpu_standin.COMPILER))
    assert "libnvrtc.so" in found
