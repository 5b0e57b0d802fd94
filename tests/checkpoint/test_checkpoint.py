"""A checkpoint of one worker brings everything back, bit for bit, or changes nothing."""

import ctypes
import json
import os
import random
import shutil
import struct

import held_state
import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import feature_column as fc
from sok_embed.checkpoint import Checkpoint, files, manifest, reading, rows_file
from sok_embed.checkpoint.own_state import OwnState
from sok_embed.checkpoint.places import place_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A trained model with a table of every kind in memory, and its checkpoint."""
    keras.utils.set_random_seed(0)
    model = held_state.every_kind()
    held_state.train(model, 2)
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    assert Checkpoint(model).save(folder) == str(folder)
    return model, folder


def test_everything_comes_back_bit_for_bit(saved):
    model, folder = saved
    other = held_state.every_kind()
    held_state.train(other)  # it has other rows, which are to go
    assert Checkpoint(other).restore(folder) == 8
    held_state.assert_same(held_state.held_by(other), held_state.held_by(model))


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
    expected = held_state.held_by(model)
    for name, value in held_state.held_by(other).items():
        if value.dtype == np.float32:
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6, err_msg=name)
        elif not name.endswith("update_times"):  # seconds
            np.testing.assert_array_equal(value, expected[name], err_msg=name)


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
    (record,) = sok.checkpoint.manifest.read(tmp_path / "checkpoint").rows
    assert record.bytes > 7 * rows_file.PAYLOAD_BYTES
    Checkpoint(table=other).restore(tmp_path / "checkpoint")
    held_state.assert_same(held_state.contents_of(other), held_state.contents_of(one))


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
        if value.dtype == np.float32:
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
    OwnState({"iterator": iterator}).check(folder, written, 0, 1)
    with pytest.raises(ValueError, match=r"checkpoint of 2 workers.*one of 1\. .*count"):
        OwnState({"iterator": iterator}).check(folder, written, 0, 2)
    OwnState({"weight": weight}).check(folder, written, 0, 2)  # stays as it is
    with pytest.raises(ValueError, match="with weight of each worker"):
        OwnState({"weight": weight}).check(folder, written, 0, 1)


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
    with pytest.raises(ValueError, match="iterators and other objects.*lacks it and has none"):
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
        patch.setattr("sok_embed.checkpoint.dense.DenseState.read", fail)
        with pytest.raises(RuntimeError, match=r"restored in part.*restore again") as caught:
            checkpoint.restore(tmp_path / "one")
    assert caught.value.__cause__ is error and table.size() == 0
    with pytest.raises(RuntimeError, match="left in part, of '.*one'"):
        checkpoint.save(tmp_path / "two")
    # Nor does another object that has the table save it.
    with pytest.raises(RuntimeError, match="left in part, of '.*one'"):
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
        patch.setattr("sok_embed.checkpoint.places.remove_if_there", refuse)
        with pytest.warns(UserWarning, match="files of earlier saves.*Permission denied"):
            checkpoint.save(tmp_path)
    variable.assign(3.0)
    checkpoint.restore(tmp_path)
    assert float(variable) == 2


def test_every_folder_that_a_save_makes_is_forced_to_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("sok_embed.checkpoint.places.sync_folder", synced.append)
    Checkpoint(variable=tf.Variable(1.0)).save(tmp_path / "a/b/c")
    folders = [str(tmp_path / each) for each in ("a/b", "a", "")]
    assert {folder.rstrip("/") for folder in folders} <= set(synced)


def test_dense_weights_that_were_cut_short_are_no_checkpoint(tmp_path, monkeypatch):
    def record_and_cut(folder, name):
        record = files.record_of(folder, name)
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-1])
        return record

    monkeypatch.setattr("sok_embed.checkpoint.saves.record_of", record_and_cut)
    with pytest.raises(sok.kv.CorruptionError, match="bytes"):
        Checkpoint(variable=tf.Variable(1.0)).save(tmp_path)
    assert not list(tmp_path.iterdir())


# What is not as it was written.


@pytest.mark.parametrize("more", [1, -1])
def test_rows_that_no_worker_takes_are_missed(saved, tmp_path, more):
    _, folder = copied(saved, tmp_path)

    def change(content):
        (entry,) = (each for each in content["tables"] if each["name"].startswith("counted"))
        entry["parts"]["rows"]["size"] += more

    rewritten(folder, change)
    error = restored_from(saved, folder)
    assert isinstance(error, sok.kv.CorruptionError)
    assert "Table 'counted'" in str(error) and "for all workers together" in str(error)


def copied(saved, tmp_path):
    model, folder = saved
    target = tmp_path / "copy"
    shutil.copytree(folder, target)
    return model, target


def flipped(data, place):
    data = bytearray(data)
    data[place] ^= 1 << place % 8
    return bytes(data)


def restored_from(saved, folder):
    """Restores another model, and says whether it is as it was if that fails."""
    other = held_state.every_kind()
    before = held_state.held_by(other)
    try:
        Checkpoint(other).restore(folder)
    except (sok.kv.CorruptionError, ValueError, FileNotFoundError) as error:
        held_state.assert_same(held_state.held_by(other), before)
        return error
    held_state.assert_same(held_state.held_by(other), held_state.held_by(saved[0]))
    return None


@pytest.mark.parametrize("kind", ["rows-", "dense-", "manifest"])
def test_a_file_that_was_cut_or_changed_is_refused_and_changes_nothing(saved, tmp_path, kind):
    model, folder = copied(saved, tmp_path)
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    other = held_state.every_kind()
    before = held_state.held_by(other)
    for path in sorted(path for path in folder.iterdir() if path.name.startswith(kind)):
        data = path.read_bytes()
        ends = [0, 1, 9, len(data) - 1, len(data) - 9, len(data) - 20]
        places = sorted({*ends, *(draw.randrange(len(data)) for _ in range(12))})
        changed = [flipped(data, place) for place in places]
        changed += [data[:place] for place in (0, 1, len(data) // 2, len(data) - 1)]
        changed += [data + b"\0", data[: len(data) // 2] * 2]
        for each in changed:
            path.write_bytes(each)
            with pytest.raises((sok.kv.CorruptionError, ValueError)) as caught:
                Checkpoint(other).restore(folder)
            assert "Expected" in str(caught.value)
        path.write_bytes(data)
        held_state.assert_same(held_state.held_by(other), before)
    Checkpoint(other).restore(folder)
    held_state.assert_same(held_state.held_by(other), held_state.held_by(model))


def test_a_file_of_another_save_is_refused(saved, tmp_path):
    model, folder = copied(saved, tmp_path)
    (rows,) = folder.glob("rows-*")
    other = tmp_path / "other"
    Checkpoint(model).save(other)
    (theirs,) = other.glob("rows-*")
    shutil.copy(theirs, rows)
    assert isinstance(restored_from(saved, folder), sok.kv.CorruptionError)


@pytest.mark.parametrize("kind", ["rows-*", "dense-*.index", "dense-*.data-*"])
def test_a_file_that_is_gone_is_missed(saved, tmp_path, kind):
    _, folder = copied(saved, tmp_path)
    (path,) = folder.glob(kind)
    path.unlink()
    assert "Received: none" in str(restored_from(saved, folder))


def rewritten(folder, change):
    """Changes a manifest and gives it a checksum that fits."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    content.pop("checksum")
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    content["checksum"] = f"{xxh3(text, 0):016x}"
    path.write_text(json.dumps(content))


