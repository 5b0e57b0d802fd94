"""DeepRec's documented example runs unchanged, and does what a NumPy model of it does."""

import os
import subprocess

import forked
import numpy as np
import pytest
from ftrl_model import FtrlModel
from graph_model import GraphModel, bucket_of, start, v1

IDS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
MASK = [1, 0, 1, 0, 1, 0, 0, 1, 0, 1]

# This is DeepRec's documented example, but for the import and `install()`, and for keeping what it
# prints.
SCRIPT = """
import tensorflow.compat.v1 as tf
import sok_embed.feature_column
sok_embed.feature_column.install()
tf.disable_v2_behavior()

columns = tf.feature_column.categorical_column_with_adaptive_embedding("col_emb", hash_bucket_size=100, dtype=tf.int64)
W = tf.feature_column.embedding_column(categorical_column=columns,
            dimension=3,
            initializer=tf.ones_initializer(tf.float32))

ids={}
ids["col_emb"] = tf.SparseTensor(indices=[[0,0],[1,0],[2,0],[3,0],[4,0],[5,0],[6,0],[7,0],[8,0],[9,0]],
                     values=tf.cast([1,2,3,4,5,6,7,8,9,0], tf.dtypes.int64), dense_shape=[10, 1])

adaptive_mask_tensors={}
adaptive_mask_tensors["col_emb"] = tf.cast([1,0,1,0,1,0,0,1,0,1], tf.int32)
emb = tf.feature_column.input_layer(ids, [W], adaptive_mask_tensors=adaptive_mask_tensors)

fun = tf.multiply(emb, 2.0, name='multiply')
loss = tf.reduce_sum(fun, name='reduce_sum')
opt = tf.train.FtrlOptimizer(0.1, l1_regularization_strength=2.0, l2_regularization_strength=0.00001)
g_v = opt.compute_gradients(loss)
train_op = opt.apply_gradients(g_v)
init = tf.global_variables_initializer()
sess_config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
outputs = []
with tf.Session(config=sess_config) as sess:
  sess.run([init])
  outputs.append(sess.run([emb, train_op, loss]))
  outputs.append(sess.run([emb, train_op, loss]))
  outputs.append(sess.run([emb, train_op, loss]))
  keys, rows = sok_embed.feature_column.own_rows("col_emb_embedding")
  (static,) = [v for v in tf.global_variables() if v.op.name.endswith("embedding_weights")]
  static = sess.run(static)

import sys, numpy
numpy.savez(sys.argv[1], emb=[e for e, _, _ in outputs], loss=[l for _, _, l in outputs],
            keys=keys, rows=rows, static=static)
"""  # noqa: E501


def test_the_example_gives_what_numpy_gives(tmp_path):
    result = subprocess.run(
        forked.program(SCRIPT, tmp_path / "out.npz"),
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    got = np.load(tmp_path / "out.npz")
    model = FtrlModel(np.ones((100, 3)), rate=0.1, l1=2.0, l2=1e-5)
    for step in range(3):
        embeddings = model.lookup(IDS, MASK)
        np.testing.assert_allclose(got["emb"][step], embeddings, rtol=0, atol=1e-6)
        # This allows for a sum of 30 numbers in float32.
        np.testing.assert_allclose(got["loss"][step], 2 * embeddings.sum(), rtol=1e-6)
        model.train(IDS, MASK, np.full((10, 3), 2.0))
    assert sorted(got["keys"]) == sorted(model.rows) == [0, 1, 3, 5, 8]
    expected = np.stack([model.rows[key].value for key in got["keys"]])
    np.testing.assert_allclose(got["rows"], expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(got["static"], model.static_rows(), rtol=0, atol=1e-6)
    assert np.abs(got["emb"][2] - 1).min() > 0.3


@pytest.mark.parametrize("slots", ["copy", "zero"])
def test_ids_that_share_static_rows_and_change_their_masks_give_what_numpy_gives(slots):
    random = np.random.default_rng(5)
    static = start(6, 4)  # there are so few that each is shared
    ours = GraphModel(
        static,
        lambda: v1.train.FtrlOptimizer(
            0.1, l1_regularization_strength=0.05, l2_regularization_strength=0.01
        ),
        combiner="sum",
        column={"slots": slots},
    )
    model = FtrlModel(static, rate=0.1, l1=0.05, l2=0.01, slots=slots)
    for _ in range(12):
        ids = random.integers(-20, 20, 15)
        mask = random.integers(0, 2, 15).astype(np.int32)
        embeddings = model.lookup(ids, mask)
        got = ours.train([[i] for i in ids], mask)
        np.testing.assert_allclose(got, embeddings, rtol=0, atol=2e-6)
        target = np.sin(np.arange(embeddings.size)).reshape(embeddings.shape)
        model.train(ids, mask, 2 * (embeddings - target))
    rows = ours.own_rows()
    assert sorted(rows) == sorted(model.rows)
    for key, row in rows.items():
        np.testing.assert_allclose(row, model.rows[key].value, rtol=0, atol=2e-6)
    np.testing.assert_allclose(ours.static_rows(), model.static_rows(), rtol=0, atol=2e-6)


def test_the_reference_hashes_as_deeprec_says():
    assert bucket_of(12345, 100) == bucket_of("12345", 100)
