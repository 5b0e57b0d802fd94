"""With `hash="modulo"` and compression 1 a bag is a `torch.nn.EmbeddingBag`, on each option."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from sok_embed import HashedEmbeddingBag

torch = pytest.importorskip("torch")

IDS, DIM = 12, 5
# This allows for float32; a bag has at most six entries of a magnitude of 1, and gradients sum a
# few of them.
TOLERANCE = {"rtol": 1e-6, "atol": 2e-6}
TABLE = np.random.default_rng(0).normal(size=(IDS, DIM)).astype(np.float32)

FLAT = np.array([3, 0, 11, 11, 3, 4, 4, 2, 0, 11, 7, 1])
OFFSETS = np.array([0, 2, 2, 5, 6, 6])
ROWS = np.array([[3, 0, 11], [4, 4, 4], [11, 11, 0], [1, 2, 7]])


def compare(ids, offsets, mode, padding_idx, weighted, include_last_offset):
    """Outputs, and gradients of the table and of the weights of entries."""
    random = np.random.default_rng(1)
    factors = random.normal(size=ids.shape).astype(np.float32) if weighted else None

    options = {
        "mode": mode,
        "padding_idx": padding_idx,
        "include_last_offset": include_last_offset,
    }
    theirs = torch.nn.EmbeddingBag.from_pretrained(torch.tensor(TABLE), freeze=False, **options)
    of_torch = None if factors is None else torch.tensor(factors, requires_grad=True)
    expected = theirs(
        torch.tensor(ids), None if offsets is None else torch.tensor(offsets), of_torch
    )
    upstream = random.normal(size=tuple(expected.shape)).astype(np.float32)
    expected.backward(torch.tensor(upstream))

    layer = HashedEmbeddingBag(
        IDS, DIM, compression=1, hash="modulo", weight=TABLE.reshape(-1), **options
    )
    layer.build()
    of_ours = None if factors is None else tf.Variable(factors)
    with tf.GradientTape() as tape:
        outputs = layer(ids, offsets, of_ours)
    sources = [layer.weight.value] + ([] if of_ours is None else [of_ours])
    gradients = tape.gradient(outputs, sources, output_gradients=tf.constant(upstream))

    np.testing.assert_allclose(outputs, expected.detach().numpy(), **TOLERANCE)
    np.testing.assert_allclose(
        tf.reshape(tf.convert_to_tensor(gradients[0]), [IDS, DIM]),
        theirs.weight.grad.numpy(),
        **TOLERANCE,
    )
    if factors is not None:
        np.testing.assert_allclose(gradients[1], of_torch.grad.numpy(), **TOLERANCE)


MODES = [("sum", False), ("sum", True), ("mean", False), ("max", False)]


@pytest.mark.parametrize("padding_idx", [None, 0, 11, -1, -8, -12])
@pytest.mark.parametrize(("mode", "weighted"), MODES)
def test_bags_and_gradients_are_those_of_torch(mode, weighted, padding_idx):
    compare(ROWS, None, mode, padding_idx, weighted, include_last_offset=False)
    for last in (False, True):
        offsets = np.append(OFFSETS, len(FLAT)) if last else OFFSETS
        compare(FLAT, offsets, mode, padding_idx, weighted, last)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_both_integer_types_are_taken(dtype):
    compare(FLAT.astype(dtype), OFFSETS.astype(dtype), "mean", 3, False, False)


def test_rows_are_taken_with_include_last_offset():
    compare(ROWS, None, "mean", None, False, include_last_offset=True)


def test_the_first_of_equal_entries_wins_as_in_torch():
    # Values are equal within a column, so that only one of several entries may get the gradient.
    random = np.random.default_rng(2)
    table = random.integers(0, 2, (IDS, DIM)).astype(np.float32)
    for ids in itertools.islice(itertools.permutations(range(6)), 0, 720, 97):
        ids = np.array([ids])
        theirs = torch.nn.EmbeddingBag.from_pretrained(
            torch.tensor(table), freeze=False, mode="max"
        )
        theirs(torch.tensor(ids)).sum().backward()
        layer = HashedEmbeddingBag(
            IDS, DIM, compression=1, hash="modulo", weight=table.reshape(-1), mode="max"
        )
        layer.build()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids))
        gradient = tf.convert_to_tensor(tape.gradient(loss, layer.weight.value))
        np.testing.assert_array_equal(tf.reshape(gradient, [IDS, DIM]), theirs.weight.grad.numpy())
