"""Bags come as rows, as a flat tensor with offsets, ragged and sparse; all mean the same."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import HashedEmbedding, HashedEmbeddingBag

ERROR = tf.errors.InvalidArgumentError
IDS, DIM = 30, 5
BAGS = [[3, 4, 3], [], [7], [29, 0, 7, 7], [], [0]]


def make(**arguments):
    return HashedEmbeddingBag(IDS, DIM, 0.5, **{"name": "bag", **arguments})


def flat_of(bags=BAGS, dtype="int64"):
    return np.array([i for bag in bags for i in bag], dtype)


def offsets_of(bags=BAGS, dtype="int64", last=False):
    ends = np.cumsum([0, *map(len, bags)])
    return (ends if last else ends[:-1]).astype(dtype)


def ragged_of(values, bags=BAGS):
    return tf.RaggedTensor.from_row_lengths(values, [len(bag) for bag in bags])


def sparse_of(values, bags=BAGS):
    places = [(row, 2 * i) for row, bag in enumerate(bags) for i in range(len(bag))]
    return tf.SparseTensor(np.reshape(places, (-1, 2)), values, (len(bags), 10))


@pytest.fixture(params=["eager", "function"])
def call(request):
    """Calls a layer eagerly, or in a function whose trace knows kinds and types alone."""
    if request.param == "eager":
        return lambda layer, *arguments, **keywords: layer(*arguments, **keywords)

    def traced(layer, *arguments, **keywords):
        given = tf.nest.map_structure(
            lambda x: x if tf.is_tensor(x) else tf.constant(x), (arguments, keywords)
        )
        return tf.function(lambda a, k: layer(*a, **k))(*given)

    return traced


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_all_kinds_of_inputs_give_equal_bags(call, mode, dtype):
    layer = make(mode=mode, padding_idx=7)
    ids = flat_of(dtype=dtype)
    expected = call(layer, ids, offsets_of(dtype=dtype))
    assert expected.shape == (len(BAGS), DIM)
    np.testing.assert_array_equal(expected[1], np.zeros(DIM))
    np.testing.assert_array_equal(expected[2], np.zeros(DIM))  # padding only
    np.testing.assert_array_equal(call(layer, ragged_of(ids)), expected)
    np.testing.assert_array_equal(call(layer, sparse_of(ids)), expected)
    with_last = make(mode=mode, padding_idx=7, weight=layer, seed=0, include_last_offset=True)
    np.testing.assert_array_equal(
        call(with_last, ids, offsets_of(dtype=dtype, last=True)), expected
    )
    # These are the bags as rows, padded.
    rows = np.full((len(BAGS), 4), 7, dtype)
    for row, bag in zip(rows, BAGS, strict=True):
        row[: len(bag)] = bag
    np.testing.assert_array_equal(call(layer, rows), expected)
    # Only offsets have a last one.
    np.testing.assert_array_equal(call(with_last, rows), expected)
    np.testing.assert_array_equal(call(with_last, ragged_of(ids)), expected)


@pytest.mark.cover(4)
@pytest.mark.parametrize("weights_dtype", ["float32", "float64", "bfloat16", "float16"])
def test_all_kinds_take_weights_of_entries(call, weights_dtype):
    layer = make()
    ids = flat_of()
    weights = tf.cast(np.linspace(-1, 1, len(ids)), weights_dtype)
    expected = call(layer, ids, offsets_of(), weights)
    for kind in (ragged_of, sparse_of):
        np.testing.assert_array_equal(
            call(layer, kind(ids), per_sample_weights=kind(weights)), expected
        )
        np.testing.assert_array_equal(call(layer, kind(ids), per_sample_weights=weights), expected)
    one = call(layer, ids[None], per_sample_weights=weights[None])
    # This allows for float32 sums, in another order.
    np.testing.assert_allclose(one[0], tf.reduce_sum(expected, 0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [ragged_of, sparse_of])
def test_weights_of_entries_get_their_gradient_in_each_kind(kind):
    layer = make()
    ids, weights = flat_of(), tf.Variable(np.linspace(-1, 1, 9).astype(np.float32))
    gradients = []
    for arguments in (
        lambda: (ids, offsets_of(), weights),
        lambda: (kind(ids), None, kind(tf.identity(weights))),
        lambda: (kind(ids), None, weights),
    ):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(*arguments()) ** 2)
        gradients.append(tape.gradient(loss, weights))
    assert np.abs(gradients[0]).max() > 1e-3
    np.testing.assert_array_equal(gradients[1], gradients[0])
    np.testing.assert_array_equal(gradients[2], gradients[0])


def test_lists_are_ids_offsets_and_weights(call):
    layer = make()
    expected = layer(flat_of(), offsets_of())
    np.testing.assert_array_equal(layer(flat_of().tolist(), offsets_of().tolist()), expected)
    np.testing.assert_array_equal(layer(flat_of(dtype="int32"), offsets_of().tolist()), expected)
    np.testing.assert_array_equal(layer(flat_of().tolist(), offsets_of(dtype="int32")), expected)
    np.testing.assert_array_equal(
        layer(flat_of(), offsets_of(), per_sample_weights=[1] * 9), expected
    )
    np.testing.assert_array_equal(layer([[3, 4, 3]]), expected[:1])
    np.testing.assert_array_equal(layer([], [0, 0]), np.zeros((2, DIM)))


def test_the_readme_example_of_the_pytorch_project():
    random = np.random.default_rng(0)
    bags = [random.integers(0, 1000, n).tolist() for n in random.permutation(18) % 7]
    assert {len(bag) for bag in bags} == set(range(7))
    layer = HashedEmbeddingBag(1000, 16, compression=0.1)
    outputs = layer(flat_of(bags), offsets_of(bags))
    assert outputs.shape == (18, 16)
    assert layer.weight.shape == (1600,)
    np.testing.assert_array_equal(outputs, layer(tf.ragged.constant(bags)))


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 1, 3), (0, 2)])
def test_an_embedding_takes_ids_of_any_shape(call, shape):
    layer = HashedEmbedding(IDS, DIM, 0.5)
    ids = np.random.default_rng(0).integers(0, IDS, shape)
    outputs = call(layer, ids)
    assert outputs.shape == (*shape, DIM)
    bag = make(weight=layer, seed=0)
    rows = np.reshape(outputs, (-1, DIM))
    np.testing.assert_array_equal(rows, bag(np.reshape(ids, (-1, 1))))


@pytest.mark.parametrize("ids", [[[1, 2], [], [3]], [[[1], [2, 3]], [], [[4]]]], ids=["2d", "3d"])
def test_an_embedding_of_ragged_ids_is_ragged(call, ids):
    layer = HashedEmbedding(IDS, DIM, 0.5)
    ragged = tf.ragged.constant(ids, dtype=tf.int64)
    outputs = call(layer, ragged)
    assert isinstance(outputs, tf.RaggedTensor)
    assert outputs.shape.as_list() == [*ragged.shape.as_list(), DIM]
    np.testing.assert_array_equal(outputs.flat_values, layer(ragged.flat_values))


def test_an_embedding_refuses_sparse_ids():
    with pytest.raises(ValueError, match="dense or a ragged tensor.*sparse.to_dense"):
        HashedEmbedding(IDS, DIM)(sparse_of(flat_of()))


ROWS = np.array([[1, 2], [3, 4]])
WRONG = {
    "offsets with 2-D input": ((ROWS, np.array([0, 2])), {}, "no offsets with a dense input"),
    "offsets with ragged input": ((ragged_of(flat_of()), offsets_of()), {}, "no offsets.*ragged"),
    "offsets with sparse input": ((sparse_of(flat_of()), offsets_of()), {}, "no offsets.*sparse"),
    "no offsets": ((flat_of(),), {}, r"offsets with ids of shape \[n\].*none"),
    "ids of another integer type": (
        (flat_of(dtype="int32"), offsets_of()),
        {},
        "offsets of int32.*int64",
    ),
    "offsets of another integer type": (
        (flat_of(), offsets_of(dtype="int32")),
        {},
        "offsets of int64.*int32",
    ),
    "2-D offsets": ((flat_of(), ROWS), {}, r"offsets of shape \[B\].*\[2, 2\]"),
    "a scalar offset": ((flat_of(), np.int64(0)), {}, r"offsets of shape \[B\].*\[\]"),
    "float offsets": ((flat_of(), offsets_of(dtype="float32")), {}, "offsets of int64.*float32"),
    "a scalar": ((np.int64(3),), {}, r"shape \[n\] or \[B, N\].*\[\]"),
    "three dimensions": ((ROWS[None],), {}, r"shape \[n\] or \[B, N\].*\[1, 2, 2\]"),
    "ragged in two dimensions": (
        (tf.ragged.constant([[[1], [2, 3]]]),),
        {},
        r"shape \[n\] or \[B, N\]",
    ),
    "lists of other lengths": (([[1, 2], [3]],), {}, "lists of one length.*ragged.constant"),
    "strings": ((np.array([["a"]]),), {}, "integer ids.*strings.*StringLookup"),
    "floats": ((np.ones((2, 2)),), {}, "int32 or int64.*float64"),
    "a list of floats": (([[1.0, 2.0]],), {}, "int32 or int64.*float"),
    "bools": ((np.ones((2, 2), bool),), {}, "int32 or int64.*bool"),
    "uint8": ((ROWS.astype("uint8"),), {}, "int32 or int64.*uint8"),
    "uint64": ((ROWS.astype("uint64"),), {}, "int32 or int64.*uint64"),
    "int16": ((ROWS.astype("int16"),), {}, "int32 or int64.*int16"),
    "weights of mean": ((ROWS, None, ROWS * 1.0), {"mode": "mean"}, "mode 'sum'.*'mean'"),
    "weights of max": ((ROWS, None, ROWS * 1.0), {"mode": "max"}, "mode 'sum'.*'max'"),
    "integer weights": ((ROWS, None, ROWS), {}, "per_sample_weights to be floats.*int64"),
    "weights of another shape": (
        (ROWS, None, np.ones((2, 3))),
        {},
        r"per_sample_weights as the input.*\[2, 2\].*\[2, 3\]",
    ),
    "flat weights of rows": ((ROWS, None, np.ones(4)), {}, "per_sample_weights as the input"),
    "ragged weights of sparse ids": (
        (sparse_of(flat_of()), None, ragged_of(np.ones(9))),
        {},
        "per_sample_weights as the input, sparse.*ragged",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_input_is_an_error_that_names_the_layer(name):
    arguments, options, message = WRONG[name]
    with pytest.raises(ValueError, match=rf"(?s)Layer 'bag': expected.*{message}"):
        make(**options)(*arguments)


@pytest.mark.parametrize(
    ("ids", "offsets"),
    [
        (keras.Input((4,), dtype="float32"), None),
        (keras.Input((4,), dtype="uint8"), None),
        (keras.Input((4,), dtype="string"), None),
        (keras.Input((4, 2), dtype="int64"), None),
        (keras.Input((), dtype="int64"), None),
        (keras.Input((), dtype="int64"), keras.Input((), dtype="int32")),
        (keras.Input((4,), dtype="int64"), keras.Input((), dtype="int64")),
        (keras.Input((4,), dtype="int64", ragged=True), keras.Input((), dtype="int64")),
        (keras.Input((4,), dtype="int64", sparse=True), keras.Input((), dtype="int64")),
    ],
)
def test_a_wrong_symbolic_input_is_an_error_too(ids, offsets):
    with pytest.raises(ValueError, match="Layer 'bag': expected"):
        make()(ids, offsets)


@pytest.mark.parametrize("wrong", [-1, IDS, 2**40])
@pytest.mark.parametrize("kind", [ragged_of, sparse_of, lambda ids: ids[None]])
def test_an_id_out_of_range_is_an_error_in_each_kind(call, kind, wrong):
    ids = flat_of()
    ids[4] = wrong
    with pytest.raises(ERROR, match=f"{wrong}"):
        call(make(), kind(ids))


@pytest.mark.parametrize("offsets", [[0, 5, 3], [1, 5], [0, 10], [-1, 3]])
def test_offsets_that_cut_no_bags_are_an_error(call, offsets):
    with pytest.raises(ERROR, match="offset"):
        call(make(), flat_of(), np.array(offsets))


def test_a_sparse_tensor_whose_rows_are_not_sorted_is_an_error(call):
    sparse = tf.SparseTensor([[1, 0], [0, 0]], np.array([1, 2]), [2, 3])
    with pytest.raises(ERROR, match="row"):
        call(make(), sparse)
    outputs = make()(tf.sparse.reorder(sparse))
    assert outputs.shape == (2, DIM)


def test_weights_cut_in_other_bags_than_the_ids_are_an_error(call):
    ids = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    weights = tf.ragged.constant([[0.1], [0.2, 0.3]])
    with pytest.raises(ERROR, match="row_splits of the input"):
        call(make(), ids, per_sample_weights=weights)
    weights = tf.SparseTensor([[0, 0], [0, 1]], [1.0, 2.0], [2, 3])
    ids = tf.SparseTensor([[0, 0], [1, 0]], np.array([1, 2]), [2, 3])
    with pytest.raises(ERROR, match="indices of the input"):
        call(make(), ids, per_sample_weights=weights)


def test_an_id_out_of_range_ends_fit_with_an_error():
    model = keras.Sequential([keras.Input((2,), dtype="int64"), make(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ERROR, match="99"):
        model.fit(np.full((4, 2), 99), np.zeros((4, 1)), verbose=0)


def test_lists_do_not_wrap_to_the_dtype_of_what_is_beside_them():
    layer = HashedEmbeddingBag(10, 4, size=100)
    with pytest.raises(ValueError, match="Cast one of them"):
        layer([2**32 + 1], offsets=np.array([0], np.int32))
    with pytest.raises(ValueError, match="Cast one of them"):
        layer(np.array([1, 2], np.int32), offsets=[0, 2**32 + 1])
    with pytest.raises(ValueError, match="integers of 64 bits"):
        layer([[2**70]])
