"""A model that follows answers as the one that trains, bit for bit, at each published version."""

from __future__ import annotations

import os

import keras
import live_models as live_tests
import numpy as np
import pytest
import tensorflow as tf
from live_models import DIM, Training, assert_serves
from tiers import long

import sok_embed as sok
from sok_embed import feature_column as fc
from sok_embed import kv
from sok_embed.callbacks import BackupAndRestore, PublishDeltas
from sok_embed.serving import Publisher, export, load

SIGNED = [*range(-10, 20), 2**63 - 1, -(2**63), 2**40]


def dynamic(storage):
    ids = keras.Input((3,), dtype="int64", name="ids")
    return [ids], sok.DynamicEmbedding(DIM, "uniform", combiner="sum", seed=3)(ids), SIGNED


def of_max_rows(storage):
    ids = keras.Input((3,), dtype="int64", name="ids")
    layer = sok.DynamicEmbedding(DIM, "ones", combiner="mean", max_rows=26, eviction="lru")
    return [ids], layer(ids), SIGNED


def all_to_all(storage):
    ids = keras.Input((2, 3), dtype="uint64", name="ids")
    layer = sok.All2AllDenseEmbedding(
        100, DIM, 2, 3, embedding_initializer="ones", key_dtype="uint64"
    )
    return [ids], keras.layers.Flatten()(layer(ids)), range(90)


def shared(storage):
    table = sok.TableConfig("shared", None, DIM, initializer="zeros")
    small = sok.TableConfig("small", 20, DIM, seed=3)
    layer = sok.DistributedEmbedding(
        [
            sok.FeatureConfig("a", table, combiner="mean"),
            sok.FeatureConfig("b", table, combiner="sum", max_length=9),
            sok.FeatureConfig("c", small, combiner="max"),
        ],
        output="concat",
    )
    inputs = [keras.Input((3,), dtype="int64", name=name) for name in "abc"]
    return inputs, layer(inputs), range(20)


def adaptive(storage):
    ids = keras.Input((3,), dtype="int64", name="ids")
    layer = sok.AdaptiveEmbedding(DIM, static_buckets=5, promote_after=3, max_rows=8, seed=1)
    return [ids], keras.layers.Flatten()(layer(ids)), range(30)


def hashed(storage):
    ids = keras.Input((3,), dtype="int64", name="ids")
    return [ids], sok.HashedEmbeddingBag(1000, DIM, 0.05, mode="sum")(ids), range(1000)


def stored(storage):
    ids = keras.Input((3,), dtype="int64", name="ids")
    layer = sok.DynamicEmbedding(DIM, "ones", combiner="sum", storage=storage)
    return [ids], layer(ids), SIGNED


def column(storage):
    item = fc.categorical_column_with_embedding("ids", tf.int64)
    layer = fc.DenseFeatures([fc.embedding_column(item, DIM, "sqrtn")], name="features")
    ids = keras.Input((3,), dtype="int64", name="ids")
    return [ids], layer({"ids": ids}), SIGNED


KINDS = [dynamic, of_max_rows, all_to_all, shared, adaptive, hashed, stored, column]
IN_EACH_RUN = [of_max_rows, adaptive, stored]


def made(kind, tmp_path):
    storage = kv.Storage(tmp_path / "storage") if kind is stored else None
    inputs, vectors, keys = kind(storage)
    outputs = [vectors, keras.layers.Dense(1)(keras.layers.BatchNormalization()(vectors))]
    model = keras.Model(inputs, outputs)
    model.compile("adam", ["mse", "mse"])
    return model, keys


@pytest.mark.parametrize(
    "kind, versions", [*((each, 4) for each in IN_EACH_RUN), *(long(each, 80) for each in KINDS)]
)
def test_each_version_answers_as_predict(kind, versions, tmp_path):
    model, keys = made(kind, tmp_path)
    random = np.random.default_rng(1)
    training = Training(model, random, keys)
    training.step()
    publisher = live_tests.publisher(model, tmp_path / "served")
    live = load(tmp_path / "served")
    kept = []
    for number in range(1, versions + 1):
        for _ in range(random.integers(1, 4)):
            training.step()
        assert publisher.publish() == number
        assert live.update() == (1, number)
        assert live.snapshot.step == int(model.optimizer.iterations)
        fed = training.batch(16)
        assert_serves(live, model, fed)
        kept.append((live.snapshot, fed, live(**as_inputs(model, fed))))
    for snapshot, fed, answer in kept:  # each answers as it did
        for name, value in snapshot(**as_inputs(model, fed)).items():
            np.testing.assert_array_equal(value, answer[name])
    publisher.close()


