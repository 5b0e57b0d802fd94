"""What several workers have written becomes one table, of which each takes its part again."""

import held_state
import numpy as np
import pytest

import sok_embed as sok
from sok_embed import AdaptiveTable, Table, kv, tf_ops
from sok_embed.checkpoint import saving
from sok_embed.checkpoint.state.tables import LocatedTable
from sok_embed.checkpoint.transfer.worker_rows import (
    WorkerRows,
    own_part,
    whole_contents,
    write_rows,
)
from sok_embed.initializers import RowInitializer
from sok_embed.tables.owners import EveryWorkerRule, MixedRule, OneWorkerRule

UNIFORM = RowInitializer("uniform", -1.0, 1.0, None)
KEYS = np.random.default_rng(6).choice(np.arange(-400, 400), 300, replace=False)
BATCHES = 5
WORKERS = 3
KINDS = {
    "modulo": {},
    "mixed": {"owner_rule": MixedRule(5)},
    "one worker": {"owner_rule": OneWorkerRule(1)},
    "every worker": {"owner_rule": EveryWorkerRule()},
    "frequency": {"admission": sok.admission.FrequencyAdmission(4)},
    "bloom": {"admission": sok.admission.CountingBloomAdmission(4, capacity=900, counter_bits=4)},
    "steps": {"eviction": sok.eviction.MaxAge(steps=100)},
    "seconds": {"eviction": sok.eviction.MaxAge(seconds=100)},
}


def table(owner=0, owners=1, **arguments):
    return Table(3, UNIFORM, owners=owners, owner=owner, name="emb", **arguments)


def adaptive(owner=0, owners=1):
    return AdaptiveTable(
        3, UNIFORM, static_buckets=20, sketch_capacity=500, promote_after=2,
        owners=owners, owner=owner, name="emb",
    )  # fmt: skip


def is_of(made, keys):
    if isinstance(made, AdaptiveTable):
        return made.buckets(keys) % made.owners == made.owner
    owners = made.owners_of(keys)
    return np.ones(keys.shape, bool) if owners is None else owners == made.owner


def look_up(made):
    """Looks all keys up in training, some more often than others."""
    lookup = tf_ops.adaptive_lookup if isinstance(made, AdaptiveTable) else tf_ops.lookup
    for number in range(BATCHES):
        keys = KEYS[number * 40 :]
        lookup(made.resource_handle, keys[is_of(made, keys)], made.dim, True)
    return made


def written(folder, tables):
    """Files of rows, each as its worker has written it, and their hosts."""
    for worker, made in enumerate(tables):
        hosts = [LocatedTable("one", made), LocatedTable("another", table(worker, len(tables)))]
        yield write_rows(str(folder), hosts, 7, worker, len(tables)), hosts


def whole_of(folder, tables):
    records, hosts = zip(*written(folder, tables), strict=True)
    return whole_contents(WorkerRows(str(folder), records, 7, hosts[0]), tables[0])


def restored(made, whole):
    made.restore(whole)
    return held_state.contents_of(made)


def without_counts(held):
    return {name: value for name, value in held.items() if name != "admission"}


@pytest.mark.parametrize("arguments", KINDS.values(), ids=KINDS)
def test_tables_of_workers_are_one_table_and_that_is_theirs_again(tmp_path, arguments):
    tables = [look_up(table(owner, WORKERS, **arguments)) for owner in range(WORKERS)]
    alone = look_up(table(**{k: v for k, v in arguments.items() if k != "owner_rule"}))
    whole = whole_of(tmp_path, tables)
    one = restored(table(**{k: v for k, v in arguments.items() if k != "owner_rule"}), whole)
    expected = held_state.contents_of(alone)
    # The tables need not have looked their keys up in the same second.
    ignored = {"update_times"} if arguments != KINDS["steps"] else set()
    held_state.assert_same(
        {k: v for k, v in without_counts(one).items() if k not in ignored},
        {k: v for k, v in without_counts(expected).items() if k not in ignored},
    )
    for owner, before in enumerate(tables):
        after = table(owner, WORKERS, **arguments)
        held = restored(after, own_part(after, whole))
        held_state.assert_same(without_counts(held), without_counts(held_state.contents_of(before)))
        if arguments.get("admission"):
            look_up(before)
            look_up(after)
            np.testing.assert_array_equal(np.sort(after.export()[0]), np.sort(before.export()[0]))


def test_adaptive_tables_of_workers_are_one_table_and_that_is_theirs_again(tmp_path):
    tables = [look_up(adaptive(owner, WORKERS)) for owner in range(WORKERS)]
    alone = held_state.contents_of(look_up(adaptive()))
    whole = whole_of(tmp_path, tables)
    one = restored(adaptive(), whole)
    assert len(one["own_keys"]) and one["counters"][1:].any()
    times = {"own_update_times", "static_update_times"}
    held_state.assert_same(
        {name: value for name, value in one.items() if name not in times},
        {name: value for name, value in alone.items() if name not in times},
    )
    counters = 0
    for owner, before in enumerate(tables):
        after = adaptive(owner, WORKERS)
        held, expected = restored(after, own_part(after, whole)), held_state.contents_of(before)
        counters += held.pop("counters")[1:]
        expected.pop("counters")
        held_state.assert_same(held, expected)
    np.testing.assert_array_equal(counters, alone["counters"][1:])


