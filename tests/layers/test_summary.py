"""`model.summary()` and `count_params` say what a table holds."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import FeatureConfig, TableConfig, kv
from sok_embed import feature_column as fc

DIM, IDS = 4, np.arange(300).reshape(100, 3)


def cells_of(model):
    """Returns what stands in the column of the parameters, line by line."""
    lines = []
    model.summary(print_fn=lambda text, **_: lines.extend(text.splitlines()))
    rows = [line.split("│") for line in lines if line.startswith("│")]
    return [row[3].strip() for row in rows]


def trained(layer):
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer, keras.layers.Flatten()])
    model.compile("adam", "mse")
    model.fit(IDS, np.zeros([100, 3 * DIM]), verbose=0)
    return model


def test_a_table_shows_numbers_rows_and_bytes():
    layer = sok.DynamicEmbedding(DIM, name="emb")
    model = trained(layer)
    assert layer.count_params() == 300 * DIM
    kilobytes = layer.table.stats()["bytes"] / 1024
    unit = f"{kilobytes:.2f} KB" if kilobytes < 1024 else f"{kilobytes / 1024:.2f} MB"
    assert cells_of(model)[:3] == ["1,200", "300 rows", unit]
    assert f"{layer.count_params()} {layer.count_params():d}" == "1200 1200"
    layer.table.remove(np.arange(100))
    assert cells_of(model)[:2] == ["800", "200 rows"]


def test_a_table_without_rows_and_an_unbuilt_layer():
    layer = sok.DynamicEmbedding(DIM)
    with pytest.raises(ValueError, match="isn't built"):
        layer.count_params()
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer])
    assert layer.count_params() == 0
    assert cells_of(model)[:2] == ["0", "0 rows"]


def test_own_and_static_rows_count():
    layer = sok.AdaptiveEmbedding(DIM, 50, promote_after=1)
    model = trained(layer)
    stats = layer.stats()
    rows = int(stats["rows"] + stats["static_rows"])
    assert layer.count_params() == rows * DIM > 0
    assert cells_of(model)[1] == f"{rows} rows"


def test_rows_in_a_storage_count(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        layer = sok.DynamicEmbedding(DIM, storage=storage)
        model = trained(layer)
        assert layer.count_params() == 300 * DIM
        assert cells_of(model)[:2] == ["1,200", "300 rows"]


def totals_of(model):
    """Returns the numbers of a summary below its table: total, trainable, not trainable."""
    lines = []
    model.summary(print_fn=lambda text, **_: lines.extend(text.splitlines()))
    told = [line.split(":")[1].split("(")[0] for line in lines if " params:" in line]
    return [int(number.replace(",", "")) for number in told]


def test_totals_are_sums_of_the_layers_and_anchors_are_none_of_them():
    inputs = keras.Input((3,), dtype="int64")
    frozen = TableConfig("frozen", None, 2, trainable=False)
    fields = [FeatureConfig("a", TableConfig("items", None, 3)), FeatureConfig("b", frozen)]
    layers = [
        sok.DynamicEmbedding(DIM, name="dynamic"),
        sok.AdaptiveEmbedding(DIM, 50, promote_after=1, name="adaptive"),
    ]
    vectors = [keras.layers.Flatten()(layer(inputs)) for layer in layers]
    collection = sok.DistributedEmbedding(fields, output="concat", name="fields")
    vectors.append(collection([inputs, inputs]))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(vectors)))
    model.compile("sgd", "mse")
    model.fit(IDS, np.zeros([100, 1]), verbose=0)
    expected = sum(layer.count_params() for layer in model.layers)
    not_trained = collection.tables["frozen"].size() * 2
    total, trainable, others, optimizer = totals_of(model)
    assert total == expected + optimizer
    assert (trainable, others) == (expected - not_trained, not_trained)
    assert model.count_params() == expected
    # 300 rows of each table, static rows, and a dense layer of 29 numbers.
    static = model.get_layer("adaptive").stats()["static_rows"]
    assert expected == 300 * (DIM + DIM + 3) + static * DIM + not_trained + 30
    layers[0].trainable = False
    assert totals_of(model)[2] == not_trained + 300 * DIM


def test_a_layer_of_two_models_in_one_is_counted_once():
    layer = sok.DynamicEmbedding(DIM, name="emb")
    towers = []
    for _ in range(2):
        inputs = keras.Input((3,), dtype="int64")
        towers.append(keras.Model(inputs, keras.layers.Flatten()(layer(inputs))))
    inputs = keras.Input((3,), dtype="int64")
    model = keras.Model(inputs, keras.layers.Add()([tower(inputs) for tower in towers]))
    model(IDS, training=True)
    assert totals_of(model)[0] == model.count_params() == 300 * DIM


def test_own_rows_of_columns_count_beside_their_static_rows():
    item = fc.categorical_column_with_adaptive_embedding("item", 10, tf.int64)
    layer = fc.DenseFeatures([fc.embedding_column(item, DIM)])
    layer({"item": IDS[:, :1]}, {"item": np.ones([100, 1], np.int32)}, training=True)
    assert layer.count_params() == (10 + 100) * DIM


def test_histograms_are_drawn_of_dense_weights_alone(tmp_path):
    layer = sok.DynamicEmbedding(DIM, name="emb")
    model = keras.Sequential(
        [keras.Input((3,), dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    callback = keras.callbacks.TensorBoard(str(tmp_path), histogram_freq=1)
    model.fit(IDS, np.zeros([100, 1]), verbose=0, callbacks=[callback])
    tags = set()
    for path in tmp_path.rglob("events*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            tags |= {value.tag for value in event.summary.value}
    histograms = {tag for tag in tags if tag.endswith("/histogram")}
    assert any("kernel" in tag for tag in histograms)
    assert not any("anchor" in tag for tag in histograms)
    assert [tuple(weight.shape) for weight in layer.weights] == [(192,)]
