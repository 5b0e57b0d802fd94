"""`get_embedding_variable` under the lookups of `tf.nn`, against plain variables of TensorFlow."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
from graph_model import OPTIMIZERS, sparse_value, start, v1

from sok_embed import feature_column as fc

Option = fc.EmbeddingVariableOption
START = start(20, 3)
ROWS = [[1, 2, 2], [], [5], [19, 0], [], [1, 5, 7, 8]]
WEIGHTS = [0.5, 2.0, 1.0, 1.5, 0.25, 1.0, 3.0, 0.25, 0.5, 1.0]
SOME_WEIGHTS = [0.5, -2.0, 1.0, 0.0, 0.25, 1.0, 3.0, -0.25, 0.5, 1.0]


def ours(**arguments):
    option = Option(init_option=fc.InitializerOption(v1.constant_initializer(START), len(START)))
    return fc.get_embedding_variable("ours", START.shape[1], ev_option=option, **arguments)


def trained(make, look_up, optimizer, steps=4):
    """Returns the outputs of some steps, and the variable or the rows after them."""
    with tf.Graph().as_default(), v1.Session() as session:
        table = make()
        output = look_up(table)
        size = tf.cast(tf.size(output), tf.float32)
        target = tf.reshape(tf.sin(tf.range(size)), tf.shape(output))
        step = OPTIMIZERS[optimizer]().minimize(tf.reduce_sum(tf.square(output - target)))
        session.run(v1.global_variables_initializer())
        outputs = [session.run((output, step))[0] for _ in range(steps)]
        if not isinstance(table, fc.EmbeddingVariable):
            return outputs, session.run(table)
        rows = session.run(table.default_values)
        np.testing.assert_array_equal(rows, START)
        exported = session.run(table.export())
        rows[exported.keys] = exported.values
        return outputs, rows


def compare(look_up, optimizer="adagrad", tolerance=1e-6):
    outputs, rows = trained(ours, look_up, optimizer)
    plain = lambda: v1.get_variable("plain", initializer=START, use_resource=True)  # noqa: E731
    expected, expected_rows = trained(plain, look_up, optimizer)
    for got, right in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=0, atol=tolerance)
    np.testing.assert_allclose(rows, expected_rows, rtol=0, atol=tolerance)
    assert np.abs(rows - START).max() > 0.01


def sparse(values=None, dtype=tf.int64):
    found = sparse_value(ROWS)
    values = tf.constant(found.values, dtype) if values is None else tf.constant(values)
    return tf.SparseTensor(found.indices, values, found.dense_shape)


@pytest.mark.cover(4)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("nn", [tf.nn, v1.nn], ids=["v2", "v1"])
def test_embedding_lookup_with_each_optimizer(optimizer, nn):
    ids = [[3, 4, 3], [19, 0, 4]]
    compare(lambda table: nn.embedding_lookup(table, tf.constant(ids, tf.int64)), optimizer)


@pytest.mark.parametrize("key_dtype", [tf.int32, tf.int64])
def test_ids_of_both_widths_and_a_longest_norm(key_dtype):
    def look_up(table):
        return tf.nn.embedding_lookup(table, tf.constant([3, 4, 3], key_dtype), max_norm=0.5)

    compare(look_up)


def test_ragged_ids():
    ids = [[3, 4], [], [3]]
    compare(
        lambda table: tf.nn.embedding_lookup(table, tf.ragged.constant(ids, tf.int64)).flat_values
    )


def test_gather_reads_rows():
    compare(lambda table: tf.gather(table, tf.constant([[3], [4]], tf.int64)))


@pytest.mark.cover("values")
@pytest.mark.parametrize("combiner", ["mean", "sqrtn", "sum", None])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("nn", [tf.nn, v1.nn], ids=["v2", "v1"])
def test_embedding_lookup_sparse(combiner, weights, nn):
    def look_up(table):
        given = None if weights is None else sparse(weights)
        return nn.embedding_lookup_sparse(
            table, sparse(), given, combiner=combiner, max_norm=1.0 if weights is None else None
        )

    compare(look_up)


@pytest.mark.cover("values")
@pytest.mark.parametrize("combiner", ["mean", "sqrtn", "sum"])
@pytest.mark.parametrize("weights", [None, SOME_WEIGHTS], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("default_id", [None, 0, 7])
@pytest.mark.parametrize("nn", [tf.nn, v1.nn], ids=["v2", "v1"])
def test_safe_embedding_lookup_sparse(combiner, weights, default_id, nn):
    def look_up(table):
        given = None if weights is None else sparse(weights)
        return nn.safe_embedding_lookup_sparse(
            table, sparse(), given, combiner=combiner, default_id=default_id
        )

    # A sum of few weights near 0 divides by little.
    compare(look_up, tolerance=1e-5)


@pytest.mark.parametrize("lookup", ["embedding_lookup_sparse", "safe_embedding_lookup_sparse"])
def test_weights_at_other_places_than_ids_are_refused(lookup):
    with tf.Graph().as_default(), v1.Session() as session:
        ids = tf.SparseTensor([[0, 0], [1, 0]], tf.constant([3, 4], tf.int64), [2, 2])
        places = v1.placeholder(tf.int64, [2, 2])
        output = getattr(tf.nn, lookup)(ours(), ids, tf.SparseTensor(places, [1.0, 2.0], [2, 2]))
        session.run(v1.global_variables_initializer())
        session.run(output, {places: [[0, 0], [1, 0]]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="weights with the indices of"):
            session.run(output, {places: [[0, 0], [0, 1]]})


def test_a_safe_lookup_leaves_negative_ids_out():
    def look_up(table):
        ids = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([3, -1, -5], tf.int64), [3, 2])
        return tf.nn.safe_embedding_lookup_sparse(table, ids)

    compare(look_up)
    with tf.Graph().as_default(), v1.Session() as session:
        table = ours()
        output = look_up(table)
        session.run(v1.global_variables_initializer())
        session.run(output)
        np.testing.assert_array_equal(session.run(table.export().keys), [3])


def test_a_sparse_lookup_of_unknown_rank_has_no_row_for_examples_at_the_end():
    def look_up(table):
        places = v1.placeholder_with_default([[0, 0], [2, 0]], [None, None])
        ids = tf.SparseTensor(
            tf.cast(places, tf.int64),
            tf.constant([3, 4], tf.int64),
            v1.placeholder_with_default(tf.constant([5, 1], tf.int64), [None]),
        )
        return tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")

    compare(look_up)


def test_lookups_of_the_parts_of_a_partitioned_variable():
    partitioner = v1.fixed_size_partitioner(4)

    def look_up(table):
        if isinstance(table, fc.EmbeddingVariable):
            table = list(table)
        return tf.nn.embedding_lookup(table, tf.constant([3, 4, 3], tf.int64))

    outputs, rows = trained(lambda: ours(partitioner=partitioner), look_up, "adagrad")
    expected, expected_rows = trained(ours, look_up, "adagrad")
    np.testing.assert_array_equal(outputs, expected)
    np.testing.assert_array_equal(rows, expected_rows)


def test_a_partitioner_of_the_scope_and_several_tables_in_a_graph():
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("a", partitioner=v1.fixed_size_partitioner(3)):
            first = fc.get_embedding_variable("items", 2, initializer=[1.0, 2.0])
        second = fc.get_embedding_variable("items", 4, initializer=tf.zeros_initializer)
        ids = tf.constant([5], tf.int64)
        outputs = [tf.nn.embedding_lookup(table, ids) for table in (first, second)]
        session.run(v1.global_variables_initializer())
        rows = session.run(outputs)
        assert (first.name, second.name) == ("a/items", "items")
    np.testing.assert_array_equal(rows[0], [[1, 2]])
    np.testing.assert_array_equal(rows[1], [[0, 0, 0, 0]])
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="one embedding variable. Received: 2"):
            tf.nn.embedding_lookup([first, second], ids)


def test_any_key_gets_a_row_that_starts_from_the_vector_of_its_remainder():
    keys = np.array([0, -1, 2**63 - 1, -(2**63), 4096, 5], np.int64)
    with tf.Graph().as_default(), v1.Session() as session:
        table = fc.get_embedding_variable("t", 4, initializer=v1.random_normal_initializer(seed=3))
        output = tf.nn.embedding_lookup(table, keys)
        count = table.total_count()
        session.run(v1.global_variables_initializer())
        assert table.default_values.shape == (4096, 4)
        vectors = session.run(table.default_values)
        np.testing.assert_array_equal(session.run(output), vectors[keys % 4096])
        np.testing.assert_array_equal(session.run(count), [6, 4])
    assert len(np.unique(vectors[:, 0])) > 4000


def test_without_an_initializer_rows_start_from_a_truncated_normal():
    with tf.Graph().as_default(), v1.Session() as session:
        table = fc.get_embedding_variable("t", 16)
        session.run(v1.global_variables_initializer())
        vectors = session.run(table.default_values)
    assert np.abs(vectors).max() <= 2
    assert 0.8 < vectors.std() < 0.95  # of a normal cut at two standard deviations: 0.88


def test_strings_are_keys_too():
    with tf.Graph().as_default(), v1.Session() as session:
        table = fc.get_embedding_variable("t", 2, tf.string, initializer=tf.ones_initializer())
        output = tf.nn.embedding_lookup(table, tf.constant(["a", "b", "a"]))
        session.run(v1.global_variables_initializer())
        assert session.run(output).shape == (3, 2)
        (keys, _) = session.run(table.export())
    expected = tf.strings.to_hash_bucket_fast(["a", "b"], 2**63 - 1).numpy()
    np.testing.assert_array_equal(np.sort(keys), np.sort(expected))


@pytest.mark.parametrize(("given", "value"), [(None, 0.0), (0.5, 0.5)])
def test_an_id_that_a_filter_holds_back_reads_the_default_and_trains_nothing(given, value):
    option = Option(
        filter_option=fc.CounterFilter(3),
        init_option=fc.InitializerOption(tf.ones_initializer(), 7, given),
    )
    with tf.Graph().as_default(), v1.Session() as session:
        table = fc.get_embedding_variable("t", 2, ev_option=option)
        ids = v1.placeholder(tf.int64, [None])
        output = tf.nn.embedding_lookup(table, ids)
        step = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(output))
        session.run(v1.global_variables_initializer())
        seen = [session.run((output, step), {ids: [9]})[0][0, 0] for _ in range(4)]
        keys = session.run(table.export().keys)
    assert seen == [value, value, 1, 0]
    np.testing.assert_array_equal(keys, [9])


def test_rows_that_were_not_updated_go_and_begin_anew():
    with tf.Graph().as_default(), v1.Session() as session:
        table = fc.get_embedding_variable(
            "t", 2, initializer=tf.ones_initializer(), steps_to_live=2
        )
        ids = v1.placeholder(tf.int64, [None])
        output = tf.nn.embedding_lookup(table, ids)
        step = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(output))
        session.run(v1.global_variables_initializer())
        session.run(step, {ids: [8]})
        for _ in range(4):
            session.run(step, {ids: [9]})
        np.testing.assert_array_equal(session.run(table.export().keys), [9])
        np.testing.assert_array_equal(session.run(output, {ids: [8, 9]}), [[1, 1], [-3, -3]])


def test_a_saver_carries_rows_slots_and_what_rows_start_from(tmp_path):
    def graph():
        table = fc.get_embedding_variable("t", 3, initializer=v1.random_normal_initializer())
        ids = v1.placeholder(tf.int64, [None])
        output = tf.nn.embedding_lookup(table, ids)
        optimizer = v1.train.AdagradOptimizer(0.1)
        step = optimizer.minimize(tf.reduce_sum(tf.square(output - 1)))
        return table, ids, output, step, v1.train.Saver()

    def further(session, ids, output, step):
        for batch in ([1, 2], [2, 9], [1, 9, -4]):
            session.run(step, {ids: batch})
        return session.run(output, {ids: [1, 2, 9, -4, 100]})

    with tf.Graph().as_default(), v1.Session() as session:
        _, ids, output, step, saver = graph()
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(step, {ids: [1, 2, 3]})
        path = saver.save(session, str(tmp_path / "model"))
        expected = further(session, ids, output, step)
    with tf.Graph().as_default(), v1.Session() as session:
        table, ids, output, step, saver = graph()
        saver.restore(session, path)
        np.testing.assert_array_equal(np.sort(session.run(table.export().keys)), [1, 2, 3])
        np.testing.assert_array_equal(further(session, ids, output, step), expected)


def test_rows_on_disk_stay_in_their_folder(tmp_path):
    storage = fc.StorageOption(fc.StorageType.SSDHASH, str(tmp_path))
    with tf.Graph().as_default(), v1.Session() as session:
        table = fc.get_embedding_variable(
            "t",
            2,
            initializer=tf.ones_initializer(),
            ev_option=Option(storage_option=storage),
            partitioner=v1.fixed_size_partitioner(2),
        )
        output = tf.nn.embedding_lookup(table, tf.constant([7], tf.int64))
        step = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(output))
        session.run(v1.global_variables_initializer())
        session.run(step)
        np.testing.assert_array_equal(session.run(output), [[0, 0]])
    assert [path.name for path in tmp_path.iterdir()] == ["t_embedding_weights"]


def test_the_same_name_with_reuse_is_the_same_rows():
    with tf.Graph().as_default(), v1.Session() as session:

        def look_up(key):
            with v1.variable_scope("tower", reuse=v1.AUTO_REUSE):
                table = fc.get_embedding_variable("t", 2, initializer=tf.ones_initializer())
            return table, tf.nn.embedding_lookup(table, tf.constant([key], tf.int64))

        (table, one), (again, other) = look_up(3), look_up(4)
        assert table.anchor is again.anchor
        assert len(v1.trainable_variables()) == 1
        step = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(one + 2 * other))
        session.run(v1.global_variables_initializer())
        session.run(step)
        keys, rows = session.run(table.export())
        assert dict(zip(keys, rows[:, 0], strict=True)) == {3: 0, 4: -1}
        assert sorted(fc.own_rows("tower/t", session)[0]) == [3, 4]
        with pytest.raises(ValueError, match="already exists"):
            fc.get_embedding_variable("tower/t", 2)
        with v1.variable_scope("tower", reuse=True), pytest.raises(ValueError, match="options of"):
            fc.get_embedding_variable("t", 2, tf.string)


def test_a_frozen_variable_makes_no_rows():
    with tf.Graph().as_default(), v1.Session() as session:
        table = fc.get_embedding_variable(
            "t", 2, initializer=tf.ones_initializer(), trainable=False
        )
        output = tf.nn.embedding_lookup(table, tf.constant([7], tf.int64))
        session.run(v1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(output), [[1, 1]])
        assert session.run(table.total_count())[0] == 0
        assert v1.trainable_variables() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embedding_dim": 0}, "embedding_dim of embedding variable 't'.*Received: 0"),
        ({"key_dtype": tf.float32}, "must be string or integer"),
        ({"value_dtype": tf.float16}, "value_dtype to be tf.float32. Received: float16. Cast"),
        ({"initializer": [1.0, 2.0, 3.0]}, r"a vector of 2. Received: an array of shape \(3,\)"),
        ({"regularizer": tf.nn.l2_loss}, "^Embedding variable 't'.*no regularizer.*Leave it out"),
        ({"caching_device": "/cpu:0"}, "no caching_device.*Leave it out"),
        ({"custom_getter": len}, "no custom_getter"),
        ({"constraint": len}, "no constraint"),
        ({"init_data_source": "f"}, "no init_data_source"),
        ({"partitioner": 4}, "partitioner to be a function.*Received: 4"),
        ({"ev_option": 4}, "ev_option to be an EmbeddingVariableOption. Received: 4"),
        (
            {"steps_to_live": 5, "ev_option": Option(fc.GlobalStepEvict(4))},
            "steps_to_live or an evict_option. Received: both, 5",
        ),
    ],
)
def test_an_argument_that_has_no_meaning_is_an_error(arguments, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        fc.get_embedding_variable("t", **{"embedding_dim": 2, **arguments})


def test_a_regularizer_of_the_scope_can_be_overruled():
    with tf.Graph().as_default(), v1.variable_scope("m", regularizer=tf.nn.l2_loss):
        message = "^Embedding variable 't'.*from a scope. Pass tf.compat.v1.no_regularizer"
        with pytest.raises(ValueError, match=message):
            fc.get_embedding_variable("t", 2)
        fc.get_embedding_variable("t", 2, regularizer=v1.no_regularizer)


def test_where_it_cannot_be_is_an_error():
    with pytest.raises(ValueError, match="in a TF1 graph.*sok_embed.DynamicEmbedding"):
        fc.get_embedding_variable("t", 2)
    with tf.Graph().as_default():
        table = fc.get_embedding_variable("t", 2)
        one = tf.constant([1], tf.int64)
        with pytest.raises(ValueError, match="lookups outside of tf.cond"):
            tf.cond(
                tf.constant(True),
                lambda: tf.nn.embedding_lookup(table, one),
                lambda: tf.zeros([1, 2]),
            )
        with pytest.raises(ValueError, match="ids of int64. Received: float32. Cast"):
            tf.nn.embedding_lookup(table, tf.constant([1.0]))
        with pytest.raises(ValueError, match="ids of int64.*Received: string"):
            tf.nn.embedding_lookup(table, tf.constant(["a"]))
        with pytest.raises(TypeError, match="ids to be a SparseTensor"):
            tf.nn.embedding_lookup_sparse(table, one, None)


def test_its_arguments_come_in_deeprecs_order():
    names = [
        "name",
        "embedding_dim",
        "key_dtype",
        "value_dtype",
        "initializer",
        "regularizer",
        "trainable",
        "collections",
        "caching_device",
        "partitioner",
        "validate_shape",
        "custom_getter",
        "constraint",
        "steps_to_live",
        "init_data_source",
        "ev_option",
    ]
    assert list(inspect.signature(fc.get_embedding_variable).parameters) == names
