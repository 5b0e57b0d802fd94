"""`mask_zero` leaves out what `StringLookup` before `Embedding(mask_zero=True)` masks.

Keras' layers say which places are masked; NumPy pools the vectors of the others in float64.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed.lookups.padding import padding_keys

WORDS = np.array([["ann", "", "bob"], ["", "", ""], ["", "bob", "bob"], ["eve", "ann", ""]])
DIM = 3


def _dynamic(combiner, **padding):
    return sok.DynamicEmbedding(DIM, combiner=combiner, seed=1, **padding)


def _adaptive(combiner, **padding):
    return sok.AdaptiveEmbedding(DIM, 11, combiner=combiner, seed=1, **padding)


def _collection(combiner, **padding):
    table = sok.TableConfig("t", None, DIM, combiner=combiner, seed=1)
    return sok.DistributedEmbedding(sok.FeatureConfig("f", table, **padding))


LAYERS = {"dynamic": _dynamic, "adaptive": _adaptive, "collection": _collection}
PATHS = {
    "strings": lambda words: words,
    "fingerprints": sok.fingerprint,
    "a dataset": lambda words: next(iter(tf.data.Dataset.from_tensors(words).map(sok.fingerprint))),
}
FORMS = {
    "dense": lambda words: words,
    "ragged": tf.RaggedTensor.from_tensor,
    "sparse": lambda words: tf.RaggedTensor.from_tensor(words).to_sparse(),
}


def _stays():
    """Returns the mask that Keras makes of the words, with 0 for the empty string."""
    lookup = keras.layers.StringLookup(vocabulary=["ann", "bob", "eve"], mask_token="")
    ids = lookup(tf.constant(WORDS))
    assert (np.array(ids)[WORDS == ""] == 0).all()
    return np.array(keras.layers.Embedding(9, DIM, mask_zero=True).compute_mask(ids))


def _expected(kind, combiner):
    """Returns the vectors of the words that stay, pooled in float64."""
    vectors = np.asarray(LAYERS[kind](None)(tf.constant(WORDS)), np.float64)
    stays = _stays()[..., None]
    sums, counts = (vectors * stays).sum(1), stays.sum(1)
    return {"sum": sums, "mean": sums / np.maximum(counts, 1)}[combiner]


@pytest.mark.cover("values")
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_bags_leave_the_empty_string_out(kind, form, path, combiner):
    layer = LAYERS[kind](combiner, mask_zero=True)
    words = PATHS[path](FORMS[form](tf.constant(WORDS)))
    np.testing.assert_allclose(layer(words), _expected(kind, combiner), rtol=0, atol=1e-7)
    layer(words, training=True)
    layer(words, training=True)  # an adaptive embedding makes rows at the second occurrence
    table = layer.tables["t"] if kind == "collection" else layer.table
    assert int(sok.fingerprint("")) not in table.export()[0]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("path", PATHS)
def test_vectors_of_single_strings_have_the_mask_of_keras(kind, path):
    layer = LAYERS[kind](None, mask_zero=True)
    vectors = layer(PATHS[path](tf.constant(WORDS)))
    np.testing.assert_array_equal(vectors._keras_mask, _stays())
    if path == "strings":
        # Keras takes arrays of strings in functions of its own alone, as `compute_mask` is one.
        mask = layer.compute_mask(WORDS, None)
        np.testing.assert_array_equal(mask, _stays())


@pytest.mark.cover(2)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("hashes", [False, True], ids=["strings", "fingerprints"])
def test_a_model_passes_the_mask_on_and_is_saved(kind, hashes, tmp_path):
    inputs = keras.Input((3,), dtype="string")
    layer = LAYERS[kind](None, mask_zero=True)
    vectors = layer(sok.fingerprint(inputs) if hashes else inputs)
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(vectors))
    words = tf.constant(WORDS)
    found = model(words)
    # A bag of padding alone is 0 / 0 in Keras.
    some = _stays().any(1)
    expected = _expected(kind, "mean")
    np.testing.assert_allclose(np.array(found)[some], expected[some], rtol=0, atol=1e-6)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(words), found)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_padding_of_0_leaves_out_key_0_alone(kind):
    keys = np.concatenate([sok.fingerprint(WORDS), np.zeros((4, 1), np.int64)], 1)
    found = LAYERS[kind]("sum", padding_value=0)(keys)
    reference = LAYERS[kind]("sum")(sok.fingerprint(WORDS))
    np.testing.assert_allclose(found, reference, rtol=0, atol=1e-7)
    both = LAYERS[kind]("sum", mask_zero=True)(keys)
    np.testing.assert_allclose(both, _expected(kind, "sum"), rtol=0, atol=1e-7)


def test_the_keys_of_mask_zero_are_0_and_that_of_the_empty_string():
    assert padding_keys(True, None) == (0, int(sok.fingerprint("")))
    assert padding_keys(True, "") == padding_keys(True, 0) == padding_keys(True, None)
    assert padding_keys(False, "") == (int(sok.fingerprint("")),)
    with pytest.raises(ValueError, match="mask_zero=True.*the empty one, and padding_value='-'"):
        padding_keys(True, "-")


def test_a_layer_that_takes_no_strings_refuses_them():
    with pytest.raises(ValueError, match="integer ids. Received: strings"):
        sok.HashedEmbedding(9, DIM, 1.0, mask_zero=True)(tf.constant(WORDS))
