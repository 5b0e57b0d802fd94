"""A variable of TFRA's names holds rows by key."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import eviction, kv, tfra

de = tfra.dynamic_embedding


def ids(*keys):
    return tf.constant(keys, tf.int64)


def test_rows_are_put_read_counted_and_removed():
    variable = de.get_variable("rows", dim=2, initializer=-1.0)
    variable.upsert(ids(7, -3), tf.constant([[1.0, 2.0], [3.0, 4.0]]))
    vectors, exist = variable.lookup(ids(-3, 8), return_exists=True)
    assert vectors.numpy().tolist() == [[3, 4], [-1, -1]]
    assert exist.numpy().tolist() == [True, False]
    assert int(variable.size()) == 2
    assert int(variable.remove(ids(7, 99))) == 1
    keys, values = variable.export()
    assert (keys.numpy().tolist(), values.numpy().tolist()) == ([-3], [[3, 4]])
    variable.clear()
    assert int(variable.size()) == 0


def test_all_methods_run_in_functions():
    variable = de.get_variable("traced", dim=1)

    @tf.function
    def step(keys):
        variable.upsert(keys, tf.ones([2, 1]))
        variable.remove(keys[:1])
        return variable.size(), variable.lookup(keys, return_exists=True), variable.export()

    size, (vectors, exist), (keys, _) = step(ids(1, 2))
    assert (int(size), keys.numpy().tolist()) == (1, [2])
    assert (vectors.numpy().tolist(), exist.numpy().tolist()) == ([[0], [1]], [False, True])


def test_accum_adds_differences_to_rows_that_are_as_they_were_said_to_be():
    variable = de.get_variable("accumulated", dim=1)
    variable.upsert(ids(1, 2), [[10.0], [20.0]])
    ones = tf.ones([4, 1])
    variable.accum(ids(1, 2, 3, 4), ones, 4 * ones, [True, False, True, False])
    assert variable.lookup(ids(1, 2, 3, 4)).numpy().ravel().tolist() == [13, 20, 0, 4]


@pytest.mark.parametrize(
    ("initializer", "value"),
    [
        (None, 0.0),
        (2.5, 2.5),
        (np.full(3, -1.0), -1.0),
        (keras.initializers.Ones(), 1.0),
        (tf.ones_initializer(), 1.0),
        (tf.compat.v1.constant_initializer(4.0), 4.0),
    ],
)
def test_rows_start_as_the_initializer_says(initializer, value):
    variable = de.get_variable("started", dim=3, initializer=initializer)
    assert (variable.lookup(ids(5)).numpy() == value).all()


def test_a_normal_initializer_of_tensorflow_keeps_its_numbers():
    variable = de.get_variable(
        "normal", dim=64, initializer=tf.random_normal_initializer(3.0, 0.5, seed=1)
    )
    values = variable.lookup(tf.range(500, dtype=tf.int64)).numpy()
    assert abs(values.mean() - 3.0) < 0.02
    assert abs(values.std() - 0.5) < 0.02


def test_other_dtypes_of_keys_and_values():
    halves = de.get_variable("halves", tf.int32, tf.float16, 2, initializer=1.0)
    assert halves.lookup(tf.constant([1])).dtype == tf.float16
    words = de.get_variable("words", key_dtype=tf.string, dim=1)
    words.upsert(tf.constant(["a"]), [[5.0]])
    assert words.lookup(tf.constant(["a", "b"])).numpy().tolist() == [[5], [0]]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"value_dtype": tf.int64}, TypeError, "MutableHashTable"),
        ({"key_dtype": tf.float32}, TypeError, "int64, int32 or string"),
        ({"checkpoint": False}, ValueError, "checkpoint=True"),
        ({"initializer": [1.0, 2.0]}, ValueError, "upsert"),
        ({"kv_creator": object()}, TypeError, "CuckooHashTableCreator"),
        ({"restrict_policy": de.RestrictPolicy}, ValueError, "FrequencyRestrictPolicy"),
        ({"capacity": 3}, ValueError, "capacity"),
    ],
)
def test_what_a_table_cannot_have_is_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        de.Variable(dim=2, **arguments)


def test_creators_and_savers():
    config = de.HkvHashTableConfig(max_capacity=3, evict_strategy=de.HkvEvictStrategy.LFU)
    creator = de.HkvHashTableCreator(config, saver=de.FileSystemSaver())
    variable = de.Variable(dim=1, kv_creator=creator)
    assert variable.max_rows == 3
    assert variable.eviction == eviction.LeastFrequentlyUsed()
    with pytest.raises(ValueError, match="MaxAge"):
        de.HkvHashTableConfig(evict_strategy=de.HkvEvictStrategy.EPOCHLRU)
    with pytest.raises(ValueError, match="save_to_file_system"):
        de.FileSystemSaver(save_path="there")
    for redis in (de.RedisTableConfig, de.RedisTableCreator):
        with pytest.raises(ValueError, match=r"kv\.Storage"):
            redis()


def test_the_rows_that_were_trained_least_go_first():
    variable = de.Variable(dim=1, restrict_policy=de.FrequencyRestrictPolicy)
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))
    for keys in (ids(1, 2, 3), ids(2, 3), ids(3)):
        with tf.GradientTape() as tape:
            vectors, weight = de.embedding_lookup(variable, keys, name="a", return_trainable=True)
            loss = tf.reduce_sum(vectors)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    assert variable.restrict(2, trigger=3) == 0
    assert variable.restrict(2) == 1
    assert sorted(variable.export()[0].numpy()) == [2, 3]
    with pytest.raises(ValueError, match="restrict_policy"):
        de.Variable(dim=1).restrict(1)


def test_files_of_keys_and_values_come_back(tmp_path):
    variable = de.get_variable("scope/kept", dim=3)
    variable.upsert(ids(5, 2**62), tf.reshape(tf.range(6.0), [2, 3]))
    variable.save_to_file_system(tmp_path)
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {f"scope_kept_mht_1of1_rank0_size1-{part}" for part in ("keys", "values")}
    other = de.get_variable("scope/kept", dim=3)
    other.load_from_file_system(tmp_path)
    assert other.lookup(ids(2**62, 5)).numpy().tolist() == [[3, 4, 5], [0, 1, 2]]
    for wrong in (de.get_variable("other", dim=3), de.get_variable("scope/kept", dim=2)):
        with pytest.raises((ValueError, kv.CorruptionError), match="scope_kept"):
            wrong.load_from_file_system(tmp_path)
    with pytest.raises(ValueError, match=r"sok_embed\.init"):
        other.save_to_file_system(tmp_path, proc_size=2, proc_rank=1)


def test_each_worker_has_its_own_rows(first_of_two, tmp_path):
    variable = de.get_variable("shared", dim=1)
    variable.upsert(ids(1, 2, 3, -4), [[1.0], [2.0], [3.0], [-4.0]])
    variable.remove(ids(2, 3))
    assert variable.export()[0].numpy().tolist() == [-4]
    variable.save_to_file_system(tmp_path)
    assert len([*tmp_path.glob("shared_mht_1of1_rank0_size2-*")]) == 2
    with pytest.raises(ValueError, match="return_exists"):
        variable.lookup(ids(1), return_exists=True)


def test_a_config_makes_the_variable_again():
    variable = de.Variable(dim=4, initializer=0.5, restrict_policy=de.TimestampRestrictPolicy)
    again = de.Variable.from_config(variable.get_config())
    assert again.get_config() == variable.get_config()
    assert isinstance(again.restrict_policy, de.TimestampRestrictPolicy)


def test_names_without_a_twin_say_what_to_use():
    with pytest.raises(AttributeError, match=r"kv\.Storage"):
        de.RedisTable  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        de.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="save_model"):
        de.keras.models  # noqa: B018


def test_get_variable_is_refused_within_a_function():
    with pytest.raises(ValueError, match="outside of functions"):
        tf.function(lambda: de.get_variable("made"))()


def test_optimizers_that_are_not_of_keras_are_refused():
    with pytest.raises(TypeError, match="feature_column"):
        de.DynamicEmbeddingOptimizer(tf.compat.v1.train.AdamOptimizer())