def as_inputs(model, fed):
    return {each.name: tf.constant(value) for each, value in zip(model.inputs, fed, strict=True)}


@pytest.mark.parametrize("dtype", ["int8", long("float16"), long("int4")])
def test_rows_in_fewer_bytes_are_those_of_a_new_export(dtype, tmp_path):
    model, keys = made(dynamic, tmp_path)
    training = Training(model, np.random.default_rng(2), keys)
    export(model, tmp_path / "served", dtype=dtype, min_count=2)
    publisher = Publisher(model, tmp_path / "served")
    live = load(tmp_path / "served")
    for number in range(4):
        training.step()
        if number == 2:  # another publisher compares all rows
            publisher.close()
            publisher = Publisher(model, tmp_path / "served")
        publisher.publish()
        live.update()
        if number % 2 == 0:
            continue
        export(model, tmp_path / "new", dtype=dtype, min_count=2)
        fed = as_inputs(model, training.batch(30))
        answers, expected = live(**fed), load(tmp_path / "new")(**fed)
        for name, value in answers.items():
            np.testing.assert_array_equal(value, expected[name])


def test_a_delta_has_the_rows_that_have_changed_alone(tmp_path):
    from safetensors.numpy import load_file

    model = live_tests.telling()
    live_tests.tell(model, 1, range(1000))
    publisher = live_tests.publisher(model, tmp_path)
    assert publisher.publish() == 0  # nothing has changed
    live_tests.tell(model, 2, [7, 5])
    model.get_layer("second").table.remove([3])
    assert publisher.publish() == 1
    live_tests.tell(model, 3, [9])
    assert publisher.publish() == 2
    one, two = (f"{tmp_path}/1/deltas/{number:08d}" for number in (1, 2))
    first = load_file(f"{one}/rows-0.safetensors")
    assert sorted(first["keys"]) == [5, 7] and np.all(first["rows"] == 2)
    assert list(load_file(f"{one}/gone-1.safetensors")["keys"]) == [3]
    assert not os.path.exists(f"{one}/gone-0.safetensors")
    assert list(load_file(f"{two}/rows-1.safetensors")["keys"]) == [9]
    assert load_file(f"{two}/weights.safetensors")["dense/kernel"].tolist() == [[3]]
    assert sorted(os.listdir(f"{tmp_path}/1/deltas")) == ["00000001", "00000002", "CURRENT.json"]


def test_backups_and_deltas_of_one_fit_have_all_changes_each(tmp_path):
    def build():
        keras.utils.clear_session()
        return made(dynamic, tmp_path)[0]

    model, random = build(), np.random.default_rng(5)
    export(model, tmp_path / "served")
    data = random.choice(SIGNED, [32, 3])
    targets = [np.ones([32, DIM]), np.ones([32, 1])]
    kept = {"incremental": True, "delete_checkpoint": False, "max_to_keep": 1}
    callbacks = [
        PublishDeltas(tmp_path / "served", every=2),
        BackupAndRestore(tmp_path / "backup", 3, **kept),
    ]
    options = {"batch_size": 4, "verbose": 0, "shuffle": False}
    model.fit(data, targets, epochs=2, callbacks=callbacks, **options)
    live = load(tmp_path / "served")
    assert live.version.delta >= 4
    assert_serves(live, model, [data])
    # The same fit in a new process: its rows come from the backup, and no row is left out.
    again = build()
    again.fit(data, targets, epochs=3, callbacks=callbacks, **options)
    assert live.update().delta > 4
    assert_serves(live, again, [data])


