"""An export as ONNX answers in onnxruntime as `predict`, or is refused by what ONNX lacks.

The tolerance is 1e-6, of an output and of 1: ONNX adds the rows of a bag in another order.
"""

from __future__ import annotations

import os
import sys

import keras
import model_kinds as kinds
import numpy as np
import onnx
import onnxruntime
import pytest
import served_models as models
import tensorflow as tf
from onnx_answers import check, refused, runtime_answers

import sok_embed as sok
from sok_embed import feature_column as fc
from sok_embed.serving import export, onnx_files
from sok_embed.serving.exporting import serving_function

LAYERS = {"dynamic": models.dynamic, "collection": models.collection, "adaptive": models.adaptive}
COMBINERS = ["sum", "mean", "sqrtn", "max"]


@pytest.mark.cover(1)
@pytest.mark.parametrize("form", models.FORMS)
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("layer", LAYERS)
def test_bags_of_all_forms_answer_as_predict(layer, combiner, form, tmp_path):
    if layer == "adaptive" and combiner == "max":
        combiner = "mean"  # such a layer has no maximum
    model, fed = models.trained(LAYERS[layer](combiner), form)
    check(model, models.parts_of(fed), models.predicted(model, fed), tmp_path)


@pytest.mark.cover(1)
@pytest.mark.parametrize("form", models.FORMS)
@pytest.mark.parametrize("layer", ["dynamic", "collection"])
def test_weighted_bags_answer_as_predict(layer, form, tmp_path):
    # A mean would divide by sums of weights that are nearly 0.
    model, fed = models.trained(LAYERS[layer]("sum"), form, models.WEIGHTED[layer])
    check(model, models.parts_of(fed), models.predicted(model, fed), tmp_path)


@pytest.mark.cover(1)
@pytest.mark.parametrize("form", ["ragged", "sparse"])
@pytest.mark.parametrize("combiner", [*COMBINERS, "weights"])
@pytest.mark.parametrize("layer", LAYERS)
def test_batches_of_empty_bags_answer_as_predict(layer, combiner, form, tmp_path):
    weights = models.WEIGHTED.get(layer, "") if combiner == "weights" else ""
    if combiner == "weights" or (layer == "adaptive" and combiner == "max"):
        combiner = "mean"  # of empty bags, whose sums of weights are 0
    model, _ = models.trained(LAYERS[layer](combiner), form, weights)
    folder = export(model, tmp_path, ops="onnx")
    for count in (3, 1):
        empty = [[]] * count
        fed = models.fed_of(form, empty, empty if weights else None)
        found = runtime_answers(folder, models.parts_of(fed))
        for one, other in zip(found, models.predicted(model, fed), strict=True):
            np.testing.assert_allclose(one, other, 1e-6, 1e-6)


def of_ids(layer, limit, length=3):
    """Returns a trained model of a layer, and ids below a limit that it is asked."""
    ids = keras.Input((length,), dtype="int64", name="ids")
    vectors = keras.layers.Flatten()(layer(ids))
    model = keras.Model(ids, keras.layers.Dense(2)(vectors))
    random = np.random.default_rng(4)
    asked = random.integers(0, limit, [40, length])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model.fit(asked[:30], random.normal(size=[30, 2]), epochs=2, verbose=0)
    return model, asked


def positions(ids):
    """Looks ids up in a table whose keys are positions."""
    layer = sok.All2AllDenseEmbedding(50, 4, 3, 1, use_hashtable=False)
    return layer(keras.layers.Reshape((3, 1))(ids))


