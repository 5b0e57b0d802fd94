"""Update times, update counts and what an admission has counted, in each way to save a table."""

from __future__ import annotations

from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko

from sok_embed import AdaptiveEmbedding, DynamicEmbedding, Table, admission, kv, tf_ops
from sok_embed.initializers import RowInitializer
from sok_embed.tables.contents import whole_saved_models

DIM = 2
KEYS = np.array([5, -7, 2**40, 0])
# Times on a Sunday in 2020, seconds apart.
TIMES = 1_600_000_000 + np.array([3, 0, 77, 12])
COUNTS = np.array([4, 1, 2**32 - 1, 9])
ONCE = admission.FrequencyAdmission(2)  # what was seen once is on its way
BLOOM = admission.CountingBloomAdmission(2, capacity=100)


def model_of(layer: keras.Layer) -> keras.Model:
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Flatten()])
    model.compile(ko.Adam(0.01), "mse")
    return model


def see(model: keras.Model, *keys: int) -> None:
    """Trains on each of the keys once, in a step of its own."""
    x = np.array(keys)[:, None]
    model.fit(x, np.zeros((len(keys), DIM)), batch_size=1, shuffle=False, verbose=0)


def dynamic(**arguments: Any) -> keras.Model:
    return model_of(DynamicEmbedding(DIM, name="emb", **arguments))


def table_of(model: keras.Model) -> Any:
    return model.get_layer("emb").table


def aged(model: keras.Model) -> keras.Model:
    """With rows of known ages, which no clock shows now."""
    see(model, *KEYS.tolist())
    table = table_of(model)
    contents = table.export(slots=True)
    place = [KEYS.tolist().index(key) for key in contents.keys.tolist()]
    table.restore(contents._replace(update_times=TIMES[place], update_nums=COUNTS[place]))
    return model


def assert_aged(found: tf_ops.Metadata) -> None:
    assert np.all(found.exists)
    np.testing.assert_array_equal(found.update_times, TIMES)
    np.testing.assert_array_equal(found.update_nums, COUNTS)


def through_keras(model: keras.Model, folder: Any) -> keras.Model:
    model.save(folder / "m.keras")
    return keras.models.load_model(folder / "m.keras")


def through_weights(model: keras.Model, folder: Any) -> keras.Model:
    model.save_weights(folder / "m.weights.h5")
    other = keras.models.clone_model(model)
    other.compile(ko.Adam(0.01), "mse")
    other.load_weights(folder / "m.weights.h5")
    return other


def through_checkpoint(model: keras.Model, folder: Any) -> keras.Model:
    path = tf.train.Checkpoint(model=model).save(folder / "checkpoint")
    other = keras.models.clone_model(model)
    other.compile(ko.Adam(0.01), "mse")
    tf.train.Checkpoint(model=other).restore(path).assert_existing_objects_matched()
    return other


def through_restore(model: keras.Model, folder: Any) -> keras.Model:
    other = keras.models.clone_model(model)
    other.compile(ko.Adam(0.01), "mse")
    table = table_of(model)
    adaptive = isinstance(model.get_layer("emb"), AdaptiveEmbedding)
    table_of(other).restore(table.snapshot() if adaptive else table.export(slots=True))
    return other


WAYS = [through_keras, through_weights, through_checkpoint, through_restore]


@pytest.mark.cover(2)
@pytest.mark.parametrize("way", WAYS)
def test_rows_keep_the_times_and_counts_of_their_updates(tmp_path, way):
    loaded = way(aged(dynamic()), tmp_path)
    assert_aged(table_of(loaded).metadata(KEYS))


@pytest.mark.cover(2)
@pytest.mark.parametrize("config", [ONCE, BLOOM], ids=["frequency", "bloom"])
@pytest.mark.parametrize("way", WAYS)
def test_a_key_seen_once_before_a_save_has_its_row_when_seen_once_after_it(tmp_path, way, config):
    model = dynamic(admission=config)
    see(model, 1, 2, 2)
    assert sorted(table_of(model).export()[0]) == [2]
    loaded = way(model, tmp_path)
    see(loaded, 1, 3)
    assert sorted(table_of(loaded).export()[0]) == [1, 2]


@pytest.mark.cover(2)
@pytest.mark.parametrize("way", WAYS)
def test_own_and_static_rows_of_an_adaptive_table_keep_their_times(tmp_path, way):
    model = model_of(AdaptiveEmbedding(DIM, 10, promote_after=2, name="emb"))
    see(model, 1, 1, 2, 2, 3)
    table = table_of(model)
    saved = table.snapshot()
    own = 1_600_000_000 + np.arange(len(saved.own.keys))
    static = 1_500_000_000 + np.arange(len(saved.static.keys))
    assert len(own) == 2 and len(static) >= 2
    table.restore(
        saved._replace(
            own=saved.own._replace(update_times=own),
            static=saved.static._replace(update_times=static),
        )
    )
    found = table_of(way(model, tmp_path)).snapshot()
    for keys, times, was_keys, was_times in (
        (found.own.keys, found.own.update_times, saved.own.keys, own),
        (found.static.keys, found.static.update_times, saved.static.keys, static),
    ):
        assert dict(zip(keys, times, strict=True)) == dict(zip(was_keys, was_times, strict=True))


