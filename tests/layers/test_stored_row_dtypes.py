"""Rows of a storage in fewer bytes: the bits of a table in memory, wherever the rows lie."""

import os
import subprocess

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
from limits import HANG_S
from row_rounding import of_type
from seeds import seed_of_test

from sok_embed import (
    DistributedEmbedding,
    DynamicEmbedding,
    FeatureConfig,
    TableConfig,
    callbacks,
    kv,
    serving,
)
from sok_embed.checkpoint import Checkpoint

DIM = 64
KEYS = 12_000
SMALL_CACHE = 1 << 20  # bytes: of about 3,000 rows of float32 with a slot, or twice to three times
BATCHES = [np.arange(first, first + 4_000, dtype=np.int64) * 977 for first in range(0, KEYS, 3_000)]
DTYPES = [
    ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"),
    ("float16", "float32"),
    ("float16", "bfloat16"),
    ("int8", "float32"),
    ("int8", "bfloat16"),
    ("float32", "bfloat16"),
    ("float8_e4m3", "float32"),
    ("float8_e4m3", "bfloat16"),
]
ALL = pytest.mark.parametrize(("row_dtype", "slot_dtype"), DTYPES)


def layer(row_dtype, slot_dtype, **arguments):
    return DynamicEmbedding(
        DIM, "uniform", seed=3, row_dtype=row_dtype, slot_dtype=slot_dtype, **arguments
    )


def train(embedding, optimizer, seed=0):
    """Takes a step for each batch of keys, which overlap."""
    rng = np.random.default_rng(seed)
    for keys in BATCHES:
        target = rng.normal(size=[len(keys), DIM]).astype(np.float32)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((embedding(keys, training=True) - target) ** 2)
        weights = embedding.trainable_weights
        optimizer.apply(tape.gradient(loss, weights), weights)


def optimizer_of(rule):
    return keras.optimizers.get({"class_name": rule, "config": {}})


def rows_of(embedding):
    return embedding(np.arange(-10, KEYS + 1_000, dtype=np.int64) * 977).numpy()


def same_bits(a, b):
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.cover(2)
@ALL
@pytest.mark.parametrize("rule", ["SGD", "Adam", "Adagrad", "Ftrl"])
def test_a_table_on_disk_has_the_bits_of_one_in_memory(row_dtype, slot_dtype, rule, tmp_path):
    optimizers = [optimizer_of(rule) for _ in range(2)]
    in_memory = layer(row_dtype, slot_dtype)
    folder, file = str(tmp_path / "rows"), str(tmp_path / "dump")
    with kv.Storage(folder, cache_bytes=SMALL_CACHE) as storage:
        on_disk = layer(row_dtype, slot_dtype, storage=storage)
        for step in range(2):
            for embedding, optimizer in zip([in_memory, on_disk], optimizers, strict=True):
                train(embedding, optimizer, seed=step)
            same_bits(rows_of(on_disk), rows_of(in_memory))
            storage.flush()
            same_bits(rows_of(on_disk), rows_of(in_memory))
        storage.dump(file)
        storage.compact()
    # In a process of the same model, opened again, and in another folder that takes in a dump.
    with kv.Storage(folder, cache_bytes=SMALL_CACHE) as storage:
        group = storage.groups()[0]
        assert (group.row_dtype, group.slot_dtype) == (row_dtype, slot_dtype)
        closed = storage.table(0).lookup(np.arange(-10, KEYS, dtype=np.int64) * 977)
        same_bits(closed, rows_of(in_memory)[: KEYS + 10])
        again = layer(row_dtype, slot_dtype, storage=storage)
        same_bits(rows_of(again), rows_of(in_memory))
    with kv.Storage(str(tmp_path / "loaded"), cache_bytes=SMALL_CACHE) as storage:
        storage.load(file)
        loaded = layer(row_dtype, slot_dtype, storage=storage)
        same_bits(rows_of(loaded), rows_of(in_memory))
        # The slots came along: both go on alike.
        later = optimizer_of(rule)
        later.iterations.assign(optimizers[0].iterations)
        train(in_memory, optimizers[0], seed=7)
        train(loaded, later, seed=7)
        same_bits(rows_of(loaded), rows_of(in_memory))


