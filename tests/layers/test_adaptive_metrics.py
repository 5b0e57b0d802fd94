"""Figures of an adaptive layer: in `stats`, and in the logs of each epoch."""

import csv

import keras
import numpy as np
import pytest
import tensorflow as tf
from adaptive_reference import DIM, make
from keras import optimizers as ko

from sok_embed import AdaptiveTable, DynamicEmbedding
from sok_embed.callbacks import AdaptiveMetrics

NAMES = {
    "own_rows",
    "promoted",
    "demoted",
    "own_share",
    "sketch_saturation",
    "own_bytes",
    "static_bytes",
    "sketch_bytes",
}
# There are three steps an epoch.
KEYS = np.array([[1, 2], [1, 3], [1, 4]])


def model_of(*layers):
    inputs = keras.Input((2,), dtype="int64")
    flat = [keras.layers.Flatten()(layer(inputs)) for layer in layers]
    joined = flat[0] if len(flat) == 1 else keras.layers.Concatenate()(flat)
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile(ko.SGD(0.1), "mse", run_eagerly=True)
    return model


def fit(model, **arguments):
    given = {"batch_size": 1, "epochs": 3, "shuffle": False, "verbose": 0, **arguments}
    return model.fit(KEYS, np.ones((3, 1)), **given).history


def test_figures_of_each_epoch_are_in_the_logs():
    history = fit(model_of(make(promote_after=2)), callbacks=[AdaptiveMetrics()])
    assert {name for name in history if name.startswith("emb/")} == {f"emb/{n}" for n in NAMES}
    assert history["emb/promoted"] == [1, 3, 0]
    assert history["emb/own_rows"] == [1, 4, 4]
    assert history["emb/demoted"] == [0, 0, 0]
    # A key that is promoted in a call was not found in it. Of 6 lookups: the third of key 1; then
    # its three; then all.
    np.testing.assert_allclose(history["emb/own_share"], [1 / 6, 3 / 6, 1])
    assert history["emb/static_bytes"][0] > 0
    assert history["emb/sketch_bytes"][0] > 0


def test_demoted_rows_are_counted():
    layer = make(promote_after=1, max_rows=2)
    history = fit(model_of(layer), callbacks=[AdaptiveMetrics()], epochs=1)
    assert (history["emb/promoted"], history["emb/demoted"]) == ([4], [2])
    assert history["emb/own_rows"] == [2]


def test_every_adaptive_layer_of_the_model_has_its_figures():
    inner = keras.Sequential([keras.Input((2,), dtype="int64"), make(name="inner")])
    layers = [make(name="first"), inner, DynamicEmbedding(DIM, name="other")]
    history = fit(model_of(*layers), callbacks=[AdaptiveMetrics()], epochs=1)
    assert {name.split("/")[0] for name in history if "/" in name} == {"first", "inner"}


def test_callbacks_after_it_read_the_figures(tmp_path):
    callbacks = [AdaptiveMetrics(), keras.callbacks.CSVLogger(tmp_path / "epochs.csv")]
    fit(model_of(make(promote_after=2)), callbacks=callbacks)
    with open(tmp_path / "epochs.csv") as file:
        assert [int(row["emb/promoted"]) for row in csv.DictReader(file)] == [1, 3, 0]


def test_tensorboard_shows_the_figures(tmp_path):
    pytest.importorskip("tensorboard")  # a development requirement only
    callbacks = [AdaptiveMetrics(), keras.callbacks.TensorBoard(tmp_path)]
    fit(model_of(make(promote_after=2)), callbacks=callbacks)
    (events,) = (tmp_path / "train").glob("events.out.tfevents.*")
    found: dict[str, list] = {}
    for event in tf.compat.v1.train.summary_iterator(str(events)):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(tf.make_ndarray(value.tensor))
    assert [int(value) for value in found["epoch_emb/promoted"]] == [1, 3, 0]
    np.testing.assert_allclose(np.ravel(found["epoch_emb/own_share"]), [1 / 6, 3 / 6, 1])


def test_validation_adds_no_figures_of_its_own():
    data = (KEYS + 1, np.ones((3, 1)))
    history = fit(
        model_of(make(promote_after=2)), callbacks=[AdaptiveMetrics()], validation_data=data
    )
    assert history["emb/promoted"] == [1, 3, 0]
    assert not any(name.startswith("val_emb") for name in history)


def test_an_evaluation_by_itself_says_how_the_tables_stand():
    model = model_of(make(promote_after=2))
    fit(model, epochs=1)
    logs = {}

    class Look(keras.callbacks.Callback):
        def on_test_end(self, its_logs=None):
            logs.update(its_logs)

    model.evaluate(KEYS, np.ones((3, 1)), verbose=0, callbacks=[AdaptiveMetrics(), Look()])
    assert logs["emb/own_rows"] == 1
    assert "emb/promoted" not in logs


def test_a_second_fit_counts_from_where_it_starts():
    model, callback = model_of(make(promote_after=2)), AdaptiveMetrics()
    fit(model, callbacks=[callback], epochs=1)
    fit(model, epochs=1)
    assert fit(model, callbacks=[callback], epochs=1)["emb/promoted"] == [0]


def test_stats_are_those_of_the_table():
    layer = make(promote_after=2)
    fit(model_of(layer), epochs=1)
    figures = layer.stats()
    assert figures == layer.table.stats()
    assert figures["rows"] == layer.table.size() == len(layer.table) == 1
    assert figures["static_rows"] == len(layer.table.export_static()[0])
    assert figures["static_buckets"] == layer.static_buckets
    assert figures["steps"] == 3
    assert figures["promoted"] == 1
    assert (figures["lookups"], figures["own_lookups"]) == (6, 1)
    assert figures["own_share"] == pytest.approx(1 / 6)
    assert 0 <= figures["sketch_saturation"] < 0.01
    parts = sum(figures[f"{part}_bytes"] for part in ("own", "static", "sketch"))
    assert figures["bytes"] == parts
    assert isinstance(layer.table, AdaptiveTable)
    assert "1 own rows" in repr(layer.table)


def test_a_sketch_that_is_too_small_is_full():
    layer = make(promote_after=255, sketch_capacity=1)
    layer(np.arange(60_000) % 100, training=True)
    assert layer.stats()["sketch_saturation"] == 1.0


def test_a_model_without_an_adaptive_layer_is_refused_before_the_first_step():
    model = model_of(DynamicEmbedding(DIM, name="plain"))
    text = r"expected an AdaptiveEmbedding.*DynamicEmbedding 'plain'"
    with pytest.raises(ValueError, match=text):
        fit(model, callbacks=[AdaptiveMetrics()])
    assert int(model.optimizer.iterations) == 0
    with pytest.raises(ValueError, match=text):
        model.evaluate(KEYS, np.ones((3, 1)), verbose=0, callbacks=[AdaptiveMetrics()])
