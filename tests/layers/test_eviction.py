"""Layers with an eviction: what a full table drops, what it keeps, and what is saved of it."""

from __future__ import annotations

import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import All2AllDenseEmbedding, DynamicEmbedding, kv
from sok_embed.eviction import LeastFrequentlyUsed, LeastRecentlyUsed, MaxAge, MinNorm
from sok_embed.initializers import row_initializer
from sok_embed.tables.table import Table

optimizers = weakref.WeakKeyDictionary()  # of the layers that are trained by hand


def dynamic(**arguments):
    return DynamicEmbedding(2, **{"name": "rows", "seed": 1, "max_rows": 4, **arguments})


def all2all(max_rows=4, **arguments):
    given = {"name": "rows", "seed": 1, "dynamic_input": True, **arguments}
    return All2AllDenseEmbedding(max_rows, 2, 1, 1, **given)


def step(layer, *batches):
    """One training step in which the layer is called on each batch."""
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(layer(np.array(b), training=True)) for b in batches])
    variables = layer.trainable_variables
    if layer not in optimizers:
        optimizers[layer] = keras.optimizers.SGD(0.1)
    optimizers[layer].apply(tape.gradient(loss, variables), variables)


def held(layer):
    return sorted(layer.table.export()[0].tolist())


@pytest.mark.parametrize("make", [dynamic, all2all])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_full_layer_evicts_by_recency_or_by_frequency(tmp_path, make, place):
    expected = {"lru": [3, 4, 5, 6], "lfu": [1, 2, 5, 6]}
    for kind, rows in expected.items():
        now = 100
        storage = None
        if place == "disk":
            storage = kv.Storage(tmp_path / kind, clock=lambda: now)  # noqa: B023
        layer = make(eviction=kind, storage=storage)
        for batch in ([1, 2], [2, 1], [3, 4], [5, 6]):
            now += 1
            step(layer, batch)
        assert held(layer) == rows
        assert layer.table.stats()["evicted"] == 2
        assert (layer.table.metadata(rows).update_times > 0).all()
        if storage is not None:
            assert [group.eviction for group in storage.groups()] == [{"kind": kind}]
            storage.close()


@pytest.mark.parametrize("kind", ["lru", "lfu"])
def test_rows_of_both_calls_of_a_step_are_there_when_their_gradients_come(kind):
    layer = dynamic(eviction=kind)
    step(layer, [1, 2, 3, 4])
    start = layer.table.lookup([5, 6, 7, 8])
    step(layer, [5, 6], [7, 8])
    assert held(layer) == [5, 6, 7, 8]
    np.testing.assert_allclose(layer.table.lookup([5, 6, 7, 8]), start - 0.1, rtol=1e-6)
    # Three of the first call and two of the second do not fit.
    before = layer.table.export(slots=True)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="gradients wait"):
        step(layer, [11, 12, 13], [14, 15])
    layer.table.drop_gradients()
    assert held(layer) == [8, 11, 12, 13]  # what the first call made
    assert before.steps == layer.table.export(slots=True).steps


def test_a_batch_of_more_keys_than_rows_raises_and_changes_nothing():
    layer = dynamic(eviction="lru")
    step(layer, [1, 2, 3])
    before = layer.table.export(slots=True)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="full"):
        layer(np.array([1, 10, 11, 12, 13]), training=True)
    after = layer.table.export(slots=True)
    for ours, theirs in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.sort(ours, axis=None), np.sort(theirs, axis=None))
    assert layer.table.stats()["evicted"] == 0


def test_fit_with_a_bounded_table_keeps_the_keys_of_the_last_batches():
    layer = dynamic(eviction="lru", max_rows=64)
    inputs = keras.Input((3,), dtype="int64")
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    random = np.random.default_rng(4)
    keys = random.integers(0, 5000, [400, 3])
    model.fit(keys, np.ones([400, 1]), batch_size=8, epochs=2, shuffle=False, verbose=0)
    rows = layer.table.export()[0]
    assert len(rows) == 64
    last = keys[-16:]  # two batches of 24 keys
    assert np.isin(last, rows).all()
    assert layer.table.stats()["evicted"] == evicted_of(keys)


def evicted_of(keys):
    """How many rows go in two epochs of batches of 8, by recency and then by key."""
    held, gone = {}, 0
    for step_number, batch in enumerate(np.concatenate([keys, keys]).reshape(-1, 24)):
        distinct = set(batch.tolist())
        new = distinct - held.keys()
        excess = len(held) + len(new) - 64
        if excess > 0:
            order = sorted((time, key) for key, time in held.items() if key not in distinct)
            for _, key in order[:excess]:
                del held[key]
            gone += excess
        held.update(dict.fromkeys(distinct, step_number))
    return gone


def test_rows_go_by_age_after_steps():
    layer = dynamic(eviction=MaxAge(steps=3), max_rows=None)
    for batch in ([1], [2], [2], [2]):
        step(layer, batch)
    assert held(layer) == [2]
    assert layer.table.stats()["evicted"] == 1


