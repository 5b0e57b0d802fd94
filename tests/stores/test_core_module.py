"""The module `_core` takes arrays as they are, lets go of the GIL and hands errors over."""

import gc
import math
import threading
import time

import numpy as np
import pytest

from sok_embed.binding import _core
from sok_embed.binding.spec_text import spec_text

DIM = 4


def open_storage(path, *, ttl=0, read_only=False):
    return _core.Storage(str(path), ttl, 64 << 20, False, read_only)


def open_table(storage, *, group=3, rule="", dim=DIM, **options):
    spec = {"initializer": "constant", "initializer_a": 0.5, "seed": 7, "group": group, **options}
    return storage.open_table(spec_text(dim, spec), rule=rule)


def keys_of(*keys):
    return np.array(keys, np.uint64)


def rows_of(table, keys, make_rows=False):
    out = np.empty(len(keys) * table.dim, np.float32)
    table.lookup(keys, out, make_rows)
    return out.reshape(len(keys), table.dim)


@pytest.fixture
def storage(tmp_path):
    storage = open_storage(tmp_path / "storage")
    yield storage
    storage.close()


@pytest.fixture
def table(storage):
    return open_table(storage)


def test_rows_are_made_assigned_trained_and_removed(table):
    keys = keys_of(1, 2**64 - 1, 3)
    assert (rows_of(table, keys) == 0.5).all()
    assert table.size() == 0
    rows_of(table, keys, make_rows=True)
    assert table.size() == 3
    values = np.arange(12, dtype=np.float32)
    table.assign(keys, values)
    sgd = _core.Optimizer("kv_sgd", [("gamma", 0.5)])
    gradients = np.ones(8, np.float32)
    table.update(keys[:2], gradients, sgd, False)
    table.update(keys_of(3, 3), gradients, sgd, True)
    expected = values.reshape(3, DIM) - np.float32([[0.5], [0.5], [1.0]])
    np.testing.assert_array_equal(rows_of(table, keys), expected)
    assert table.steps() == 2
    assert table.remove(keys_of(3, 99)) == 1
    stats = table.stats()
    assert (stats["rows"], stats["steps"], stats["pending_gradients"]) == (2, 2, 0)


def test_rows_survive_closing_and_a_table_keeps_its_storage(tmp_path):
    table = open_table(open_storage(tmp_path))
    gc.collect()
    keys = keys_of(5)
    table.assign(keys, np.full(DIM, 2, np.float32))
    assert _core.Storage.find_open(str(tmp_path)) is not None
    del table
    gc.collect()
    assert _core.Storage.find_open(str(tmp_path)) is None
    storage = open_storage(tmp_path, ttl=None)
    assert (rows_of(open_table(storage), keys) == 2).all()
    storage.close()
    assert storage.closed
    with pytest.raises(RuntimeError):
        storage.groups()


def test_the_properties_are_those_it_was_opened_with(tmp_path):
    storage = open_storage(tmp_path, ttl=60)
    assert (storage.path, storage.ttl, storage.cache_bytes) == (str(tmp_path), 60, 64 << 20)
    assert not storage.read_only
    assert not storage.closed
    assert _core.Storage.find_open(str(tmp_path)).ttl == 60
    storage.close()


@pytest.mark.parametrize(
    ("keys", "out", "error"),
    [
        (np.zeros(3, np.int64), np.zeros(12, np.float32), TypeError),
        (np.zeros(3, np.uint32), np.zeros(12, np.float32), TypeError),
        (np.zeros(6, np.uint64)[::2], np.zeros(12, np.float32), TypeError),
        (np.zeros((1, 3), np.uint64), np.zeros(12, np.float32), TypeError),
        ([0, 0, 0], np.zeros(12, np.float32), TypeError),
        (np.zeros(3, np.uint64), np.zeros(12, np.float64), TypeError),
        (np.zeros(3, np.uint64), np.zeros(24, np.float32)[::2], TypeError),
        (np.zeros(3, np.uint64), np.zeros((3, 4), np.float32), TypeError),
        (np.zeros(3, np.uint64), np.broadcast_to(np.float32(0), 12), TypeError),
        (np.zeros(3, np.uint64), None, TypeError),
        (np.zeros(3, np.uint64), np.zeros(11, np.float32), ValueError),
    ],
)
def test_arrays_that_do_not_fit_are_refused(table, keys, out, error):
    with pytest.raises(error):
        table.lookup(keys, out, True)
    assert table.size() == 0


def test_read_only_arrays_may_be_read_but_not_written(table):
    keys, values = keys_of(1), np.zeros(DIM, np.float32)
    keys.flags.writeable = values.flags.writeable = False
    table.assign(keys, values)
    with pytest.raises(TypeError):
        table.lookup(keys, values, False)


