"""Tables go with the last Python object that knows them, whatever graphs are left."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import threading
import weakref

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
import trained_models
from tiers import long, rounds

import sok_embed
from sok_embed import tf_ops
from sok_embed.initializers import RowInitializer
from sok_embed.tables.base_table import OwnedResource
from sok_embed.tables.table import Table

GONE = "was deleted"
# Each process takes long to start, so only some kinds have one. `SOK_TEST_MODELS=50` has all of
# them train so many models.
MODELS = int(os.environ.get("SOK_TEST_MODELS", "0"))
IN_PROCESSES = trained_models.KINDS if MODELS else ("dynamic", "distributed", "adaptive_column")
ZEROS = RowInitializer("constant", 0.0, 0.0, None)
READS = {
    "Table": tf_ops.size,
    "AdaptiveTable": tf_ops.drop_deposits,
    "CollectionQueue": lambda queue: tf_ops.drop_deposits(tf_ops.CollectionTables(queue, [queue])),
}


def owned() -> list[OwnedResource]:
    """Returns the tables and queues of this process."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, OwnedResource)]


@pytest.mark.parametrize("work", ["fit", "predict"])
def test_a_model_that_its_caller_deletes_goes_while_the_caller_runs(work):
    layer = sok_embed.DynamicEmbedding(2)
    keys = keras.Input([3], dtype="int64")
    dense = [keras.layers.Flatten(), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keys, layer, *dense])
    del dense
    model.compile(sok_embed.DistributedOptimizer("sgd"), "mse")
    targets = (np.zeros([4, 1]),) if work == "fit" else ()
    getattr(model, work)(np.arange(12).reshape(4, 3), *targets, verbose=0)
    there = [weakref.ref(each) for each in (model, layer, layer.table)]
    del model, layer, keys
    gc.collect()
    assert [each() for each in there] == [None] * 3


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "kind",
    [kind if kind in IN_PROCESSES else long(kind) for kind in trained_models.KINDS],
)
def test_tables_go_with_their_model_though_graphs_keep_their_handles(kind, monkeypatch):
    before = {id(each) for each in owned()}
    handles: list[tuple[str, tf.Tensor]] = []
    make = OwnedResource._make_now

    def noting(self):
        make(self)
        (kind,) = (each.__name__ for each in type(self).__mro__ if each.__name__ in READS)
        handles.append((kind, self.resource_handle))

    monkeypatch.setattr(OwnedResource, "_make_now", noting)
    trained_models.KINDS[kind](100)
    keras.backend.clear_session()
    assert not [each for each in owned() if id(each) not in before]
    assert handles
    for kind, handle in handles:
        with pytest.raises(tf.errors.FailedPreconditionError, match=GONE):
            READS[kind](handle)


@pytest.mark.parametrize("kind", ["dynamic", *map(long, IN_PROCESSES[1:])])
def test_memory_is_that_of_one_model(kind):
    """The rows of each model take at least 10 MiB, and more with slots."""
    models = MODELS or 8
    program = forked.command(trained_models.__file__, kind, models)
    made = subprocess.run(program, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    after = [float(each) for each in made.stdout.split()]
    assert len(after) == models
    # The first ones fill what TensorFlow keeps for later.
    assert after[-1] <= 1.05 * after[2], after


def test_a_function_that_outlives_its_table_is_told():
    tables = [Table(2, ZEROS, name="items")]

    @tf.function
    def traced(keys):
        return tf_ops.lookup(tables[0].resource_handle, keys, 2, make_rows=False).embeddings

    np.testing.assert_array_equal(traced(tf.constant([1], tf.int64)), [[0.0, 0.0]])
    tables.clear()
    gc.collect()
    with pytest.raises(tf.errors.FailedPreconditionError, match=f"items.*{GONE}; keep the model"):
        traced(tf.constant([1], tf.int64))


def test_a_shallow_copy_keeps_the_rows():
    table = Table(2, ZEROS)
    table.assign([1], np.ones((1, 2), np.float32))
    other = copy.copy(table)
    handle = table.resource_handle
    del table
    gc.collect()
    assert other.size() == 1
    del other
    gc.collect()
    with pytest.raises(tf.errors.FailedPreconditionError, match=GONE):
        tf_ops.size(handle)


def test_a_loaded_model_keeps_its_rows_as_long_as_its_functions(tmp_path):
    model = keras.Sequential([keras.Input((1,), dtype="int64"), sok_embed.DynamicEmbedding(2)])
    expected = model.predict(np.array([[1], [2]]), verbose=0)
    model.export(tmp_path / "served", verbose=False)
    del model
    loaded = tf.saved_model.load(tmp_path / "served")
    serve = loaded.signatures["serving_default"]
    del loaded
    gc.collect()
    (name,) = serve.structured_input_signature[1]
    (found,) = serve(**{name: tf.constant([[1], [2]], tf.int64)}).values()
    np.testing.assert_array_equal(found, expected)


def test_rows_of_a_storage_are_flushed_when_the_last_table_goes(tmp_path):
    storage = sok_embed.Storage(tmp_path / "rows")
    table = Table(2, ZEROS, storage=storage)
    table.assign([1, 2, 3], np.ones((3, 2), np.float32))
    _handle = table.resource_handle  # as a graph would have it
    del table, storage
    gc.collect()
    with sok_embed.Storage(tmp_path / "rows") as again:
        assert Table(2, ZEROS, storage=again).size() == 3


def test_a_table_may_go_while_ops_use_it():
    """Each of them ends with its rows, or is told."""
    ended = []

    def use(handle):
        keys = tf.range(10_000, dtype=tf.int64)
        try:
            while True:
                found = tf_ops.lookup(handle, keys, 2, make_rows=True).embeddings
                np.testing.assert_array_equal(found, np.zeros((10_000, 2), np.float32))
        except tf.errors.FailedPreconditionError as error:
            ended.append(str(error))

    count = rounds(3, 10)
    for _ in range(count):
        table = Table(2, ZEROS)
        threads = [threading.Thread(target=use, args=(table.resource_handle,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        while table.size() == 0:
            pass
        del table
        gc.collect()
        for thread in threads:
            thread.join()
    assert len(ended) == 2 * count
    assert all(GONE in each for each in ended)


def test_a_table_may_go_while_a_function_is_traced():
    tables = [Table(2, ZEROS)]
    handle = tables[0].resource_handle

    @tf.function
    def traced():
        tables.clear()
        gc.collect()
        return tf.constant(1)

    assert traced() == 1
    assert not [
        each
        for each in traced.get_concrete_function().graph.get_operations()
        if "Release" in each.type
    ]
    with pytest.raises(tf.errors.FailedPreconditionError, match=GONE):
        tf_ops.size(handle)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_lets_no_table_of_its_parent_go():
    tables = [Table(2, ZEROS)]
    child = os.fork()
    if child == 0:
        tables.clear()
        gc.collect()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert tables[0].size() == 0
