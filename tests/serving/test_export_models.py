"""An export serves models with several tables, feature columns and layers of Keras."""

from __future__ import annotations

import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from served_models import DIM, answered, assert_same_bits, check, dynamic, predicted

import sok_embed as sok
from sok_embed import feature_column as fc
from sok_embed.serving import export


@pytest.mark.cover(1)
@pytest.mark.parametrize("output, ops", [("structure", "stock"), ("concat", "native")])
def test_shared_tables_are_written_once(output, ops, tmp_path):
    shared = sok.TableConfig("shared", None, DIM, initializer="zeros")
    small = sok.TableConfig("small", 20, DIM, seed=3)  # of positions, with random start vectors
    layer = sok.DistributedEmbedding(
        [
            sok.FeatureConfig("a", shared, combiner="mean"),
            sok.FeatureConfig("b", shared, combiner="sum", max_length=9),
            sok.FeatureConfig("c", small, combiner="max"),
        ],
        output=output,
    )
    inputs = [keras.Input((3,), dtype="int64", name=name) for name in "abc"]
    outputs = layer(inputs)
    joined = outputs if output == "concat" else keras.layers.Concatenate()(outputs)
    model = keras.Model(inputs, keras.layers.Dense(2, activation="relu")(joined))
    model.compile("adam", "mse")
    random = np.random.default_rng(0)
    keys = [random.integers(-9, 9, (8, 3)), random.integers(0, 99, (8, 3)),
            random.integers(0, 20, (8, 3))]  # fmt: skip
    model.fit(keys, np.ones((8, 2)), epochs=2, verbose=0)
    folder = export(model, tmp_path, ops=ops)
    fed = dict(zip("abc", keys, strict=True))
    assert_same_bits(answered(folder, fed), [model.predict(keys, verbose=0)])
    if ops == "native":
        assert sorted(os.listdir(f"{folder}/assets")) == ["shared.safetensors", "small.safetensors"]
        return
    names = [name for name, _ in tf.train.list_variables(f"{folder}/variables/variables")]
    shapes = dict(tf.train.list_variables(f"{folder}/variables/variables"))
    matrices = [name for name in names if len(shapes[name]) == 2 and shapes[name][1] == DIM]
    assert len(matrices) == 2


def test_a_mixed_model_with_layers_of_keras_answers_as_predict(tmp_path):
    words = keras.Input((1,), dtype="string", name="words")
    number = keras.Input((3,), name="number")
    looked_up = keras.layers.StringLookup(vocabulary=["a", "b"])(words)
    vectors = [
        keras.layers.Flatten()(keras.layers.Embedding(3, 2)(looked_up)),
        keras.layers.Flatten()(dynamic(None)(words)),
        keras.layers.BatchNormalization()(number),
    ]
    joined = keras.layers.Dropout(0.5)(keras.layers.Concatenate()(vectors))
    model = keras.Model([words, number], keras.layers.Dense(2, activation="sigmoid")(joined))
    model.compile("adam", "mse")
    fed = {
        "words": tf.constant([["a"], ["b"], ["never seen"], [""]]),
        "number": np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32),
    }
    model.fit([fed["words"], fed["number"]], np.ones((4, 2)), epochs=2, verbose=0)
    expected = model.predict([fed["words"], fed["number"]], verbose=0)
    check(model, fed, [expected], tmp_path)


def test_columns_with_masks_answer_as_predict(tmp_path):
    item = fc.categorical_column_with_adaptive_embedding("item", 6, tf.int64)
    layer = fc.DenseFeatures([fc.embedding_column(item, DIM, "mean")], name="features")
    inputs = {
        "item": keras.Input((3,), dtype="int64", name="item"),
        "mask": keras.Input((3,), dtype="int32", name="mask"),
    }
    outputs = layer({"item": inputs["item"]}, {"item": inputs["mask"]})
    model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    model.compile("adam", "mse")
    random = np.random.default_rng(0)
    fed = {
        "item": random.integers(-9, 9, (16, 3)),
        "mask": random.integers(0, 2, (16, 3)).astype(np.int32),
    }
    model.fit(fed, np.ones((16, 1)), epochs=2, verbose=0)
    fed["item"][0] = 12345
    check(model, fed, predicted(model, fed), tmp_path)


def test_embedding_variables_answer_as_predict(tmp_path):
    columns, inputs, fed = [], {}, {}
    for name, filtered in (("item", False), ("filtered", True)):
        option = fc.EmbeddingVariableOption(
            filter_option=fc.CounterFilter(2) if filtered else None,
            init_option=fc.InitializerOption(None, 8, 0.25 if filtered else None),
        )
        item = fc.categorical_column_with_embedding(name, tf.int64, ev_option=option)
        columns.append(fc.embedding_column(item, DIM, "sqrtn"))
        inputs[name] = keras.Input((3,), dtype="int64", name=name)
        fed[name] = np.random.default_rng(0).integers(-20, 20, (16, 3))
    model = keras.Model(inputs, fc.DenseFeatures(columns, name="features")(inputs))
    model.compile("adam", "mse")
    model.fit(fed, np.ones((16, 2 * DIM)), epochs=1, verbose=0)
    for keys in fed.values():
        keys[0] = [12345, 5, -7]
    check(model, fed, predicted(model, fed), tmp_path)


def test_a_subclassed_model_is_exported_with_a_signature(tmp_path):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = dynamic("mean")
            self.dense = keras.layers.Dense(1)

        def call(self, inputs):
            return {"score": self.dense(self.embedding(inputs["ids"]))}

    model = Model()
    fed = {"ids": np.array([[5, 7], [8, 9]])}
    model(fed)
    with pytest.raises(ValueError, match="input_signature"):
        export(model, tmp_path)
    signature = [{"ids": tf.TensorSpec([None, None], tf.int64, "ids")}]
    folder = export(model, tmp_path, input_signature=signature)
    assert_same_bits(answered(folder, fed), predicted(model, fed))
