"""The messages of an exchange: what owners are asked, and answers of tables read one by one."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from sok_embed import tf_ops

DIM = 3
BUCKETS = 13
ERROR = tf.errors.InvalidArgumentError


@pytest.fixture(params=[tf.function, lambda f: f], ids=["function", "eager"])
def wrap(request):
    return request.param


def plan_of(workers: int = 1, tables: int = 1, **options: Any) -> tf_ops.CollectionPlan:
    given = {
        "table_names": tuple(f"t{i}" for i in range(tables)),
        "dims": (DIM,) * tables,
        "salts": (0,) * tables,
        "key_limits": (0,) * tables,
        "placements": (tf_ops.BY_MODULO,) * tables,
        "holders": (0,) * tables,
        "feature_names": tuple(f"f{i}" for i in range(tables)),
        "feature_tables": tuple(range(tables)),
        "max_lengths": (0,) * tables,
        "workers": workers,
        "rank": 0,
        "fingerprint": 5,
    }
    return tf_ops.CollectionPlan(**{**given, **options})


def request_of(plan: tf_ops.CollectionPlan, *keys: Any, **options: Any) -> Any:
    features = len(keys)
    return tf_ops.collection_request(
        plan,
        [tf.convert_to_tensor(each) for each in keys],
        [tf_ops.BAG_A_KEY] * features,
        [],
        combiners=["sum"] * features,
        pools=[False] * len(plan.dims),
        **options,
    )


def segments(request: Any) -> list[np.ndarray]:
    """Returns the request that each worker gets, without the header of one table."""
    split = np.split(request.message.numpy(), np.cumsum(request.splits)[:-1])
    for segment in split:
        assert segment[0] == 0 and segment[2] == len(segment) - 3
    return [segment[3:] for segment in split]


def all_to_all(messages: Any, splits: Any) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Returns the message that each worker receives, and its sizes."""
    parts = [np.split(m.numpy(), np.cumsum(s)[:-1]) for m, s in zip(messages, splits, strict=True)]
    received = list(zip(*parts, strict=True))
    return [(np.concatenate(each), np.array([len(p) for p in each], np.int32)) for each in received]


def keys_of(dtype: str, n: int) -> np.ndarray:
    info = np.iinfo(dtype)
    keys = np.random.default_rng(7).integers(info.min, info.max, n, dtype, endpoint=True)
    return keys[np.random.default_rng(8).integers(0, max(n, 1), n) // 2]


@pytest.mark.cover(32)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 1000, 100_000])
def test_distinct_keys_go_to_the_worker_of_their_floor_modulo(wrap, dtype, workers, n):
    keys = keys_of(dtype, n)
    request = wrap(lambda k: request_of(plan_of(workers), k))(tf.constant(keys))
    asked = segments(request)
    # This is floor modulo of the key as a signed number, in Python's integers.
    for worker, own in enumerate(asked):
        assert all(int(key) % workers == worker for key in own)
    signed = keys.astype(np.int64)
    np.testing.assert_array_equal(np.sort(np.concatenate(asked)), np.unique(signed))


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 5000, 50_000])
def test_distinct_keys_go_to_the_worker_of_their_bucket(wrap, workers, n):
    keys = keys_of("int64", n)
    plan = plan_of(workers, placements=(tf_ops.BY_BUCKET,), buckets=(BUCKETS,))
    asked = segments(wrap(lambda k: request_of(plan, k))(tf.constant(keys)))
    for worker, own in enumerate(asked):
        buckets = tf_ops.adaptive_buckets(tf.constant(own, tf.int64), BUCKETS).numpy()
        assert ((buckets >= 0) & (buckets < BUCKETS) & (buckets % workers == worker)).all()
    np.testing.assert_array_equal(np.sort(np.concatenate(asked)), np.unique(keys))


def test_a_table_by_bucket_has_buckets():
    plan = plan_of(2, placements=(tf_ops.BY_BUCKET,))
    with pytest.raises(ERROR, match=r"expected a placement of each table, got .*placements=\[4\]"):
        request_of(plan, tf.constant([1], tf.int64))


@pytest.mark.parametrize("key", [10, -1])
def test_a_key_beyond_the_limit_is_refused(key):
    plan = plan_of(key_limits=(10,))
    with pytest.raises(ERROR, match=rf"table 't0' in \[0, 10\), got key {key}"):
        request_of(plan, tf.constant([1, key], tf.int64))