def test_each_epoch_is_published_once_though_the_fit_was_stopped_after_it(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt  # the epoch is published, and not saved yet

    def fit(*others):
        keras.utils.clear_session()
        model = made(dynamic, tmp_path)[0]
        if not others:
            served = load(tmp_path / "served")
            assert served.version == (1, 2)
        else:
            export(model, tmp_path / "served")
        published = PublishDeltas(tmp_path / "served", every="epoch")
        sok.checkpoint.fit(
            model, dataset, directory=tmp_path / "run", epochs=4, position="count", verbose=0,
            callbacks=[published, *others], save_on_background=False,
        )  # fmt: skip
        return model

    data = np.random.default_rng(5).choice(SIGNED, [32, 3])
    targets = (np.ones([32, DIM]), np.ones([32, 1]))
    dataset = tf.data.Dataset.from_tensor_slices((data, targets)).batch(4)
    with pytest.raises(KeyboardInterrupt):
        fit(Stop())
    model = fit()
    live = load(tmp_path / "served")
    assert live.version == (1, 4)
    assert_serves(live, model, [data])


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_a_fit_that_goes_on_within_an_epoch_counts_the_batches_that_it_trains(
    tmp_path, steps_per_execution
):
    class Watch(keras.callbacks.Callback):
        def __init__(self, stop=None):
            super().__init__()
            self.stop, self.published = stop, []

        def on_train_batch_end(self, batch, logs=None):
            self.published.append((batch, load(tmp_path / "served").version.delta))
            if batch == self.stop:
                raise KeyboardInterrupt

    def fit(watch):
        keras.utils.clear_session()
        model = made(dynamic, tmp_path)[0]
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
        if watch.stop:
            export(model, tmp_path / "served")
        sok.checkpoint.fit(
            model, dataset, directory=tmp_path / "run", epochs=1, position="count", verbose=0,
            callbacks=[PublishDeltas(tmp_path / "served", every=12), watch],
            save_freq=9, save_on_background=False,
        )  # fmt: skip
        return watch.published

    data = np.random.default_rng(5).choice(SIGNED, [36, 3])
    targets = (np.ones([36, DIM]), np.ones([36, 1]))
    dataset = tf.data.Dataset.from_tensor_slices((data, targets)).batch(1)
    with pytest.raises(KeyboardInterrupt):
        fit(Watch(11))
    (batch, first), *others = fit(Watch())
    assert batch in (9, 11)  # where the checkpoint is, by steps or by executions
    assert first == others[0][1] == load(tmp_path / "served").version.delta - 3
    later = [batch for batch, delta in others if delta > first]
    assert later[0] == 9 + 12 - 1


@pytest.mark.parametrize("every", [0, "batch"])
def test_another_distance_of_deltas_is_refused(every):
    with pytest.raises(ValueError, match="every"):
        PublishDeltas("served", every)


def test_restored_rows_are_published_as_far_as_they_differ(tmp_path):
    model = live_tests.telling()
    live_tests.tell(model, 1)
    publisher = live_tests.publisher(model, tmp_path)
    table = model.get_layer("first").table
    before = table.snapshot()
    live_tests.tell(model, 2, range(30, 60))
    publisher.publish()
    table.restore(before)
    publisher.publish()
    live = load(tmp_path)
    assert len(live.snapshot.state.tables[0].layers) == 1
    ids = np.arange(60).reshape(20, 3)
    assert_serves(live, model, [ids])


def test_a_version_is_rolled_back_and_followed_again(tmp_path):
    model = live_tests.telling()
    live_tests.tell(model, 0)
    publisher = live_tests.publisher(model, tmp_path)
    for number in (1, 2, 3):
        live_tests.tell(model, number)
        publisher.publish()

    def told(served):
        (found,) = np.unique(served(ids=np.arange(12).reshape(4, 3))["output_0"])
        return found

    with load(tmp_path, follow=True, poll_seconds=0.01) as live:
        assert (live.version, told(live)) == ((1, 3), 3)
        live.roll_back((1, 1))
        live_tests.tell(model, 4)
        publisher.publish()
        assert (live.version, told(live)) == ((1, 1), 1)
        live.roll_back((1, 0))
        assert told(live) == 0
        with pytest.raises(FileNotFoundError):
            live.roll_back((1, 9))
        with pytest.raises(FileNotFoundError):
            live.roll_back((2, 0))
        assert (live.version, told(live)) == ((1, 0), 0)
        live.follow()
        wait_for(lambda: live.version == (1, 4))
        assert told(live) == 4
        # A new export is taken up, and deltas of it.
        live_tests.tell(model, 5)
        export(model, tmp_path)
        wait_for(lambda: live.version == (2, 0))
        assert told(live) == 5
        assert publisher.publish() == 0  # to the new export, which has everything
        live_tests.tell(model, 6, [0])
        assert publisher.publish() == 1
        wait_for(lambda: live.version == (2, 1))
        assert live(ids=np.zeros([1, 3], np.int64))["output_0"].numpy().tolist() == [[6] * 16]
    with pytest.raises(RuntimeError, match="closed"):
        live.follow()
    assert told(load(tmp_path, version=(1, 2))) == 2


def wait_for(condition, seconds=20):
    import time

    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_other_models_and_exports_are_refused(tmp_path):
    model = live_tests.telling()
    with pytest.raises(FileNotFoundError, match="serving.export"):
        Publisher(model, tmp_path)
    with pytest.raises(FileNotFoundError, match="serving.export"):
        load(tmp_path)
    export(model, tmp_path, ops="stock")
    collection, _ = made(shared, tmp_path)
    export(collection, tmp_path / "stock", ops="stock", missing="zeros")
    for each, path in ((model, tmp_path), (collection, tmp_path / "stock")):
        with pytest.raises(ValueError, match="Expected an export with ops='native'"):
            Publisher(each, path)
        with pytest.raises(ValueError, match="Expected an export with ops='native'"):
            load(path, follow=True)
    first = live_tests.publisher(model, tmp_path)
    with pytest.raises(BlockingIOError, match="another"):
        Publisher(model, tmp_path)
    first.close()
    inputs = keras.Input((3,), dtype="int64", name="ids")
    for layers in ([sok.DynamicEmbedding(2, "zeros", name="first")], []):
        other = keras.Sequential([inputs, *layers, keras.layers.Dense(1, name="dense")])
        with pytest.raises(ValueError, match="the model that was exported"):
            Publisher(other, tmp_path)
    with pytest.raises(ValueError, match="Received: both"):
        load(tmp_path, version=(1, 0), follow=True)
    with pytest.raises(ValueError, match="a version as"):
        load(tmp_path, version=3)
    with pytest.raises(TypeError, match="the inputs ids"):
        load(tmp_path)(items=[[1, 2, 3]])
    with pytest.raises(RuntimeError, match="follow=True"):
        load(tmp_path).follow()


def test_inputs_that_their_dtype_does_not_hold_are_refused(tmp_path):
    ids = keras.Input((2,), dtype="int64", name="ids")
    age = keras.Input((1,), dtype="float32", name="age")
    vectors = sok.DynamicEmbedding(DIM, "uniform", combiner="sum", seed=1)(ids)
    model = keras.Model([ids, age], keras.layers.Concatenate()([vectors, age]))
    export(model, tmp_path / "served")
    served = load(tmp_path / "served")
    keys = np.array([[2**60 + 1, -3]])
    expected = model.predict([keys, np.array([[0.5]])], verbose=0)
    for right in (keys, keys.view(np.uint64), keys.tolist(), tf.constant(keys)):
        np.testing.assert_array_equal(served(ids=right, age=[[0.5]])["output_0"], expected)
    small = np.array([[3, 4]])
    assert served(ids=small.astype(np.int8), age=np.array([[1]]))["output_0"].shape == (1, DIM + 1)
    for wrong in (
        keys.astype(np.float32),
        keys.astype(np.float64),
        [[1.5, 2.0]],
        [[float("nan"), 1.0]],
        [[True, False]],
        np.array([["1", "2"]]),
        np.array([[2**70, 1]], object),
    ):
        with pytest.raises(TypeError, match="Expected values of int64 for the input 'ids'"):
            served(ids=wrong, age=[[0.5]])


def test_whoever_may_read_the_deltas_may_read_each(tmp_path):
    model, keys = made(dynamic, tmp_path)
    training = Training(model, np.random.default_rng(1), keys)
    training.step()
    export(model, tmp_path / "served")
    publisher = Publisher(model, tmp_path / "served")
    training.step()
    assert publisher.publish() == 1
    deltas = tmp_path / "served/1/deltas"
    assert (deltas / "00000001").stat().st_mode == deltas.stat().st_mode
    for file in (deltas / "00000001").iterdir():
        assert file.stat().st_mode & 0o044 == deltas.stat().st_mode & 0o044
