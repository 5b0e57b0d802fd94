"""Rows in fewer bytes than float32: what training, files and figures make of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from row_rounding import of_type
from strange_optimizer import RootMomentum

from sok_embed import (
    AdaptiveEmbedding,
    All2AllDenseEmbedding,
    DistributedEmbedding,
    DynamicEmbedding,
    FeatureConfig,
    Table,
    TableConfig,
    plan,
    tf_ops,
)
from sok_embed import feature_column as fc
from sok_embed.checkpoint import Checkpoint
from sok_embed.initializers import RowInitializer

DIM = 8
UNIFORM = RowInitializer("uniform", -1.0, 1.0, None)
UNIFORM_NAME = {"class_name": "RandomUniform", "config": {"minval": -1.0, "maxval": 1.0}}
DTYPES = [
    ("bfloat16", "float32"),
    ("float16", "bfloat16"),
    ("int8", "bfloat16"),
    ("float8_e4m3", "float32"),
]
TWO = pytest.mark.parametrize(("row_dtype", "slot_dtype"), DTYPES)
KEYS = np.array([5, -9, 2**40, 5, 7, 11], np.int64)


def table(row_dtype="float32", slot_dtype="float32", **arguments):
    return Table(DIM, UNIFORM, seed=3, row_dtype=row_dtype, slot_dtype=slot_dtype, **arguments)


def layer(row_dtype="float32", slot_dtype="float32", **arguments):
    return DynamicEmbedding(
        DIM, UNIFORM_NAME, seed=3, name="rows", row_dtype=row_dtype, slot_dtype=slot_dtype,
        **arguments,
    )  # fmt: skip


def steps(embedding, optimizer, n=30):
    """Trains rows by hand towards a fixed vector; returns those of KEYS."""
    optimizer = keras.optimizers.get(optimizer)
    embedding(KEYS)
    target = np.linspace(-0.5, 0.5, DIM, dtype=np.float32)
    weights = embedding.trainable_weights
    for _ in range(n):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((embedding(KEYS, training=True) - target) ** 2)
        optimizer.apply(tape.gradient(loss, weights), weights)
    return embedding(KEYS).numpy()


@TWO
def test_rows_that_are_assigned_are_rounded_to_nearest(row_dtype, slot_dtype):
    made = table(row_dtype, slot_dtype)
    keys = np.arange(100)
    values = np.random.default_rng(1).normal(size=[100, DIM]).astype(np.float32)
    made.assign(keys, values)
    tolerance = 5e-5 if row_dtype == "int8" else 0
    read = made.lookup(keys)
    np.testing.assert_allclose(read, of_type(values, row_dtype), atol=tolerance, rtol=0)
    made.assign(keys, read)
    np.testing.assert_array_equal(made.lookup(keys), read)


@TWO
def test_a_key_starts_from_the_vector_that_it_had_without_a_row(row_dtype, slot_dtype):
    embedding = layer(row_dtype, slot_dtype)
    before = embedding(KEYS).numpy()
    assert embedding.table.size() == 0
    np.testing.assert_array_equal(embedding(KEYS, training=True), before)
    np.testing.assert_array_equal(embedding(KEYS), before)
    atol = 0.032 if row_dtype == "float8_e4m3" else 0.005  # half a unit of the numbers below 1
    np.testing.assert_allclose(before, layer()(KEYS), atol=atol)


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
    "own formula": lambda: RootMomentum(0.05),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.cover(1)
@TWO
def test_rows_follow_an_optimizer_as_float32_does(row_dtype, slot_dtype, optimizer):
    expected = steps(layer(), OPTIMIZERS[optimizer]())
    found = steps(layer(row_dtype, slot_dtype), OPTIMIZERS[optimizer]())
    assert np.abs(found - layer()(KEYS)).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=0.06)


def test_a_keras_file_gives_the_same_bits(tmp_path):
    for row_dtype, slot_dtype in DTYPES:
        model = keras.Sequential([keras.Input((6,), dtype="int64"), layer(row_dtype, slot_dtype)])
        model.build()
        steps(model.layers[0], "adam", 5)
        model.save(tmp_path / "m.keras")
        loaded = keras.models.load_model(tmp_path / "m.keras").layers[0]
        assert (loaded.row_dtype, loaded.slot_dtype) == (row_dtype, slot_dtype)
        assert sorted_rows(loaded.table) == sorted_rows(model.layers[0].table)
        # Training goes on as it would have done, since the draws count on.
        assert np.array_equal(steps(loaded, "sgd", 3), steps(model.layers[0], "sgd", 3))


def sorted_rows(made):
    """Returns everything in a table, in an order and a form that compares."""
    held = made.export(slots=True)
    order = np.argsort(held.keys)
    names = ("keys", "embeddings", "slots", "update_nums")
    return [getattr(held, name)[order].tolist() for name in names]


@TWO
def test_checkpoints_and_snapshots_load_into_any_type(tmp_path, row_dtype, slot_dtype):
    source = layer(row_dtype, slot_dtype)
    steps(source, "adagrad", 5)
    saved = Checkpoint(table=source.table).save(str(tmp_path / "a"))
    same, wide = table(row_dtype, slot_dtype), table()
    for made in (same, wide):
        Checkpoint(table=made).restore(saved)
        assert sorted_rows(made) == sorted_rows(source.table)
    narrow = table(row_dtype, slot_dtype)
    narrow.restore(wide.snapshot())
    assert sorted_rows(narrow) == sorted_rows(source.table)
    other = table("int8" if row_dtype != "int8" else "float16")
    other.restore(wide.snapshot())
    np.testing.assert_allclose(other.lookup(KEYS), source.table.lookup(KEYS), atol=0.01)


def test_rows_take_fewer_bytes():
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 100_000)
    values = np.zeros([len(keys), 64], np.float32)

    def row_bytes(row_dtype):
        made = Table(64, UNIFORM, row_dtype=row_dtype)
        made.assign(keys, values)
        return made.stats()["row_bytes"] / len(keys)

    counters = 8
    payloads = {"float32": 256, "bfloat16": 128, "float16": 128, "int8": 68, "float8_e4m3": 68}
    for row_dtype, payload in payloads.items():
        assert payload + counters <= row_bytes(row_dtype) <= 1.1 * (payload + counters)


@pytest.mark.parametrize("make", [layer, table], ids=["layer", "table"])
def test_what_rows_cannot_be_is_refused(make):
    with pytest.raises(ValueError, match=r"expected row_dtype to be one of 'float32', .*'int4'"):
        make("int4")
    with pytest.raises(ValueError, match=r"expected slot_dtype to be one of .*'float16'"):
        make("int8", "float16")


def test_a_layer_without_a_hash_table_keeps_its_rows_in_fewer_bytes():
    embedding = All2AllDenseEmbedding(
        100, DIM, 1, 1, use_hashtable=False, optimizer="sgd", row_dtype="int8", seed=1
    )
    config = embedding.get_config()
    assert (config["row_dtype"], config["slot_dtype"]) == ("int8", "float32")
    rows = embedding(np.arange(8).reshape(8, 1, 1)).numpy().reshape(8, DIM)
    scales = np.abs(rows).max(axis=1, keepdims=True) / 127
    np.testing.assert_allclose(rows / scales, np.rint(rows / scales), atol=1e-3)


def test_a_layer_tells_its_types():
    made = DynamicEmbedding.from_config(layer("int8", "bfloat16").get_config())
    assert (made.row_dtype, made.slot_dtype) == ("int8", "bfloat16")
    assert layer().get_config()["row_dtype"] == "float32"


def test_a_collection_keeps_each_table_in_its_type(tmp_path):
    tables = [
        TableConfig("wide", None, DIM, combiner=None, seed=3),
        TableConfig("int8", None, DIM, combiner=None, seed=3, row_dtype="int8"),
        TableConfig("half", 100, DIM, combiner=None, seed=3, row_dtype="float16",
                    slot_dtype="bfloat16"),
    ]  # fmt: skip
    embedding = DistributedEmbedding(
        {table.name: FeatureConfig(table.name, table) for table in tables}
    )
    inputs = {table.name: keras.Input((2,), dtype="int64", name=table.name) for table in tables}
    model = keras.Model(inputs, embedding(inputs))
    model.compile("adam", "mse")
    keys = np.arange(20).reshape(10, 2)
    target = np.full([10, 2, DIM], 0.2, np.float32)
    names = [table.name for table in tables]
    model.fit(dict.fromkeys(names, keys), dict.fromkeys(names, target), epochs=3, verbose=0)
    wide, *others = (embedding.tables[name].lookup(keys) for name in names)
    for values, row_dtype in zip(others, ("int8", "float16"), strict=True):
        assert np.abs(values - wide).max() > 0
        np.testing.assert_allclose(values, wide, atol=0.002)
        np.testing.assert_allclose(of_type(values, row_dtype), values, atol=1e-5)
    model.save(tmp_path / "m.keras")
    (loaded,) = (each for each in keras.models.load_model(tmp_path / "m.keras").layers
                 if isinstance(each, DistributedEmbedding))  # fmt: skip
    for name in names:
        assert sorted_rows(loaded.tables[name]) == sorted_rows(embedding.tables[name])


@pytest.mark.parametrize(("row_dtype", "slot_dtype"), [*DTYPES, ("float32", "float32")])
def test_a_plan_counts_the_bytes_of_the_types(row_dtype, slot_dtype):
    config = TableConfig(
        "t", None, DIM, row_dtype=row_dtype, slot_dtype=slot_dtype, optimizer="adam"
    )
    planned = plan([FeatureConfig("f", config)], workers=1, batch_size=8, rows={"t": 10**6})["t"]
    sizes = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3": 1}
    floats = DIM * sizes[row_dtype] + 2 * DIM * sizes[slot_dtype] + 4 * (sizes[row_dtype] == 1)
    assert planned.row_bytes == floats + 8 + 45
    with pytest.raises(ValueError, match="TableConfig 't': expected row_dtype to be one of"):
        TableConfig("t", None, DIM, row_dtype="float64")


def test_own_rows_of_a_column_are_of_the_type_of_its_option():
    option = fc.EmbeddingVariableOption(row_dtype="bfloat16", slot_dtype="bfloat16")
    assert fc.EmbeddingVariableOption.from_config(option.get_config()) == option
    column = fc.embedding_column(
        fc.categorical_column_with_embedding("k", tf.int64, ev_option=option), DIM, combiner="sum"
    )
    features = fc.DenseFeatures([column])
    model = keras.Sequential([features, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    keys = np.arange(12).reshape(12, 1)
    model.fit({"k": keys}, np.ones([12, 1]), epochs=2, verbose=0)
    (own,) = features.tables.values()
    rows = own.lookup(keys[:, 0])
    assert own.size() == 12
    np.testing.assert_array_equal(of_type(rows, "bfloat16"), rows)


@pytest.mark.cover(1)
@TWO
def test_own_and_static_rows_of_an_adaptive_layer_are_of_the_type(row_dtype, slot_dtype):
    def made(*types):
        return AdaptiveEmbedding(
            DIM, 5, 3, embeddings_initializer=UNIFORM_NAME, seed=3, row_dtype=types[0],
            slot_dtype=types[1],
        )  # fmt: skip

    wide, narrow = made("float32", "float32"), made(row_dtype, slot_dtype)
    assert narrow.get_config()["row_dtype"] == row_dtype
    for embedding in (wide, narrow):
        steps(embedding, keras.optimizers.Adam(0.01), 1)
    table = narrow.table
    before = table.lookup(KEYS)
    assert table.promote(KEYS) > 0
    np.testing.assert_array_equal(table.lookup(KEYS), before)  # as the static row, bit for bit
    np.testing.assert_allclose(before, of_type(before, row_dtype), atol=1e-5)
    for embedding in (wide, narrow):
        steps(embedding, keras.optimizers.Adam(0.01))
    np.testing.assert_allclose(table.lookup(KEYS), wide.table.lookup(KEYS), atol=0.06)
    copy = made(row_dtype, slot_dtype).table
    copy.restore(table.snapshot())
    np.testing.assert_array_equal(copy.lookup(KEYS), table.lookup(KEYS))


def test_a_name_stands_for_a_table_of_one_type():
    tf_ops.table_handle("of one type", DIM, row_dtype="bfloat16")
    with pytest.raises(tf.errors.InvalidArgumentError, match="exists with rows of bfloat16 and"):
        tf_ops.table_handle("of one type", DIM, row_dtype="int8")
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected row_dtype to be one of"):
        tf_ops.anonymous_table("another", DIM, row_dtype="int4")
