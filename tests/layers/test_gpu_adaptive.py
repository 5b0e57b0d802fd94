"""Adaptive layers whose rows lie in the memory of a GPU, on a stand-in for one."""

import os

import gpu_standin
import keras
import numpy as np
import pytest
import tensorflow as tf
from adaptive_reference import BUCKETS, CASES, DIM, KEYS, AdaptiveReference, make
from seeds import seed_of_test
from tiers import rounds

from sok_embed.checkpoint import Checkpoint

pytestmark = pytest.mark.skipif(not gpu_standin.is_built(), reason="needs `make test`'s libraries")


@pytest.fixture(scope="module", autouse=True)
def gpu(tmp_path_factory):
    before = dict(os.environ)
    gpu_standin.use(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.clear()
    os.environ.update(before)


def step_of(layer, optimizer, keys, mask, upstream):
    """Takes a step whose gradient of each vector is given; returns the vectors."""
    with tf.GradientTape() as tape:
        vectors = layer(keys, training=True, mask=mask)
        loss = tf.reduce_sum(vectors * upstream)
    gradients = tape.gradient(loss, layer.trainable_weights)
    optimizer.apply(gradients, layer.trainable_weights)
    return vectors.numpy()


def contents(table):
    """Returns all that an adaptive table holds, its rows in the order of their keys."""
    found = table.snapshot()
    held = {"cells": found.cells, "counters": found.counters}
    for name, part in (("own", found.own), ("static", found.static)):
        order = np.argsort(part.keys)
        fields = ("keys", "embeddings", "slots", "update_nums")
        held |= {f"{name}_{field}": getattr(part, field)[order] for field in fields}
        held |= {f"{name}_rule": bytes(part.rule), f"{name}_steps": int(part.steps)}
    return held


def assert_same(found, expected, tolerance=0.0):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name.endswith(("embeddings", "slots")):
            np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.cover("values")
@pytest.mark.parametrize("blend", [0.0, 0.25])
@pytest.mark.parametrize("slots", ["copy", "zero"])
@pytest.mark.parametrize("rule", CASES)
def test_random_steps_promotions_and_demotions_are_those_of_float64(rule, slots, blend):
    random = np.random.default_rng(seed_of_test())
    layer = make(promote_after=3, slots=slots, demote_blend=blend, device="gpu")
    layer(KEYS[:0])
    assert layer.table.device == "gpu:0"
    case = CASES[rule]
    reference = AdaptiveReference(layer, case.rule(case.rate), 3, slots == "copy", blend)
    optimizer = case.optimizer(case.rate)
    for _ in range(rounds(12, 60)):
        keys = random.choice(KEYS, [random.integers(0, 9), 3])
        mask = random.integers(-1, 2, keys.shape).astype(np.int32)
        upstream = random.normal(size=(*keys.shape, DIM)).astype(np.float32)
        expected = reference.lookup(keys, mask, training=True)
        found = step_of(layer, optimizer, keys, mask, upstream)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
        reference.deposit(keys, upstream, mask)
        reference.commit()
        if random.random() < 0.3 and reference.rows:
            gone = random.choice(list(reference.rows), min(2, len(reference.rows)), replace=False)
            assert layer.table.demote(gone) == len(gone)
            reference.demote(np.sort(gone.astype(np.uint64)).astype(np.int64))
    reference.assert_equal(layer, 2e-5)


LIMITS = {
    "most": {"max_rows": 5},
    "halved": {"decay_every": 2},
    "sum": {"combiner": "sum"},
    "sqrtn": {"combiner": "sqrtn", "padding_value": 3},
}


@pytest.mark.cover(1)
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_fit_trains_adaptive_rows_on_a_gpu_as_on_the_host(policy, limits):
    found = []
    random = np.random.default_rng(seed_of_test())
    keys, targets = random.choice(KEYS, [48, 3]), random.normal(size=[48, 1])
    for device in ("cpu", "gpu"):
        keras.utils.set_random_seed(1)
        layer = make(device=device, dtype=policy, **limits)
        flat = [] if "combiner" in limits else [keras.layers.Flatten()]
        model = keras.Sequential([keras.Input((3,), dtype="int64"), layer, *flat])
        model.add(keras.layers.Dense(1, dtype="float32"))
        model.compile(keras.optimizers.Adagrad(0.1, clipnorm=1.0), "mse")
        model.fit(keys, targets, batch_size=16, epochs=2, shuffle=False, verbose=0)
        found.append(contents(layer.table))
    assert len(found[0]["own_keys"]) > 0
    assert_same(found[1], found[0], 1e-6 if policy == "float32" else 1e-3)


def test_gradients_that_are_taken_twice_and_by_frozen_calls_are_those_of_the_host():
    found = []
    for device in ("cpu", "gpu"):
        layer = make(promote_after=2, device=device)
        optimizer = keras.optimizers.Adam(0.05)
        for _ in range(3):
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.reduce_sum(layer([[3, -7], [3, 2**62]]) ** 2)  # counted when it is taken
            first, second = (tape.gradient(loss, layer.trainable_weights) for _ in range(2))
            optimizer.apply([a + b for a, b in zip(first, second, strict=True)],
                            layer.trainable_weights)  # fmt: skip
        found.append(contents(layer.table))
    assert len(found[0]["own_keys"]) == 3
    assert_same(found[1], found[0], 1e-6)


def test_an_adaptive_model_goes_to_the_host_and_back(tmp_path, monkeypatch):
    keys, targets = np.random.default_rng(2).choice(KEYS, [48, 3]), np.ones([48, 1])

    def model_on(device):
        layer = make(device=device)
        model = keras.Sequential([keras.Input((3,), dtype="int64"), layer, keras.layers.Flatten()])
        model.add(keras.layers.Dense(1, kernel_initializer="ones"))
        model.compile("adam", "mse")
        return model

    first = model_on("gpu")
    first.fit(keys, targets, batch_size=16, shuffle=False, verbose=0)
    saved = contents(first.layers[0].table)
    first.save(tmp_path / "gpu.keras")
    Checkpoint(first).save(tmp_path / "step")
    path = tf.train.Checkpoint(table=first.layers[0].table).write(str(tmp_path / "checkpoint"))
    first.export(tmp_path / "saved", verbose=False)
    expected = first.predict(keys, verbose=0)
    loaded = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.serve(tf.constant(keys)), expected)
    monkeypatch.setenv("SOK_STANDIN_GPUS", "0")
    loaded = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(loaded.serve(tf.constant(keys)), expected, rtol=1e-6)
    monkeypatch.delenv("SOK_STANDIN_GPUS")
    monkeypatch.setenv("SOK_DEVICE", "cpu")
    second = keras.models.load_model(tmp_path / "gpu.keras")
    assert second.layers[0].table.device == "cpu"
    assert second.layers[0].get_config()["device"] == "gpu"
    assert_same(contents(second.layers[0].table), saved)
    second.save(tmp_path / "host.keras")
    monkeypatch.delenv("SOK_DEVICE")
    third = keras.models.load_model(tmp_path / "host.keras")
    assert third.layers[0].table.device == "gpu:0"
    assert_same(contents(third.layers[0].table), saved)
    for device in ("cpu", "gpu"):
        model = model_on(device)
        Checkpoint(model).restore(tmp_path / "step")
        assert_same(contents(model.layers[0].table), saved)
        table = make(device=device).table
        tf.train.Checkpoint(table=table).read(path).assert_consumed()
        assert_same(contents(table), saved)


def test_static_rows_of_a_gpu_keep_to_their_buckets():
    table = make(device="gpu").table
    table.promote([1, 2, 3])
    contents_of_more = make(static_buckets=BUCKETS + 40).table
    contents_of_more.promote(KEYS)
    before = contents(table)
    more = contents_of_more.snapshot()
    with pytest.raises(ValueError, match="emb"):
        table.restore(more._replace(cells=table.snapshot().cells))
    assert_same(contents(table), before)


def test_errors_are_those_of_other_layers_and_auto_takes_the_host():
    with pytest.raises(ValueError, match="'emb': expected device to be 'cpu', 'gpu', 'auto'"):
        make(device="cuda")
    with pytest.raises(ValueError, match="expected row_dtype='float32' and slot_dtype='float32'"):
        make(device="gpu", row_dtype="int8")
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES"):
        make(device="gpu:3")
    assert make(device="auto", slot_dtype="bfloat16").table.device == "cpu"
    assert make(device="auto").table.device == "gpu:0"
    with pytest.raises(tf.errors.InvalidArgumentError, match="got 2 at position 1"):
        make(device="gpu")([3, 4], mask=np.array([1, 2], np.int32), training=True)