OTHERS = {
    "of positions": lambda: positions,
    "default key": lambda: sok.DynamicEmbedding(4, "ones", default_vector=7),
    "masked": lambda: sok.DynamicEmbedding(4, "ones", mask_zero=True, combiner="mean"),
    "mixed hash": lambda: sok.HashedEmbeddingBag(50, 8, 0.5, seed=1, sign=True),
    "original hash": lambda: sok.HashedEmbeddingBag(50, 8, 0.5, seed=1, hash="original"),
    "modulo hash": lambda: sok.HashedEmbeddingBag(50, 8, 0.5, seed=1, hash="modulo"),
    "hashed table": lambda: sok.HashedEmbedding(50, 8, 0.5, seed=1),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_layers_answer_as_predict(kind, tmp_path):
    model, asked = of_ids(OTHERS[kind](), 50)
    expected = [model.predict(asked, batch_size=40, verbose=0)]
    check(model, {"ids": tf.constant(asked)}, expected, tmp_path)


@pytest.mark.parametrize("kind", ["of positions", "mixed hash"])
@pytest.mark.parametrize("key", [-1, 50])
def test_keys_that_a_layer_refuses_are_refused(kind, key, tmp_path):
    model, asked = of_ids(OTHERS[kind](), 50)
    session = onnxruntime.InferenceSession(f"{export(model, tmp_path, ops='onnx')}/model.onnx")
    asked[3, 1] = key
    with pytest.raises(Exception, match=r"(?i)expected_\w+_in_0_50.*out of data bounds"):
        session.run(None, {"ids": asked})


@pytest.mark.parametrize("dtype", ["float16", "int8", "int4"])
def test_rows_of_fewer_bytes_answer_as_those_of_tensorflow(dtype, tmp_path):
    model, asked = of_ids(models.dynamic(None), 50)
    folder = export(model, tmp_path / "stock", ops="stock", dtype=dtype)
    expected = models.answered(folder, {"ids": asked})
    check(model, {"ids": tf.constant(asked)}, expected, tmp_path / "onnx", dtype=dtype)


@pytest.mark.parametrize("piece", kinds.PIECES)
def test_layers_of_keras_around_them_answer_as_predict(piece, tmp_path):
    pieces = kinds.Kinds(np.random.default_rng(1))
    vectors = keras.layers.Flatten()(getattr(pieces, piece)())
    model = keras.Model(pieces.inputs, keras.layers.Dense(2)(vectors))
    kinds.train(model, pieces.fed)
    expected = kinds.predicted(model, pieces.fed)
    check(model, pieces.fed, expected, tmp_path, missing="zeros")


L = keras.layers
DENSE = {
    **{
        name: lambda x, name=name: L.Activation(name)(L.Dense(4)(x))
        for name in ("relu", "relu6", "elu", "selu", "softplus", "softsign", "softmax", "tanh",
                     "log_softmax", "sigmoid", "leaky_relu", "exponential", "silu")
    },
    "batch norm": lambda x: L.BatchNormalization()(x),
    "layer norm": lambda x: L.LayerNormalization()(x),
    "attention": lambda x: L.MultiHeadAttention(2, 3)(x, x),
    "convolution": lambda x: L.Conv1D(3, 2, padding="same")(x),
    "largest": lambda x: L.MaxPooling1D(2)(x),
    "average": lambda x: L.AveragePooling1D(2)(x),
    "dots": lambda x: L.Dot(2)([x, x]),
    "recurrent": lambda x: L.Bidirectional(L.GRU(3))(x),
}  # fmt: skip


@pytest.mark.parametrize("kind", DENSE)
def test_usual_layers_after_them_answer_as_predict(kind, tmp_path):
    ids = keras.Input((4,), dtype="int64", name="ids")
    model = keras.Model(ids, L.Flatten()(DENSE[kind](models.dynamic(None)(ids))))
    asked = np.random.default_rng(1).integers(0, 20, [40, 4])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(asked, np.zeros([40, model.output.shape[1]]), verbose=0)
    expected = [model.predict(asked, batch_size=40, verbose=0)]
    check(model, {"ids": tf.constant(asked)}, expected, tmp_path)


OF_KERAS = {
    "positions": lambda ids: L.Embedding(9, 4, "uniform")(ids),
    "masked": lambda ids: L.GRU(3)(L.Embedding(9, 4, "uniform", mask_zero=True)(ids)),
    "floats": lambda ids: L.Embedding(9, 4, "uniform")(
        L.Lambda(lambda ids: tf.cast(ids, tf.float32) + 0.5)(ids)
    ),
}


@pytest.mark.parametrize("kind", OF_KERAS)
def test_embeddings_of_keras_answer_as_predict(kind, tmp_path):
    ids = keras.Input((4,), dtype="int64", name="ids")
    vectors = [models.dynamic(None)(ids), OF_KERAS[kind](ids)]
    model = keras.Model(ids, L.Concatenate()([L.Flatten()(each) for each in vectors]))
    low = 0 if kind == "masked" else -9  # counted from the end
    asked = np.random.default_rng(1).integers(low, 9, [40, 4])
    expected = [model.predict(asked, batch_size=40, verbose=0)]
    check(model, {"ids": tf.constant(asked)}, expected, tmp_path)
    with pytest.raises(Exception, match="out of data bounds"):
        runtime_answers(tmp_path / "1", {"ids": tf.constant(asked + 2**40)})


KEYS = {
    "uint64": [[2**63 + 2**53, 5], [2**63 + 2**53 + 1], [2**64 - 1, 2**63], [2**53 + 1, 2**53]],
    "int32": [[2**31 - 1, 5], [-(2**31)], [-1, 0], [2**24 + 1, 2**24]],
}


@pytest.mark.parametrize("form", models.FORMS)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", KEYS)
def test_keys_of_other_types_answer_as_predict(dtype, layer, form, tmp_path):
    ids = models.input_of(form, "ids", dtype)
    model = keras.Model(ids, LAYERS[layer]("sum")(ids))
    fed = {"ids": models.of_form(form, KEYS[dtype], np.dtype(dtype))}
    models.fit(model, fed)
    check(model, models.parts_of(fed), models.predicted(model, fed), tmp_path)


def test_large_arrays_lie_beside_the_graph(tmp_path):
    model, asked = of_ids(models.dynamic(None), 10**9, length=10)  # 300 rows
    expected = [model.predict(asked, batch_size=40, verbose=0)]
    folder = check(model, {"ids": tf.constant(asked)}, expected, tmp_path)
    assert folder == str(tmp_path / "1")
    assert sorted(os.listdir(folder)) == ["model.onnx", "model.onnx.data"]
    graph = onnx.load(f"{folder}/model.onnx", load_external_data=False).graph
    outside = [each for each in graph.initializer if each.external_data]
    assert len(outside) >= 2  # keys and rows
    assert os.path.getsize(f"{folder}/model.onnx") < 20_000
    # A folder of versions may have both kinds; programs of TensorFlow do not see these.
    export(model, tmp_path, ops="native")
    export(model, tmp_path, ops="onnx")
    assert sok.serving.load(tmp_path).version.export == 2


@pytest.mark.parametrize("lengths", [[1, 1], [5, 5], [4, -1], []])
@pytest.mark.parametrize("combiner", [None, "mean"])
def test_lengths_that_do_not_fit_are_refused(combiner, lengths, tmp_path):
    ids = keras.Input((None,), dtype="int64", name="ids", ragged=True)
    model = keras.Model(ids, models.adaptive(combiner)(ids))
    parts = {"ids_values": tf.constant([5, 7, 9], tf.int64),
             "ids_row_lengths": tf.constant(lengths, tf.int64)}  # fmt: skip
    with pytest.raises(Exception, match=r"(?i)expected_lengths_that_fit"):
        runtime_answers(export(model, tmp_path, ops="onnx"), parts)


def test_weights_in_other_places_are_refused(tmp_path):
    model, fed = models.trained(models.dynamic("sum"), "ragged", "weights")
    parts = models.parts_of(fed)
    parts["weights_row_lengths"] = tf.reverse(parts["weights_row_lengths"], [0])
    with pytest.raises(Exception, match=r"(?i)expected_weights_with_the_row_splits"):
        runtime_answers(export(model, tmp_path, ops="onnx"), parts)


def test_ops_that_onnx_does_not_have_are_refused_by_name(tmp_path):
    words = keras.Input((2,), dtype="string", name="words")
    vectors = sok.DynamicEmbedding(4, combiner="sum", name="rows_of_words")(words)
    refused(
        keras.Model(words, vectors),
        tmp_path,
        "the same in ONNX. Received: Fingerprint .*rows_of_words",
    )


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_layers_of_fewer_bits_are_refused_by_name(dtype, tmp_path):
    ids = keras.Input((2,), dtype="int64", name="ids")
    rounded = L.Dense(2, dtype=dtype)(models.dynamic("sum")(ids))
    refused(keras.Model(ids, rounded), tmp_path, rf"Received: Cast \(.*{dtype[6:]}\)")


def test_columns_are_refused_by_name(tmp_path):
    column = fc.categorical_column_with_embedding("ids", tf.int64)
    features = {"ids": keras.Input((3,), dtype="int64", name="ids")}
    vectors = fc.DenseFeatures([fc.embedding_column(column, 4)], name="features")(features)
    refused(keras.Model(features, vectors), tmp_path, "Received: Sparse.*'.*features")


def test_rows_that_are_looked_up_before_the_graph_give_the_same(tmp_path):
    ids = keras.Input((3,), dtype="int64", name="ids")
    flat = keras.layers.Flatten()(sok.DynamicEmbedding(16, seed=3, name="items")(ids))
    model = keras.Model(ids, keras.layers.Dense(1, name="head")(flat))
    asked = np.random.default_rng(1).integers(-9, 9, [40, 3])
    model.compile("adam", "mse")
    model.fit(asked[:9], np.ones([9, 1]), verbose=0)
    vectors = keras.Input((3, 16), name="vectors")
    head = keras.Model(vectors, model.get_layer("head")(keras.layers.Flatten()(vectors)))
    folder = export(model, tmp_path / "served")
    with sok.serving.rows.open(f"{folder}/assets/items.safetensors") as items:
        parts = {"vectors": tf.constant(items.lookup(asked))}
    check(head, parts, [model.predict(asked, verbose=0)], tmp_path / "head")


def test_more_than_a_graph_takes_is_refused_with_the_sizes_of_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_files, "_MOST", 2**20)
    ids = keras.Input((1,), dtype="int64", name="ids")
    own = sok.DynamicEmbedding(64, "ones", name="own")
    both = sok.AdaptiveEmbedding(64, static_buckets=2**13, name="both")
    vectors = keras.layers.Concatenate()(
        [keras.layers.Flatten()(each(ids)) for each in (own, both)]
    )
    model = keras.Model(ids, keras.layers.Dense(1024)(vectors))
    model.compile("sgd", "mse")
    model.fit(np.arange(4096)[:, np.newaxis], np.zeros([4096, 1024]), batch_size=4096, verbose=0)
    # 8192 rows of 256 bytes beside own ones, 4096 rows with their keys, 128 rows of 4096 bytes.
    sizes = r"table 'both' 2\.0 MiB, table 'own' 1\.0 MiB, weights 0\.5 MiB"
    refused(model, tmp_path, f"less than 1 MiB.* Received: {sizes}")