def test_a_wrong_size_names_both(table):
    sgd = _core.Optimizer("kv_sgd", [])
    keys, floats = keys_of(1, 2, 3), np.zeros(7, np.float32)
    for call in (
        lambda: table.lookup(keys, floats, False),
        lambda: table.assign(keys, floats),
        lambda: table.update(keys, floats, sgd, False),
    ):
        with pytest.raises(ValueError, match=r"of 12 elements \(3 keys of dimension 4\), got 7"):
            call()


def test_empty_batches_do_nothing(table):
    none, floats = keys_of(), np.zeros(0, np.float32)
    table.lookup(none, floats, True)
    table.assign(none, floats)
    assert table.remove(none) == 0


def test_errors_of_the_core_are_python_exceptions(tmp_path, storage):
    assert issubclass(_core.StorageError, OSError)
    assert issubclass(_core.StorageLockedError, _core.StorageError)
    assert issubclass(_core.CorruptionError, _core.StorageError)
    with pytest.raises(ValueError, match="group"):
        open_table(storage, group=256)
    with pytest.raises(FileNotFoundError):
        storage.load(str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError):
        open_storage(tmp_path / "none", read_only=True)
    with pytest.raises(_core.StorageLockedError):
        open_storage(storage.path)
    table = open_table(storage)
    table.assign(keys_of(1), np.zeros(DIM, np.float32))
    storage.dump(str(tmp_path / "dump"))
    whole = (tmp_path / "dump").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(_core.CorruptionError):
        storage.load(str(tmp_path / "cut"))
    with pytest.raises(ValueError, match="no_such_rule"):
        _core.Optimizer("no_such_rule", [])


def test_a_dump_is_loaded_elsewhere(tmp_path, storage, table):
    keys = np.arange(100, dtype=np.uint64)
    table.assign(keys, np.repeat(np.arange(100, dtype=np.float32), DIM))
    reports = []

    def progress(done, total):
        reports.append((done, total))
        return True

    assert storage.dump(str(tmp_path / "dump"), progress=progress) == 100
    assert storage.dump(str(tmp_path / "few"), group=3, min_count=1) == 0
    assert reports
    assert reports[-1][0] == reports[-1][1]
    other = open_storage(tmp_path / "other")
    assert other.load(str(tmp_path / "dump")) == 100
    assert [number for number, _ in other.groups()] == [3]
    np.testing.assert_array_equal(other.get(3, 42)["floats"], np.full(DIM, 42, np.float32))
    assert other.get(3, 1000) is None
    assert other.get(4, 42) is None
    other.close()


def test_what_a_callback_raises_stops_the_work_and_comes_out(tmp_path, storage, table):
    keys = np.arange(70_000, dtype=np.uint64)  # a dump reports every 65,536 rows
    table.assign(keys, np.zeros(len(keys) * DIM, np.float32))

    def interrupt(done, total):
        raise KeyboardInterrupt("from the callback")

    path = tmp_path / "dump"
    with pytest.raises(KeyboardInterrupt, match="from the callback"):
        storage.dump(str(path), progress=interrupt)
    with pytest.raises(RuntimeError, match="cancelled"):
        storage.dump(str(path), progress=lambda done, total: False)
    with pytest.raises(TypeError, match="got None"):
        storage.dump(str(path), progress=lambda done, total: None)
    with pytest.raises(RuntimeError, match="must not use storages"):
        storage.dump(str(path), progress=lambda done, total: storage.closed)
    assert not path.exists()
    assert storage.dump(str(path)) == len(keys)


def test_other_threads_run_while_a_call_works(storage):
    table = open_table(storage, group=4, dim=64)
    keys = np.arange(200_000, dtype=np.uint64)
    ended = threading.Event()

    def work():
        rows_of(table, keys, make_rows=True)
        storage.flush()
        ended.set()

    worker = threading.Thread(target=work)
    ticks = 0
    worker.start()
    while not ended.is_set():
        time.sleep(0.001)
        ticks += 1
    worker.join()
    assert ticks > 5
    assert table.size() == len(keys)


def test_threads_share_a_table(table):
    sgd = _core.Optimizer("kv_sgd", [("gamma", 1.0)])
    keys = np.arange(500, dtype=np.uint64)
    table.assign(keys, np.zeros(500 * DIM, np.float32))
    ones = np.ones(500 * DIM, np.float32)

    def work():
        for _ in range(20):
            rows_of(table, keys, make_rows=True)
            table.update(keys, ones, sgd, False)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (rows_of(table, keys) == -80).all()


