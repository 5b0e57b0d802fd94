"""A checkpoint of one worker brings everything back, bit for bit, or changes nothing."""

import os

import held_state
import keras
import numpy as np
import pytest
import tensorflow as tf
from changed_files import flipped, rewritten

import sok_embed as sok
from sok_embed import feature_column as fc
from sok_embed.checkpoint import Checkpoint
from sok_embed.checkpoint.files import manifest, rows_file
from sok_embed.checkpoint.state.own_state import OwnState
from sok_embed.checkpoint.transfer import reading
from sok_embed.files import records
from sok_embed.files.place_of import place_of


def test_everything_comes_back_bit_for_bit(saved):
    model, folder = saved
    other = held_state.every_kind()
    held_state.train(other)  # it has other rows, which are to go
    assert Checkpoint(other).restore(folder) == 8
    held_state.assert_same(held_state.held_by(other), held_state.held_by(model))


@pytest.mark.cover(1)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_goes_on_as_if_it_had_never_stopped(tmp_path, optimizer):
    model = held_state.every_kind(optimizer=optimizer)
    held_state.train(model, 2)
    Checkpoint(model).save(tmp_path / "checkpoint")
    held_state.train(model, 2)
    keras.utils.clear_session(free_memory=False)
    other = held_state.every_kind(optimizer=optimizer)
    Checkpoint(other).restore(tmp_path / "checkpoint")
    held_state.train(other, 2)
    held_state.assert_as_trained(held_state.held_by(other), held_state.held_by(model))


def test_rows_on_disk_are_copied_and_come_back(tmp_path):
    model = held_state.every_kind(tmp_path / "rows")
    held_state.train(model, 2)
    expected = held_state.held_by(model)
    folder = Checkpoint(model).save(tmp_path / "checkpoint")
    held_state.train(model)
    Checkpoint(model).restore(folder)
    held_state.assert_same(held_state.held_by(model), expected)
    keras.utils.clear_session(free_memory=False)
    other = held_state.every_kind(tmp_path / "others")
    Checkpoint(other).restore(folder)
    held_state.assert_same(held_state.held_by(other), expected)
    other.get_layer("stored").storage.close()
    with sok.Storage(tmp_path / "others", read_only=True) as storage:
        assert [group.rows for group in storage.groups()] == [len(expected["stored.keys"])]


def test_rows_move_from_disk_to_memory(tmp_path):
    def layer(**arguments):
        return sok.DynamicEmbedding(2, seed=1, name="rows", **arguments)

    stored, plain = layer(storage=sok.Storage(tmp_path / "rows")), layer()
    stored.table.assign([5, -6], [[1, 2], [3, 4]])
    Checkpoint(table=stored.table).save(tmp_path / "checkpoint")
    Checkpoint(table=plain.table).restore(tmp_path / "checkpoint")
    held_state.assert_same(
        held_state.contents_of(plain.table), held_state.contents_of(stored.table)
    )


def test_rows_in_many_blocks_come_back(tmp_path):
    one, other = (sok.DynamicEmbedding(8192, name="rows", seed=1).table for _ in range(2))
    keys = np.arange(1000) * 7 - 500
    one.assign(keys, np.random.default_rng(1).normal(size=(1000, 8192)))
    Checkpoint(table=one).save(tmp_path / "checkpoint")
    (record,) = manifest.read(tmp_path / "checkpoint").rows
    assert record.bytes > 7 * rows_file.PAYLOAD_BYTES
    Checkpoint(table=other).restore(tmp_path / "checkpoint")
    held_state.assert_same(held_state.contents_of(other), held_state.contents_of(one))


