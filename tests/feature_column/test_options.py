"""DeepRec's options do what the core does for them, and are refused where they mean nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_model import GraphModel, bucket_of, start, v1

from sok_embed import feature_column as fc
from sok_embed.admission import CountingBloomAdmission, FrequencyAdmission

STATIC = start(4, 3)
Option = fc.EmbeddingVariableOption


@pytest.mark.parametrize("filter_freq", [0, 1])
def test_a_filter_of_at_most_one_is_none(filter_freq):
    assert fc.CounterFilter(filter_freq).admission() is None


def test_filters_are_admissions():
    assert fc.CounterFilter(7).admission() == FrequencyAdmission(7)
    bloom = fc.CBFFilter(7, 1000, 0.02, tf.uint8)
    assert bloom.admission() == CountingBloomAdmission(7, 1000, 0.02, 8)
    assert fc.CBFFilter(300, 1000, 0.02).admission().counter_bits == 16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: fc.CounterFilter(-1),
            "CounterFilter's filter_freq.*in \\[0, 4294967296\\). Received: -1",
        ),
        (lambda: fc.CounterFilter(1.5), "CounterFilter's filter_freq.*Received: 1.5"),
        (lambda: fc.CounterFilter(2**32), "CounterFilter's filter_freq.*, 4294967296"),
        (lambda: fc.CBFFilter(0, 10, 0.1), "CBFFilter's filter_freq.*a positive integer"),
        (lambda: fc.CBFFilter(3, 0, 0.1), "CBFFilter's max_element_size.*a positive integer"),
        (lambda: fc.CBFFilter(3, 10), r"false_positive_probability in \(0, 1\). Received: -1.0"),
        (lambda: fc.CBFFilter(256, 10, 0.1, tf.uint8), "below 256. Received: 256"),
        (lambda: fc.CBFFilter(3, 10, 0.1, tf.int32), "counter_type.*Received: int32"),
        (lambda: fc.GlobalStepEvict(), "steps_to_live.*Received: None"),
        (lambda: fc.GlobalStepEvict(0), "steps_to_live.*Received: 0"),
        (lambda: fc.L2WeightEvict(), "l2_weight_threshold above 0. Received: -1.0"),
        (lambda: fc.L2WeightEvict(0.1, every=0), "every.*a positive integer. Received: 0"),
        (lambda: fc.StorageOption(fc.StorageType.HBM), "Received: HBM. Rows live in memory"),
        (lambda: fc.StorageOption(fc.StorageType.PMEM_LIBPMEM), "Received: PMEM_LIBPMEM"),
        (lambda: fc.StorageOption(fc.StorageType.SSDHASH), "a storage_path with SSDHASH"),
        (lambda: fc.StorageOption(fc.StorageType.DRAM, "rows"), "no storage_path.*with DRAM"),
        (lambda: fc.StorageOption(storage_size=[1]), "no storage_path and no storage_size"),
        (lambda: fc.StorageOption(cache_strategy="LFU"), "no cache_strategy.*no meaning"),
        (lambda: fc.StorageOption(layout="x"), "no layout.*no meaning"),
        (lambda: fc.StorageOption("DRAM"), "storage_type to be a StorageType"),
        (lambda: Option(row_dtype="half"), "expected row_dtype to be one of .*Received: 'half'"),
        (lambda: fc.InitializerOption(default_value_dim=0), "default_value_dim.*Received: 0"),
        (
            lambda: fc.InitializerOption(default_value_no_permission=float("nan")),
            "default_value_no_permission to be a finite number. Received: nan",
        ),
        (lambda: fc.InitializerOption(3.0), "a callable initializer. Received: 3.0"),
        (lambda: Option(filter_option=fc.GlobalStepEvict(3)), "filter_option to be None or one of"),
        (
            lambda: Option(fc.GlobalStepEvict(3), None, fc.StorageOption(storage_path="rows")),
            "no GlobalStepEvict with a storage_option on disk.*Use L2WeightEvict",
        ),
        (
            lambda: fc.StorageOption(storage_path="rows", storage_size=-1),
            "StorageOption's storage_size.*Received: -1",
        ),
        (
            lambda: fc.StorageOption(storage_path="rows", storage_size=[2**20, 1.5]),
            "StorageOption's storage_size.*Received: 1.5",
        ),
        (lambda: Option(evict_option=3), "evict_option.*GlobalStepEvict, L2WeightEvict.*3"),
    ],
)
def test_what_has_no_meaning_is_an_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hash_bucket_size": 0}, "hash_bucket_size of column 'c'.*Received: 0"),
        ({"hash_bucket_size": None}, "hash_bucket_size of column 'c'.*Received: None"),
        ({"partition_num": 0}, "partition_num of column 'c'.*Received: 0"),
        ({"dtype": tf.float32}, "dtype must be string or integer"),
        ({"ev_option": 3}, "Column 'c': expected ev_option to be"),
        ({"slots": "new"}, "'copy' or 'zero'. Received: 'new'"),
        ({"demote_blend": 0.5}, "an evict_option with demote_blend=0.5"),
        ({"demote_blend": 2.0}, r"demote_blend in \[0, 1\]"),
        (
            {"demote_blend": 0.5, "ev_option": Option(fc.GlobalStepEvict(3)), "dtype": tf.string},
            "demote_blend=0 with string",
        ),
        (
            {
                "partition_num": 2,
                "ev_option": Option(
                    storage_option=fc.StorageOption(fc.StorageType.SSDHASH, "rows")
                ),
            },
            "no partition_num with rows on disk",
        ),
        (
            {"ev_option": Option(init_option=fc.InitializerOption(None, default_value_dim=8))},
            "no default_value_dim.*no meaning for adaptive columns.*Received: 8",
        ),
        (
            {
                "ev_option": Option(
                    init_option=fc.InitializerOption(None, default_value_no_permission=0.0)
                )
            },
            "no default_value_no_permission.*Received: 0.0",
        ),
    ],
)
def test_arguments_of_the_column(arguments, message):
    arguments = {"hash_bucket_size": 4, "dtype": tf.int64, **arguments}
    with pytest.raises(ValueError, match=message):
        fc.categorical_column_with_adaptive_embedding("c", **arguments)


@pytest.mark.parametrize("combiner", ["max", None])
def test_an_unknown_combiner(combiner):
    column = fc.categorical_column_with_adaptive_embedding("c", 4)
    with pytest.raises(ValueError, match="combiner to be 'mean', 'sqrtn' or 'sum'"):
        fc.embedding_column(column, 3, combiner)


def test_an_initializer_of_either_place_but_not_of_both():
    def column(initializer):
        option = Option(init_option=fc.InitializerOption(initializer))
        return fc.categorical_column_with_adaptive_embedding("c", 4, ev_option=option)

    ones, zeros = tf.ones_initializer(), tf.zeros_initializer()
    assert fc.embedding_column(column(ones), 3).initializer is ones
    assert fc.embedding_column(column(None), 3, initializer=zeros).initializer is zeros
    assert fc.embedding_column(column(zeros), 3, initializer=zeros).initializer is zeros
    fc.embedding_column(
        column(v1.constant_initializer(2.0)), 3, initializer=v1.constant_initializer(2.0)
    )
    with pytest.raises(ValueError, match="Column 'c': expected one initializer. Received"):
        fc.embedding_column(column(ones), 3, initializer=zeros)
    layer = fc.DenseFeatures([fc.embedding_column(column(ones), 3)])
    np.testing.assert_array_equal(layer.static_rows("c_embedding"), np.ones([4, 3]))


def test_shared_columns_that_differ():
    first = fc.categorical_column_with_adaptive_embedding("a", 4, tf.int64)
    for other in (
        fc.categorical_column_with_adaptive_embedding("b", 4, tf.string),
        fc.categorical_column_with_adaptive_embedding("b", 4, tf.int64, slots="zero"),
    ):
        with pytest.raises(ValueError, match="differ in their key only"):
            fc.shared_embedding_columns([first, other], 3)
    more = fc.categorical_column_with_adaptive_embedding("b", 5, tf.int64)
    with pytest.raises(ValueError):
        fc.shared_embedding_columns([first, more], 3)


def test_rows_go_some_steps_after_their_last_update():
    option = Option(evict_option=fc.GlobalStepEvict(3))
    model = GraphModel(STATIC, "sgd", column={"ev_option": option})
    model.train([[1], [2]], 1)
    sizes = []
    for _ in range(6):
        model.train([[2]], 1)
        sizes.append(set(model.own_rows()))
    assert sizes[0] == {1, 2} and sizes[-1] == {2}
    # The id is back at its static row.
    np.testing.assert_array_equal(model.embed([[1]], 0)[0], STATIC[bucket_of(1, 4)])


def test_rows_of_nearly_zero_go():
    option = Option(evict_option=fc.L2WeightEvict(0.5, every=1))
    model = GraphModel(np.zeros([4, 3], np.float32), "sgd", column={"ev_option": option})
    model.train([[1], [2], [3]], 1)
    # Targets are sin(0 … 8), and the rate is 0.1: only they move rows away from zero.
    moved = {i + 1: 0.2 * np.sin(np.arange(3 * i, 3 * i + 3)) for i in range(3)}
    assert set(model.own_rows()) == {i for i, row in moved.items() if np.linalg.norm(row) >= 0.5}
    for _ in range(3):
        model.train([[1], [2], [3]], 1)


@pytest.mark.parametrize("blend", [0.25, 1.0])
def test_a_row_that_goes_moves_its_static_row(blend):
    option = Option(evict_option=fc.L2WeightEvict(1e9, every=1))
    model = GraphModel(STATIC, "sgd", column={"ev_option": option, "demote_blend": blend})
    rows = [[1], [2], [3], [4], [5]]
    output = model.train(rows, 1)
    assert model.own_rows() == {}
    target = np.sin(np.arange(15)).reshape(5, 3)
    stepped = output - 0.1 * 2 * (output - target)
    expected = STATIC.astype(np.float64)
    for bucket in range(4):
        inside = [i for i in range(5) if bucket_of(i + 1, 4) == bucket]
        if inside:
            share = 1 - (1 - blend) ** len(inside)
            expected[bucket] += share * (stepped[inside].mean(0) - STATIC[bucket])
    np.testing.assert_allclose(model.static_rows(), expected, rtol=0, atol=1e-6)
    assert np.abs(expected - STATIC).max() > 0.01


def test_a_row_that_goes_moves_its_static_row_under_fit():
    option = Option(evict_option=fc.GlobalStepEvict(1))
    column = fc.categorical_column_with_adaptive_embedding(
        "c", 4, tf.int64, ev_option=option, demote_blend=1.0
    )
    dense = fc.embedding_column(column, 3, initializer=v1.constant_initializer(STATIC))
    layer = fc.DenseFeatures([dense])
    inputs = {"c": keras.Input((1,), dtype="int64"), "mask": keras.Input((1,), dtype="int32")}
    outputs = keras.layers.Dense(1)(layer({"c": inputs["c"]}, {"c": inputs["mask"]}))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), "mse")

    def step(key):
        one = np.array([[1]], np.int32)
        model.train_on_batch({"c": np.array([[key]]), "mask": one}, np.array([[1.0]]))

    step(1)
    keys, rows = layer.tables["c_embedding"].export()
    assert keys == [1]
    others = [key for key in range(2, 30) if bucket_of(key, 4) != bucket_of(1, 4)]
    for key in others[:3]:
        step(key)
    assert 1 not in layer.tables["c_embedding"].export()[0]
    got = layer.static_rows("c_embedding").numpy()[bucket_of(1, 4)]
    np.testing.assert_allclose(got, rows[0], rtol=0, atol=1e-6)
    assert np.abs(got - STATIC[bucket_of(1, 4)]).max() > 1e-3


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    ("kind", "types"),
    [
        (fc.StorageType.SSDHASH, {}),
        (fc.StorageType.DRAM_LEVELDB, {}),
        (fc.StorageType.SSDHASH, {"row_dtype": "int8", "slot_dtype": "bfloat16"}),
    ],
)
def test_rows_on_disk_in_a_graph(tmp_path, kind, types):
    def make():
        storage = fc.StorageOption(kind, str(tmp_path / "rows"), storage_size=[1 << 22])
        option = Option(storage_option=storage, **types)
        return GraphModel(STATIC, "adagrad", column={"ev_option": option})

    model = make()
    for _ in range(3):
        model.train([[1], [2], [3]], [1, 0, 1])
    rows, path = model.own_rows(), model.save(tmp_path / "model")
    assert set(rows) == {1, 3}
    static = model.static_rows()
    folders = list((tmp_path / "rows").iterdir())
    assert [f.name for f in folders] == ["input_layer_c_embedding_embedding_weights"]
    close(model)
    other = make()
    other.restore(path)
    assert set(other.own_rows()) == {1, 3}
    for key, row in rows.items():
        np.testing.assert_array_equal(other.own_rows()[key], row)
    np.testing.assert_array_equal(other.train([[2]], 1)[0], static[bucket_of(2, 4)])
    close(other)


def test_another_rule_takes_over_rows_on_disk_only_with_leave(tmp_path):
    def make(optimizer, **leave):
        storage = fc.StorageOption(storage_path=str(tmp_path / "rows"), **leave)
        option = Option(storage_option=storage)
        return GraphModel(STATIC, optimizer, column={"ev_option": option})

    model = make("adagrad")
    model.train([[1], [2]], 1)
    close(model)
    model = make("adam")
    with pytest.raises(tf.errors.FailedPreconditionError, match="'adagrad'.*'adam'.*reset_slots"):
        model.train([[1], [2]], 1)
    close(model)
    model = make("adam", reset_slots=True)
    model.train([[1], [2]], 1)
    assert set(model.own_rows()) == {1, 2}
    close(model)


def close(model):
    from sok_embed.feature_column import graph_state

    model.session.close()
    with model.graph.as_default():
        for embedding in graph_state._embeddings():
            embedding.table.storage.close()


def test_rows_on_disk_of_a_layer(tmp_path):
    storage = fc.StorageOption(storage_path=str(tmp_path / "rows"))
    column = fc.categorical_column_with_adaptive_embedding(
        "c", 4, tf.int64, ev_option=Option(storage_option=storage)
    )
    layer = fc.DenseFeatures([fc.embedding_column(column, 3)], name="features")
    layer({"c": np.array([[1], [2]])}, {"c": [[1], [0]]}, training=True)
    table = layer.tables["c_embedding"]
    assert [f.name for f in (tmp_path / "rows").iterdir()] == ["features.c_embedding"]
    assert table.export()[0] == [1]
    again = fc.DenseFeatures([fc.embedding_column(column, 3)], name="other")
    assert again.tables["c_embedding"].size() == 0
    table.storage.close()
    again.tables["c_embedding"].storage.close()


def test_options_survive_a_config():
    option = Option(
        fc.L2WeightEvict(0.5, every=7),
        fc.CBFFilter(3, 1000, 0.01, tf.uint8),
        fc.StorageOption(fc.StorageType.DRAM_SSDHASH, "rows", [1, 2], reset_slots=True),
        fc.InitializerOption(v1.constant_initializer(2.0)),
    )
    again = Option.from_config(option.get_config())
    assert again.get_config() == option.get_config()
    assert (again.evict_option, again.filter_option) == (option.evict_option, option.filter_option)
    # The leave to reset slots is for the process that was given it.
    assert again.storage_option == fc.StorageOption(
        fc.StorageType.DRAM_SSDHASH, "rows", [1, 2], reset_slots=False
    )
    steps = Option(fc.GlobalStepEvict(100))
    assert Option.from_config(steps.get_config()) == steps