GROUPS = (0, 1, 6, 255)


@pytest.mark.cover(2)
@pytest.mark.parametrize("program", range(4))
def test_random_programs_leave_the_bits_of_memory_in_every_group(program, tmp_path):
    seed = seed_of_test() + program
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    types = [DTYPES[rng.integers(len(DTYPES))] for _ in GROUPS]
    rule = ["SGD", "Adam", "Adagrad", "Ftrl"][program]
    names = [f"in group {group}" for group in GROUPS]

    def collection(places):
        tables = [
            TableConfig(
                name, None, 8, keras.initializers.Constant(0.3), seed=4,
                row_dtype=row_dtype, slot_dtype=slot_dtype, **place,
            )
            for name, (row_dtype, slot_dtype), place in zip(names, types, places, strict=True)
        ]  # fmt: skip
        return DistributedEmbedding(
            {table.name: FeatureConfig(table.name, table) for table in tables}
        )

    with kv.Storage(str(tmp_path / "s"), cache_bytes=SMALL_CACHE) as storage:
        layers = [
            collection([{"storage": storage, "group": group} for group in GROUPS]),
            collection([{}] * len(GROUPS)),
        ]
        optimizers = [optimizer_of(rule) for _ in layers]
        for _ in range(int(rng.integers(3, 9))):
            keys = {name: rng.integers(0, 300, [64, 2]) for name in names}
            wanted = {name: rng.normal(size=[64, 8]).astype(np.float32) for name in names}
            for embedding, optimizer in zip(layers, optimizers, strict=True):
                with tf.GradientTape() as tape:
                    found = embedding(keys, training=True)
                    errors = [tf.reduce_sum((found[name] - wanted[name]) ** 2) for name in names]
                    loss = tf.add_n(errors)
                weights = embedding.trainable_weights
                optimizer.apply(tape.gradient(loss, weights), weights)
            if rng.random() < 0.3:
                storage.flush()
            for name in names:
                on_disk, in_memory = (each.tables[name].lookup(np.arange(310)) for each in layers)
                same_bits(np.asarray(on_disk), np.asarray(in_memory))


def embedding_of(storage, row_dtype, slot_dtype, rule="adam", **arguments):
    return kv.Embedding(
        storage,
        kv.Optimizer(rule),
        kv.Initializer("uniform", seed=5),
        8,
        3,
        row_dtype=row_dtype,
        slot_dtype=slot_dtype,
        **arguments,
    )


def update(embedding, steps):
    for step in steps:
        rng = np.random.default_rng(step)
        keys = rng.integers(0, 1_000, 400).astype(np.uint64)
        embedding.apply_gradients(keys, rng.normal(size=[400, 8]).astype(np.float32))


PROGRAM = """
import os, sys
sys.path += [{here!r}, os.path.dirname({here!r})]
from test_stored_row_dtypes import embedding_of, kv, update
storage = kv.Storage({folder!r}, durability="update")
embedding = embedding_of(storage, {row_dtype!r}, {slot_dtype!r})
update(embedding, range(5))
storage.flush()
update(embedding, range(5, 9))
os._exit(0)
"""


@pytest.mark.parametrize(("row_dtype", "slot_dtype"), DTYPES[3:6])
def test_a_kill_leaves_the_bits_that_updates_have_made(row_dtype, slot_dtype, tmp_path):
    folder = str(tmp_path / "killed")
    here = os.path.dirname(__file__)
    program = PROGRAM.format(here=here, folder=folder, row_dtype=row_dtype, slot_dtype=slot_dtype)
    subprocess.run(forked.program(program), check=True, timeout=HANG_S)
    with kv.Storage(folder) as killed, kv.Storage(str(tmp_path / "whole")) as whole:
        update(embedding_of(whole, row_dtype, slot_dtype), range(9))
        keys = np.arange(1_100, dtype=np.uint64)
        for storage in (killed, whole):
            embedding_of(storage, row_dtype, slot_dtype)
        same_bits(killed.table(3).lookup(keys), whole.table(3).lookup(keys))