@pytest.mark.cover(1)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rows_of_feature_columns_come_back_and_train_on(tmp_path, optimizer):
    def model():
        keras.utils.clear_session(free_memory=False)
        dtypes = {"c": "int64", "mask": "int32"}
        inputs = {name: keras.Input((2,), dtype=dtype, name=name) for name, dtype in dtypes.items()}
        column = fc.categorical_column_with_adaptive_embedding("c", 6, tf.int64)
        start = tf.compat.v1.constant_initializer(np.arange(18.0).reshape(6, 3))
        layer = fc.DenseFeatures([fc.embedding_column(column, 3, initializer=start)], name="fc")
        embedded = layer({"c": inputs["c"]}, {"c": inputs["mask"]})
        output = keras.layers.Dense(1, kernel_initializer="ones")(embedded)
        made = keras.Model(inputs, output)
        made.compile(optimizer, "mse")
        return made

    def fit(made):
        features = {"c": held_state.KEYS, "mask": (held_state.KEYS % 3 > 0).astype(np.int32)}
        made.fit(features, held_state.TARGETS, batch_size=12, shuffle=False, verbose=0)

    def held(made):
        (table,) = made.get_layer("fc").tables.values()
        variables = {f"variable.{i}": each.numpy() for i, each in enumerate(made.variables)}
        return {**held_state.contents_of(table), **variables}

    first = model()
    fit(first)
    Checkpoint(first).save(tmp_path)
    second = model()
    Checkpoint(second).restore(tmp_path)
    held_state.assert_same(held(second), held(first))
    assert len(held(first)["keys"]) > 10
    for made in (first, second):
        fit(made)
    expected = held(first)
    for name, value in held(second).items():
        if value.dtype == np.float32 and held_state.is_read(value):
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6, err_msg=name)


def test_a_storage_that_is_only_read_is_saved_and_not_restored(tmp_path):
    def table(**arguments):
        storage = sok.Storage(tmp_path / "rows", **arguments)
        return sok.DynamicEmbedding(2, seed=1, name="rows", storage=storage).table

    written = table()
    written.assign([1, 2], np.ones([2, 2]))
    written.storage.close()
    keras.utils.clear_session(free_memory=False)
    read = table(read_only=True)
    checkpoint = Checkpoint(table=read)
    checkpoint.save(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="without read_only=True"):
        checkpoint.restore(tmp_path / "checkpoint")
    other = sok.DynamicEmbedding(2, seed=1, name="other").table
    Checkpoint(table=other).restore(tmp_path / "checkpoint")
    held_state.assert_same(held_state.contents_of(other), held_state.contents_of(read))


def test_several_workers_save_iterators_as_objects_of_their_own_alone(first_of_two):
    iterator = iter(tf.data.Dataset.range(3))
    Checkpoint(iterator=iterator)._prepared()
    holder = tf.Module()
    holder.iterator = iterator
    with pytest.raises(ValueError, match=r"object of its own.*holder/iterator"):
        Checkpoint(holder=holder)._prepared()


def test_an_iterator_is_not_restored_by_another_number_of_workers(tmp_path, first_of_two):
    sok.init("local")
    iterator, weight = iter(tf.data.Dataset.range(3)), tf.Variable(1.0)
    folder = place_of(Checkpoint(iterator=iterator, weight=weight).save(tmp_path))
    written = manifest.read(folder)
    OwnState({"iterator": iterator}, 0, 1).check(folder, written)
    with pytest.raises(ValueError, match=r"checkpoint of 2 workers.*Received: 1\. .*count"):
        OwnState({"iterator": iterator}, 0, 2).check(folder, written)
    OwnState({"weight": weight}, 0, 2).check(folder, written)  # stays as it is
    with pytest.raises(ValueError, match="with weight of each worker"):
        OwnState({"weight": weight}, 0, 1).check(folder, written)


def test_a_damaged_state_of_an_iterator_changes_nothing(tmp_path):
    dataset, weight = tf.data.Dataset.range(3), tf.Variable(1.0)
    Checkpoint(iterator=iter(dataset), weight=weight).save(tmp_path)
    weight.assign(2.0)
    for path in tmp_path.glob("data-00001-of-00001-*"):
        whole = path.read_bytes()
        for broken in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
            path.write_bytes(broken)
            with pytest.raises(sok.kv.CorruptionError, match=r"data-00001.*Nothing was restored"):
                Checkpoint(iterator=iter(dataset), weight=weight).restore(tmp_path)
        path.write_bytes(whole)
    assert float(weight) == 2.0
    Checkpoint(iterator=iter(dataset), weight=weight).restore(tmp_path)
    assert float(weight) == 1.0