def test_rows_go_by_age_in_jobs_that_end_before_a_sixteenth_of_it():
    age, steps = 160, 4
    contents = None
    for job in range(2 * age // steps):
        layer = dynamic(eviction=MaxAge(steps=age), max_rows=None)
        if contents is not None:
            layer.table.restore(contents)
        step(layer, [1] if job == 0 else [2])
        for _ in range(steps - 1):
            step(layer, [2])
        contents = layer.table.export(slots=True)
    assert held(layer) == [2]


@pytest.mark.parametrize("way", ["remove", "evict"])
def test_a_second_gradient_reaches_rows_that_have_gone_since(way):
    layer = dynamic(eviction="lru", max_rows=2)
    layer.build()
    start = layer.table.lookup([1, 2])
    optimizer = keras.optimizers.SGD(1.0)
    with tf.GradientTape(persistent=True) as tape:
        rows = layer(tf.constant([1, 2], tf.int64), training=True)
        first, second = tf.reduce_sum(rows), 10.0 * tf.reduce_sum(rows)
    optimizer.apply(tape.gradient(first, layer.trainable_variables), layer.trainable_variables)
    np.testing.assert_allclose(layer.table.lookup([1, 2]), start - 1.0, atol=1e-6)
    if way == "remove":
        layer.table.remove([1, 2])
    else:
        layer(tf.constant([3, 4], tf.int64), training=True)
    assert not layer.table.contains([1, 2]).any()
    optimizer.apply(tape.gradient(second, layer.trainable_variables), layer.trainable_variables)
    np.testing.assert_allclose(layer.table.lookup([1, 2]), start - 10.0, atol=1e-5)


def test_rows_go_by_norm_after_steps():
    layer = dynamic(eviction=MinNorm(0.5, every=2), max_rows=None)
    layer.table.assign([1, 2], np.array([[0.1, 0.1], [3, 4]], np.float32))
    step(layer, [2])
    assert held(layer) == [1, 2]
    step(layer, [2])
    assert held(layer) == [2]


@pytest.mark.parametrize("make", [dynamic, all2all])
@pytest.mark.parametrize(
    "given, kept",
    [
        ("lru", LeastRecentlyUsed()),
        ("lfu", LeastFrequentlyUsed()),
        (MaxAge(seconds=60), MaxAge(seconds=60)),
        ({"kind": "min_norm", "l2": 0.5, "every": 7}, MinNorm(0.5, 7)),
        (None, None),
    ],
)
def test_the_eviction_is_in_the_config(make, given, kept):
    layer = make(eviction=given)
    again = type(layer).from_config(layer.get_config())
    assert layer.eviction == again.eviction == kept
    config = {key: value for key, value in layer.get_config().items() if key != "eviction"}
    assert type(layer).from_config(config).eviction is None  # of an earlier version


def test_a_saved_model_goes_on_evicting_where_it_was(tmp_path):
    def model_of(layer):
        inputs = keras.Input((2,), dtype="int64")
        model = keras.Model(inputs, keras.layers.Flatten()(layer(inputs)))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    model = model_of(dynamic(eviction="lfu"))
    zeros = np.zeros([1, 4])
    for batch in ([1, 2], [1, 2], [3, 1], [4, 3]):
        model.train_on_batch(np.array([batch]), zeros)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one in (model, loaded):
        one.train_on_batch(np.array([[9, 1]]), zeros)  # 4 had one step
        one.train_on_batch(np.array([[8, 9]]), zeros)  # 2 and 3 had two, 1 four
        layer = one.get_layer("rows")
        assert layer.eviction == LeastFrequentlyUsed()
        assert held(layer) == [1, 3, 8, 9]


def test_evictions_that_a_layer_cannot_have_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected max_rows with LeastRecentlyUsed\(\)"):
        dynamic(eviction="lru", max_rows=None)
    with pytest.raises(ValueError, match="Use a hash table"):
        all2all(eviction="lru", use_hashtable=False)
    with pytest.raises(ValueError, match='Expected eviction to be "lru", "lfu"'):
        dynamic(eviction="mru")
    with kv.Storage(tmp_path / "rows") as storage:
        with pytest.raises(ValueError, match="MaxAge\\(seconds=…\\)"):
            dynamic(eviction=MaxAge(steps=5), storage=storage)
        layer = dynamic(eviction=MaxAge(seconds=5), storage=storage)
        with pytest.raises(ValueError, match='is open with the eviction {"kind":"max_age"'):
            Table(
                2,
                row_initializer("uniform", 2),
                seed=layer.seed,
                max_rows=4,
                storage=storage,
                eviction=LeastRecentlyUsed(),
            )
    for arguments in ({}, {"seconds": 1, "steps": 1}, {"steps": 0}, {"seconds": 2.5}):
        with pytest.raises(ValueError, match="Expected"):
            MaxAge(**arguments)
    for arguments in ({"l2": 0}, {"l2": float("nan")}, {"l2": 1, "every": 0}):
        with pytest.raises(ValueError, match="Expected"):
            MinNorm(**arguments)