@pytest.mark.parametrize(("row_dtype", "slot_dtype"), [*DTYPES, ("float32", "float32")])
def test_a_dump_loads_into_rows_of_any_type(row_dtype, slot_dtype, tmp_path):
    keys = np.arange(1_000, dtype=np.uint64)
    with kv.Storage(str(tmp_path / "from")) as storage:
        made = embedding_of(storage, "int8", "bfloat16")
        update(made, range(4))
        keys = keys[made.contains(keys)]
        rows = made.lookup(keys, train=False)
        storage.dump(str(tmp_path / "dump"))
    with kv.Storage(str(tmp_path / "to")) as storage:
        embedding_of(storage, row_dtype, slot_dtype)
        storage.load(str(tmp_path / "dump"))
        found = embedding_of(storage, row_dtype, slot_dtype).lookup(keys, train=False)
    same_bits(found, rows if row_dtype == "int8" else of_type(rows, row_dtype))


def test_a_group_opened_with_other_types_is_an_error_that_names_both(tmp_path):
    with kv.Storage(str(tmp_path / "s")) as storage:
        embedding_of(storage, "bfloat16", "float32")
        expected = (
            r"has row_dtype='bfloat16' and slot_dtype='float32', got row_dtype='int8' and "
            r"slot_dtype='bfloat16'; give the types that it has"
        )
        with pytest.raises(ValueError, match=expected):
            embedding_of(storage, "int8", "bfloat16")
    with kv.Storage(str(tmp_path / "s")) as storage:
        with pytest.raises(ValueError, match=expected):
            embedding_of(storage, "int8", "bfloat16")
        with pytest.raises(ValueError, match=r"expected row_dtype to be one of .*Received: 'half'"):
            embedding_of(storage, "half", "float32")


def test_another_optimizer_takes_rows_of_fewer_bytes_over(tmp_path):
    keys = np.arange(500, dtype=np.uint64)
    with kv.Storage(str(tmp_path / "s")) as storage:
        update(embedding_of(storage, "int8", "bfloat16"), range(3))
    with kv.Storage(str(tmp_path / "s")) as storage:
        before = storage.table(3).lookup(keys)
        taken = embedding_of(storage, "int8", "bfloat16", "ftrl", reset_slots=True)
        same_bits(taken.lookup(keys, train=False), before)
        update(taken, range(3))
        assert np.isfinite(taken.lookup(keys)).all()


def test_rows_take_the_bytes_of_their_types_on_disk(tmp_path):
    keys = np.arange(20_000, dtype=np.uint64)
    sizes = {}
    for types in (("float32", "float32"), ("bfloat16", "bfloat16"), ("int8", "bfloat16")):
        with kv.Storage(str(tmp_path / "-".join(types))) as storage:
            embedding_of(storage, *types).apply_gradients(keys, np.ones([20_000, 8], np.float32))
            storage.flush()
            sizes[types] = storage.ready().survey(3)["bytes"] / len(keys)
    # A key of 9 bytes, a header of 16, the vector, and Adam's two slots.
    assert sizes == {
        ("float32", "float32"): 25 + 3 * 32,
        ("bfloat16", "bfloat16"): 25 + 3 * 16,
        ("int8", "bfloat16"): 25 + 12 + 2 * 16,
    }


def test_tables_of_a_layer_on_disk_have_types_of_their_own(tmp_path):
    keys = {"a": np.arange(300)[:, None], "b": np.arange(200, 500)[:, None]}
    with kv.Storage(str(tmp_path / "s")) as storage:

        def predicted(places):
            tables = {
                name: TableConfig(
                    name, None, 8, row_dtype=dtype, slot_dtype="bfloat16", **places[name]
                )
                for name, dtype in (("a", "int8"), ("b", "float16"))
            }
            features = {name: FeatureConfig(name, table) for name, table in tables.items()}
            embedding = DistributedEmbedding(features)
            inputs = {name: keras.Input((1,), dtype="int64", name=name) for name in keys}
            vectors = keras.layers.Concatenate()(list(embedding(inputs).values()))
            model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(vectors))
            model.compile("adam", "mse")
            model.fit(keys, np.ones([300, 1]), batch_size=64, epochs=2, shuffle=False, verbose=0)
            return model.predict(keys, verbose=0)

        stored = {"a": {"storage": storage, "group": 1}, "b": {"storage": storage, "group": 2}}
        on_disk = predicted(stored)
        types = [(group.row_dtype, group.slot_dtype) for group in storage.groups()]
    assert types == [("int8", "bfloat16"), ("float16", "bfloat16")]
    assert np.isfinite(on_disk).all()


