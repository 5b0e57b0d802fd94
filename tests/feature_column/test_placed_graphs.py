"""TF1 graphs under the scope of a device without soft placement, which is what sessions have.

The other device is a second CPU. A GPU needs no more of a graph than that.
"""

import numpy as np
import pytest
import tensorflow as tf
from graph_model import start, v1

from sok_embed import feature_column as fc

BUCKETS, DIM = 5, 3
KEYS = np.array([[7, 8], [9, 7]])


def columns(ids):
    item = fc.categorical_column_with_adaptive_embedding("item", BUCKETS, tf.int64)
    initializer = v1.constant_initializer(start(BUCKETS, DIM))
    dense = fc.embedding_column(item, DIM, initializer=initializer)
    masks = {"item": tf.constant([[1, 0], [1, 1]])}
    return fc.input_layer({"item": ids}, [dense], adaptive_mask_tensors=masks)


def variable(ids):
    initializer = v1.constant_initializer(0.5)
    items = fc.get_embedding_variable("items", DIM, initializer=initializer)
    return tf.nn.embedding_lookup(items, ids)


def trained(vectors_of, device):
    with tf.Graph().as_default():
        with tf.device(device):
            vectors = vectors_of(tf.constant(KEYS))
            loss = tf.reduce_sum((vectors - 1.0) ** 2)
            step = v1.train.AdagradOptimizer(0.1).minimize(loss)
        config = v1.ConfigProto(allow_soft_placement=False, device_count={"CPU": 2})
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            return [session.run((loss, step))[0] for _ in range(3)]


@pytest.mark.parametrize("vectors_of", [columns, variable])
def test_rows_train_under_the_scope_of_another_device(vectors_of):
    losses = trained(vectors_of, "CPU:1")
    assert losses == trained(vectors_of, "CPU:0")
    assert losses[2] < losses[0]