def test_a_whole_saved_model_has_the_times_and_the_counts(tmp_path):
    model = dynamic(admission=ONCE)
    see(model, *np.repeat(KEYS, 2).tolist(), 1)
    contents = table_of(model).export(slots=True)
    place = [KEYS.tolist().index(key) for key in contents.keys.tolist()]
    table_of(model).restore(contents._replace(update_times=TIMES[place], update_nums=COUNTS[place]))
    module = tf.Module()
    module.table = table_of(model)
    with whole_saved_models():
        tf.saved_model.save(module, str(tmp_path / "saved"))
    handle = tf.saved_model.load(str(tmp_path / "saved")).table.resource_handle
    assert_aged(tf_ops.Metadata(*(each.numpy() for each in tf_ops.metadata(handle, KEYS))))
    tf_ops.lookup(handle, tf.constant([1, 3], tf.int64), DIM, make_rows=True)
    np.testing.assert_array_equal(tf_ops.metadata(handle, [1, 3]).exists, [True, False])


def test_rows_go_from_memory_into_a_storage_and_its_dump_with_their_times(tmp_path):
    contents = table_of(aged(dynamic())).export(slots=True)
    with kv.Storage(tmp_path / "rows") as storage:
        layer = DynamicEmbedding(DIM, storage=storage)
        layer.table.restore(contents)
        assert_aged(layer.table.metadata(KEYS))
        storage.dump(tmp_path / "dump")
    with kv.Storage(tmp_path / "other") as other:
        other.load(tmp_path / "dump")
        assert_aged(DynamicEmbedding(DIM, storage=other).table.metadata(KEYS))


def test_a_storage_leaves_out_rows_that_have_expired(tmp_path):
    contents = table_of(aged(dynamic())).export(slots=True)
    with kv.Storage(tmp_path / "rows", ttl=1_000_000) as storage:
        table = DynamicEmbedding(DIM, storage=storage).table
        now = np.int64(2**31)  # later than any clock here
        times = np.where(contents.keys == 5, now, contents.update_times)
        table.restore(contents._replace(update_times=times))
        assert table.export()[0].tolist() == [5]


def test_a_time_in_the_future_becomes_now():
    table = table_of(aged(dynamic()))
    contents = table.export(slots=True)
    table.restore(contents._replace(update_times=np.full(len(KEYS), 2**32 - 1)))
    found = table.metadata(KEYS).update_times
    assert (found > TIMES.max()).all() and (found < 2**32 - 1).all()


def test_counts_of_another_admission_are_refused_and_the_message_helps():
    counted, other = dynamic(admission=ONCE), dynamic(admission=BLOOM)
    see(counted, 1, 2, 2)
    see(other, 9)
    contents = table_of(counted).export(slots=True)
    message = "admission, counting_bloom with min_count 2.*got those of frequency with min_count 2"
    with pytest.raises(ValueError, match=message):
        table_of(other).restore(contents)
    assert table_of(other).size() == 0
    table_of(other).restore(contents._replace(admission=np.zeros(0, np.uint8)))
    assert table_of(other).export()[0].tolist() == [2]
    see(other, 9)
    assert table_of(other).size() == 1  # it was counted before, and is counted from 0


def test_a_table_without_an_admission_says_that_it_drops_counts():
    counted, plain = dynamic(admission=ONCE), dynamic()
    see(counted, 1, 2, 2)
    with pytest.warns(UserWarning, match="'emb': expected no counts.*every key gets a row"):
        table_of(plain).restore(table_of(counted).export(slots=True))
    see(plain, 1)
    assert sorted(table_of(plain).export()[0]) == [1, 2]


def test_damaged_counts_are_refused():
    model = dynamic(admission=ONCE)
    see(model, 1, 2, 2)
    contents = table_of(model).export(slots=True)
    damaged = contents.admission.copy()
    damaged[-1] ^= 1
    with pytest.raises(kv.CorruptionError, match="checksum"):
        table_of(model).restore(contents._replace(admission=damaged))
    see(model, 1)
    assert table_of(model).size() == 2  # it went on counting


def test_a_keras_file_of_an_earlier_layout_is_refused_as_a_whole(tmp_path):
    path = tmp_path / "m.weights.h5"
    aged(dynamic()).save_weights(path)
    with h5py.File(path, "r+") as file:
        found: list[str] = []
        file.visit(lambda name: found.append(name) if "update_times" in name else None)
        (name,) = found
        del file[name]
    other = dynamic()
    see(other, 1)
    before = table_of(other).export()
    with pytest.raises(ValueError, match="without table_update_times, as an earlier version"):
        other.load_weights(path)
    for kept, was in zip(table_of(other).export(), before, strict=True):
        np.testing.assert_array_equal(kept, was)


def test_an_adaptive_file_of_an_earlier_layout_is_refused():
    layer = AdaptiveEmbedding(DIM, 10)
    layer.build()
    store: dict[str, Any] = {}
    layer.save_own_variables(store)
    del store["adaptive_own_update_times"]
    with pytest.raises(ValueError, match="without adaptive_own_update_times, as an earlier"):
        layer.load_own_variables(store)


def test_a_checkpoint_of_an_earlier_layout_is_refused_as_a_whole(tmp_path, monkeypatch):
    zeros = RowInitializer("constant", 0.0, 0.0, None)
    saved, other = Table(DIM, zeros), Table(DIM, zeros)
    saved.assign([1], np.ones((1, DIM)))
    other.assign([2], np.ones((1, DIM)))
    whole = Table._serialize_to_tensors

    def earlier(table: Table) -> Any:
        tensors = whole(table)
        for field in ("update_times", "step_clock", "admission"):
            del tensors[field]
        return tensors

    with monkeypatch.context() as patch:
        patch.setattr(Table, "_serialize_to_tensors", earlier)
        path = tf.train.Checkpoint(table=saved).save(tmp_path / "checkpoint")
    with pytest.raises(
        (ValueError, tf.errors.NotFoundError), match="update_times|step_clock|admission"
    ):
        tf.train.Checkpoint(table=other).restore(path)
    assert other.export()[0].tolist() == [2]
