"""The progress line of Keras, in which the figures of many tables are a few for all of them."""

import os
import pty
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

from sok_embed import DynamicEmbedding
from sok_embed.callbacks import EvictionMetrics, TableMetrics
from sok_embed.callbacks.table_figures import tables_of
from sok_embed.files.table_status import text_of_figure, write_status

TABLES = 26
KEYS = np.random.default_rng(5).integers(0, 3000, (400, TABLES))
LABELS = np.ones([len(KEYS), 1])


@pytest.fixture(scope="module")
def model():
    inputs = keras.Input((TABLES,), dtype="int64")
    fields = [DynamicEmbedding(2, name=f"c{i}")(inputs[:, i]) for i in range(TABLES)]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(fields)))
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def last_line(printed):
    """Returns the names and texts of the last progress line, after its time a step."""
    lines = re.split(r"[\r\n\b]+", printed)
    line = [each for each in lines if " - loss: " in each][-1]
    return dict(each.split(": ", 1) for each in line.split(" - ")[1:] if ": " in each)


def expected(model, **others):
    sizes = [table.stats() for _, table in tables_of(model)]
    figures = {"rows": sum(each["rows"] for each in sizes), **others}
    figures["memory_bytes"] = sum(each["bytes"] for each in sizes)
    return {
        name.removesuffix("_bytes"): text_of_figure(name, value) for name, value in figures.items()
    }


@pytest.mark.parametrize("verbose", [1, 2])
@pytest.mark.parametrize("update_freq", ["epoch", 3])
def test_it_has_four_figures_of_all_tables_and_history_has_all(model, capsys, verbose, update_freq):
    before = sum(table.size() for _, table in tables_of(model))
    found = [table.stats()["found"] for _, table in tables_of(model)]
    callbacks = [TableMetrics(update_freq)]
    history = model.fit(KEYS, LABELS, batch_size=100, verbose=verbose, callbacks=callbacks).history
    shown = last_line(capsys.readouterr().out)
    rows = sum(table.size() for _, table in tables_of(model))
    hits = sum(table.stats()["found"] for _, table in tables_of(model)) - sum(found)
    assert len([name for name in history if name.startswith("c")]) == 4 * TABLES
    assert sum(history[f"c{i}/rows"][0] for i in range(TABLES)) == rows
    assert list(shown) == ["loss", "mae", "rows", "new_rows", "hit_rate", "memory"]
    assert shown | expected(model, new_rows=rows - before) == shown
    assert shown["hit_rate"] == f"{hits / KEYS.size:.1%}"


def test_an_evaluation_has_what_it_counts(model, capsys):
    model.evaluate(KEYS, LABELS, batch_size=100, callbacks=[TableMetrics()])
    shown = last_line(capsys.readouterr().out)
    assert list(shown) == ["loss", "mae", "rows", "hit_rate", "memory"]
    assert shown | expected(model) == shown
    assert shown["hit_rate"] == "100.0%"


def test_two_callbacks_shorten_the_same_line(model, capsys):
    callbacks = [TableMetrics(), EvictionMetrics(), keras.callbacks.ProgbarLogger()]
    for _ in range(2):  # a logger of the user is used again
        model.fit(KEYS, LABELS, batch_size=100, callbacks=callbacks)
        shown = last_line(capsys.readouterr().out)
        names = ["rows", "new_rows", "hit_rate", "memory", "evicted", "left_out"]
        assert list(shown) == ["loss", "mae", *names]


def test_a_line_without_the_callback_is_that_of_keras(model, capsys):
    model.fit(KEYS, LABELS, batch_size=100)
    assert list(last_line(capsys.readouterr().out)) == ["loss", "mae"]


def test_figures_that_were_asked_for_are_those_of_the_line(model, capsys):
    model.fit(KEYS, LABELS, batch_size=100, callbacks=[TableMetrics(figures=["hit_rate", "rows"])])
    assert list(last_line(capsys.readouterr().out)) == ["loss", "mae", "hit_rate", "rows"]


def test_a_logger_that_is_used_again_shows_the_figures_of_the_present_fit(model, capsys):
    logger = keras.callbacks.ProgbarLogger()
    model.fit(KEYS, LABELS, batch_size=100, callbacks=[TableMetrics(), logger])
    capsys.readouterr()
    model.fit(KEYS, LABELS, batch_size=100, callbacks=[logger])
    assert list(last_line(capsys.readouterr().out)) == ["loss", "mae"]
    model.fit(KEYS, LABELS, batch_size=100, callbacks=[TableMetrics(figures=["evicted"]), logger])
    assert list(last_line(capsys.readouterr().out)) == ["loss", "mae", "evicted"]


def test_an_evaluation_after_a_fit_that_was_interrupted_has_its_figures(model, capsys):
    class Interrupted(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    class Logs(keras.callbacks.Callback):
        def on_test_end(self, logs=None):
            self.logs = dict(logs)

    metrics, logs = TableMetrics(), Logs()
    with pytest.raises(KeyboardInterrupt):
        model.fit(KEYS, LABELS, callbacks=[metrics, Interrupted()])
    capsys.readouterr()
    model.evaluate(KEYS, LABELS, batch_size=100, callbacks=[metrics, logs])
    assert list(last_line(capsys.readouterr().out)) == ["loss", "mae", "rows", "hit_rate", "memory"]
    assert logs.logs["c0/rows"] > 0
    # A validation stays part of its epoch.
    data = (KEYS, LABELS)
    history = model.fit(*data, batch_size=100, validation_data=data, callbacks=[metrics]).history
    assert "val_c0/hit_rate" in history


def test_a_metric_with_the_name_of_a_figure_stays(capsys):
    inputs = keras.Input((TABLES,), dtype="int64")
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(DynamicEmbedding(2)(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse", metrics=[keras.metrics.MeanSquaredError(name="rows")])
    model.fit(KEYS, LABELS, batch_size=100, callbacks=[TableMetrics()])
    shown = last_line(capsys.readouterr().out)
    assert list(shown) == ["loss", "rows", "tables/rows", "new_rows", "hit_rate", "memory"]
    assert shown["rows"] == shown["loss"]
    (table,) = (table for _, table in tables_of(model))
    assert shown["tables/rows"] == f"{table.size():,}"


def test_top_waits_for_a_training_that_has_not_begun(tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sok_embed.cli", "top", str(tmp_path), "--interval", "0.1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as top:
        os.close(theirs)
        shown = b""
        while b"This waits for it" not in shown:
            shown += os.read(ours, 4096)
        logs = {"loss": 0.25, "items/rows": 1234567, "items/memory_bytes": 412_300_000}
        status = {"time": 0.0, "workers": 2, "epoch": 3, "batches": 7, "logs": logs}
        write_status(tmp_path, status | {"ended": False})
        while b"1,234,567" not in shown:
            shown += os.read(ours, 4096)
        assert top.poll() is None
        write_status(tmp_path, status | {"ended": True})
        while part := read(ours):
            shown += part
        assert top.wait() == 0
    os.close(ours)
    last = shown.decode().rpartition("\x1b[?1049l")[2]  # after the screen of the live view
    assert [line.split() for line in last.splitlines()[-5:]] == [
        ["epoch", "3", "batch", "7", "workers", "2", "ended"],
        ["loss", "0.25"],
        [],
        ["table", "rows", "memory"],
        ["items", "1,234,567", "412.3", "MB"],
    ]


def read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end of the terminal has gone
        return b""