@pytest.mark.cover(1)
@pytest.mark.parametrize("n", [60, 30_000])
def test_owners_are_told_how_often_a_key_stands_there_and_the_greatest_number(n):
    random = np.random.default_rng(4)
    keys, said = random.integers(-9, 9, n), random.integers(-(2**40), 2**40, n)
    plan = plan_of(2, counts=(True,), says=(True,))
    request = request_of(plan, keys, said=[tf.constant(said)])
    for worker, words in enumerate(segments(request)):
        found = {tuple(row) for row in np.stack(np.split(words, 3), 1)}
        assert found == {
            (key, (keys == key).sum(), said[keys == key].max()) for key in keys if key % 2 == worker
        }


def test_a_number_is_said_of_each_key():
    plan = plan_of(says=(True,))
    for said in ([], [tf.constant([1], tf.int64)]):
        with pytest.raises(ERROR, match="feature 'f0': expected a number of each key"):
            request_of(plan, tf.constant([1, 2], tf.int64), said=said)


def tables_of(count: int) -> list[tf.Tensor]:
    how = {"initializer": "uniform", "initializer_b": 1.0}
    return [tf_ops.anonymous_table(f"t{i}", DIM, seed=i + 1, **how) for i in range(count)]


def test_tables_that_are_read_by_themselves_answer_as_a_collection_does():
    plan = plan_of(tables=2)
    keys = [tf.constant([[4, -7, 4], [2**62, 4, 9]], tf.int64), tf.constant([5, 5, 4], tf.int64)]
    tables = tables_of(2)
    collection = tf_ops.CollectionTables(tf_ops.anonymous_collection_queue("both", tables), tables)
    request = request_of(plan, *keys)
    asked, sizes = tf_ops.collection_asked(plan, request.message, request.splits)
    for of_table, given in zip(asked, keys, strict=True):
        assert of_table.counts is None and of_table.said is None
        np.testing.assert_array_equal(np.sort(of_table.keys), np.unique(given))
    found = [tf_ops.lookup(t, of.keys, DIM, False) for t, of in zip(tables, asked, strict=True)]
    own = tf_ops.collection_answer(found, sizes)
    served = tf_ops.collection_serve(
        collection, plan, [False] * 2, request.message, request.splits, False, [True] * 2, None
    )
    for ours, theirs in zip(own, served, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_rows_of_several_workers_come_back_and_so_do_their_gradients(wrap):
    plan = plan_of(2, tables=2, counts=(False, True))
    batches = [([1, 2, 3, 2], [5]), ([3, 4], [6, 5, 6])]
    requests = [request_of(plan, *(tf.constant(k, tf.int64) for k in keys)) for keys in batches]
    received = all_to_all([r.message for r in requests], [r.splits for r in requests])
    for rank, (message, splits) in enumerate(received):
        asked, sizes = tf_ops.collection_asked(plan, message, splits)
        assert asked[0].counts is None
        expected = [(key, keys[1].count(key)) for keys in batches for key in sorted({*keys[1]})]
        told = sorted(zip(asked[1].keys.numpy(), asked[1].counts.numpy(), strict=True))
        assert told == sorted((key, n) for key, n in expected if key % 2 == rank)
        found = [tf_ops.lookup(t, of.keys, DIM, False)
                 for t, of in zip(tables_of(2), asked, strict=True)]  # fmt: skip
        rows = [tf.random.stateless_normal([len(of.keys), DIM], [1, 2]) for of in asked]

        def sums(*given, sizes=sizes, found=found):
            read = [one._replace(embeddings=of) for one, of in zip(found, given, strict=True)]
            return tf_ops.collection_answer(read, sizes).message

        with tf.GradientTape() as tape:
            tape.watch(rows)
            message = wrap(sums)(*rows)
            loss = tf.reduce_sum(message * tf.range(len(message), dtype=tf.float32))
        gradients = tape.gradient(loss, rows)
        # The place of each float of the message is its gradient.
        for of_table, gradient in zip(rows, gradients, strict=True):
            places = gradient.numpy().astype(int)
            np.testing.assert_array_equal(message.numpy()[places], of_table)


def test_an_error_in_a_receipt_is_raised_by_all_that_asked():
    plan = plan_of(2)
    requests = [request_of(plan, tf.constant([1, 2, 3], tf.int64)) for _ in range(2)]
    received = all_to_all([r.message for r in requests], [r.splits for r in requests])
    answers = []
    for rank, (message, splits) in enumerate(received):
        (asked,), sizes = tf_ops.collection_asked(plan, message, splits)
        table = tf_ops.anonymous_table("small", DIM, max_rows=2 - rank)
        found = tf_ops.lookup(table, asked.keys, DIM, True, reports=True)
        if rank == 1:
            np.testing.assert_array_equal(found.embeddings, np.zeros([4, DIM]))
        answers.append(tf_ops.collection_answer([found], sizes))
    back = all_to_all([a.message for a in answers], [a.splits for a in answers])
    for request, received in zip(requests, back, strict=True):
        rows = tf_ops.CollectionRows(*received)
        with pytest.raises(tf.errors.InternalError, match="worker 1: table 'small': "):
            tf_ops.collection_pool(plan, rows, request.asked, ["sum"], [None])


@pytest.mark.parametrize("kind", ["adaptive", "mask_gather"])
def test_adaptive_lookups_report_as_others_do(kind):
    keys = tf.constant([1, 2], tf.int64)
    if kind == "adaptive":
        table = tf_ops.anonymous_adaptive_table("ada", DIM, static_buckets=BUCKETS)

        def look(mask, reports):
            return tf_ops.adaptive_lookup(
                table, keys, DIM, True, mask=tf.constant(mask), reports=reports
            )
    else:
        table = tf_ops.anonymous_table("ada", DIM)
        static = tf.Variable(tf.ones([BUCKETS, DIM]))

        def look(mask, reports):
            return tf_ops.adaptive_mask_gather(
                table, static, keys, keys, tf.constant(mask), dim=DIM, make_rows=True,
                reports=reports,
            )  # fmt: skip

    with pytest.raises(ERROR, match="table 'ada'"):
        look([1, 9], False)
    found = look([1, 9], True)
    np.testing.assert_array_equal(found.embeddings, np.zeros([2, DIM]))
    plan = plan_of()
    request = request_of(plan, keys)
    _, sizes = tf_ops.collection_asked(plan, request.message, request.splits)
    rows = tf_ops.collection_answer([found], sizes)
    with pytest.raises(tf.errors.InternalError, match="worker 0: table 'ada': "):
        tf_ops.collection_pool(plan, rows, request.asked, ["sum"], [None])
    with pytest.raises(ERROR, match="receipt"):
        tf_ops.deposit(found.receipt, tf.ones([2, DIM]))


def test_answers_of_another_form_are_refused():
    plan = plan_of()
    request = request_of(plan, tf.constant([1, 2], tf.int64))
    (asked,), sizes = tf_ops.collection_asked(plan, request.message, request.splits)
    (table,) = tables_of(1)
    found = tf_ops.lookup(table, asked.keys, DIM, False)
    with pytest.raises(ERROR, match=r"expected 6 floats of rows, got shape \[3\]"):
        tf_ops.collection_answer([found._replace(embeddings=found.embeddings[:1])], sizes)
    with pytest.raises(ERROR, match="same size as the input"):
        tf_ops.collection_answer([found] * 2, tf.concat([sizes, sizes + 1], 1))
    with pytest.raises(ERROR, match="expected receipt of an op of this process"):
        tf_ops.collection_answer([found._replace(receipt=request.asked)], sizes)
    with pytest.raises(ERROR, match="expected keys as this release writes them"):
        tf_ops.collection_asked(plan, request.message[:-1], request.splits)
    with pytest.raises(ERROR, match="a message and splits of each worker"):
        tf_ops.collection_asked(plan, request.message, request.splits[:0])


def test_shapes_are_inferred():
    with tf.Graph().as_default():
        placeholder = tf.compat.v1.placeholder(tf.int64, [9])
        plan = plan_of(3)
        request = request_of(plan, placeholder)
        (asked,), sizes = tf_ops.collection_asked(plan, request.message, request.splits)
        assert request.splits.shape.as_list() == [3]
        assert asked.keys.shape.as_list() == [None] and sizes.shape.as_list() == [3, 1]


def test_many_threads_can_ask_at_once():
    keys = np.random.default_rng(2).integers(0, 1000, 20_000)
    ask = tf.function(lambda k: request_of(plan_of(3), k))
    errors = []

    def work(i):
        try:
            asked = segments(ask(tf.constant(keys + i)))
            np.testing.assert_array_equal(np.sort(np.concatenate(asked)), np.unique(keys + i))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
