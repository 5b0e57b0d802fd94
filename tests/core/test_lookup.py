"""A lookup over several workers: what owners are asked, and where their rows go."""

import numpy as np
import pytest
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.admission import FrequencyAdmission
from sok_embed.initializers import RowInitializer
from sok_embed.lookups.lookup import LookupContext, TableLookup
from sok_embed.tables.table import Table

DIM = 3
READS = LookupContext(None, False)


def table_of(rank, workers, **attributes):
    table = Table(
        DIM,
        RowInitializer("constant", 0.0, 0.0, None),
        owners=workers,
        owner=rank,
        name="emb",
        **attributes,
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


@pytest.mark.cover(1)
@pytest.mark.parametrize("n", [50, 20_000])  # the core divides few and many keys in two ways
def test_an_owner_hears_of_a_key_once_from_each_worker_with_what_is_said_of_it(on_workers, n):
    random = np.random.default_rng(11)
    batches = random.integers(-9, 9, (2, n))
    marks = random.integers(-1, 2, (2, n)).astype(np.int32)
    asked = [None, None]

    def work(rank):
        table = table_of(rank, 2, admission=FrequencyAdmission(2))
        assert table.counts_keys

        def read(call, dtype, of_table):
            keys, counts, said, reports = of_table
            assert reports
            asked[rank] = np.stack([keys, counts, said], 1)
            found = tf_ops.lookup(table.resource_handle, keys, DIM, False, counts=counts)
            return found._replace(embeddings=tf.constant(row_of(keys.numpy())))

        lookup = TableLookup(table, "Layer 'emb'", read)
        return lookup.vectors(READS, tf.constant(batches[rank]), tf.constant(marks[rank]))

    for batch, (vectors, names) in zip(batches, on_workers(2, work), strict=True):
        assert names == ["sok_embed.emb.keys", "sok_embed.emb.rows"]
        np.testing.assert_array_equal(vectors, row_of(batch))
    for owner in range(2):
        expected = {
            (key, (batch == key).sum(), mark[batch == key].max())
            for batch, mark in zip(batches, marks, strict=True)
            for key in batch
            if key % 2 == owner
        }
        pairs = sum(len({k for k in batch if k % 2 == owner}) for batch in batches)
        assert len(asked[owner]) == pairs
        assert {tuple(row) for row in asked[owner].tolist()} == expected


def test_with_one_worker_a_table_is_told_where_nothing_is_said():
    told = []

    def read(call, dtype, asked):
        told.append(asked)
        return tf_ops.Lookup(tf.zeros([*asked.keys.shape, DIM], dtype), None)

    lookup = TableLookup(table_of(0, 1), "Layer 'emb'", read)
    marks = tf.constant([[1, 0], [0, 1]])
    lookup.vectors(READS, tf.zeros([2, 2], tf.int64), marks)
    keys, counts, said, reports = told[0]
    assert keys.shape == (2, 2) and counts is None and said is marks and not reports


def test_a_table_of_another_worker_is_an_error(on_workers):
    lookup = TableLookup(table_of(1, 2), "Layer 'emb'")
    message = "^Layer 'emb': expected to be worker 1 of 2.*Received: worker 0 of 1"
    with pytest.raises(ValueError, match=message):
        on_workers(1, lambda rank: lookup.vectors(READS, tf.constant([1], tf.int64)))


def test_a_key_out_of_range_on_one_worker_raises_on_all_of_them(on_workers):
    def work(rank):
        lookup = TableLookup(table_of(rank, 2), "Layer 'emb'", key_limit=40)
        errors = []
        for keys in ([[3, 40]], [[3, 4]]):
            own = tf.constant(keys if rank == 1 else [[5]], tf.int64)
            try:
                lookup.vectors(READS, own)
            except tf.errors.InternalError as error:
                errors.append(error.message)
        return errors

    text = "worker 1: feature 'emb': expected keys of table 'emb' in [0, 40), got key 40"
    for errors, _ in on_workers(2, work):
        assert len(errors) == 1 and text in errors[0]


def test_workers_with_other_tables_raise(on_workers):
    def work(rank):
        table = Table(2 + rank, RowInitializer("constant", 0.0, 0.0, None), owners=2, owner=rank)
        lookup = TableLookup(table, "Layer 'emb'")
        with pytest.raises(tf.errors.FailedPreconditionError, match="same tables.*on worker 1"):
            lookup.vectors(READS, tf.constant([1, 2], tf.int64))

    on_workers(2, work)
