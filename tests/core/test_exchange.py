"""Lookups in several tables at once: each gets its vectors and its gradients, in three messages."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.initializers import RowInitializer
from sok_embed.lookups.exchange import look_up
from sok_embed.lookups.lookup import LookupContext, TableLookup
from sok_embed.tables.table import Table

READS = LookupContext(None, False)
NAMES = ["sok_embed.many.keys", "sok_embed.many.rows"]
# The dim of each table, whether requests say a number of each key, and the shape of the keys.
TABLES = ((3, False, (7,)), (1, True, (2, 5)), (4, True, (0,)), (2, False, (6, 1)))


def lookup_of(
    rank: int, workers: int, dim: int, vectors_of: Any = None, **options: Any
) -> TableLookup:
    """A lookup in a table of zeros; with `vectors_of(keys, said)` it reads these instead."""
    zeros = RowInitializer("constant", 0.0, 0.0, None)
    table = Table(dim, zeros, owners=workers, owner=rank, name=f"of_{dim}", **options)

    def read(call, dtype, asked):
        found = tf_ops.lookup(
            table.resource_handle,
            asked.keys,
            dim,
            call.trains,
            counts=asked.counts,
            reports=asked.reports,
        )
        return found._replace(embeddings=vectors_of(asked.keys, asked.said))

    return TableLookup(table, "Layer 'many'", None if vectors_of is None else read)


def batches(workers: int, seed: int = 5) -> list[list[Any]]:
    """The keys of each worker for each table. The last worker has none for the first table."""
    random = np.random.default_rng(seed)
    keys = [[random.integers(-9, 9, shape) for _, _, shape in TABLES] for _ in range(workers)]
    keys[-1][0] = keys[-1][0][:0]
    return keys


def vector_of(keys: Any, dim: int) -> Any:
    """Returns a vector for each key, which depends on the key and on the dim of its table."""
    return (np.asarray(keys)[..., None] * (np.arange(dim) + 1) + dim).astype(np.float32)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_table_gets_its_vectors_in_the_places_of_its_keys(on_workers, workers):
    all_keys = batches(workers)

    def work(rank):
        asked = []
        for (dim, says, _), keys in zip(TABLES, all_keys[rank], strict=True):

            def vectors_of(keys, said, dim=dim, says=says):
                assert np.array_equal(said, keys * 3) if says else said is None
                return tf.constant(vector_of(keys, dim))

            lookup = lookup_of(rank, workers, dim, vectors_of)
            said = tf.constant(keys * 3) if says else None
            asked.append(lookup.query(READS, tf.constant(keys), said))
        return look_up(asked, "many")

    for keys, (found, names) in zip(all_keys, on_workers(workers, work), strict=True):
        assert names == (NAMES if workers > 1 else [])
        for (dim, _, _), of_table, vectors in zip(TABLES, keys, found, strict=True):
            np.testing.assert_array_equal(vectors, vector_of(of_table.reshape(-1), dim))


def test_owners_read_each_table_once_for_all_workers(on_workers):
    all_keys = batches(2)
    heard = [[], []]

    def work(rank):
        def vectors_of(keys, said):
            heard[rank].append(sorted(keys.numpy().tolist()))
            return tf.zeros([*keys.shape, 2])

        asked = [
            lookup_of(rank, 2, 2, vectors_of).query(READS, tf.constant(keys))
            for keys in all_keys[rank]
        ]
        look_up(asked, "many")

    on_workers(2, work)
    for owner in range(2):
        assert heard[owner] == [
            sorted(key for keys in all_keys for key in {*keys[i].flat} if key % 2 == owner)
            for i in range(len(TABLES))
        ]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_gradients_go_back_to_the_owners_in_one_message(on_workers, workers):
    dims, places = (2, 3), 20
    random = np.random.default_rng(8)
    all_keys = [keys[: len(dims)] for keys in batches(workers)]
    factors = [
        [random.normal(size=(of.size, dim)) for of, dim in zip(keys, dims, strict=True)]
        for keys in all_keys
    ]

    def work(rank):
        rows = [tf.Variable(tf.zeros([places, dim])) for dim in dims]

        def reader(variable):
            return lambda keys, said: tf.gather(variable, keys + places // 2)

        with tf.GradientTape() as tape:
            asked = [
                lookup_of(rank, workers, dim, reader(variable)).query(READS, tf.constant(keys))
                for dim, variable, keys in zip(dims, rows, all_keys[rank], strict=True)
            ]
            found = look_up(asked, "many")
            loss = sum(
                tf.reduce_sum(vectors * tf.constant(factor, tf.float32))
                for vectors, factor in zip(found, factors[rank], strict=True)
            )
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, rows)]

    for rank, (gradients, names) in enumerate(on_workers(workers, work)):
        assert names == ([*NAMES, "sok_embed.many.gradients"] if workers > 1 else [])
        for i, gradient in enumerate(gradients):
            expected = np.zeros(gradient.shape)
            for keys, factor in zip(all_keys, factors, strict=True):
                flat = keys[i].reshape(-1)
                mine = flat % workers == rank
                np.add.at(expected, flat[mine] + places // 2, factor[i][mine])
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_of_a_table_that_nobody_used_have_gradients_of_zeros(on_workers, workers):
    def work(rank):
        rows = [tf.Variable(tf.zeros([4, 2])) for _ in range(2)]
        with tf.GradientTape() as tape:
            asked = [
                lookup_of(rank, workers, 2, lambda keys, said, v=v: tf.gather(v, keys)).query(
                    READS, tf.constant([0, 1, 1])
                )
                for v in rows
            ]
            used, _ = look_up(asked, "many")
            loss = tf.reduce_sum(used)
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, rows)]

    for rank, ((used, unused), _) in enumerate(on_workers(workers, work)):
        counts = np.array([1, 2, 0, 0]) * workers
        expected = np.where(np.arange(4) % workers == rank, counts, 0)
        np.testing.assert_array_equal(used, np.stack([expected] * 2, 1))
        np.testing.assert_array_equal(unused, np.zeros([4, 2]))


def test_bags_are_pooled_where_they_are_asked(on_workers):
    def work(rank):
        lookup = lookup_of(rank, 2, 2, lambda keys, said: tf.constant(vector_of(keys, 2)))
        asked = lookup.query(READS, tf.constant([1, 2, 5, 5]))
        by_splits = asked._replace(
            bags=tf_ops.BAG_BY_SPLITS,
            splits=tf.constant([0, 1, 1, 4], tf.int64),
            weights=tf.constant([2.0, 1.0, 3.0, 1.0]),
            combiner="mean",
        )
        return look_up([by_splits], "many")

    rows = vector_of([1, 2, 5], 2)
    expected = [rows[0], [0, 0], (rows[1] + 4 * rows[2]) / 5]
    for (found,), _ in on_workers(2, work):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_segment_says_how_many_words_of_each_table_follow(on_workers):
    sent = {}

    def work(rank):
        from sok_embed import communicators

        communicator = communicators.current()
        exchange = communicator.all_to_all

        def all_to_all(tensor, splits, name):
            sent[rank, name] = np.split(tensor.numpy(), np.cumsum(splits)[:-1])
            return exchange(tensor, splits, name)

        communicator.all_to_all = all_to_all
        first = lookup_of(rank, 2, 3).query(READS, tf.constant([4, 5, 4, 7], tf.int64))
        second = lookup_of(rank, 2, 1, lambda keys, said: tf.ones([*keys.shape, 1]))
        said = tf.constant([11, 12], tf.int64)
        look_up([first, second.query(READS, tf.constant([6, 8], tf.int64), said)], "many")

    on_workers(2, work)
    even, odd = (segment.tolist() for segment in sent[0, NAMES[0]])
    assert even[0] == odd[0] == 0 and even[1] == odd[1]  # no error; the fingerprint
    assert even[2:5] == [1, 4, 4]  # a word of the first table, four of the second; key 4
    assert sorted(zip(even[5:7], even[7:], strict=True)) == [(6, 11), (8, 12)]
    assert odd[2:4] == [2, 0] and sorted(odd[4:]) == [5, 7]
    # Both workers ask the same: each owner sends both of them the floats of its rows.
    assert [len(segment) for segment in sent[0, NAMES[1]]] == [3 + 2, 3 + 2]
    assert [len(segment) for segment in sent[1, NAMES[1]]] == [6, 6]


def test_an_owner_that_cannot_read_a_table_tells_all_workers(on_workers):
    def work(rank):
        full = {"max_rows": 1} if rank == 1 else {}
        lookups = [lookup_of(rank, 2, 2), lookup_of(rank, 2, 3, **full)]
        trains = LookupContext(None, True)
        keys = tf.constant([1, 2, 3, 4], tf.int64)
        with pytest.raises(tf.errors.InternalError) as raised:
            look_up([lookup.query(trains, keys) for lookup in lookups], "many")
        # The next exchange is well again.
        (found,) = look_up([lookups[0].query(READS, keys)], "many")
        return raised.value.message, found

    for (message, found), _ in on_workers(2, work):
        assert "worker 1: table 'of_3': " in message
        np.testing.assert_array_equal(found, np.zeros([4, 2]))


def test_with_one_worker_an_error_keeps_its_type(on_workers):
    lookup = lookup_of(0, 1, 3, max_rows=1)
    asked = lookup.query(LookupContext(None, True), tf.constant([1, 2], tf.int64))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="table 'of_3'"):
        on_workers(1, lambda rank: look_up([asked], "many"))


def test_no_tables_send_nothing(on_workers):
    assert on_workers(2, lambda rank: look_up([], "many")) == [([], [])] * 2
