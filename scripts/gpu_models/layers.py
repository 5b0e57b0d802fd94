"""Cases of this folder: each kind of layer, and feature columns in TF2 and in TF1 graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import (
    BATCH,
    DIM,
    FIELDS,
    KEYS,
    Arrays,
    case,
    contents,
    device,
    examples,
    fitted,
    ids,
    model_of,
)

import sok_embed as sok
from sok_embed import feature_column as sok_columns

v1 = tf.compat.v1


def trained_collection(rows_on: str = "cpu") -> Arrays:
    """Trains on several tables, one of which no loss uses, as a function and eagerly.

    Args:
        rows_on: The device of the rows of all tables.
    """
    on: dict[str, Any] = {"device": rows_on}
    shared = sok.TableConfig("shared", None, DIM, combiner="sum", **on)
    small = sok.TableConfig("small", KEYS, DIM, combiner="mean", optimizer="adagrad", **on)
    other = sok.TableConfig("other", None, 4, combiner="max", **on)
    features = {
        "a": sok.FeatureConfig("a", shared),
        "b": sok.FeatureConfig("b", shared, combiner=None),
        "c": sok.FeatureConfig("c", small),
        "unused": sok.FeatureConfig("unused", other),
    }
    found = {}
    for eagerly in (False, True):
        inputs = keras.Input((FIELDS,), dtype="int64")
        layer = sok.DistributedEmbedding(features, name="tables")
        vectors = layer({"a": inputs, "b": inputs[:, 0], "c": abs(inputs), "unused": inputs})
        joined = keras.layers.Concatenate()([vectors["a"], vectors["b"], vectors["c"]])
        model = keras.Model(inputs, keras.layers.Dense(1)(joined))
        sgd = keras.optimizers.SGD(0.05)
        trained = fitted(model, sgd, examples(4), run_eagerly=eagerly)
        found |= {f"{eagerly}.{name}": value for name, value in trained.items()}
    return found


@case()
def distributed_embedding() -> Arrays:
    return trained_collection()


@case()
def adaptive() -> Arrays:
    layer = sok.AdaptiveEmbedding(DIM, 50, promote_after=2, name="rows", seed=3)
    return fitted(model_of(layer), keras.optimizers.Adagrad(0.05))


@case()
def all2all() -> Arrays:
    inputs = keras.Input((2, 2), dtype="int64")
    layer = sok.All2AllDenseEmbedding(KEYS, DIM, 2, 2, seed=3, name="rows")
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs)))
    keys, targets = examples()
    return fitted(keras.Model(inputs, outputs), "sgd", (keys.reshape(-1, 2, 2), targets))


@case()
def hashed() -> Arrays:
    return fitted(model_of(sok.HashedEmbedding(KEYS, DIM, 1 / 8)), "sgd", ids())


@case()
def hashed_bags() -> Arrays:
    layer = sok.HashedEmbeddingBag(KEYS, DIM, 1 / 8, sign=True)
    return fitted(model_of(layer, False), "adagrad", ids())


@case()
def hashed_bags_with_sparse_gradients() -> Arrays:
    layer = sok.HashedEmbeddingBag(KEYS, DIM, 1 / 8, mode="mean", sparse_gradient=True)
    return fitted(model_of(layer, False), "sgd", ids())


@case()
def hashed_maxima_in_blocks() -> Arrays:
    layer = sok.HashedEmbeddingBag(KEYS, DIM, 1 / 8, mode="max", block_size=4, padding_idx=1)
    return fitted(model_of(layer, False), "sgd", ids())


def adaptive_column(device: str = "cpu") -> Any:
    """Makes an adaptive embedding column."""
    column = sok_columns.categorical_column_with_adaptive_embedding(
        "item", 50, tf.int64, ev_option=sok_columns.EmbeddingVariableOption(device=device)
    )
    return sok_columns.embedding_column(column, DIM, initializer=v1.constant_initializer(0.1))


def masks_of(keys: Any) -> Any:
    """Gives every other key a row of its own."""
    return (keys % 2).astype(np.int32)


@case()
def dense_features() -> Arrays:
    return trained_column("cpu")


def trained_column(rows_on: str) -> Arrays:
    """Trains feature columns of TF2, whose rows lie on a device, by a loop."""
    keys, targets = examples()
    layer, dense = sok_columns.DenseFeatures([adaptive_column(rows_on)]), keras.layers.Dense(1)
    optimizer, losses = keras.optimizers.Adagrad(0.05), []

    @tf.function
    def step(keys: Any, masks: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            vectors = layer({"item": keys}, {"item": masks}, training=True)
            loss = tf.reduce_mean((dense(vectors) - targets) ** 2)
        weights = [*layer.trainable_variables, *dense.trainable_variables]
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    layer({"item": keys[:1] + KEYS}, {"item": masks_of(keys[:1])})
    dense.build((None, DIM))
    for i in range(0, len(keys), BATCH):
        part = keys[i : i + BATCH] + KEYS  # ids are not negative
        losses.append(float(step(part, masks_of(part), targets[i : i + BATCH])))
    assert dense.kernel.value.device.endswith(device())
    return {"losses": losses, "kernel": np.asarray(dense.kernel)}


def features_model() -> tuple[Any, Any]:
    """Makes a model of feature columns, and what it takes."""
    keys, masks = (keras.Input((FIELDS,), dtype=dtype) for dtype in ("int64", "int32"))
    vectors = sok_columns.DenseFeatures([adaptive_column()])({"item": keys}, {"item": masks})
    ids = examples()[0] + KEYS
    return keras.Model([keys, masks], keras.layers.Dense(1)(vectors)), [ids, masks_of(ids)]


@case(1e-3)
def dense_features_by_fit() -> Arrays:
    model, inputs = features_model()
    model.compile("adam", "mse")
    losses = model.fit(inputs, examples()[1], BATCH, shuffle=False, verbose=0, epochs=2)
    return {"losses": losses.history["loss"], **contents(model)}


def graph_losses(vectors_of: Callable[[Any], Any]) -> Arrays:
    """Trains in a TF1 graph without soft placement; its dense part is under the device."""
    keys, targets = examples()
    with tf.Graph().as_default():
        fed = v1.placeholder(tf.int64, [None, FIELDS])
        wanted = v1.placeholder(tf.float32, [None, 1])
        with tf.device(device()):
            vectors = vectors_of(fed)
            kernel = v1.get_variable("kernel", initializer=tf.fill([DIM, 1], 0.1))
            loss = tf.reduce_mean((vectors @ kernel - wanted) ** 2)
            step = v1.train.AdagradOptimizer(0.05).minimize(loss)
        with v1.Session(config=v1.ConfigProto(allow_soft_placement=False)) as session:
            session.run(v1.global_variables_initializer())
            losses = [
                session.run(
                    (loss, step), {fed: keys[i : i + BATCH] + KEYS, wanted: targets[i : i + BATCH]}
                )[0]
                for i in range(0, len(keys), BATCH)
            ]
            return {"losses": losses, "kernel": session.run(kernel)}


@case()
def input_layer_in_a_graph() -> Arrays:
    def vectors_of(keys: Any) -> Any:
        masks = {"item": tf.cast(keys % 2, tf.int32)}
        features = {"item": keys}
        return sok_columns.input_layer(features, [adaptive_column()], adaptive_mask_tensors=masks)

    return graph_losses(vectors_of)


@case()
def embedding_variable_in_a_graph() -> Arrays:
    def vectors_of(keys: Any) -> Any:
        start = v1.constant_initializer(0.1)
        items = sok_columns.get_embedding_variable("items", DIM, initializer=start)
        return tf.reduce_mean(tf.nn.embedding_lookup(items, keys), 1)

    return graph_losses(vectors_of)
