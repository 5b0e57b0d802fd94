"""Wrong inputs of the ops on an adaptive table: each is an error that says what and where."""

import numpy as np
import pytest
import tensorflow as tf
from adaptive_ops import DIM, look, new_table, own_keys, sgd

from sok_embed import tf_ops

ERROR = tf.errors.InvalidArgumentError


@pytest.fixture(params=[tf.function, lambda f: f], ids=["function", "eager"])
def wrap(request):
    return request.param


@pytest.mark.parametrize("wrong", [2, -2, 2**31 - 1])
def test_a_wrong_mask_is_named_with_its_place(wrap, wrong):
    table = new_table(promote_after=1)
    with pytest.raises(ERROR, match=rf"'ada'.*mask.*got {wrong} at position 1"):
        wrap(lambda m: look(table, [1, 2], mask=m))(tf.constant([1, wrong]))
    assert own_keys(table) == []


def test_a_negative_count_is_named_with_its_place(wrap):
    table = new_table(promote_after=1)
    with pytest.raises(ERROR, match="'ada'.*counts of at least 0, got -3 at position 1"):
        wrap(lambda: look(table, [1, 2], counts=[1, -3]))()
    assert own_keys(table) == []


@pytest.mark.parametrize("name", ["mask", "counts"])
@pytest.mark.parametrize("shape", [(1,), (3,), (4, 2)], ids=str)
def test_a_mask_or_counts_of_another_shape_are_refused(wrap, name, shape):
    table = new_table()
    given = {name: np.ones(shape, np.int32)}
    with pytest.raises(
        (ERROR, ValueError), match="'ada'.*the shape of the keys|[Ss]hape|[Dd]imension"
    ):
        wrap(lambda: look(table, [[1, 2], [3, 4]], **given))()


@pytest.mark.parametrize("name", ["mask", "counts"])
def test_a_mask_or_counts_of_as_many_values_in_another_shape_are_refused(wrap, name):
    table = new_table()
    with pytest.raises((ERROR, ValueError), match="(?i)shape|dimension"):
        wrap(lambda: look(table, np.ones((4, 3)), **{name: np.ones((3, 4))}))()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"promote_after": 256}, r"promote_after in \[1, 255\]"),
        ({"promote_after": 2**40, "counter_bits": 16}, "65535"),
        ({"promote_after": 0}, "promote_after"),
        ({"counter_bits": 4}, "8 or 16 bits"),
        ({"demote_blend": 1.5}, "demote_blend"),
        ({"demote_blend": float("nan")}, "demote_blend"),
        ({"owners": 2, "owner": 2}, "owner"),
        ({"static_buckets": 0}, "static_buckets"),
        ({"max_rows": -1}, "max_rows"),
        ({"sketch_capacity": 0}, "sketch_capacity"),
        ({"initializer": "no_such"}, "no_such"),
    ],
    ids=str,
)
def test_a_table_that_cannot_be_is_an_error(attributes, message):
    with pytest.raises((ERROR, ValueError), match=message):
        new_table(**attributes)


@pytest.mark.parametrize(
    "attributes", [{"static_buckets": 2**55}, {"sketch_capacity": 2**50}], ids=str
)
def test_a_table_beyond_memory_is_an_error_and_does_not_end_the_process(attributes):
    with pytest.raises((tf.errors.ResourceExhaustedError, ERROR), match="'ada'"):
        look(new_table(**attributes), [1])


def test_handles_of_other_things_are_errors():
    table = new_table()
    plain = tf_ops.anonymous_table("plain", DIM)
    for call in (
        lambda: look(plain, [1]),
        lambda: sgd(tf_ops.anonymous_collection_queue("queue", []), 0.0),
        lambda: tf_ops.adaptive_export(plain, DIM),
        lambda: tf_ops.adaptive_stats(plain),
        lambda: tf_ops.adaptive_demote(plain, tf.constant([1], tf.int64)),
        lambda: tf_ops.adaptive_tables(plain),
        lambda: tf_ops.lookup(table, tf.constant([1]), DIM, False),
        lambda: tf_ops.evict(table, DIM),
    ):
        with pytest.raises(ERROR, match="(?i)type"):
            call()
    with pytest.raises(ERROR, match="to be a scalar"):
        look(tf.stack([table, table]), [1])
    with pytest.raises(ERROR, match="'ada' has dim 4, the lookup expected 3"):
        tf_ops.adaptive_lookup(table, tf.constant([1], tf.int64), 3, True)
    for name, value in (("step", [1, 1]), ("scale", [1.0, 1.0])):
        with pytest.raises(ERROR, match="to be a scalar"):
            sgd(table, tf.constant(0.0), **{name: value})
    with pytest.raises(ERROR, match="no_such"):
        tf_ops.commit(table, 0.0, [tf_ops.RuleStep("no_such")])
    with pytest.raises(ERROR, match="learning_rate to be a scalar"):
        tf_ops.commit(table, 0.0, [tf_ops.RuleStep("sgd", {"learning_rate": tf.ones(2)})])
    with pytest.raises(ERROR, match="slot sources of one table alone"):
        tf_ops.commit(table, 0.0, [tf_ops.RuleStep("sgd", slot_sources=[table])])


def test_export_for_another_dim_is_an_error():
    table = new_table(promote_after=1)
    look(table, [1])
    try:
        contents = tf_ops.adaptive_export(table, DIM + 1)
    except ERROR:
        return
    assert contents.own.embeddings.shape == (1, DIM)  # eagerly the true shape, not a wrong one
