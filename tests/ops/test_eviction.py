"""Tables with an eviction hold exactly the rows that a simulation in NumPy says, step by step."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from eviction_model import EvictionModel, Full
from seeds import seed_of_test
from tiers import rounds

from sok_embed import DistributedEmbedding, FeatureConfig, TableConfig, kv, tf_ops
from sok_embed.eviction import LeastRecentlyUsed, MaxAge
from sok_embed.eviction import get as get_eviction
from sok_embed.initializers import RowInitializer
from sok_embed.tables.table import Table

# Operations of a random run; on large rows fewer, as each takes longer.
OPERATIONS = rounds(3000, 6000, "SOK_EVICTION_OPERATIONS")

ZEROS = RowInitializer("constant", 0.0, 0.0, None)
SGD = tf_ops.RuleStep("sgd")


def random_source():
    seed = seed_of_test()
    return np.random.default_rng(seed)


def random_keys(random, count):
    """Any int64, in the order of their bits as uint64."""
    keys = np.unique(random.integers(0, 2**64, 2 * count, np.uint64))
    return np.sort(random.choice(keys, count, replace=False)).view(np.int64)


class Run:
    """A table that is trained by deposits and commits, beside its model.

    A table without an eviction has `kind` `None`, one in memory no storage. The clock of a storage
    is to show `now`.
    """

    def __init__(self, random, kind, universe, max_rows, storage=None):
        self.random = random
        self.keys = random_keys(random, universe)
        self.model = EvictionModel(kind, universe, max_rows)
        self.table = Table(
            2, ZEROS, max_rows=max_rows, eviction=get_eviction(kind), storage=storage
        )
        # The times of a table without an eviction are seconds, which nobody asks for here.
        self.has_times = kind is not None
        self.storage = storage
        self.now = 0 if storage is None else 1000
        self.waiting = []  # places and receipts of lookups since the last commit
        self.removed = False
        self.operations = 0

    def batch(self, size):
        # Few keys are frequent, most are rare.
        places = (len(self.keys) * self.random.random(size) ** 3).astype(np.intp)
        return places

    def set_clock(self):
        if self.storage is not None:
            self.storage.ready()

    def look_up(self, places, takes_gradients):
        self.operations += 1
        in_use = [batch for batch, _ in self.waiting]
        handle = self.table.resource_handle
        try:
            self.model.make(places, [places, *in_use], self.now)
        except Full:
            with pytest.raises(tf.errors.ResourceExhaustedError, match=r"rows may go|at most"):
                tf_ops.lookup(handle, self.keys[places], 2, True)
            return
        found = tf_ops.lookup(handle, self.keys[places], 2, True)
        if takes_gradients:
            self.waiting.append((places, found.receipt))

    def commit(self):
        if not self.waiting:
            return
        self.operations += 1 + len(self.waiting)
        anchor = tf.zeros([])
        for places, receipt in self.waiting:
            anchor += tf_ops.deposit(receipt, tf.ones([len(places), 2]))
        self.now += 1
        self.set_clock()
        tf_ops.commit(self.table.resource_handle, anchor, [SGD])
        batches = [places for places, _ in self.waiting]
        trained = np.concatenate(batches)
        if self.removed:  # after a removal, gradients make the rows that they miss and that fit in
            self.model.make(trained, batches, self.now, partly=True)
        self.model.train(trained, self.now)
        # The receipts are still there, as a tape would have them.
        self.waiting, self.removed = [], False

    def remove(self, places):
        self.operations += 1
        self.removed |= bool(self.waiting)
        self.table.remove(self.keys[places])
        self.model.remove(places)

    def check(self):
        exists, updates, times = self.table.metadata(self.keys)
        np.testing.assert_array_equal(exists, self.model.has)
        np.testing.assert_array_equal(updates, np.where(exists, self.model.updates, 0))
        if self.has_times:
            np.testing.assert_array_equal(times, np.where(exists, self.model.times, 0))

    def take_steps(self, operations, removals=0.05, commits=0.95):
        """Looks up, removes and commits at random, and compares table and model."""
        while self.operations < operations:
            for _ in range(self.random.integers(1, 3)):
                size = self.random.choice(
                    [1, 2, 8, 20, 40, 120], p=[0.2, 0.2, 0.25, 0.2, 0.13, 0.02]
                )
                self.look_up(self.batch(size), takes_gradients=self.random.random() < 0.9)
            if self.random.random() < removals:
                self.remove(self.batch(5))
            if self.random.random() < commits:
                self.commit()
            self.check()
        stats = self.table.stats()
        assert stats["evicted"] == self.model.evicted
        assert stats["left_out"] == self.model.left_out


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", ["lru", "lfu"])
def test_random_steps_in_memory_keep_exactly_the_rows_of_the_simulation(kind):
    run = Run(random_source(), kind, 300, 90)
    run.take_steps(OPERATIONS)
    assert run.model.evicted > 500


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", ["lru", "lfu"])
def test_steps_that_have_no_room_for_all_their_rows_go_on_as_the_simulation_does(kind):
    run = Run(random_source(), kind, 100, 12)
    run.take_steps(OPERATIONS // 3, removals=0.8, commits=0.3)
    assert run.model.left_out > 0


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", ["lru", "lfu"])
def test_random_steps_over_a_storage_keep_exactly_the_rows_of_the_simulation(tmp_path, kind):
    run = None
    with kv.Storage(tmp_path / "rows", clock=lambda: run.now if run else 1000) as storage:
        run = Run(random_source(), kind, 300, 90, storage)
        run.take_steps(OPERATIONS // 3)
        assert run.model.evicted > 0


def test_random_steps_of_a_full_table_without_eviction_keep_the_rows_of_the_simulation():
    run = Run(random_source(), None, 100, 12)
    run.take_steps(OPERATIONS // 3, removals=0.8, commits=0.3)
    assert run.model.left_out > 0


def test_a_removal_with_most_rows_in_use_leaves_gradients_out_and_the_step_goes_on():
    table = Table(1, ZEROS, max_rows=4, eviction=LeastRecentlyUsed())
    handle = table.resource_handle
    first = tf_ops.lookup(handle, tf.constant([1, 2, 3], tf.int64), 1, True)
    table.remove([3, 2])
    second = tf_ops.lookup(handle, tf.constant([4, 5, 6], tf.int64), 1, True)
    anchor = tf.zeros([])
    for found in (second, first):  # the order is that of the lookups
        anchor += tf_ops.deposit(found.receipt, tf.ones([3, 1]))
    tf_ops.commit(handle, anchor, [SGD])
    # Rows that are in use stay, and none is left for 2 and 3.
    assert table.contains([1, 2, 3, 4, 5, 6]).tolist() == [True, False, False, True, True, True]
    assert table.stats()["left_out"] == 2
    np.testing.assert_array_less(table.lookup([1, 4, 5, 6]), 0)
    assert table.stats()["steps"] == 1


@pytest.mark.parametrize("eviction", [None, "lru"])
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_gradients_of_more_keys_than_rows_train_the_first_ones(tmp_path, where, eviction):
    storage = kv.Storage(tmp_path / "rows") if where == "disk" else None
    table = Table(1, ZEROS, max_rows=3, eviction=get_eviction(eviction), storage=storage)
    table.assign([9], np.zeros([1, 1], np.float32))
    handle = table.resource_handle
    found = tf_ops.lookup(handle, tf.constant([5, 4, 5, 3, 2], tf.int64), 1, False)
    tf_ops.commit(handle, tf_ops.deposit(found.receipt, tf.ones([5, 1])), [SGD])
    made = [5, 4, 3] if eviction else [5, 4]
    assert [key for key in (2, 3, 4, 5) if table.contains([key])[0]] == sorted(made)
    assert table.stats()["left_out"] == 4 - len(made)
    assert table.lookup([5])[0, 0] == 2 * table.lookup([4])[0, 0] < 0
    if storage is not None:
        storage.close()


def test_gradients_that_a_full_table_of_a_collection_has_no_room_for_are_left_out():
    config = TableConfig("t", None, 1, "zeros", max_rows=2, eviction="lru")
    layer = DistributedEmbedding({"f": FeatureConfig("f", config, combiner="sum")})
    optimizer = keras.optimizers.SGD(1.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer({"f": tf.constant([[1, 2, 3]])})["f"])
    optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    assert layer.tables["t"].contains([1, 2, 3]).tolist() == [True, True, False]
    assert layer.tables["t"].stats()["left_out"] == 1


@pytest.mark.parametrize("kind", ["lru", "lfu"])
def test_a_table_that_knows_only_some_of_its_rows_evicts_the_right_ones(kind):
    # More rows than the queue of those that go next keeps: it is filled several times.
    random = random_source()
    run = Run(random, kind, 30_000, 6_000)
    for turn in range(30):
        run.look_up(random.integers(0, 30_000, 1200), takes_gradients=True)
        run.look_up(run.batch(500), takes_gradients=random.random() < 0.5)
        if turn % 5 == 4:
            run.remove(run.batch(800))
        run.commit()
        run.check()
    assert run.table.stats()["evicted"] == run.model.evicted > 6_000


def call(embedding, which, keys):
    zeros = np.zeros([len(keys), embedding.dimension], np.float32)
    if which == "remove":
        embedding.remove(keys)
    elif which == "assign":
        embedding.assign(keys, zeros)
    elif which == "look_up":
        embedding.lookup(keys)
    else:
        embedding.apply_gradients(keys, zeros)


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", ["lru", "lfu"])
@pytest.mark.parametrize(
    "dimension, max_rows, operations", [(2, 90, OPERATIONS), (300, 2500, OPERATIONS // 60)]
)
def test_random_steps_on_disk_keep_exactly_the_rows_of_the_simulation(
    tmp_path, kind, dimension, max_rows, operations
):
    # 2500 rows of 300 floats are more than the cache holds.
    random = random_source()
    keys = random_keys(random, 3 * max_rows).view(np.uint64)
    model = EvictionModel(kind, len(keys), max_rows)
    now = 1000
    with kv.Storage(tmp_path / "rows", cache_bytes=1 << 20, clock=lambda: now) as storage:
        embedding = kv.Embedding(
            storage,
            kv.Optimizer("sgd"),
            kv.Initializer("zeros"),
            dimension,
            max_rows=max_rows,
            eviction=kind,
        )
        sizes = [1, 3, max_rows // 10, max_rows // 3, 2 * max_rows]
        for operation in range(operations):
            now += int(random.integers(0, 3))
            size = random.choice(sizes, p=[0.3, 0.3, 0.25, 0.14, 0.01])
            places = (len(keys) * random.random(size) ** 3).astype(np.intp)
            which = random.choice(
                ["remove", "assign", "look_up", "train"], p=[0.05, 0.05, 0.4, 0.5]
            )
            if which == "remove":
                model.remove(places)
            else:
                try:
                    model.make(places, [places], now)
                except Full:
                    with pytest.raises(kv.StorageError, match="rows may go"):
                        call(embedding, which, keys[places])
                    continue
            call(embedding, which, keys[places])
            if which == "train":
                model.train(places, now)
            if operation % 500 == 499:
                storage.flush()
            exists, updates, times = embedding.metadata(keys)
            np.testing.assert_array_equal(exists, model.has)
            np.testing.assert_array_equal(updates, np.where(exists, model.updates, 0))
            np.testing.assert_array_equal(times, np.where(exists, model.times, 0))
        assert embedding.stats()["evicted"] == model.evicted > 0


def test_an_eager_tape_that_is_kept_does_not_keep_rows():
    table = Table(1, ZEROS, max_rows=2, eviction=LeastRecentlyUsed())
    anchor = tf.Variable(0.0)
    tapes = []
    for keys in ([1, 2], [3, 4], [5, 6]):
        with tf.GradientTape(persistent=True) as tape:
            rows = tf_ops.lookup(
                table.resource_handle, tf.constant(keys, tf.int64), 1, True, anchor=anchor
            ).embeddings
        deposited = tape.gradient(rows, anchor)
        tf_ops.commit(table.resource_handle, deposited, [SGD])
        tapes.append(tape)
    assert table.contains([1, 2, 3, 4, 5, 6]).tolist() == [False] * 4 + [True] * 2


def test_the_clock_of_a_table_in_memory_is_its_steps_unless_seconds_are_asked_for():
    for eviction, is_steps in ((MaxAge(steps=5), True), (MaxAge(seconds=5), False)):
        table = Table(1, ZEROS, eviction=eviction)
        table.assign([7], np.ones([1, 1], np.float32))
        assert (table.metadata([7]).update_times[0] == 0) == is_steps
