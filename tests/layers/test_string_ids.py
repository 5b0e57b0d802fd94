"""Layers take strings as ids: the key of a string is its fingerprint, in every form of input."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok

WORDS = [["ann", "", "ключ"], ["bob"], [], ["ann", "x" * 70]]
DIM = 3


def _dynamic(combiner):
    return sok.DynamicEmbedding(DIM, combiner=combiner, seed=1, padding_value="")


def _adaptive(combiner):
    return sok.AdaptiveEmbedding(
        DIM, 11, promote_after=1, combiner=combiner, seed=1, padding_value=""
    )


class _OneFeature(keras.layers.Layer):
    """Calls a collection of one feature as a layer of one table."""

    def __init__(self, combiner):
        super().__init__()
        table = sok.TableConfig("t", None, DIM, combiner=combiner, seed=1)
        self.layer = sok.DistributedEmbedding([sok.FeatureConfig("f", table, padding_value="")])
        self.table = self.layer.tables["t"]

    def __call__(self, ids, **kwargs):
        return self.layer([ids], **kwargs)[0]


LAYERS = {"dynamic": _dynamic, "adaptive": _adaptive, "collection": _OneFeature}


def _in_form(form, ids):
    return {
        "dense": lambda: ids.to_tensor("" if ids.dtype == tf.string else sok.fingerprint("")),
        "ragged": lambda: ids,
        "sparse": ids.to_sparse,
    }[form]()


def _values(vectors):
    return vectors.flat_values if isinstance(vectors, tf.RaggedTensor) else vectors


# No layer takes sparse ids without a combiner.
@pytest.mark.cover(6)
@pytest.mark.parametrize(
    "form, combiner",
    [
        *((form, "mean") for form in ("dense", "ragged", "sparse")),
        ("dense", None),
        ("ragged", None),
    ],
)
@pytest.mark.parametrize("kind", LAYERS)
def test_strings_are_looked_up_as_their_fingerprints(kind, form, combiner):
    words = tf.ragged.constant(WORDS)
    of_strings, of_keys = LAYERS[kind](combiner), LAYERS[kind](combiner)
    keys = _in_form(form, sok.fingerprint(words))
    vectors = of_strings(_in_form(form, words), training=True)
    np.testing.assert_array_equal(_values(vectors), _values(of_keys(keys, training=True)))
    rows = [set(layer.table.export()[0]) for layer in (of_strings, of_keys)]
    assert rows[0] == rows[1]
    names = {word for bag in WORDS for word in bag if word or combiner is None}
    assert rows[0] == set(sok.fingerprint(sorted(names)))


def test_all2all_takes_strings_of_int64_keys():
    words = np.array([[["a", "b"]], [["b", "c"]]])
    layers = [
        sok.All2AllDenseEmbedding(9, DIM, 1, 2, key_dtype=dtype, seed=1)
        for dtype in ("int64", "int32")
    ]
    vectors = layers[0](words)
    np.testing.assert_array_equal(vectors, layers[0](sok.fingerprint(words)))
    with pytest.raises(ValueError, match="keys of int32, its key_dtype. Received: int64"):
        layers[1](words)


@pytest.mark.parametrize("ids", [["a", "b"], np.array(["a", "b"]), np.array(["a", b"b"], object)])
def test_lists_and_arrays_of_strings(ids):
    layer = sok.DynamicEmbedding(DIM)
    np.testing.assert_array_equal(layer(ids), layer(sok.fingerprint(["a", "b"])))
    nested = _OneFeature(None)
    np.testing.assert_array_equal(nested(ids), nested(sok.fingerprint(["a", "b"])))


@pytest.mark.parametrize("ids", [[1.5], np.array([1.5, "a"], object), np.array([None, "a"])])
def test_what_are_not_only_strings_is_refused(ids):
    with pytest.raises((ValueError, TypeError)):
        sok.DynamicEmbedding(DIM)(ids)


def test_strings_with_missing_ones_are_refused_with_the_way():
    ids = np.array(["a", None], object)
    with pytest.raises(ValueError, match=r"Received: None \(of type NoneType\) among them"):
        sok.DynamicEmbedding(DIM)(ids)
    assert sok.DynamicEmbedding(DIM)(sok.fingerprint(ids)).shape == (2, DIM)


def test_the_mask_of_strings_leaves_the_missing_one_out():
    layer = sok.DynamicEmbedding(DIM, padding_value="")
    words = tf.constant([["a", ""], ["", "b"]])
    np.testing.assert_array_equal(layer.compute_mask(words), [[True, False], [False, True]])
    config = layer.get_config()
    assert config["padding_value"] == ""
    assert type(layer).from_config(config).padding_value == ""


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_model_of_strings_trains_as_one_of_keys(kind, tmp_path):
    """Both models make the same steps, and what was trained is saved, loaded and exported."""
    words = tf.constant([["a", "b", ""], ["b", "c", "a"]] * 4)  # Keras takes no array of strings

    def model_of(dtype):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((3,), dtype=dtype, name="words")
        pooled = LAYERS[kind]("sum")
        model = keras.Model(inputs, keras.layers.Dense(1)(pooled(inputs)))
        model.compile("adam", "mse")
        return model, pooled.table

    labels = np.arange(8.0)[:, None]
    by_string, table = model_of("string")
    by_key, _ = model_of("int64")
    histories = [
        model.fit(ids, labels, batch_size=4, epochs=2, verbose=0, shuffle=False).history["loss"]
        for model, ids in ((by_string, words), (by_key, sok.fingerprint(words)))
    ]
    assert histories[0] == histories[1]
    expected = by_key.predict(sok.fingerprint(words), verbose=0)
    np.testing.assert_array_equal(by_string.predict(words, verbose=0), expected)
    by_string.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again.predict(words, verbose=0), expected)
    by_string.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(served.serve(words), expected, rtol=1e-6)
    assert set(table.export()[0]) == set(sok.fingerprint(["a", "b", "c"]))


def test_a_plan_measures_strings():
    table = sok.TableConfig("t", None, DIM, combiner="sum")
    features = [sok.FeatureConfig("f", table)]
    batches = [[np.array([["a", "b"], ["a", "a"]])]]
    usage = sok.planning.measured(features, batches)
    assert usage.distinct["t"] == 0.5
