"""The ops of a collection by themselves, on one worker and on several that this process plays."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import sok_embed
from sok_embed import kv, tf_ops
from sok_embed.tables.owners import mixed_owners
from sok_embed.tf_ops.native import ops

INVALID = tf.errors.InvalidArgumentError
names = (f"collection_{i}" for i in itertools.count())

# Two features share a table of rows of 2; the third has one of rows of 3, for keys below 100.
PLAN = tf_ops.CollectionPlan(
    table_names=("t", "u"),
    dims=(2, 3),
    salts=(11, -12),
    key_limits=(0, 100),
    feature_names=("a", "b", "c"),
    feature_tables=(0, 0, 1),
    max_lengths=(0, 0, 0),
    placements=(tf_ops.BY_KEY, tf_ops.BY_KEY),
    holders=(0, 0),
    workers=1,
    rank=0,
    fingerprint=5,
)
NONE_POOLS = (False, False)
BAGS = (tf_ops.BAG_A_ROW, tf_ops.BAG_BY_SPLITS, tf_ops.BAG_A_KEY)
A = np.array([[1, 2], [2, 2]])
B = np.array([2, -9, 1])
SPLITS = np.array([0, 0, 3])
C = np.array([7, 99])


def rows_of(table: int, keys: Any) -> np.ndarray:
    """What the row of a key starts from in these tests, exact in float32."""
    keys = np.asarray(keys, np.float64)
    return np.stack([keys + 0.25 * (1 + i + 10 * table) for i in range(PLAN.dims[table])], -1)


def new_tables(**attributes: Any) -> tf_ops.CollectionTables:
    """Tables with the rows of the keys that are used here, but for attributes."""
    tables = [
        tf_ops.anonymous_table(name, dim, initializer="constant", initializer_a=0.0, **attributes)
        for name, dim in zip(PLAN.table_names, PLAN.dims, strict=True)
    ]
    if not attributes:
        for number, (table, keys) in enumerate(zip(tables, ([1, 2, -9], C), strict=True)):
            rows = rows_of(number, keys).astype(np.float32)
            tf_ops.assign(table, tf.constant(keys, tf.int64), tf.constant(rows))
    return tf_ops.CollectionTables(tf_ops.anonymous_collection_queue(next(names), tables), tables)


def request_of(plan: Any = PLAN, a: Any = A, b: Any = B, splits: Any = SPLITS, c: Any = C) -> Any:
    keys = [tf.constant(k, tf.int64) for k in (a, b, c)]
    return request_keys(keys, splits, plan)


def request_keys(keys: Any, splits: Any = SPLITS, plan: Any = PLAN) -> Any:
    splits = [tf.constant(splits, tf.int64)]
    how = {"combiners": ("sum", "mean", "sum"), "pools": NONE_POOLS}
    return tf_ops.collection_request(plan, keys, BAGS, splits, **how)


def serve(tables: Any, request: Any, anchor: Any = None, trainable: Any = (True, True)) -> Any:
    return tf_ops.collection_serve(
        tables,
        PLAN,
        NONE_POOLS,
        request.message,
        request.splits,
        anchor is not None,
        trainable,
        anchor,
    )


def pool(
    rows: Any, asked: Any, combiners: Any = ("sum", "mean", "sum"), weights: Any = None, **how: Any
) -> Any:
    weights = weights or [None] * 3
    return tf_ops.collection_pool(PLAN, rows, asked, combiners, weights, **how)


def read(table: Any, keys: Any, dim: int = 2) -> np.ndarray:
    return tf_ops.lookup(table, tf.constant(keys, tf.int64), dim, False).embeddings.numpy()


STEP = tf_ops.RuleStep("sgd", {"learning_rate": 1.0})


def commit(tables: Any, anchor: Any, steps: Any = (STEP, STEP)) -> Any:
    return tf_ops.commit(tables, anchor, steps)


EXPECTED = [
    rows_of(0, A).sum(1),
    np.stack([np.zeros(2), rows_of(0, B).mean(0)]),
    rows_of(1, C),
]


@pytest.fixture(params=[tf.function, lambda f: f], ids=["function", "eager"])
def wrap(request):
    return request.param


def test_a_request_asks_for_each_key_of_a_table_once_whatever_the_feature():
    request = request_of()
    header, (in_t, in_u), keys = np.split(request.message.numpy(), [2, 4])
    assert header.tolist() == [0, 5]
    assert (in_t, in_u) == (3, 2)
    assert sorted(keys[:3]) == [-9, 1, 2] and sorted(keys[3:]) == [7, 99]
    assert request.splits.numpy().tolist() == [9]


@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_keys_of_each_feature_have_a_type_of_their_own(dtype):
    keys = [tf.constant(A, dtype), tf.constant(B, tf.int64), tf.constant(C, dtype)]
    request = request_keys(keys)
    np.testing.assert_array_equal(request.message, request_of().message)


def test_graphs_that_were_saved_before_queues_knew_tables_give_them_to_each_op():
    made, request = new_tables(), request_of()
    expected = serve(made, request)
    found = ops.sok_embed_collection_serve(
        queue=tf_ops.anonymous_collection_queue(next(names), []),
        tables=list(made.tables),
        message=request.message,
        message_splits=request.splits,
        anchor=0.0,
        make_rows=False,
        trainable=[True, True],
        placements=list(PLAN.placements),
        pools=list(NONE_POOLS),
        rank=0,
        packed=False,
        number=0,
    )
    np.testing.assert_array_equal(found.rows, expected.message)


def test_a_queue_keeps_its_tables(wrap):
    made, request = new_tables(), request_of()
    expected = serve(made, request).message.numpy()
    alone = made._replace(tables=())
    tf_ops.release(made.tables[0])
    del made
    np.testing.assert_array_equal(wrap(lambda: serve(alone, request).message)(), expected)


def test_a_chain_of_ops_pools_rows(wrap):
    tables = new_tables()

    def run():
        request = request_of()
        return pool(serve(tables, request), request.asked)

    for found, expected in zip(wrap(run)(), EXPECTED, strict=True):
        # Sums of a few quarters are exact; a third of them is rounded once or twice.
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_concatenated_outputs_are_those_of_the_features_in_a_row():
    request, tables = request_of(), new_tables()
    (found,) = pool(serve(tables, request), request.asked, concat=True)
    np.testing.assert_allclose(found, np.concatenate(EXPECTED, 1), rtol=1e-6)


def test_bfloat16_is_rounded_from_what_float32_is():
    request, tables = request_of(), new_tables()
    rows = serve(tables, request)
    full, half = pool(rows, request.asked), pool(rows, request.asked, dtype=tf.bfloat16)
    for one, other in zip(full, half, strict=True):
        np.testing.assert_array_equal(tf.cast(one, tf.bfloat16), other)


@dataclass
class Worker:
    """One of several workers, which this process plays one after another."""

    tables: Any
    request: Any = None
    segments: list[Any] = field(default_factory=list)


def all_to_all(messages: list[Any], splits: list[Any]) -> list[tuple[Any, Any]]:
    """What every worker has received, and its splits."""
    sent = [tf.split(m, s.numpy()) for m, s in zip(messages, splits, strict=True)]
    return [
        (tf.concat(segments, 0), tf.constant([len(segment) for segment in segments]))
        for segments in zip(*sent, strict=True)
    ]


def workers_of(count: int) -> tuple[Any, list[Worker]]:
    plan = replace(PLAN, workers=count)
    workers = [Worker(new_tables(seed=1)) for _ in range(count)]
    for number, keys in enumerate((np.array([1, 2, -9, 5]), np.array([7, 99, 3]))):
        owners = mixed_owners(keys, PLAN.salts[number], count)
        for rank, worker in enumerate(workers):
            own = keys[owners == rank]
            rows = rows_of(number, own).astype(np.float32)
            tf_ops.assign(worker.tables.tables[number], tf.constant(own), tf.constant(rows))
    return plan, workers


BATCHES = [
    {},
    {"a": np.array([[5, 1]]), "b": np.array([5, 5, 2]), "splits": [0, 3], "c": np.array([3])},
    {"a": np.zeros([0, 2]), "b": np.zeros([0]), "splits": [0], "c": np.zeros([0])},
]


@pytest.mark.parametrize("count", [2, 3])
def test_several_workers_pool_and_train_the_rows_that_their_owners_have(count):
    plan, workers = workers_of(count)
    batches = BATCHES[:count]
    anchor = tf.Variable(0.0)
    with tf.GradientTape() as tape:
        requests = [request_of(plan, **batch) for batch in batches]
        asked = all_to_all([r.message for r in requests], [r.splits for r in requests])
        served = [
            tf_ops.collection_serve(
                worker.tables, PLAN, NONE_POOLS, *received, True, (True, True), anchor
            )
            for worker, received in zip(workers, asked, strict=True)
        ]
        back = all_to_all([s.message for s in served], [s.splits for s in served])
        losses = []
        for request, received, batch in zip(requests, back, batches, strict=True):
            rows = tf_ops.CollectionRows(*received)
            a, b, c = pool(rows, request.asked, ("sum", "sum", "sum"))
            given = {"a": A, "b": B, "splits": SPLITS, "c": C, **batch}
            np.testing.assert_allclose(a, rows_of(0, given["a"]).sum(1), rtol=1e-6)
            bags = np.split(rows_of(0, given["b"]), given["splits"][1:-1])
            np.testing.assert_allclose(
                b, np.reshape([bag.sum(0) for bag in bags][: len(b)], [-1, 2]), rtol=1e-6
            )
            np.testing.assert_array_equal(c, rows_of(1, given["c"]))
            losses.append(tf.reduce_sum(a) + 10 * tf.reduce_sum(b) + tf.reduce_sum(c))
        loss = tf.add_n(losses)
    gradient = tape.gradient(loss, anchor)
    for worker in workers:
        commit(worker.tables, gradient)
    # By hand: how often a key is in "a", and ten times as often as it is in "b", of all workers.
    slopes = {1: 1 + 10 + 1, 2: 3 + 10 + 10, -9: 10, 5: 1 + 20}
    for key, slope in slopes.items():
        owner = mixed_owners(np.array([key]), PLAN.salts[0], count)[0]
        table = workers[owner].tables.tables[0]
        np.testing.assert_array_equal(read(table, [key]), rows_of(0, [key]) - slope)
    counts = [int(tf_ops.size(worker.tables.tables[0])) for worker in workers]
    assert sum(counts) == 4


def test_rows_that_no_used_output_has_asked_for_rest(wrap):
    tables, anchor = new_tables(), tf.Variable(0.0)

    @wrap
    def step():
        with tf.GradientTape() as tape:
            request = request_of(b=[2, -9, 50])
            a, _, _ = pool(serve(tables, request, anchor), request.asked)
            loss = tf.reduce_sum(a)
        return commit(tables, tape.gradient(loss, anchor))

    step()
    metadata = tf_ops.metadata(tables.tables[0], tf.constant([1, 2, -9, 50], tf.int64))
    assert metadata.update_nums.numpy().tolist() == [1, 1, 0, 0]
    # The lookup has made its row.
    assert int(tf_ops.size(tables.tables[0])) == 4
    assert [int(tf_ops.steps(table)) for table in tables.tables] == [1, 0]
    np.testing.assert_array_equal(read(tables.tables[0], [-9]), rows_of(0, [-9]))
    np.testing.assert_array_equal(read(tables.tables[1], C, 3), rows_of(1, C))


def test_a_table_that_is_not_trainable_makes_no_rows_and_drops_gradients():
    tables, anchor = new_tables(seed=1), tf.Variable(0.0)
    with tf.GradientTape() as tape:
        request = request_of()
        outputs = pool(serve(tables, request, anchor, (False, True)), request.asked)
        loss = tf.add_n([tf.reduce_sum(output) for output in outputs])
    commit(tables, tape.gradient(loss, anchor), (None, STEP))
    assert [int(tf_ops.size(table)) for table in tables.tables] == [0, 2]
    assert [int(tf_ops.steps(table)) for table in tables.tables] == [0, 1]
    np.testing.assert_array_equal(read(tables.tables[1], C, 3), -np.ones((2, 3)))


def test_deposits_wait_until_they_are_committed_or_dropped():
    tables, anchor = new_tables(), tf.Variable(0.0)
    with tf.GradientTape() as tape:
        request = request_of()
        loss = tf.reduce_sum(pool(serve(tables, request, anchor), request.asked)[2])
    gradient = tape.gradient(loss, anchor)
    assert int(tf_ops.drop_deposits(tables)) == 2
    assert int(tf_ops.drop_deposits(tables)) == 0
    commit(tables, gradient)
    np.testing.assert_array_equal(read(tables.tables[1], C, 3), rows_of(1, C))


def test_the_greatest_of_equal_rows_gives_its_gradient_to_the_first():
    tables, anchor = new_tables(), tf.Variable(0.0)
    tf_ops.assign(
        tables.tables[0],
        tf.constant([1, 2, 3], tf.int64),
        tf.constant([[5.0, 0.0], [5.0, 7.0], [1.0, 7.0]]),
    )
    with tf.GradientTape() as tape:
        request = request_of(b=[1, 2, 3])
        rows = serve(tables, request, anchor)
        loss = tf.reduce_sum(pool(rows, request.asked, ("sum", "max", "sum"))[1] * [1.0, 10.0])
    commit(tables, tape.gradient(loss, anchor))
    found = read(tables.tables[0], [1, 2, 3])
    np.testing.assert_array_equal(found, [[4, 0], [5, -3], [1, 7]])


# What is wrong.


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"c": [7, 100]}, r"feature 'c': expected keys of table 'u' in \[0, 100\), got key 100"),
        ({"c": [7, -1]}, r"feature 'c': expected keys of table 'u' in \[0, 100\), got key -1"),
        ({"splits": [0, 2]}, "feature 'b': "),
        ({"splits": [1, 3]}, "feature 'b': "),
        ({"splits": [0, 2, 1, 3]}, "feature 'b': "),
        ({"splits": []}, "feature 'b': expected a vector of row splits"),
        ({"splits": [[0, 3]]}, "feature 'b': expected a vector of row splits"),
        ({"a": 3}, "feature 'a': expected keys of one dimension or more"),
    ],
)
def test_a_wrong_batch_raises_at_once_on_a_worker_alone(wrap, change, text):
    with pytest.raises(INVALID, match=text):
        wrap(lambda: request_of(**change).message)()


def test_a_wrong_batch_of_one_of_several_workers_raises_on_all_of_them():
    plan, workers = workers_of(2)
    requests = [request_of(plan), request_of(plan, c=[7, 100])]
    received = all_to_all([r.message for r in requests], [r.splits for r in requests])
    for worker, (message, splits) in zip(workers, received, strict=True):
        with pytest.raises(tf.errors.InternalError, match="worker 1: feature 'c'.*got key 100"):
            tf_ops.collection_serve(
                worker.tables, PLAN, NONE_POOLS, message, splits, True, (True, True), None
            )


def test_workers_with_other_configurations_raise_on_all_of_them():
    plan, workers = workers_of(2)
    requests = [request_of(plan), request_of(replace(plan, fingerprint=6))]
    received = all_to_all([r.message for r in requests], [r.splits for r in requests])
    for worker, (message, splits) in zip(workers, received, strict=True):
        with pytest.raises(
            tf.errors.FailedPreconditionError, match="same tables and features.*worker 1"
        ):
            tf_ops.collection_serve(
                worker.tables, PLAN, NONE_POOLS, message, splits, True, (True, True), None
            )


def test_a_worker_that_cannot_read_its_rows_tells_all_that_asked():
    plan, _ = workers_of(2)
    requests = [request_of(plan), request_of(plan)]
    asked = all_to_all([r.message for r in requests], [r.splits for r in requests])
    # One row is too few for what each is asked for, on worker 1 alone.
    tables = [new_tables(seed=1), new_tables(seed=1, max_rows=1)]
    served = [
        tf_ops.collection_serve(own, PLAN, NONE_POOLS, *received, True, (True, True), None)
        for own, received in zip(tables, asked, strict=True)
    ]
    back = all_to_all([s.message for s in served], [s.splits for s in served])
    for request, received in zip(requests, back, strict=True):
        with pytest.raises(tf.errors.InternalError, match="worker 1: table '[tu]'"):
            pool(tf_ops.CollectionRows(*received), request.asked)


@pytest.mark.parametrize(
    "damage",
    [
        lambda message: message[:-1],
        lambda message: tf.concat([message[:2], message[2:3] + 1, message[3:]], 0),
        lambda message: tf.concat([message[:2], -message[2:3], message[3:]], 0),
        lambda message: message[:0],
        lambda message: message[:3],
    ],
    ids=["short", "more", "negative", "empty", "header"],
)
def test_a_damaged_message_is_refused(damage):
    message = damage(request_of().message)
    with pytest.raises(INVALID, match="expected keys as this release writes them.*worker 0"):
        tf_ops.collection_serve(
            new_tables(),
            PLAN,
            NONE_POOLS,
            message,
            tf.constant([len(message)]),
            False,
            (True, True),
            None,
        )


def test_rows_of_another_request_are_refused():
    request, tables = request_of(), new_tables()
    rows = serve(tables, request)
    for splits in ([11], [12, 0], [13, -1], []):
        with pytest.raises(
            INVALID, match="expected rows, and splits of each worker that sum to 12"
        ):
            pool(rows._replace(splits=tf.constant(splits, tf.int32)), request.asked)
    fewer = tf_ops.CollectionRows(tf.zeros([11]), rows.splits - 1)
    with pytest.raises(tf.errors.InternalError, match="worker 0: "):
        pool(fewer, request.asked)
    variant = tf.raw_ops.EmptyTensorList(
        element_shape=tf.zeros([0], tf.int32), max_num_elements=-1, element_dtype=tf.float32
    )
    with pytest.raises(INVALID, match="expected asked of an op of this process, got a variant of"):
        pool(rows, variant)


@pytest.mark.parametrize("n", [0, 2, 4])
def test_weights_of_another_number_than_keys_are_refused(n):
    request, tables = request_of(), new_tables()
    with pytest.raises(INVALID, match="feature 'b': expected one weight a key, of which .* 3, got"):
        pool(
            serve(tables, request),
            request.asked,
            weights=[None, tf.ones([n]), None],
        )


def test_wrong_attributes_are_refused():
    request, tables = request_of(), new_tables()
    rows, row_splits = serve(tables, request)
    common = {
        "rows": rows,
        "row_splits": row_splits,
        "asked": request.asked,
        "concat": False,
        "dtype": tf.float32,
    }
    common["packed"] = False
    with pytest.raises(INVALID, match=r"combiner in \[0, 3\], got 4"):
        ops.sok_embed_collection_pool(weights=[], weighted=[], combiners=[0, 4, 0], **common)
    with pytest.raises(INVALID, match="not pooled by max.*feature 1"):
        ops.sok_embed_collection_pool(
            weights=[tf.ones([3])], weighted=[1], combiners=[0, 3, 0], **common
        )
    with pytest.raises(INVALID, match="expected the request of 1 features, got one of 3"):
        ops.sok_embed_collection_pool(weights=[], weighted=[], combiners=[0], **common)
    with pytest.raises(INVALID, match="trainable of each table"):
        serve(tables, request, trainable=(True,))
    with pytest.raises(INVALID, match="one value a rule, a name and a table"):
        commit(tables, tf.constant(0.0), (STEP,))
    with pytest.raises(INVALID, match="dim of at least 1"):
        request_of(replace(PLAN, dims=(2, 0)))
    with pytest.raises(INVALID, match="number of a table, got 2"):
        request_of(replace(PLAN, feature_tables=(0, 1, 2)))
    for wrong in (
        {"placements": (0, 5)},
        {"placements": (0, tf_ops.BY_BUCKET)},  # of no buckets
        {"placements": (0,)},
        {"placements": (0, 1), "holders": (0, 1)},  # of one worker
    ):
        with pytest.raises(INVALID, match="a placement of each table"):
            request_of(replace(PLAN, **wrong))
    with pytest.raises(INVALID, match="number of keys of at least 0, got -1"):
        request_of(replace(PLAN, max_lengths=(0, -1, 0)))


# --- requests that are made before their step


def on_two(a: Any, **how: Any) -> Any:
    """The request of worker 0 of two, whose tables are spread by the remainder of keys."""
    plan = replace(PLAN, workers=2, placements=(tf_ops.BY_MODULO,) * 2, key_limits=(0, 0))
    keys = [tf.convert_to_tensor(each, tf.int64) for each in (a, B, C)]
    how = {"combiners": ("sum", "mean", "sum"), "pools": NONE_POOLS, **how}
    return tf_ops.collection_request(plan, keys, BAGS, [tf.constant(SPLITS, tf.int64)], **how)


def to_come(message: Any, splits: Any) -> list[list[int]]:
    return [keys.numpy().tolist() for keys in tf_ops.collection_to_come(message, splits, 2)]


def part_for(worker: int, request: Any) -> tuple[np.ndarray, np.ndarray]:
    """The message that a worker receives if both send this request."""
    part = np.split(request.message.numpy(), np.cumsum(request.splits)[:-1])[worker]
    return np.concatenate([part, part]), np.array([len(part)] * 2, np.int32)


def test_an_owner_hears_of_the_later_keys_that_were_found_ahead() -> None:
    batches = [A, A + 100, A + 201]
    plain = [on_two(batch) for batch in batches]
    dataset = tf.data.Dataset.from_tensor_slices(np.stack(batches))
    ahead = dataset.map(lambda batch: on_two(batch, ahead=4, on_disk=(True, False)).message)
    iterator = iter(ahead)
    for request in plain:
        np.testing.assert_array_equal(next(iterator), request.message)
    # The keys of table 0 of the later batches come with the first request, for worker 1 alone.
    first = on_two(batches[0], on_disk=(True, False))
    told = [to_come(*part_for(worker, first)) for worker in range(2)]
    later = [dict.fromkeys([*batch.ravel(), *B]) for batch in batches[1:]]
    odd = [key for keys in later for key in keys if key % 2]
    assert told == [[[], []], [2 * odd, []]]
    # They come once, and make no other difference.
    for batch, request in zip(batches[1:], plain[1:], strict=True):
        again = on_two(batch, on_disk=(True, False))
        np.testing.assert_array_equal(again.message, request.message)
    np.testing.assert_array_equal(first.gradient_splits, plain[0].gradient_splits)


def test_keys_to_come_are_those_of_tables_on_disk_and_of_this_request() -> None:
    dataset = tf.data.Dataset.from_tensor_slices(np.stack([A, A + 100]))
    for on_disk, others in (((), True), ((False, True), True), ((True, True), False)):
        iterator = iter(dataset.map(lambda a, d=on_disk: on_two(a, ahead=4, on_disk=d).message))
        assert len(list(iterator)) == 2
        asked = on_two(A if others else A + 1, on_disk=on_disk)
        told = to_come(*part_for(1, asked))
        assert told == [[], [7, 99, 7, 99] if any(on_disk) and others else []]
        del iterator


def test_noted_keys_are_read_with_those_that_are_given_next(tmp_path: Any) -> None:
    with kv.Storage(tmp_path) as storage:
        table = sok_embed.DynamicEmbedding(2, storage=storage, name="rows").table
        table.assign([1, 2, 3], np.ones([3, 2]))
    with kv.Storage(tmp_path) as storage:
        table = sok_embed.DynamicEmbedding(2, storage=storage, name="rows").table
        tf_ops.prefetch(table.resource_handle, tf.constant([1, 2], tf.int64), later=True)
        assert table.stats()["read_ahead"] == 0
        tf_ops.prefetch(table.resource_handle, tf.constant([3], tf.int64))
        assert table.stats()["read_ahead"] == 3
        tf_ops.prefetch(table.resource_handle, tf.constant([3], tf.int64))
        assert table.stats()["read_ahead"] == 3


def test_the_own_keys_of_a_request_are_those_that_this_worker_has() -> None:
    keys = tf_ops.collection_own_keys(on_two(A).asked, 2)
    assert [each.numpy().tolist() for each in keys] == [[2], []]
    with pytest.raises(INVALID, match="3 tables"):
        tf_ops.collection_own_keys(on_two(A).asked, 3)
