"""Layers whose rows live in a storage train as in memory, and go on where they ended."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko
from keras_reference import mirrored
from storage_models import (
    BATCH,
    KEYS,
    LENGTH,
    OPTIMIZERS,
    RANDOM,
    TARGETS,
    UNSEEN,
    all2all,
    assert_same,
    contents_of,
    dynamic,
    model_of,
    run,
    train,
)

from sok_embed import DynamicEmbedding, kv


@pytest.mark.cover(1)
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("make", [dynamic, all2all])
def test_rows_on_disk_train_to_the_bit_as_rows_in_memory(storage, make, optimizer):
    ours = model_of(make(storage=storage), OPTIMIZERS[optimizer]())
    theirs = model_of(make(), OPTIMIZERS[optimizer]())
    assert train(ours, epochs=3) == train(theirs, epochs=3)
    assert_same(contents_of(ours), contents_of(theirs))
    keys = np.concatenate([KEYS, UNSEEN])
    np.testing.assert_array_equal(ours.predict(keys, verbose=0), theirs.predict(keys, verbose=0))


@pytest.mark.cover(1)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_in_a_graph_too_under_a_cache_that_is_too_small(tmp_path, policy):
    # There are 60 000 rows of 16 floats and Adam's two slots: more than ten times the cache.
    keys = RANDOM.permutation(60_000).reshape(-1, LENGTH)
    targets = np.resize(TARGETS, (len(keys), 1))
    found = []
    with kv.Storage(tmp_path / "rows", cache_bytes=1 << 20) as storage:
        for where in (None, storage):
            layer = DynamicEmbedding(16, name="emb", seed=3, storage=where, dtype=policy)
            model = model_of(layer)
            model.run_eagerly = False
            history = model.fit(keys, targets, batch_size=2000, epochs=2, shuffle=False, verbose=0)
            found.append([history.history["loss"], *contents_of(model)])
    assert_same(*found)


def test_layers_are_groups_of_one_storage(storage):
    """A key has a row in each; dimension and optimizer are the group's own."""

    def make(where):
        inputs = keras.Input((LENGTH,), dtype="int64")
        outputs = [
            keras.layers.Flatten()(
                DynamicEmbedding(
                    dim,
                    keras.initializers.Constant(0.1),  # others depend on the group
                    name=name,
                    optimizer=optimizer,
                    storage=where,
                    group=group if where else 0,
                )(inputs)
            )
            for name, dim, group, optimizer in (
                ("a", 2, 0, None),
                ("b", 3, 7, ko.Adagrad(0.1)),
                ("c", 4, 255, "sgd"),
            )
        ]
        joined = keras.layers.Concatenate()(outputs)
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(joined))
        model.compile(ko.Adam(0.01), "mse", run_eagerly=True)
        return model

    ours, theirs = make(storage), make(None)
    assert train(ours, epochs=2) == train(theirs, epochs=2)
    for name in ("a", "b", "c"):
        assert_same(contents_of(ours, name), contents_of(theirs, name))
    shapes = [(g.number, g.dimension, g.optimizer, g.rows) for g in storage.groups()]
    rows = np.unique(KEYS).size
    assert shapes == [
        (0, 2, "keras.adam", rows),
        (7, 3, "keras.adagrad", rows),
        (255, 4, "keras.sgd", rows),
    ]


@pytest.mark.long
def test_a_mirrored_strategy_of_two_devices_trains_as_in_memory(storage):
    strategy = mirrored()
    found = []
    for where in (None, storage):
        with strategy.scope():
            model = model_of(dynamic(storage=where), ko.SGD(0.5))
        model.run_eagerly = False
        model.fit(KEYS, TARGETS, batch_size=16, epochs=2, shuffle=False, verbose=0)
        found.append(contents_of(model))
    # Two replicas hand their gradients over in either order: float32 sums of a few terms of 1.
    for memory, disk in zip(*found, strict=True):
        if isinstance(memory, np.ndarray) and memory.dtype == np.float32:
            np.testing.assert_allclose(disk, memory, rtol=0, atol=1e-6)
        else:
            np.testing.assert_array_equal(disk, memory)


