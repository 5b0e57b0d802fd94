"""Each wrong argument of a hashed layer gives one clear error."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import HashedEmbedding, HashedEmbeddingBag

BOTH = pytest.mark.parametrize("cls", [HashedEmbedding, HashedEmbeddingBag])


@BOTH
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_embeddings": 0}, "num_embeddings to be a positive integer.*0"),
        ({"num_embeddings": 10.0}, "num_embeddings to be a positive integer.*10.0"),
        ({"embedding_dim": -1}, "embedding_dim to be a positive integer.*-1"),
        ({"block_size": 0}, "block_size to be a positive integer.*0"),
        ({"size": 0}, "size to be a positive integer.*0"),
        ({"compression": 0}, "compression to be a number above 0.*0"),
        ({"compression": -0.5}, "compression to be a number above 0.*-0.5"),
        ({"compression": float("nan")}, "compression to be a number above 0.*nan"),
        ({"compression": float("inf")}, "compression to be a number above 0.*inf"),
        ({"compression": "1/64"}, "compression to be a number above 0.*1/64"),
        ({"compression": 0.001}, "at least one slot.*10 .*4.*0.001.*= 0.*size="),
        ({"hash": "md5"}, "hash to be one of.*mixed.*original.*modulo.*md5"),
        ({"hash": "modulo", "num_embeddings": 2**61, "embedding_dim": 4}, r"below 2\*\*63"),
        ({"seed": -1}, r"seed to be in \[0, 2\*\*63\).*-1"),
        ({"seed": 2**63}, r"seed to be in \[0, 2\*\*63\)"),
        ({"seed": 1.5}, "seed to be an integer.*1.5"),
        ({"sign": 1}, "sign to be True or False.*1"),
        ({"sparse_gradient": "auto"}, "sparse_gradient to be True or False.*auto"),
        ({"weight": np.zeros((2, 3))}, r"one dimension that is not empty.*\[2, 3\]"),
        ({"weight": np.zeros(0)}, r"one dimension that is not empty.*\[0\]"),
        ({"weight": []}, r"one dimension that is not empty.*\[0\]"),
        ({"weight": 0.5}, r"one dimension that is not empty.*\[\]"),
        ({"weight": np.array(["a"])}, "an initializer, a hashed layer, or an array of floats"),
        ({"weight": np.zeros(7), "size": 8}, "size to be 7, the size of the weight.*size=8"),
        ({"weight": "no such"}, "no such"),
        ({"weight": keras.layers.Embedding(3, 4)}, "HashedEmbeddingBag or a HashedEmbedding"),
    ],
)
def test_a_wrong_argument_is_refused(cls, arguments, message):
    with pytest.raises(ValueError, match=rf"(?s){message}"):
        cls(**{"num_embeddings": 10, "embedding_dim": 4, "compression": 0.5, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "prod"}, "mode to be one of.*sum.*mean.*max.*prod"),
        ({"padding_idx": 10}, r"padding_idx in \[-10, 10\).*10"),
        ({"padding_idx": -11}, r"padding_idx in \[-10, 10\).*-11"),
        ({"padding_idx": 1.0}, "padding_idx to be an integer.*1.0"),
        ({"include_last_offset": 1}, "include_last_offset to be True or False"),
    ],
)
def test_a_wrong_argument_of_a_bag_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        HashedEmbeddingBag(10, 4, 0.5, **arguments)


def test_a_wrong_mask_zero_is_refused():
    with pytest.raises(ValueError, match="mask_zero to be True or False.*None"):
        HashedEmbedding(10, 4, 0.5, mask_zero=None)


@BOTH
def test_size_counts_and_not_compression(cls):
    assert cls(10, 4, compression=0.001, size=7).size == 7
    assert cls(10, 4, weight=[0.5, 1.0], compression=0.001).size == 2
    assert cls(10, 4, 1 / 64, size=np.int64(3)).size == 3


@BOTH
def test_numpy_numbers_are_arguments_that_a_config_can_hold(cls):
    layer = cls(
        np.int64(10),
        np.int32(4),
        np.float32(0.5),
        sign=np.True_,
        sparse_gradient=np.False_,
        seed=np.int64(3),
        block_size=np.int8(2),
    )
    config = json.loads(json.dumps(layer.get_config()))
    assert cls.from_config(config).get_config() == config
    assert json.loads(json.dumps(cls(10, 4, size=np.int64(3)).get_config()))["size"] == 3


@BOTH
def test_sizes_beyond_32_bits_are_counted_without_overflow(cls):
    assert cls(2**40, 64, compression=1 / 64).size == 2**40


@BOTH
def test_compression_1_is_all_of_the_table_and_more_is_possible(cls):
    assert cls(10, 4, compression=1).size == 40
    with pytest.warns(UserWarning, match=r"at most 1: .*Received: 2, .*weight of 80 .*table of 40"):
        assert cls(10, 4, compression=2).size == 80


@BOTH
@pytest.mark.parametrize("gradient", [True, False, None])
def test_sparse_gradient_decides_the_kind_of_the_gradient(cls, gradient):
    layer = cls(10, 4, size=500_000, sparse_gradient=gradient)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([[1, 2], [3, 4]])))
    kind = tape.gradient(loss, layer.weight.value)
    # With None it is sparse too, since the call touches 16 of half a million slots.
    assert isinstance(kind, tf.Tensor if gradient is False else tf.IndexedSlices)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("num_embeddings", 2**63), ("embedding_dim", 2**24 + 1), ("block_size", 2**70)],
)
def test_sizes_that_no_op_takes_are_refused_at_once(argument, value):
    arguments = {"num_embeddings": 10, "embedding_dim": 4, "size": 9, argument: value}
    with pytest.raises(ValueError, match=f"Expected {argument} to be a positive integer below"):
        HashedEmbedding(**arguments)
