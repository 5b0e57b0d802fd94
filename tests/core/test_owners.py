"""Which worker holds a key of a collection: what NumPy says is what the core does."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.tables.owners import (
    MixedRule,
    ModuloRule,
    OneWorkerRule,
    former_owners,
    mixed_owners,
    salt_of,
)

EDGES = [0, 1, -1, 2, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63)]
KEYS = np.concatenate([EDGES, np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 500)])


def keys_by_worker(
    keys: np.ndarray, salts: tuple[int, ...], workers: int
) -> list[list[np.ndarray]]:
    """What a request asks each worker for, of each table; every table gets all keys."""
    tables = len(salts)
    plan = tf_ops.CollectionPlan(
        table_names=tuple(f"t{i}" for i in range(tables)),
        dims=(1,) * tables,
        salts=salts,
        key_limits=(0,) * tables,
        feature_names=tuple(f"f{i}" for i in range(tables)),
        feature_tables=tuple(range(tables)),
        max_lengths=(0,) * tables,
        placements=(tf_ops.BY_KEY,) * tables,
        holders=(0,) * tables,
        workers=workers,
        rank=0,
        fingerprint=7,
    )
    request = tf_ops.collection_request(
        plan,
        [tf.constant(keys)] * tables,
        [tf_ops.BAG_A_KEY] * tables,
        [],
        combiners=["sum"] * tables,
        pools=[False] * tables,
    )
    asked = []
    for segment in np.split(request.message.numpy(), np.cumsum(request.splits)[:-1]):
        # Two words of a header, how many keys there are of each table, and the keys.
        ends = np.cumsum(segment[2 : 2 + tables])
        asked.append(np.split(segment[2 + tables :], ends)[:-1])
    return asked


@pytest.mark.parametrize("workers", [2, 3, 8, 1000])
def test_the_core_asks_the_workers_that_numpy_names(workers):
    salts = (0, salt_of("items"), -1, 2**63 - 1, -(2**63))
    asked = keys_by_worker(KEYS, salts, workers)
    for table, salt in enumerate(salts):
        owners = mixed_owners(KEYS, salt, workers)
        for worker in range(workers):
            expected = KEYS[owners == worker]
            np.testing.assert_array_equal(np.sort(asked[worker][table]), np.sort(expected))


def test_a_batch_of_many_keys_is_divided_alike():
    # The core finds distinct keys in another way, and on several threads, from 16384 on.
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 40_000)
    (first,), (second,), (third,) = keys_by_worker(keys, (salt_of("items"),), 3)
    owners = mixed_owners(keys, salt_of("items"), 3)
    for worker, asked in enumerate((first, second, third)):
        np.testing.assert_array_equal(np.sort(asked), np.sort(keys[owners == worker]))


def splitmix64(key: int, salt: int) -> int:
    """The finalizer of SplitMix64 in Python's own integers."""
    mixed = (key ^ salt) % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return mixed ^ mixed >> 31


def test_owners_are_those_of_splitmix64_in_whole_numbers():
    salt = salt_of("users")
    expected = [splitmix64(int(key), salt) % 7 for key in KEYS]
    assert mixed_owners(KEYS, salt, 7).tolist() == expected


def test_owners_have_the_shape_of_the_keys_and_one_worker_has_all():
    assert mixed_owners(KEYS[:6].reshape(2, 3), 5, 4).shape == (2, 3)
    assert mixed_owners(np.array([], np.int64), 5, 4).shape == (0,)
    assert not mixed_owners(KEYS, 5, 1).any()


def test_a_salt_is_of_the_name_alone_and_stays_the_same_between_releases():
    assert salt_of("items") != salt_of("Items")
    for name in ("items", "", "ü"):
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        assert salt_of(name) == int.from_bytes(digest, "little", signed=True)
    # Checkpoints of several workers have rows where these numbers say.
    assert salt_of("items") == -8440115842939445228
    assert mixed_owners(np.arange(8), salt_of("items"), 3).tolist() == [0, 2, 2, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_small_keys_of_one_table_and_key_0_of_many_are_spread_evenly(workers):
    small = np.bincount(mixed_owners(np.arange(12_000), salt_of("items"), workers))
    zeros = np.bincount(
        [mixed_owners(np.zeros(1, np.int64), salt_of(f"t{i}"), workers)[0] for i in range(2000)]
    )
    for counts in (small, zeros):
        # The number of n fair draws with a chance of p is off by 5 standard deviations, which
        # are sqrt(n p (1 - p)) each, about once in a million times.
        n, p = counts.sum(), 1 / workers
        assert len(counts) == workers
        assert np.abs(counts - n * p).max() < 5 * np.sqrt(n * p * (1 - p))


@pytest.mark.parametrize("rule", [ModuloRule(), MixedRule(salt_of("items")), OneWorkerRule(2)])
def test_former_owners_are_those_that_had_a_row_of_a_worker(rule):
    random = np.random.default_rng(3)
    keys = np.concatenate([KEYS, random.integers(-(2**63), 2**63 - 1, 20_000)])
    for workers in (3, 4, 6, 8, 12):
        before = rule.owners(keys, workers)
        for size in (3, 4, 6, 8, 9):
            now = rule.owners(keys, size)
            for rank in range(size):
                had = set(before[now == rank].tolist())
                found = former_owners(rule.text, workers, rank, size)
                # So many keys find every worker that may have had one.
                assert had == found or (not had and isinstance(rule, OneWorkerRule))


def test_of_a_rule_that_is_not_known_everybody_may_have_had_a_row():
    assert former_owners("buckets(key) % size + 1", 4, 1, 2) == {0, 1, 2, 3}