@pytest.mark.cover(1)
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_a_saved_model_goes_on_as_if_it_had_never_stopped(tmp_path, optimizer):
    with kv.Storage(tmp_path / "whole") as storage:
        whole = model_of(dynamic(storage=storage), OPTIMIZERS[optimizer]())
        losses = train(whole, epochs=3)
        expected = contents_of(whole)
        predictions = whole.predict(KEYS, verbose=0)
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage), OPTIMIZERS[optimizer]())
        assert train(model) == losses[:1]
        model.save(tmp_path / "model.keras")
    for part in (1, 2):
        with kv.allow_storages(tmp_path):
            model = keras.models.load_model(tmp_path / "model.keras")  # opens the storage
        assert train(model) == losses[part : part + 1]
        model.save(tmp_path / "model.keras")
        if part == 2:
            assert_same(contents_of(model), expected)
            np.testing.assert_array_equal(model.predict(KEYS, verbose=0), predictions)
        model.get_layer("emb").storage.close()


@pytest.mark.cover(1)
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("own", [False, True], ids=["of_the_model", "of_the_layer"])
def test_slots_and_step_count_go_on_under_a_new_optimizer(tmp_path, optimizer, own):
    """Nothing but the storage is there again, and the model has no other weights."""

    def make(storage):
        made = OPTIMIZERS[optimizer]()
        return model_of(dynamic(storage=storage, optimizer=made if own else None), made, False)

    with kv.Storage(tmp_path / "whole") as storage:
        whole = make(storage)
        losses = train(whole, epochs=3)
        expected = contents_of(whole)
    for part in range(3):
        with kv.Storage(tmp_path / "rows") as storage:
            model = make(storage)
            assert train(model) == losses[part : part + 1]
            found = contents_of(model)
    assert_same(found, expected)


GO_ON = """
    import sys
    import keras
    import numpy as np
    import sok_embed

    path, keys, targets = sys.argv[1], np.load(sys.argv[2]), np.load(sys.argv[3])
    with sok_embed.kv.allow_storages("/"):
        model = keras.models.load_model(path)
    history = model.fit(keys, targets, batch_size=16, epochs=1, shuffle=False, verbose=0)
    print("loss", repr(history.history["loss"][0]))
"""


def test_another_process_goes_on_and_its_interpreter_closes_the_storage(tmp_path):
    memory = model_of(dynamic())
    memory.run_eagerly = False
    expected = memory.fit(KEYS, TARGETS, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage))
        model.run_eagerly = False
        model.fit(KEYS, TARGETS, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
        model.save(tmp_path / "model.keras")
    np.save(tmp_path / "keys.npy", KEYS)
    np.save(tmp_path / "targets.npy", TARGETS)
    done = run(GO_ON, *(tmp_path / name for name in ("model.keras", "keys.npy", "targets.npy")))
    assert done.returncode == 0, done.stderr[-2000:]
    # This allows for float32: kernels of the dense layer may split the sum otherwise there.
    (loss,) = [line for line in done.stdout.splitlines() if line.startswith("loss")]
    assert float(loss.split()[1]) == pytest.approx(expected.history["loss"][1], rel=1e-5)
    with kv.Storage(tmp_path / "rows", read_only=True) as storage:
        again = model_of(dynamic(storage=storage))
        keys, rows, slots, updates, rule, steps = contents_of(again)
        theirs = contents_of(memory)
        for ours, other in ((keys, 0), (updates, 3), (rule, 4), (steps, 5)):
            np.testing.assert_array_equal(ours, theirs[other])
        np.testing.assert_allclose(rows, theirs[1], rtol=0, atol=1e-6)
        np.testing.assert_allclose(slots, theirs[2], rtol=0, atol=1e-6)


def test_a_checkpoint_carries_the_optimizer_and_leaves_the_rows_in_the_storage(tmp_path):
    with kv.Storage(tmp_path / "whole") as storage:
        whole = model_of(dynamic(storage=storage))
        losses = train(whole, epochs=2)
        expected = contents_of(whole)
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage))
        train(model)
        path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage))
        tf.train.Checkpoint(model=model).restore(path).assert_existing_objects_matched()
        assert train(model) == losses[1:]
        assert_same(contents_of(model), expected)


def test_saving_flushes(tmp_path, storage):
    model = model_of(dynamic(storage=storage))
    for number, save in enumerate(
        (
            lambda: model.save(tmp_path / "model.keras"),
            lambda: model.save_weights(tmp_path / "model.weights.h5"),
            lambda: tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint"),
            lambda: tf.saved_model.save(model, str(tmp_path / "saved")),
        )
    ):
        train(model)
        save()
        # This is what a kill at this moment would leave. It is a copy, because the folder is
        # locked.
        copied = tmp_path / f"copy-{number}"
        copied.mkdir()
        for file in (tmp_path / "rows").iterdir():
            (copied / file.name).write_bytes(file.read_bytes())
        with kv.Storage(copied) as copy:
            (group,) = copy.groups()
            assert group.steps == (number + 1) * len(KEYS) // BATCH
            assert group.rows == np.unique(KEYS).size
