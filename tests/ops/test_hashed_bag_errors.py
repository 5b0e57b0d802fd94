"""Wrong values that only a run shows: each is an error that says where, and none is silent."""

import numpy as np
import pytest
import tensorflow as tf

from sok_embed import tf_ops
from sok_embed.tf_ops.native import ops

ERROR = tf.errors.InvalidArgumentError


def bag(ids, offsets=None, weights=None, size=20, **options):
    options = {"num_embeddings": 10, "embedding_dim": 4, **options}
    tensors = [
        None if given is None else tf.convert_to_tensor(given) for given in (ids, offsets, weights)
    ]
    return tf_ops.hashed_bag(tf.ones([size]), *tensors, **options)


@pytest.fixture(params=["eager", "function"])
def run(request):
    """Runs a bag, eagerly or with shapes and values that no trace knows."""
    if request.param == "eager":
        return bag

    def traced(ids, offsets=None, weights=None, **options):
        given = [tf.constant(x) for x in (ids, offsets, weights) if x is not None]
        signature = [tf.TensorSpec([None] * len(x.shape), x.dtype) for x in given]

        @tf.function(input_signature=signature)
        def call(ids, *rest):
            rest = list(rest)
            o = rest.pop(0) if offsets is not None else None
            return bag(ids, o, rest.pop(0) if rest else None, **options)

        return call(*given)

    return traced


@pytest.mark.cover(12)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("wrong", [-1, 10, 2**31 - 1])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_an_id_out_of_range_is_named_with_its_place(run, mode, wrong, dtype):
    ids = np.array([0, 1, 9, wrong, 2], dtype)
    with pytest.raises(ERROR, match=rf"(?s)\[0, 10\).*{wrong}.*\b3\b"):
        run(ids, np.array([0, 2], dtype), mode=mode)


@pytest.mark.parametrize("wrong", [2**31, 2**40, -(2**40), 2**63 - 1, -(2**63)])
def test_an_id_beyond_32_bits_is_named(run, wrong):
    with pytest.raises(ERROR, match=str(wrong)):
        run(np.array([[0, 1], [wrong, 2]]))


def test_an_id_out_of_range_is_an_error_with_every_hash(run):
    for hash in ("mixed", "original", "modulo"):
        with pytest.raises(ERROR, match="10"):
            run(np.array([[0, 10]]), spec=tf_ops.HashSpec(hash=hash))


def test_one_wrong_id_in_a_large_batch_is_found(run):
    ids = np.zeros((2000, 20), np.int64)
    ids[1234, 5] = 77
    with pytest.raises(ERROR, match="77"):
        run(ids, embedding_dim=32)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("include_last_offset", [False, True])
@pytest.mark.parametrize(
    "offsets", [[0, 3, 2, 5], [1, 2, 3, 5], [-1, 0, 2, 5], [0, 2, 6, 5], [0, 2, 2**31 - 1, 5]]
)
def test_offsets_that_start_elsewhere_decrease_or_pass_the_end_are_refused(
    run, offsets, include_last_offset, dtype
):
    ids = np.arange(5).astype(dtype)
    with pytest.raises(ERROR, match="offset"):
        run(ids, np.array(offsets, dtype), include_last_offset=include_last_offset)


def test_a_last_offset_past_the_end_is_refused(run):
    with pytest.raises(ERROR, match="offset"):
        run(np.arange(5), np.array([0, 6]))


@pytest.mark.parametrize("last", [4, 6])
def test_the_included_last_offset_must_be_the_number_of_ids(run, last):
    with pytest.raises(ERROR, match="offset"):
        run(np.arange(5), np.array([0, 2, last]), include_last_offset=True)


def test_no_offsets_with_ids_are_refused(run):
    with pytest.raises(ERROR, match="offset"):
        run(np.arange(5), np.array([], np.int64))
    with pytest.raises(ERROR, match="offset"):
        run(np.arange(0), np.array([], np.int64), include_last_offset=True)