def xxh3(data, seed):
    """XXH3-64, by the library itself."""
    function = ctypes.CDLL("libxxhash.so.0").XXH3_64bits_withSeed
    function.restype = ctypes.c_uint64
    return function(bytes(data), ctypes.c_size_t(len(data)), ctypes.c_uint64(seed))


@pytest.mark.parametrize("name", ["../rows", "/etc/passwd", "a/b", "", ".", "..", 7])
def test_a_name_that_leads_elsewhere_is_refused(saved, tmp_path, name):
    _, folder = copied(saved, tmp_path)
    rewritten(folder, lambda content: content["rows"][0].update(name=name))
    assert "names of files in the folder" in str(restored_from(saved, folder))
    rewritten(folder, lambda content: content["dense"].update(prefix=name))
    assert restored_from(saved, folder) is not None


def test_a_checkpoint_of_a_later_version_is_refused(saved, tmp_path):
    _, folder = copied(saved, tmp_path)
    rewritten(folder, lambda content: content["features"].append("new"))
    assert "'new'" in str(restored_from(saved, folder))
    rewritten(folder, lambda content: content.update(features=[], least_reader=2))
    assert "version 2" in str(restored_from(saved, folder))


def test_a_folder_without_a_manifest_is_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"without manifest\.json"):
        Checkpoint(variable=tf.Variable(1.0)).restore(tmp_path)