@pytest.mark.parametrize("place", ["", "1"])
def test_an_export_as_onnx_is_not_loaded_and_says_so(place, tmp_path):
    model, _ = of_ids(models.dynamic(None), 5)
    export(model, tmp_path, ops="onnx")
    with pytest.raises(FileNotFoundError, match="Received: one with ops='onnx'.*onnxruntime"):
        sok.serving.load(tmp_path / place)
    with pytest.raises(ValueError, match="Expected a folder for an export with ops='onnx'"):
        export(model, "memory://served", ops="onnx")


def test_a_machine_without_the_extra_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    model, _ = of_ids(models.dynamic(None), 5)
    with pytest.raises(ImportError, match=r"pip install 'sok-embed\[onnx\]'"):
        export(model, tmp_path, ops="onnx")
    assert os.listdir(tmp_path) == []


def test_the_model_serves_and_trains_on_after_an_export(tmp_path):
    model, asked = of_ids(models.dynamic(None), 50)
    expected = model.predict(asked, verbose=0)
    export(model, tmp_path, ops="onnx")
    np.testing.assert_array_equal(model.predict(asked, verbose=0), expected)
    model.fit(asked, np.zeros([40, 2]), verbose=0)
    serve, parts = serving_function(model)
    assert [each.name for each in parts] == ["ids"]
    assert serve({"ids": tf.constant(asked)}).shape == (40, 2)