def test_an_iterator_with_a_state_that_would_be_lost_is_refused(tmp_path):
    dataset = tf.data.Dataset.range(3).map(lambda x: tf.random.uniform([]))
    with pytest.raises(ValueError, match="RandomUniform is stateful.*count of batches"):
        Checkpoint(iterator=iter(dataset)).save(tmp_path)
    assert os.listdir(tmp_path) == []


def test_variables_iterators_and_other_objects_are_saved_too(tmp_path):
    dataset = tf.data.Dataset.range(10)
    iterator, variable = iter(dataset), tf.Variable([1.0, 2.0])
    next(iterator)
    next(iterator)
    folder = Checkpoint(iterator=iterator, variable=variable).save(tmp_path / "checkpoint")
    again, zeros = iter(dataset), tf.Variable([0.0, 0.0])
    Checkpoint(iterator=again, variable=zeros).restore(folder)
    assert int(next(again)) == 2
    np.testing.assert_array_equal(zeros, [1, 2])


@pytest.mark.parametrize("kind", ["iterator", "lookup_table"])
def test_an_object_that_was_not_saved_is_refused_before_anything_changes(tmp_path, kind):
    others = {
        "iterator": lambda: iter(tf.data.Dataset.range(3)),
        "lookup_table": lambda: tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0),
    }
    table = sok.DynamicEmbedding(2, seed=1, name="rows").table
    Checkpoint(table=table).save(tmp_path / "without")
    Checkpoint(table=table, it=others[kind]()).save(tmp_path / "with")
    table.assign([1, 2], np.ones([2, 2]))
    before = held_state.contents_of(table)
    with pytest.raises(ValueError, match=r"iterators and other objects.*lacks it\. Give"):
        Checkpoint(table=table, it=others[kind]()).restore(tmp_path / "without")
    held_state.assert_same(held_state.contents_of(table), before)
    Checkpoint(table=table, it=others[kind]()).restore(tmp_path / "with")
    assert table.size() == 0