# Other models.


def small(dim=4, optimizer="adam", **arguments):
    layer = sok.DynamicEmbedding(dim, name="rows", seed=arguments.pop("seed", 1), **arguments)
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: small(5), "dim=5.*Received: 4"),
        (lambda: small(optimizer="sgd"), "variables of the model, its optimizer"),
        (lambda: small(max_rows=2), "at most max_rows=2 rows"),
        (lambda: keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), "with the tables"),
        (lambda: keras.Sequential([sok.DynamicEmbedding(4)]), "a model that is built"),
    ],
    ids=["dim", "optimizer", "max_rows", "no_tables", "not_built"],
)
def test_another_model_is_refused_and_stays_as_it_is(tmp_path, make, text):
    model = small()
    model.fit(np.arange(8).reshape(-1, 1), np.ones(8), verbose=0)
    Checkpoint(model).save(tmp_path)
    keras.utils.clear_session(free_memory=False)
    other = make()
    before = [each.numpy() for each in other.variables]
    with pytest.raises(ValueError, match=text):
        Checkpoint(other).restore(tmp_path)
    for one, two in zip(other.variables, before, strict=True):
        np.testing.assert_array_equal(one, two)
    if before and hasattr(other.layers[0], "table"):
        assert other.layers[0].table.size() == 0


def test_another_seed_is_told(tmp_path):
    Checkpoint(small()).save(tmp_path)
    keras.utils.clear_session(free_memory=False)
    with pytest.warns(UserWarning, match="'rows': expected the seed of the checkpoint"):
        Checkpoint(small(seed=2)).restore(tmp_path)


def two_tables(*names):
    inputs = keras.Input((1,), dtype="int64")
    vectors = [sok.DynamicEmbedding(2, seed=1, name=name)(inputs) for name in names]
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(vectors)))


def test_tables_that_have_changed_places_are_refused(tmp_path):
    Checkpoint(two_tables("users", "items")).save(tmp_path)
    keras.utils.clear_session(free_memory=False)
    other = two_tables("items", "users")
    other.get_layer("items").table.assign([1], [[1, 2]])
    with pytest.raises(ValueError, match="table 'items' where 'users' was"):
        Checkpoint(other).restore(tmp_path)
    assert other.get_layer("items").table.size() == 1


@pytest.mark.parametrize(
    ("name", "told"), [("members", True), ("users_1", False), ("users", False)]
)
def test_a_table_of_another_name_is_told(tmp_path, name, told, recwarn):
    Checkpoint(two_tables("users", "items")).save(tmp_path)
    keras.utils.clear_session(free_memory=False)
    Checkpoint(two_tables(name, "items")).restore(tmp_path)
    texts = [str(each.message) for each in recwarn if "the rows of 'users'" in str(each.message)]
    assert len(texts) == int(told)


@pytest.mark.parametrize(("calls", "waiting"), [(1, 1), (3, 0), (4, 1), (5, 2), (6, 0)])
def test_a_save_in_the_midst_of_an_accumulation_is_refused(tmp_path, calls, waiting):
    model = small(optimizer=keras.optimizers.Adam(gradient_accumulation_steps=3))
    model.fit(np.arange(calls).reshape(-1, 1), np.ones(calls), batch_size=1, verbose=0)
    if not waiting:
        Checkpoint(model).save(tmp_path / "checkpoint")
        return
    with pytest.raises(ValueError, match=f"accumulated those of {waiting} calls"):
        Checkpoint(model).save(tmp_path / "checkpoint")


