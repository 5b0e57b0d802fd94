"""Input layers that share rows, one that does not train, and those in places where none can be."""

import numpy as np
import pytest
import tensorflow as tf
from graph_model import v1

from sok_embed import feature_column as fc


def read(ids, mask, **arguments):
    item = fc.categorical_column_with_adaptive_embedding("item", 50, tf.int64)
    column = fc.embedding_column(item, 2)
    features = {"item": tf.constant(ids, tf.int64)[:, tf.newaxis]}
    masks = {"item": tf.constant(mask, tf.int32)}
    return fc.input_layer(features, [column], adaptive_mask_tensors=masks, **arguments)


def test_a_layer_that_does_not_train_makes_no_rows_beside_one_that_does():
    with tf.Graph().as_default(), v1.Session() as session:
        outputs = []
        for ids, trainable in (([1, 2], True), ([1, 9], False)):
            with v1.variable_scope("tower", reuse=v1.AUTO_REUSE):
                outputs.append(read(ids, [1, 1], trainable=trainable))
        step = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(outputs[0]))
        session.run(v1.global_variables_initializer())
        session.run(step)
        predicted = session.run(outputs[1])
        keys, rows = fc.own_rows("item_embedding", session)
        assert sorted(keys) == [1, 2]
        np.testing.assert_array_equal(predicted[0], rows[list(keys).index(1)])


def test_calls_of_a_template_share_rows_and_other_calls_do_not():
    with tf.Graph().as_default(), v1.Session() as session:
        template = v1.make_template("tower", read)
        outputs = [template([1, 2], [1, 0]), template([1, 2], [1, 0]), read([1, 2], [1, 0])]
        session.run(v1.global_variables_initializer())
        first, second, other = session.run(outputs)
        np.testing.assert_array_equal(first, second)
        assert np.all(first != other)
        rows = fc.own_rows("tower/input_layer/item_embedding/embedding_weights", session)
        assert list(rows[0]) == [1]
        with pytest.raises(ValueError, match="which fits 2"):
            fc.own_rows("item_embedding", session)


@pytest.mark.parametrize("old", [True, False], ids=["v1", "v2"])
@pytest.mark.parametrize("kind", ["cond", "while_loop"])
def test_inside_of_control_flow_is_an_error(old, kind):
    was_new = tf.compat.v1.control_flow_v2_enabled()
    (v1.disable_control_flow_v2 if old else v1.enable_control_flow_v2)()
    try:
        with tf.Graph().as_default(), pytest.raises(ValueError, match=r"outside of tf\.cond"):
            if kind == "cond":
                flag = v1.placeholder(tf.bool, [])
                v1.cond(flag, lambda: read([1], [1]), lambda: tf.zeros([1, 2]))
            else:
                v1.while_loop(lambda i: i < 2, lambda i: i + tf.size(read([1], [1])), [0])
    finally:
        (v1.enable_control_flow_v2 if was_new else v1.disable_control_flow_v2)()


def test_a_mask_that_tensorflows_own_embedding_column_would_ignore_is_an_error():
    item = fc.categorical_column_with_adaptive_embedding("item", 50, tf.int64)
    layer = fc.DenseFeatures([tf.feature_column.embedding_column(item, 2)])
    ids = {"item": tf.constant([[1]], tf.int64)}
    with pytest.raises(ValueError, match=r"under sok_embed\.feature_column\.embedding_column"):
        layer(ids, {"item": tf.constant([[1]])})
    assert layer(ids).shape == (1, 2)  # all ids share rows there