@pytest.mark.parametrize("count", [4, 6, 0])
def test_per_sample_weights_of_another_number_are_refused(run, count):
    with pytest.raises((ERROR, ValueError), match="per_sample_weights"):
        run(np.arange(5), np.array([0]), np.ones(count, np.float32))


def test_a_weight_without_slots_is_refused(run):
    with pytest.raises((ERROR, ValueError), match="weight size of at least 1"):
        run(np.array([[1]]), size=0)


def test_an_empty_weight_whose_size_is_unknown_is_refused():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def call(weight):
        return tf_ops.hashed_bag(weight, tf.constant([[1]]), num_embeddings=10, embedding_dim=4)

    with pytest.raises(ERROR, match="weight size of at least 1"):
        call(tf.zeros([0]))


@pytest.mark.parametrize(
    ("rows", "count"), [([1, 0], 3), ([0, 2, 1], 3), ([0, 3], 3), ([-1, 0], 3), ([0], 0)]
)
def test_row_splits_refuse_rows_that_decrease_or_do_not_exist(rows, count):
    with pytest.raises(ERROR, match="row"):
        tf_ops.row_splits(tf.constant(rows, tf.int64), tf.constant(count, tf.int64))


def test_wrong_ids_are_an_error_under_a_tape_too():
    weight = tf.Variable(tf.ones([20]))
    with tf.GradientTape(), pytest.raises(ERROR, match="10"):
        tf_ops.hashed_bag(weight, tf.constant([[10]]), num_embeddings=10, embedding_dim=4)


def test_factors_need_one_for_each_id():
    weight, ids = tf.ones([10]), tf.constant([[1, 2]])
    for factors in (tf.constant(5.0), tf.ones([2, 1]), tf.ones([2])):
        with pytest.raises(ERROR, match=r"per_sample_weights of the shape of the ids, \[1,2\]"):
            tf_ops.hashed_bag(
                weight, ids, per_sample_weights=factors, num_embeddings=9, embedding_dim=4
            )
    with pytest.raises(ERROR, match="with the mode sum only"):
        tf_ops.hashed_bag(
            weight,
            ids,
            per_sample_weights=tf.ones([1, 2]),
            mode="mean",
            num_embeddings=9,
            embedding_dim=4,
        )


@pytest.mark.parametrize("padding_idx", [-1, 9, 2**62])
def test_padding_is_an_id(padding_idx):
    with pytest.raises(ValueError, match=r"padding_idx in \[0, 9\)"):
        tf_ops.hashed_bag(
            tf.ones([10]),
            tf.constant([[1]]),
            num_embeddings=9,
            embedding_dim=4,
            padding_idx=padding_idx,
        )


def test_more_rows_than_memory_holds_are_an_error_and_not_the_end():
    with pytest.raises(tf.errors.OpError):
        tf_ops.hashed_bag(
            tf.ones([10]), tf.zeros([2**44, 0], tf.int64), num_embeddings=9, embedding_dim=4
        )
    with pytest.raises(tf.errors.OpError):
        tf_ops.row_splits(tf.zeros([0], tf.int64), 2**63 - 1)


def test_a_gradient_of_a_weight_that_no_machine_holds_is_an_error():
    attributes = {
        "T": tf.float32,
        "num_embeddings": 9,
        "embedding_dim": 4,
        "mode": "sum",
        "hash": "mixed",
        "seed": 0,
        "sign": False,
        "block_size": 1,
        "padding_idx": -1,
        "include_last_offset": False,
        "scaled": False,
    }
    for gradient in (ops.sok_embed_hashed_bag_gradient, ops.sok_embed_hashed_bag_sparse_gradient):
        with pytest.raises(ERROR, match=r"size of at most 2\^44"):
            gradient(
                upstream=tf.ones([1, 4]),
                ids=tf.constant([[1]]),
                offsets=tf.zeros([0], tf.int64),
                scales=tf.zeros([]),
                winners=tf.zeros([0, 0], tf.int64),
                size=tf.constant(2**62, tf.int64),
                **attributes,
            )