def test_what_was_saved_beside_a_model_may_be_left_out(tmp_path):
    model, epoch = small(), tf.Variable(4)
    iterator = iter(tf.data.Dataset.range(3))
    model.fit(np.arange(4).reshape(-1, 1), np.ones(4), verbose=0)
    Checkpoint(model, epoch=epoch, iterator=iterator).save(tmp_path)
    keras.utils.clear_session(free_memory=False)
    other = small()
    assert Checkpoint(other).restore(tmp_path) == 1
    held_state.assert_same(held_state.held_by(other), held_state.held_by(model))
    with pytest.raises(ValueError, match=r"lacks epok \(int32 \[\]\) and has none more"):
        Checkpoint(other, epok=epoch).restore(tmp_path)
    with pytest.raises(ValueError, match="with the tables of the model"):
        Checkpoint(epoch=epoch).restore(tmp_path)


@pytest.mark.parametrize("arguments", [{}, {"model_part": tf.Variable(0.0)}])
def test_objects_that_cannot_be_named_are_refused(arguments):
    with pytest.raises(ValueError, match="Received"):
        Checkpoint(**arguments)


# The format, by its documentation alone.


def test_a_file_of_rows_is_laid_out_as_documented(tmp_path):
    table = small().layers[0].table
    table.assign([7, -1], [[1, 2, 3, 4], [5, 6, 7, 8]])
    Checkpoint(table=table).save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (record,) = manifest["rows"]
    data = (tmp_path / record["name"]).read_bytes()
    assert len(data) == record["bytes"]
    pieces = struct.pack("<Q", xxh3(data, 0))  # there is one piece of at most 2**20 bytes
    assert record["checksum"] == f"{xxh3(pieces, len(data)):016x}"
    magic, version, length, attempt, worker, workers, told = struct.unpack_from("<8sIIQIIQ", data)
    assert (magic, version, length, worker, workers) == (b"SOKROWS\n", 1, 40, 0, 1)
    assert f"{attempt:016x}" == manifest["attempt"] and told == xxh3(data[:32], 0)
    number, kind, rows, payload = struct.unpack_from("<IIQQ", data, 40)
    assert (number, kind, rows, payload) == (0, 1, 2, 2 * (16 + 4 * 4))
    assert struct.unpack_from("<Q", data, 64 + payload) == (xxh3(data[40 : 64 + payload], 40),)
    keys = np.frombuffer(data, "<i8", 2, 64)
    updates = np.frombuffer(data, "<u4", 2, 80)
    vectors = np.frombuffer(data, "<f4", 8, 96).reshape(2, 4)
    found = dict(zip(keys.tolist(), vectors.tolist(), strict=True))
    assert found == {7: [1, 2, 3, 4], -1: [5, 6, 7, 8]} and not updates.any()
    offset, length, told = struct.unpack_from("<QQQ", data, len(data) - 32)
    assert (length, data[-8:]) == (len(data), b"SOKREND\n") and offset == 64 + payload + 8
    assert told == xxh3(data[offset:-16], offset)
    (entry,) = json.loads(data[offset:-32])["tables"]
    assert (entry["path"], entry["part"], entry["rows"]) == ("table", "rows", 2)


@pytest.mark.parametrize("length", [0, 1, 5, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_the_checksum_of_a_file_is_that_of_its_pieces(length):
    data = np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes()
    found = files.FileChecksum()
    begin, step = 0, 1
    while begin < length:
        found.update(data[begin : begin + step])
        begin, step = begin + step, step * 3 + 1
    starts = range(0, length, 2**20)
    pieces = b"".join(struct.pack("<Q", xxh3(data[at : at + 2**20], at)) for at in starts)
    assert found.digest() == f"{xxh3(pieces, length):016x}"