def test_a_worker_that_has_not_trained_takes_the_slots_of_the_others(tmp_path):
    trained = table(0, 2)
    keys = KEYS[KEYS % 2 == 0]
    start = np.full(3, 0.5, np.float32)
    trained.restore(
        trained.export(slots=True)._replace(
            keys=keys,
            embeddings=np.ones((len(keys), 3), np.float32),
            slots=np.full((len(keys), 3), 2, np.float32),
            update_nums=np.ones(len(keys), np.int64),
            update_times=np.zeros(len(keys), np.int64),
            slot_start=start,
            rule=b"adagrad",
            steps=np.int64(4),
        )
    )
    other = table(1, 2)
    other.assign(KEYS[KEYS % 2 == 1], np.zeros((np.sum(KEYS % 2 == 1), 3), np.float32))
    whole = whole_of(tmp_path, [trained, other])
    odd = whole.keys % 2 == 1
    assert whole.rule == b"adagrad" and whole.steps == 4
    np.testing.assert_array_equal(whole.slots[~odd], 2)
    np.testing.assert_array_equal(whole.slots[odd], np.tile(start, (odd.sum(), 1)))


def test_every_damaged_byte_of_rows_is_found(tmp_path):
    tables = [look_up(table(owner, 2)) for owner in range(2)]
    records, hosts = zip(*written(tmp_path, tables), strict=True)
    path = tmp_path / records[1].name
    whole = path.read_bytes()
    errors = 0
    for place in np.random.default_rng(2).integers(0, len(whole), 60):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        try:
            found = whole_contents(WorkerRows(str(tmp_path), records, 7, hosts[0]), tables[0])
        except (kv.CorruptionError, ValueError):
            errors += 1
            continue
        # It was in what is written of the other table, which nobody has asked for.
        path.write_bytes(whole)
        expected = whole_contents(WorkerRows(str(tmp_path), records, 7, hosts[0]), tables[0])
        held_state.assert_same(found._asdict(), expected._asdict())
    assert errors > 50


def test_a_table_that_nobody_has_written_is_refused(tmp_path):
    records, hosts = zip(*written(tmp_path, [table(0, 2), table(1, 2)]), strict=True)
    with pytest.raises(ValueError, match="'emb': expected a table that the model reaches"):
        whole_contents(WorkerRows(str(tmp_path), records, 7, hosts[0]), table(0, 2))


def test_columns_of_different_lengths_are_refused():
    whole = look_up(table()).export(slots=True)
    with pytest.raises(ValueError, match="'emb': expected as many keys as rows"):
        own_part(table(0, 2), whole._replace(update_nums=whole.update_nums[:-1]))


@pytest.mark.parametrize("place", [8, 60, -1])
def test_damaged_counts_are_not_given_new_checksums(place):
    kinds = (
        (lambda *worker: table(*worker, **KINDS["frequency"]), "admission"),
        (lambda *worker: table(*worker, **KINDS["bloom"]), "admission"),
        (adaptive, "cells"),
    )
    for make, field in kinds:
        made = look_up(make())
        whole = made.snapshot() if field == "cells" else made.export(slots=True)
        damaged = getattr(whole, field).copy()
        damaged[place] ^= 1
        with pytest.raises((kv.CorruptionError, ValueError)):
            own_part(make(0, 2), whole._replace(**{field: damaged}))


@pytest.mark.parametrize(
    ("arguments", "keys", "needed"),
    [
        ({"max_rows": 5}, np.arange(8), 8),
        ({"max_rows": 5, "direct": True}, np.array([0, 9]), 10),
        ({"max_rows": 8}, np.arange(8), None),
        ({"max_rows": 8, "direct": True}, np.array([0, 7]), None),
        ({}, np.arange(8), None),
    ],
)
def test_a_file_that_one_worker_cannot_load_is_a_warning(
    tmp_path, recwarn, arguments, keys, needed
):
    tables = [table(owner, 2, **arguments) for owner in range(2)]
    for owner, made in enumerate(tables):
        own = keys[keys % 2 == owner]
        made.assign(own, np.ones((len(own), 3), np.float32))
    records, hosts = zip(*written(tmp_path, tables), strict=True)
    found = saving._fitting_contents(WorkerRows(str(tmp_path), records, 7, hosts[0]), tables[0])
    np.testing.assert_array_equal(np.sort(found.keys), keys)
    texts = [str(warning.message) for warning in recwarn if "max_rows" in str(warning.message)]
    assert len(texts) == (needed is not None)
    if texts:
        assert f"max_rows={arguments['max_rows']}" in texts[0] and f"Received: {needed}" in texts[0]
