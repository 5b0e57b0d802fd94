"""A table by itself: what a person inspects, and puts in."""

import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko

from sok_embed import DynamicEmbedding, Table, tf_ops
from sok_embed.initializers import RowInitializer

DIM = 3
ZEROS = RowInitializer("constant", 0.0, 0.0, None)
UNIFORM = RowInitializer("uniform", -1.0, 1.0, None)


def rows(*values):
    return np.array([[value] * DIM for value in values], np.float32)


def trained_layer(optimizer=None, keys=(1, 2, 2, 3), steps=2):
    layer = DynamicEmbedding(DIM, seed=1)
    optimizer = optimizer or ko.Adam(0.1)
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(np.array(keys), training=True))
        weights = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
    return layer


def by_key(contents):
    """Returns an export with slots, in the order of its keys."""
    order = np.argsort(contents.keys)
    arrays = {
        name: getattr(contents, name)[order]
        for name in ("keys", "embeddings", "slots", "update_nums")
    }
    return contents._replace(**arrays)


def assert_same(contents, expected):
    for ours, theirs in zip(by_key(contents), by_key(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_new_table_is_empty():
    table = Table(DIM, UNIFORM)
    assert table.size() == 0
    keys, embeddings = table.export()
    assert keys.shape == (0,) and keys.dtype == np.int64
    assert embeddings.shape == (0, DIM) and embeddings.dtype == np.float32


def test_lookup_gives_the_start_of_a_key_without_making_a_row():
    table = Table(DIM, UNIFORM, seed=2)
    found = table.lookup([[1, 2], [2, 1]])
    assert found.shape == (2, 2, DIM) and found.dtype == np.float32
    np.testing.assert_array_equal(found[0], found[1][::-1])
    assert (np.abs(found) <= 1).all() and len(np.unique(found)) == 2 * DIM
    assert table.size() == 0


def test_lookup_of_one_integer_gives_one_row():
    assert Table(DIM, ZEROS).lookup(5).shape == (DIM,)


def test_assign_makes_rows_and_sets_them():
    table = Table(DIM, UNIFORM)
    table.assign([7, -1], rows(1, 2))
    table.assign([7, 8], rows(3, 4))
    assert table.size() == 3
    np.testing.assert_array_equal(table.lookup([-1, 7, 8]), rows(2, 3, 4))


def test_of_equal_keys_assign_takes_the_last():
    table = Table(DIM, ZEROS)
    table.assign([5, 6, 5, 5], rows(1, 2, 3, 4))
    np.testing.assert_array_equal(table.lookup([5, 6]), rows(4, 2))


def test_of_many_equal_keys_assign_takes_the_last():
    # There are enough for several threads, which must not race for the last word.
    seed = 4
    keys = np.random.default_rng(seed).integers(0, 1000, 200_000)
    values = np.arange(len(keys), dtype=np.float32)
    table = Table(1, ZEROS)
    table.assign(keys, values[:, None])
    last = {key: value for key, value in zip(keys.tolist(), values.tolist(), strict=True)}
    expected = np.array([[last[key]] for key in sorted(last)], np.float32)
    np.testing.assert_array_equal(table.lookup(sorted(last)), expected)


def test_export_gives_what_was_assigned():
    table = Table(DIM, ZEROS)
    table.assign([3, 1, 2], rows(30, 10, 20))
    keys, embeddings = table.export()
    order = np.argsort(keys)
    np.testing.assert_array_equal(keys[order], [1, 2, 3])
    np.testing.assert_array_equal(embeddings[order], rows(10, 20, 30))


def test_an_export_is_a_copy():
    table = Table(DIM, ZEROS)
    table.assign([1], rows(1))
    _, embeddings = table.export()
    table.assign([1], rows(2))
    np.testing.assert_array_equal(embeddings, rows(1))


def test_an_export_with_slots_has_the_state_of_training():
    contents = by_key(trained_layer().table.export(slots=True))
    np.testing.assert_array_equal(contents.keys, [1, 2, 3])
    assert contents.slots.shape == (3, 2 * DIM)  # Adam: m and v
    np.testing.assert_array_equal(contents.update_nums, [2, 2, 2])
    assert contents.rule == b"adam"
    assert contents.steps == 2


def test_update_nums_count_the_steps_that_touched_a_row():
    layer = trained_layer(keys=(1, 2), steps=1)
    optimizer = ko.Adam(0.1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([2, 2, 4]), training=True))
    weights = layer.trainable_variables
    optimizer.apply(tape.gradient(loss, weights), weights)
    contents = by_key(layer.table.export(slots=True))
    np.testing.assert_array_equal(contents.keys, [1, 2, 4])
    np.testing.assert_array_equal(contents.update_nums, [1, 2, 1])


def test_an_export_with_slots_of_a_table_that_was_never_trained_has_no_rule():
    table = Table(DIM, ZEROS)
    table.assign([1], rows(1))
    contents = table.export(slots=True)
    assert contents.rule == b"" and contents.steps == 0
    assert contents.slots.shape == (1, 0)
    np.testing.assert_array_equal(contents.update_nums, [0])


def test_restore_puts_back_everything():
    contents = trained_layer().table.export(slots=True)
    table = Table(DIM, ZEROS)
    table.assign([99], rows(9))
    table.restore(contents)
    assert_same(table.export(slots=True), contents)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"embeddings": np.zeros((3, DIM + 1), np.float32)}, "expected embeddings of shape"),
        ({"embeddings": np.zeros((2, DIM), np.float32)}, "expected embeddings of shape"),
        (
            {"slots": np.zeros((3, DIM), np.float32), "slot_start": np.zeros(DIM, np.float32)},
            "'adam' keeps 6 slot values a row",
        ),
        ({"slot_start": np.zeros(DIM, np.float32)}, "expected slot_start to have 6 values"),
        ({"slots": np.zeros((2, 2 * DIM), np.float32)}, "expected slots of shape"),
        ({"update_nums": np.zeros(2, np.int64)}, "expected 3 update counts"),
        ({"rule": b"no_such_rule"}, "no_such_rule"),
    ],
    ids=["dim", "rows", "slot_width", "slot_start", "slot_rows", "update_nums", "rule"],
)
def test_restore_refuses_what_does_not_fit_and_changes_nothing(change, text):
    table = trained_layer().table
    before = table.export(slots=True)
    with pytest.raises(ValueError, match=text):
        table.restore(before._replace(**change))
    assert_same(table.export(slots=True), before)


