"""Keras' and TensorFlow's own ways to take data do what the page on data says."""

from __future__ import annotations

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import sok_embed as sok

NAMES = ["ann", "bob", "ann", "eve"]
LABELS = np.array([0, 1, 1, 0], np.float32)


def model_of_strings():
    keras.utils.set_random_seed(7)
    inputs = {"user": keras.Input((), dtype="string", name="user")}
    vectors = sok.DynamicEmbedding(4, name="users")(inputs["user"])
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(vectors))
    model.compile("adam", "binary_crossentropy")
    return model


def loss_of(*data, **options):
    history = model_of_strings().fit(*data, epochs=2, verbose=0, shuffle=False, **options)
    return history.history["loss"]


@pytest.mark.parametrize(
    "strings",
    [
        tf.constant(NAMES),
        np.array(NAMES, object),
        pd.Series(NAMES, dtype="string"),
    ],
    ids=["tensor", "objects", "string"],
)
def test_strings_that_keras_takes(strings) -> None:
    frame = pd.DataFrame({"user": NAMES, "label": LABELS})
    expected = loss_of(sok.data.from_pandas(frame, 2, label="label"))
    assert loss_of({"user": strings}, LABELS, batch_size=2) == expected


@pytest.mark.parametrize(
    ("strings", "words"),
    [
        (np.array(NAMES), "Invalid dtype: str"),
        (np.array(NAMES, "S"), "Invalid dtype: bytes"),
        (np.array(["ann", None, "bob", "eve"], object), "Invalid dtype: object"),
        (pd.Series(NAMES), "Invalid dtype: object"),
        (NAMES, "Unrecognized data type"),
    ],
    ids=["U", "S", "None", "Series", "list"],
)
def test_strings_that_keras_refuses_before_any_layer(strings, words) -> None:
    with pytest.raises(ValueError, match=words):
        loss_of({"user": strings}, LABELS)


def test_weights_of_classes_are_those_of_examples() -> None:
    frame = pd.DataFrame({"user": NAMES, "label": LABELS, "weight": [1.0, 5, 5, 1]})
    weighted = sok.data.from_pandas(frame, 2, label="label", weight="weight")
    plain = sok.data.from_pandas(frame.drop(columns="weight"), 2, label="label")
    assert loss_of(weighted) == loss_of(plain, class_weight={0: 1.0, 1: 5.0})


def test_a_dataset_of_python_returns_tensors_for_strings() -> None:
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, number):
            part = slice(2 * number, 2 * number + 2)
            return {"user": tf.constant(NAMES[part])}, LABELS[part]

    frame = pd.DataFrame({"user": NAMES, "label": LABELS})
    assert loss_of(Batches()) == loss_of(sok.data.from_pandas(frame, 2, label="label"))


def test_records_of_tensorflow_have_strings_and_ragged_lists(tmp_path) -> None:
    path = str(tmp_path / "rows.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for user, tags in (("ann", ["a", "b"]), (None, [])):
            feature = {"tags": tags} | ({"user": [user]} if user else {})
            lists = {
                name: tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[each.encode() for each in texts])
                )
                for name, texts in feature.items()
            }
            example = tf.train.Example(features=tf.train.Features(feature=lists))
            writer.write(example.SerializeToString())
    features = {
        "user": tf.io.FixedLenFeature([], tf.string, ""),
        "tags": tf.io.RaggedFeature(tf.string),
    }
    dataset = tf.data.TFRecordDataset(path).batch(2)
    (found,) = dataset.map(lambda records: tf.io.parse_example(records, features))
    assert found["user"].numpy().tolist() == [b"ann", b""]
    assert found["tags"].to_list() == [[b"a", b"b"], []]


def test_a_dataset_without_labels_is_predicted_in_the_order_of_its_rows() -> None:
    model = model_of_strings()
    model.fit(
        sok.data.from_pandas(pd.DataFrame({"user": NAMES, "y": LABELS}), 2, label="y"), verbose=0
    )
    found = model.predict(sok.data.from_pandas(pd.DataFrame({"user": NAMES}), 3), verbose=0)
    np.testing.assert_allclose(found, model(tf.constant(NAMES)), rtol=1e-6)
