"""Lookups in several tables at once: each gets its vectors and its gradients, in three messages."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from sok_embed.initializers import RowInitializer
from sok_embed.lookups.fused_lookup import Asked, vectors_of_many
from sok_embed.lookups.lookup import Call, Column, TableLookup
from sok_embed.tables.table import Table

READS = Call(None, False)
NAMES = ["sok_embed.many.keys", "sok_embed.many.rows"]
# Of each table the dim, how many columns its requests have, and the shape of the keys of a batch.
TABLES = ((3, 0, (7,)), (1, 2, (2, 5)), (4, 1, (0,)), (2, 1, (6, 1)))


def lookup_of(rank: int, workers: int, dim: int, read: Any = None) -> TableLookup:
    zeros = RowInitializer("constant", 0.0, 0.0, None)
    table = Table(dim, zeros, owners=workers, owner=rank, name=f"of_{dim}")
    return TableLookup(table, "Layer 'many'", read)


def batches(workers: int, seed: int = 5) -> list[list[Any]]:
    """The keys of each worker for each table. The last worker has none for the first table."""
    random = np.random.default_rng(seed)
    keys = [[random.integers(-9, 9, shape) for _, _, shape in TABLES] for _ in range(workers)]
    keys[-1][0] = keys[-1][0][:0]
    return keys


def vector_of(keys: Any, dim: int) -> Any:
    """What a table has, and each has something else."""
    return (np.asarray(keys)[..., None] * (np.arange(dim) + 1) + dim).astype(np.float32)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_table_gets_its_vectors_in_the_places_of_its_keys(on_workers, workers):
    all_keys = batches(workers)

    def work(rank):
        asked = []
        for (dim, columns, _), keys in zip(TABLES, all_keys[rank], strict=True):

            def read(call, dtype, keys, *said, dim=dim):
                assert all(np.array_equal(values, keys * 3 + i) for i, values in enumerate(said))
                return tf.constant(vector_of(keys, dim), dtype)

            said = tuple(Column(tf.constant(keys * 3 + i)) for i in range(columns))
            asked.append(Asked(lookup_of(rank, workers, dim, read), READS, tf.constant(keys), said))
        return vectors_of_many(asked, "many")

    for keys, (found, names) in zip(all_keys, on_workers(workers, work), strict=True):
        assert names == NAMES
        for (dim, _, _), of_table, vectors in zip(TABLES, keys, found, strict=True):
            np.testing.assert_array_equal(vectors, vector_of(of_table, dim))


def test_owners_read_each_table_once_for_all_workers(on_workers):
    all_keys = batches(2)
    heard = [[], []]

    def work(rank):
        def read(call, dtype, keys, *said):
            heard[rank].append(sorted(keys.numpy().tolist()))
            return tf.zeros([*keys.shape, 2])

        asked = [
            Asked(lookup_of(rank, 2, 2, read), READS, tf.constant(keys)) for keys in all_keys[rank]
        ]
        vectors_of_many(asked, "many")

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
        [random.normal(size=(*of.shape, dim)) for of, dim in zip(keys, dims, strict=True)]
        for keys in all_keys
    ]

    def work(rank):
        rows = [tf.Variable(tf.zeros([places, dim])) for dim in dims]

        def reader(variable):
            return lambda call, dtype, keys: tf.gather(variable, keys + places // 2)

        with tf.GradientTape() as tape:
            asked = [
                Asked(lookup_of(rank, workers, dim, reader(variable)), READS, tf.constant(keys))
                for dim, variable, keys in zip(dims, rows, all_keys[rank], strict=True)
            ]
            found = vectors_of_many(asked, "many")
            loss = sum(
                tf.reduce_sum(vectors * tf.constant(factor, tf.float32))
                for vectors, factor in zip(found, factors[rank], strict=True)
            )
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, rows)]

    for rank, (gradients, names) in enumerate(on_workers(workers, work)):
        assert names == [*NAMES, "sok_embed.many.gradients"]
        for i, gradient in enumerate(gradients):
            expected = np.zeros(gradient.shape)
            for keys, factor in zip(all_keys, factors, strict=True):
                mine = keys[i] % workers == rank
                np.add.at(expected, keys[i][mine] + places // 2, factor[i][mine])
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-5)


def test_a_segment_says_how_many_rows_of_each_table_follow(on_workers, monkeypatch):
    sent = {}

    def work(rank):
        from sok_embed import communicators

        communicator = communicators.current()
        exchange = communicator.all_to_all

        def all_to_all(tensor, splits, name):
            sent[rank, name] = np.split(tensor.numpy(), np.cumsum(splits)[:-1])
            return exchange(tensor, splits, name)

        communicator.all_to_all = all_to_all
        first = Asked(lookup_of(rank, 2, 3), READS, tf.constant([4, 5, 4, 7], tf.int64))
        said = Column(tf.constant([11, 12], tf.int64))
        second = Asked(
            lookup_of(rank, 2, 1, lambda call, dtype, keys, said: tf.ones([*keys.shape, 1])),
            READS,
            tf.constant([6, 8], tf.int64),
            (said,),
        )
        vectors_of_many([first, second], "many")

    on_workers(2, work)
    even, odd = (segment.tolist() for segment in sent[0, NAMES[0]])
    assert even[:3] == [1, 2, 4]  # one row of the first table, two of the second; key 4
    assert sorted(zip(even[3::2], even[4::2], strict=True)) == [(6, 11), (8, 12)]
    assert odd[:2] == [2, 0] and sorted(odd[2:]) == [5, 7]
    # Both workers ask the same: each owner sends both of them the floats of its rows.
    assert [len(segment) for segment in sent[0, NAMES[1]]] == [3 + 2, 3 + 2]
    assert [len(segment) for segment in sent[1, NAMES[1]]] == [6, 6]


def test_no_tables_send_nothing(on_workers):
    assert on_workers(2, lambda rank: vectors_of_many([], "many")) == [([], [])] * 2


def test_a_table_of_another_worker_is_an_error(on_workers):
    asked = [Asked(lookup_of(1, 2, 3), READS, tf.constant([1], tf.int64))]
    with pytest.raises(ValueError, match=r"^Layer 'many': expected to be worker 1 of 2"):
        on_workers(1, lambda rank: vectors_of_many(asked, "many"))