def test_restore_refuses_more_rows_than_the_table_takes():
    contents = trained_layer().table.export(slots=True)
    with pytest.raises(ValueError, match="at most 2 rows cannot take up 3"):
        Table(DIM, ZEROS, max_rows=2).restore(contents)


def test_restore_forgets_gradients_that_were_not_applied():
    layer = trained_layer()
    contents = layer.table.export(slots=True)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([1]), training=True))
    tape.gradient(loss, layer.trainable_variables)
    layer.table.restore(contents)
    assert layer.table.stats()["pending_gradients"] == 0


def test_remove_says_how_many_rows_there_were():
    table = Table(DIM, ZEROS)
    table.assign([1, 2, 3], rows(1, 2, 3))
    assert table.remove([2, 3, 3, 99]) == 2
    assert table.size() == 1
    np.testing.assert_array_equal(table.lookup([1, 2]), rows(1, 0))


def test_remove_of_no_keys_removes_nothing():
    table = Table(DIM, ZEROS)
    table.assign([1], rows(1))
    assert table.remove([]) == 0
    assert table.size() == 1


def test_a_removed_key_starts_anew():
    layer = trained_layer()
    start = Table(DIM, layer._row_initializer, seed=1).lookup([2])
    assert layer.table.remove([2]) == 1
    np.testing.assert_array_equal(layer.table.lookup([2]), start)
    layer(np.array([2]), training=True)
    contents = by_key(layer.table.export(slots=True))
    np.testing.assert_array_equal(contents.update_nums, [2, 0, 2])
    np.testing.assert_array_equal(contents.slots[1], np.zeros(2 * DIM))


def test_rows_can_be_removed_and_made_again_many_times():
    table = Table(DIM, ZEROS)
    keys = np.arange(1000)
    for round_number in range(1, 21):
        table.assign(keys, np.full((1000, DIM), round_number, np.float32))
        assert table.remove(keys[::2]) == 500
        assert table.size() == 500
        np.testing.assert_array_equal(table.lookup(keys[::2]), np.zeros((500, DIM)))
        assert (table.lookup(keys[1::2]) == round_number).all()


def test_stats_name_what_the_table_holds():
    layer = trained_layer()
    stats = layer.table.stats()
    assert stats["rows"] == 3
    assert stats["max_rows"] == 0
    assert stats["steps"] == 2
    assert stats["pending_gradients"] == 0
    assert stats["bytes"] == stats["index_bytes"] + stats["row_bytes"]
    assert stats["row_bytes"] >= 3 * 4 * 3 * DIM
    assert Table(DIM, ZEROS, max_rows=17).stats()["max_rows"] == 17


def test_drop_gradients_forgets_and_counts_them():
    layer = trained_layer(steps=1)
    before = layer.table.lookup([1, 2])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([1, 1, 2]), training=True))
    tape.gradient(loss, layer.trainable_variables)
    assert layer.table.stats()["pending_gradients"] == 3
    assert layer.table.drop_gradients() == 3
    assert layer.table.drop_gradients() == 0
    layer.anchor.assign(tf.zeros(layer.anchor.shape))
    np.testing.assert_array_equal(layer.table.lookup([1, 2]), before)


