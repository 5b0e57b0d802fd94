"""A key gets a row when it has been looked up often enough, and not before."""

import numpy as np
import pytest
from kv_rows import keys, ones, sgd

from sok_embed import admission, eviction, kv

BOTH = [kv.FrequencyAdmission(3), kv.CountingBloomAdmission(3, 1000)]


@pytest.mark.parametrize("rule", BOTH)
def test_a_row_is_made_at_the_third_lookup(storage, rule):
    embedding = sgd(storage, admission=rule)
    for seen in range(1, 4):
        assert embedding.lookup(keys(1)).tolist() == [[0, 0]]
        embedding.apply_gradients(keys(1), ones(1))
        assert len(embedding) == (seen == 3)
    # Gradients before the row is made are dropped.
    assert embedding.lookup(keys(1)).tolist() == [[-1, -1]]


@pytest.mark.parametrize("rule", BOTH)
def test_a_key_counts_as_often_as_it_stands_in_a_lookup(storage, rule):
    embedding = sgd(storage, admission=rule)
    embedding.lookup(keys(1, 2, 1, 1))
    assert len(embedding) == 1


@pytest.mark.parametrize("rule", BOTH)
def test_lookups_without_training_do_not_count(storage, rule):
    embedding = sgd(storage, admission=rule)
    for _ in range(5):
        embedding.lookup(keys(1), train=False)
    embedding.lookup(keys(1))
    assert len(embedding) == 0


@pytest.mark.parametrize("rule", BOTH)
def test_counts_are_there_again_after_opening(tmp_path, rule):
    for opened in range(1, 4):
        with kv.Storage(tmp_path / "rows") as storage:
            embedding = sgd(storage, admission=rule)
            embedding.lookup(keys(1))
            assert len(embedding) == (opened == 3)


def test_a_bloom_filter_admits_few_too_early(storage):
    capacity = 10_000
    rule = kv.CountingBloomAdmission(2, capacity, false_positive_rate=0.01)
    embedding = sgd(storage, admission=rule)
    often = np.arange(capacity, dtype=np.uint64)
    embedding.lookup(often)
    embedding.lookup(often)
    assert len(embedding) == capacity
    embedding.lookup(np.arange(10**6, 10**6 + 500, dtype=np.uint64))
    # 5 are expected.
    assert len(embedding) - capacity < 25


@pytest.mark.parametrize("rule", BOTH)
def test_a_config_leads_back(rule):
    assert admission.from_config(rule.get_config()) == rule


def test_an_unknown_config_is_refused():
    with pytest.raises(ValueError, match="'frequency', 'counting_bloom'. Received: 'lru'"):
        admission.from_config({"kind": "lru"})


@pytest.mark.parametrize("gone", ["remove", "evict"])
@pytest.mark.parametrize("given", ["assign", "load"])
def test_a_key_that_was_given_its_row_begins_anew_once_that_has_gone(tmp_path, given, gone):
    with kv.Storage(tmp_path / "other") as other:
        sgd(other).assign(keys(1), ones(1))
        other.dump(tmp_path / "dump")
    with kv.Storage(tmp_path / "rows") as storage:
        more = {"max_rows": 1, "eviction": "lru"} if gone == "evict" else {}
        embedding = sgd(storage, admission=kv.FrequencyAdmission(3), **more)
        for _ in range(2):
            embedding.lookup(keys(1))
        assert len(embedding) == 0
        if given == "assign":
            embedding.assign(keys(1), ones(1))
        else:
            storage.load(tmp_path / "dump")
        assert embedding.contains(keys(1)).all()
        if gone == "remove":
            embedding.remove(keys(1))
        else:
            embedding.assign(keys(2), ones(1))
        assert not embedding.contains(keys(1)).any()
        for seen in range(1, 4):
            if gone == "evict" and seen == 3:
                embedding.remove(keys(2))
            embedding.lookup(keys(1))
            assert embedding.contains(keys(1)).all() == (seen == 3)


@pytest.mark.parametrize("gone", ["remove", "evict", "evict after a step"])
@pytest.mark.parametrize("given", ["load", "assign"])
def test_counts_that_a_given_row_has_outlived_go_with_the_row(tmp_path, given, gone):
    rule = kv.FrequencyAdmission(3)
    more = {
        "remove": {},
        "evict": {"max_rows": 1, "eviction": "lru"},
        "evict after a step": {"eviction": eviction.MinNorm(2.0, every=1)},
    }[gone]
    with kv.Storage(tmp_path / "other") as other:
        sgd(other).assign(keys(1), ones(1))
        other.dump(tmp_path / "dump")
    with kv.Storage(tmp_path / "rows") as storage:
        for _ in range(2):
            sgd(storage, admission=rule, **more).lookup(keys(1))
    with kv.Storage(tmp_path / "rows") as storage:
        if given == "load":
            storage.load(tmp_path / "dump")
        else:  # as a killed process leaves it, whose call is in the journal, and its counts are not
            sgd(storage, **more).assign(keys(1), ones(1))
    with kv.Storage(tmp_path / "rows") as storage:
        embedding = sgd(storage, admission=rule, **more)
        assert embedding.contains(keys(1)).all()
        if gone == "remove":
            assert embedding.remove(keys(1, 5)) == 1
        elif gone == "evict":
            embedding.assign(keys(2), ones(1))
            embedding.remove(keys(2))
        else:
            embedding.assign(keys(2), ones(1))
            embedding.apply_gradients(keys(2), -9 * ones(1))
            embedding.remove(keys(2))
        assert not embedding.contains(keys(1)).any()
        for seen in range(1, 4):
            embedding.lookup(keys(1))
            assert embedding.contains(keys(1)).all() == (seen == 3)


def test_a_removal_leaves_the_counts_of_keys_that_wait(storage):
    embedding = sgd(storage, admission=kv.FrequencyAdmission(2))
    embedding.lookup(keys(1))
    assert embedding.remove(keys(1)) == 0
    embedding.lookup(keys(1))
    assert embedding.contains(keys(1)).all()