@pytest.mark.parametrize("error", [MemoryError("no memory"), AssertionError("not matched")])
def test_a_restore_that_fails_half_way_says_so_and_is_not_saved(tmp_path, monkeypatch, error):
    table, variable = sok.DynamicEmbedding(2, seed=1, name="rows").table, tf.Variable(1.0)
    checkpoint = Checkpoint(table=table, variable=variable)
    checkpoint.save(tmp_path / "one")
    table.assign([1, 2], np.ones([2, 2]))

    def fail(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("sok_embed.checkpoint.state.dense.DenseState.read", fail)
        with pytest.raises(RuntimeError, match=r"restored in part.*again, or another") as caught:
            checkpoint.restore(tmp_path / "one")
    assert caught.value.__cause__ is error and table.size() == 0
    with pytest.raises(RuntimeError, match="partly restored, from '.*one'"):
        checkpoint.save(tmp_path / "two")
    # Nor does another object that has the table save it.
    with pytest.raises(RuntimeError, match="partly restored, from '.*one'"):
        Checkpoint(other=table).save(tmp_path / "two")
    assert not (tmp_path / "two").exists()
    checkpoint.restore(tmp_path / "one")
    checkpoint.save(tmp_path / "two")


def test_a_file_that_is_damaged_after_the_check_is_no_promise_that_nothing_changed(
    tmp_path, monkeypatch
):
    table = sok.DynamicEmbedding(2, seed=1, name="rows").table
    table.assign([1, 2], np.ones([2, 2]))
    checkpoint = Checkpoint(table=table)
    checkpoint.save(tmp_path)
    (path,) = tmp_path.glob("rows-*")
    whole = path.read_bytes()
    check = reading.TablesReader.check

    def check_and_damage(self):
        check(self)
        path.write_bytes(flipped(whole, 70))

    monkeypatch.setattr(reading.TablesReader, "check", check_and_damage)
    with pytest.raises(RuntimeError, match="checksum.*restored in part") as caught:
        checkpoint.restore(tmp_path)
    assert "othing was restored" not in str(caught.value)
    with pytest.raises(sok.kv.CorruptionError, match="Nothing was restored"):
        checkpoint.restore(tmp_path)


def test_a_second_save_takes_the_place_of_the_first(tmp_path):
    variable = tf.Variable(1.0)
    checkpoint = Checkpoint(variable=variable)
    checkpoint.save(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    (tmp_path / "dense-0123456789abcdef.index").write_bytes(b"of a save that was killed")
    (tmp_path / "notes.txt").write_text("of somebody else")
    variable.assign(2.0)
    checkpoint.save(tmp_path)
    after = {path.name for path in tmp_path.iterdir()}
    assert before & after == {"manifest.json"}
    assert len(after) == len(before) + 1 and "notes.txt" in after
    variable.assign(3.0)
    checkpoint.restore(tmp_path)
    assert float(variable) == 2


@pytest.mark.parametrize("content", ["", "{}", "[1", '{"format": "sok-embed checkpoint"}'])
def test_a_save_takes_the_place_of_a_damaged_checkpoint(tmp_path, content):
    variable = tf.Variable(1.0)
    checkpoint = Checkpoint(variable=variable)
    checkpoint.save(tmp_path)
    (tmp_path / "manifest.json").write_text(content)
    before = {path.name for path in tmp_path.iterdir()}
    variable.assign(2.0)
    checkpoint.save(tmp_path)
    assert before & {path.name for path in tmp_path.iterdir()} == {"manifest.json"}
    variable.assign(3.0)
    checkpoint.restore(tmp_path)
    assert float(variable) == 2


def test_a_save_does_not_take_the_place_of_a_later_version(tmp_path):
    checkpoint = Checkpoint(variable=tf.Variable(1.0))
    checkpoint.save(tmp_path)
    rewritten(tmp_path, lambda content: content.update(least_reader=2))
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ValueError, match="version 2"):
        checkpoint.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_files_of_an_earlier_save_that_cannot_be_removed_are_a_warning(tmp_path, monkeypatch):
    variable = tf.Variable(1.0)
    checkpoint = Checkpoint(variable=variable)
    checkpoint.save(tmp_path)
    variable.assign(2.0)

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr("sok_embed.files.places.remove_if_there", refuse)
        with pytest.warns(UserWarning, match="files of earlier saves.*Permission denied"):
            checkpoint.save(tmp_path)
    variable.assign(3.0)
    checkpoint.restore(tmp_path)
    assert float(variable) == 2


def test_every_folder_that_a_save_makes_is_forced_to_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("sok_embed.files.places.sync", synced.append)
    Checkpoint(variable=tf.Variable(1.0)).save(tmp_path / "a/b/c")
    folders = [str(tmp_path / each) for each in ("a/b", "a", "")]
    assert {folder.rstrip("/") for folder in folders} <= set(synced)


def test_dense_weights_that_were_cut_short_are_no_checkpoint(tmp_path, monkeypatch):
    def record_and_cut(folder, name):
        record = records.record_of(folder, name)
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-1])
        return record

    monkeypatch.setattr("sok_embed.checkpoint.transfer.saves.record_of", record_and_cut)
    with pytest.raises(sok.kv.CorruptionError, match="bytes"):
        Checkpoint(variable=tf.Variable(1.0)).save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_does_not_go_into_the_folder_of_its_storage(tmp_path):
    storage = sok.Storage(str(tmp_path / "rows"))
    layer = sok.DynamicEmbedding(2, storage=storage)
    layer.build((None, 1))
    for folder in ("rows", "rows/within"):
        with pytest.raises(ValueError, match="outside of the folder of the storage"):
            Checkpoint(layer=layer).save(tmp_path / folder)
    assert not (tmp_path / "rows" / "within").exists()