def test_a_survey_counts_rows_by_age_and_updates(tmp_path):
    storage = open_storage(tmp_path, ttl=1000)
    storage.set_now(1_000_000)
    table = open_table(storage)
    keys = np.arange(10, dtype=np.uint64)
    rows_of(table, keys, make_rows=True)
    storage.set_now(1_000_900)
    sgd = _core.Optimizer("kv_sgd", [])
    for _ in range(3):
        table.update(keys[:4], np.zeros(4 * DIM, np.float32), sgd, False)
    storage.set_now(1_001_500)
    survey = storage.survey(3)
    assert (survey["rows"], survey["expired"]) == (4, 6)
    assert survey["ages"] == [4, 0, 0, 0, 0, 0, 0]
    assert survey["age_limits"] == [3600, 86400, 604800, 2592000, 7776000, 31536000]
    assert len(survey["updates"]) == 33
    assert survey["updates"][2] == 4
    row = storage.get(3, 0)
    assert (row["update_num"], row["update_time"]) == (3, 1_000_900)
    use = storage.disk_use()
    assert use["memory_bytes"] >= use["key_bytes"]
    assert use["searched_keys"] >= use["found_keys"]
    storage.close()


def test_admission_holds_rows_back(storage):
    admission = {"admission": "frequency", "admission_min_count": 3}
    table = open_table(storage, group=9, **admission)
    keys = keys_of(8)
    sizes = []
    for _ in range(3):
        rows_of(table, keys, make_rows=True)
        sizes.append(table.size())
    assert sizes == [0, 0, 1]
    with pytest.raises(ValueError, match="no_such_kind"):
        open_table(storage, group=10, admission="no_such_kind", admission_min_count=2)


def test_an_optimizer_updates_a_row_by_its_rule():
    adam = _core.Optimizer("kv_adam", [("gamma", 0.1)])
    assert adam.rule == "kv_adam"
    assert adam.slot_floats(3) == 6
    np.testing.assert_array_equal(adam.slot_start(3), np.zeros(6, np.float32))
    row = np.concatenate([np.float32([1, 2, 3]), adam.slot_start(3)])
    adam.apply(row, np.float32([1, -1, 2]), 1)
    # The first step of Adam is the learning rate, away from the gradient's sign.
    np.testing.assert_allclose(row[:3], [0.9, 2.1, 2.9], rtol=1e-6)
    with pytest.raises(ValueError, match="of 9 elements .* got 8"):
        adam.apply(row[:8].copy(), np.float32([1, -1, 2]), 1)
    with pytest.raises(ValueError, match="number"):
        adam.apply(row, np.float32([1, -1, 2]), 0)
    with pytest.raises(ValueError, match="dimension"):
        adam.slot_floats(0)


def test_a_schedule_changes_the_rate_of_an_optimizer():
    parameters = [("decay_steps", 1), ("decay_rate", 0.5)]
    value = _core.schedule_value("exponential_decay", parameters, 0.8, 2)
    assert value == pytest.approx(0.8 * 0.5**2)
    sgd = _core.Optimizer("kv_sgd", [("gamma", 0.8)], "exponential_decay", parameters)
    row = np.zeros(1, np.float32)
    sgd.apply(row, np.ones(1, np.float32), 3)
    assert row[0] == pytest.approx(-0.8 * 0.5**2)
    with pytest.raises(ValueError, match="no_such_schedule"):
        _core.schedule_value("no_such_schedule", [], 1.0, 0)


def test_rules_and_schedules_are_listed_with_their_defaults():
    assert {"adam", "kv_adam", "kv_sgd"} <= set(_core.rule_names())
    assert dict(_core.rule_defaults("kv_adam"))["beta1"] == 0.9
    assert _core.rule_defaults("no_such_rule") == []
    assert _core.rule_slots("sgd") == _core.rule_slots("no_such_rule") == []
    assert _core.rule_slots("amsgrad") == ["momentum", "velocity", "velocity_hat"]
    assert "exponential_decay" in _core.schedule_names()
    assert math.isnan(dict(_core.schedule_defaults("exponential_decay"))["decay_rate"])


def test_an_initializer_fills_what_a_table_starts_from(storage):
    uniform = {"initializer": "uniform", "initializer_a": -1.0, "initializer_b": 1.0, "seed": 11}
    table = open_table(storage, group=12, **uniform)
    initializer = _core.Initializer("uniform", -1.0, 1.0, 11, 12)
    out = np.empty(DIM, np.float32)
    initializer.fill(77, out)
    np.testing.assert_array_equal(rows_of(table, keys_of(77))[0], out)
    with pytest.raises(ValueError, match="no_such_kind"):
        _core.Initializer("no_such_kind", 0.0, 0.0, 0, 0)