@pytest.mark.parametrize(
    ("keys", "values", "text"),
    [
        ([1, 2], rows(1), r"expected embeddings of shape \(2, 3\).*\(1, 3\)"),
        ([1], np.zeros((1, DIM + 1), np.float32), r"\(1, 3\).*\(1, 4\)"),
        ([1], np.zeros(DIM, np.float32), r"\(1, 3\).*\(3,\)"),
        ([[1]], rows(1), r"\(1, 1, 3\).*\(1, 3\)"),
        ([[1, 2]], rows(1, 2), r"\(1, 2, 3\).*\(2, 3\)"),
        ([1.5], rows(1), "integer keys"),
    ],
    ids=["rows", "dim", "vector", "matrix_of_keys", "matrix_of_rows", "float_keys"],
)
def test_assign_refuses_other_shapes_and_changes_nothing(keys, values, text):
    table = Table(DIM, ZEROS)
    with pytest.raises(ValueError, match=text):
        table.assign(keys, values)
    assert table.size() == 0


@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (3, 1, 2), (0,), (2, 0)])
def test_keys_of_any_shape_are_assigned_found_and_removed(shape):
    keys = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    values = np.random.default_rng(0).normal(size=(*shape, DIM)).astype(np.float32)
    table = Table(DIM, ZEROS)
    table.assign(keys, values)
    np.testing.assert_array_equal(table.lookup(keys), values)
    assert table.contains(keys).shape == shape and table.contains(keys).all()
    assert table.remove(keys) == keys.size
    assert not table.contains(keys).any()


def test_assign_to_a_full_table_leaves_it_as_it_was():
    table = Table(DIM, ZEROS, max_rows=3)
    table.assign([1, 2], rows(1, 2))
    with pytest.raises(ValueError, match="2 of at most 3 rows.*2 new keys"):
        table.assign([1, 3, 4], rows(9, 9, 9))
    np.testing.assert_array_equal(table.lookup([1, 2, 3]), rows(1, 2, 0))


def test_assign_refuses_keys_out_of_the_range_of_a_direct_table():
    table = Table(DIM, ZEROS, max_rows=3, direct=True, name="direct")
    with pytest.raises(ValueError, match=r"'direct'.*\[0, 3\), got 3"):
        table.assign([0, 3], rows(1, 2))
    assert table.size() == 0


def test_a_direct_table_refuses_keys_of_another_owner():
    table = Table(DIM, ZEROS, max_rows=3, direct=True, owners=2, owner=1)
    table.assign([1, 3, 5], rows(1, 3, 5))
    with pytest.raises(ValueError, match="worker 1.*key 2, which lives on worker 0"):
        table.assign([2], rows(2))


def test_a_direct_table_must_know_its_range():
    with pytest.raises(ValueError, match="'direct': expected max_rows with direct=True"):
        Table(DIM, ZEROS, direct=True, name="direct")


@pytest.mark.parametrize("keys", [[-1, 2**63], [0, 2**64], [[-(2**63) - 1], [0]]])
def test_integers_that_no_64_bit_type_holds_together_are_refused_by_that_name(keys):
    flat = np.array(keys, object).ravel()
    text = f"Received: {min(flat)} and {max(flat)}, which have no common 64-bit type"
    with pytest.raises(ValueError, match=text):
        Table(DIM, ZEROS).lookup(keys)


def test_remove_refuses_keys_of_another_worker():
    table = Table(DIM, ZEROS, owners=2, owner=1)
    with pytest.raises(ValueError, match="key 4, which lives on worker 0"):
        table.remove([3, 4])


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1, 2**70 + 3])
def test_any_integer_is_a_seed(seed):
    one, two = Table(DIM, UNIFORM, seed=seed), Table(DIM, UNIFORM, seed=seed)
    np.testing.assert_array_equal(one.lookup([1, 2]), two.lookup([1, 2]))


def test_tables_of_one_name_are_two_tables():
    one, two = Table(DIM, ZEROS, name="same"), Table(DIM, ZEROS, name="same")
    one.assign([1], rows(1))
    assert two.size() == 0


def test_the_memory_of_a_table_goes_with_it():
    import resource

    def peak():  # KiB
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def fill():
        table = Table(64, ZEROS)
        tf_ops.lookup(table.resource_handle, np.arange(100_000), 64, make_rows=True)

    fill()
    after_one = peak()
    for _ in range(9):
        fill()
    # Each table takes 26 MB of rows, so 9 that stay would add 230 MB.
    assert peak() - after_one < 100_000


def test_a_table_says_what_it_is():
    table = Table(DIM, UNIFORM, name="users")
    assert len(table) == 0
    assert table  # also without rows
    assert repr(table) == f"<Table 'users', 0 rows of {DIM}>"