SOME = np.arange(40).reshape(-1, 1)


def model_of(row_dtype="int8", slot_dtype="bfloat16", **arguments):
    embedding = DynamicEmbedding(
        8, seed=2, name="emb", row_dtype=row_dtype, slot_dtype=slot_dtype, **arguments
    )
    inputs = keras.Input((1,), dtype="int64")
    outputs = keras.layers.Dense(1, name="dense")(embedding(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    return model


def fit(model):
    model.fit(SOME[:30], np.ones([30, 1]), batch_size=8, epochs=3, shuffle=False, verbose=0)
    return model.predict(SOME, verbose=0)


def test_checkpoints_and_files_of_models_have_the_rows_of_a_storage(tmp_path):
    with kv.Storage(str(tmp_path / "s")) as storage:
        model = model_of(storage=storage)
        predicted = fit(model)
        rows = model.get_layer("emb").table.lookup(SOME)
        keep = callbacks.ModelCheckpoint(str(tmp_path / "kept.keras"))
        keep.set_model(model)
        keep.on_train_begin()
        keep.on_epoch_end(0, {})
        Checkpoint(model).save(tmp_path / "checkpoint")
        same_bits(model_of(storage=storage).get_layer("emb").table.lookup(SOME), rows)
    loaded = keras.saving.load_model(tmp_path / "kept.keras")
    same_bits(loaded.get_layer("emb").table.lookup(SOME), rows)
    np.testing.assert_array_equal(loaded.predict(SOME, verbose=0), predicted)
    for types in (("int8", "bfloat16"), ("float32", "float32")):
        for restore in (
            lambda made: made.load_weights(tmp_path / "kept.keras"),
            lambda made: Checkpoint(made).restore(tmp_path / "checkpoint"),
        ):
            made = model_of(*types)
            restore(made)
            same_bits(made.get_layer("emb").table.lookup(SOME[:30]), rows[:30])
    with kv.Storage(str(tmp_path / "other")) as storage:
        made = model_of(storage=storage)
        Checkpoint(made).restore(tmp_path / "checkpoint")
        same_bits(made.get_layer("emb").table.lookup(SOME), rows)


def test_rows_of_a_storage_are_served(tmp_path):
    with kv.Storage(str(tmp_path / "s")) as storage:
        model = model_of(storage=storage)
        predicted = fit(model)
        folder = serving.export(model, tmp_path / "served")
    served = tf.saved_model.load(str(folder))
    found = next(iter(served.signatures["serving_default"](tf.constant(SOME)).values()))
    np.testing.assert_array_equal(found.numpy()[:30], predicted[:30])  # the keys that have rows


def test_eviction_expiry_and_admission_look_at_rows_of_fewer_bytes(tmp_path):
    now = 10_000
    with kv.Storage(str(tmp_path / "s"), ttl=100) as storage:
        storage.ready().set_now(now)
        made = embedding_of(
            storage, "int8", "bfloat16", max_rows=50, eviction="lru",
            admission=kv.FrequencyAdmission(2),
        )  # fmt: skip
        for first in (0, 30, 60):
            keys = np.arange(first, first + 30, dtype=np.uint64)
            for _ in range(2):
                made.lookup(keys)
            made.apply_gradients(keys, np.ones([30, 8], np.float32))
        assert len(made) == 50
        assert made.contains(np.arange(60, 90, dtype=np.uint64)).all()
        storage.ready().set_now(now + 101)
        assert not made.contains(np.arange(90, dtype=np.uint64)).any()
        start = kv.Initializer("uniform", seed=5)
        fresh = made.lookup(np.array([70], np.uint64), train=False)
        with kv.Storage(str(tmp_path / "t")) as other:
            plain = kv.Embedding(
                other, kv.Optimizer("sgd"), start, 8, 3, row_dtype="int8", slot_dtype="bfloat16"
            )
            same_bits(fresh, plain.lookup(np.array([70], np.uint64)))
