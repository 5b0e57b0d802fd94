"""A lookup over several workers: what owners are asked, and where their rows go."""

import numpy as np
import pytest
import tensorflow as tf

from sok_embed.initializers import RowInitializer
from sok_embed.lookups.lookup import Call, Column, TableLookup, in_parts
from sok_embed.tables.table import Table

DIM = 3
READS = Call(None, False)
SUM, MAX = tf.math.unsorted_segment_sum, tf.math.unsorted_segment_max


def table_of(rank, workers):
    table = Table(
        DIM, RowInitializer("constant", 0.0, 0.0, None), owners=workers, owner=rank, name="emb"
    )
    keys = np.arange(-40, 40, dtype=np.int64)
    keys = keys[keys % workers == rank]
    table.assign(keys, row_of(keys))
    return table


def row_of(keys):
    return np.stack([keys, keys * 2, keys + 0.5], -1).astype(np.float32)


@pytest.mark.cover("values")
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
@pytest.mark.parametrize("shape", [(7,), (2, 3, 4), (0,), ()])
def test_vectors_are_in_the_places_of_their_keys(on_workers, workers, dtype, shape):
    batches = np.random.default_rng(7).integers(-40, 40, (workers, *shape))

    def work(rank):
        lookup = TableLookup(table_of(rank, workers), "Layer 'emb'")
        return lookup.vectors(READS, tf.constant(batches[rank]), dtype=dtype)

    for batch, (vectors, names) in zip(batches, on_workers(workers, work), strict=True):
        assert vectors.dtype == dtype
        # All numbers are halves below 2**8, which each of the types holds.
        np.testing.assert_array_equal(tf.cast(vectors, tf.float32), row_of(batch))
        assert names == ([] if workers == 1 else ["sok_embed.emb.keys", "sok_embed.emb.rows"])


def test_an_owner_hears_of_a_key_once_from_each_worker_with_what_is_said_of_it(on_workers):
    random = np.random.default_rng(11)
    batches = random.integers(-9, 9, (2, 50))
    marks = random.integers(-1, 2, (2, 50)).astype(np.int32)
    asked = [None, None]

    def work(rank):
        table = table_of(rank, 2)

        def read(call, dtype, keys, *columns):
            asked[rank] = np.stack([keys, *columns], 1)
            return tf.constant(row_of(keys.numpy()))

        lookup = TableLookup(table, "Layer 'emb'", read)
        columns = (Column(None, 1, SUM), Column(tf.constant(marks[rank]), 0, MAX), Column(None, -1))
        lookup.vectors(READS, tf.constant(batches[rank]), columns, part=".own")

    names = [names for _, names in on_workers(2, work)]
    assert names == [["sok_embed.emb.own.keys", "sok_embed.emb.own.rows"]] * 2
    for owner in range(2):
        expected = {
            (key, (batch == key).sum(), mark[batch == key].max(), -1)
            for batch, mark in zip(batches, marks, strict=True)
            for key in batch
            if key % 2 == owner
        }
        pairs = sum(len({k for k in batch if k % 2 == owner}) for batch in batches)
        assert len(asked[owner]) == pairs
        assert {tuple(row) for row in asked[owner].tolist()} == expected


def test_with_one_worker_a_table_is_told_where_nothing_is_said():
    told = []

    def read(call, dtype, keys, *columns):
        told.append((keys.shape, columns))
        return tf.zeros([*keys.shape, DIM], dtype)

    lookup = TableLookup(table_of(0, 1), "Layer 'emb'", read)
    marks = tf.constant([[1, 0], [0, 1]])
    lookup.vectors(READS, tf.zeros([2, 2], tf.int64), (Column(None, 1, SUM), Column(marks)))
    shape, (counts, told_marks) = told[0]
    assert shape == (2, 2) and counts is None and told_marks is marks


def test_a_table_of_another_worker_is_an_error(on_workers):
    lookup = TableLookup(table_of(1, 2), "Layer 'emb'")
    message = "^Layer 'emb': expected to be worker 1 of 2.*Received: worker 0 of 1"
    with pytest.raises(ValueError, match=message):
        on_workers(1, lambda rank: lookup.vectors(READS, tf.constant([1], tf.int64)))


@pytest.mark.parametrize("n", [0, 1, 6])
def test_parts_are_looked_up_in_their_own_ways(n):
    keys = np.arange(n)
    second = keys % 3 == 0
    ways = [lambda k, w: tf.stack([k, w], 1), lambda k, w: tf.stack([-k, w * 10], 1)]
    rows = in_parts(tf.constant(second), ways, tf.constant(keys), tf.constant(keys + 5))
    expected = np.where(second[:, None], np.c_[-keys, (keys + 5) * 10], np.c_[keys, keys + 5])
    np.testing.assert_array_equal(rows, expected)
