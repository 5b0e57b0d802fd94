"""Figures of tables in the logs of `fit`, against key sets that are compared in NumPy."""

import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from adaptive_reference import make
from click.testing import CliRunner

import sok_embed
from sok_embed import DistributedEmbedding, DynamicEmbedding, FeatureConfig, TableConfig, kv
from sok_embed.callbacks import TableMetrics
from sok_embed.callbacks.table_figures import counters_of, tables_of
from sok_embed.cli import main

BATCHES, SIZE = 5, 8
_RANDOM = np.random.default_rng(7)
KEYS = _RANDOM.integers(0, 30, (BATCHES * SIZE, 2))
TEST_KEYS = _RANDOM.integers(0, 60, (SIZE, 2))
COMMON = {"rows", "new_rows", "hit_rate", "memory_bytes"}


class Reference(keras.callbacks.Callback):
    """Counts what happens from the keys that each table has before and after each batch."""

    def __init__(self):
        super().__init__()
        self.epochs, self.batches = [], []

    def held(self):
        return {name: set(table.export()[0].tolist()) for name, table in tables_of(self.model)}

    def on_epoch_begin(self, epoch, logs=None):
        self.counts = {
            name: dict.fromkeys(("looked_up", "found", "new_rows", "evicted"), 0)
            for name in self.held()
        }

    def on_train_batch_begin(self, batch, logs=None):
        self.before, self.keys = self.held(), KEYS[batch * SIZE : (batch + 1) * SIZE].ravel()

    def on_train_batch_end(self, batch, logs=None):
        for name, after in self.held().items():
            counts, before = self.counts[name], self.before[name]
            # A collection asks for the distinct keys of a batch.
            keys = np.unique(self.keys) if name == "fields/a" else self.keys
            counts["found"] += np.isin(keys, list(before)).sum()
            counts["looked_up"] += keys.size
            counts["new_rows"] += len(after - before)
            counts["evicted"] += len(before - after)
            counts["rows"] = len(after)
            counts["hit_rate"] = counts["found"] / counts["looked_up"]
        self.batches.append({name: dict(counts) for name, counts in self.counts.items()})

    def on_epoch_end(self, epoch, logs=None):
        for name, held in self.held().items():
            keys = np.unique(TEST_KEYS) if name == "fields/a" else TEST_KEYS
            self.counts[name]["val_hit_rate"] = np.isin(keys, list(held)).mean()
        self.epochs.append(self.counts)


class Logs(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches, self.tests = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(dict(logs))

    def on_test_end(self, logs=None):
        self.tests.append(dict(logs))


def model_of(storage):
    config = TableConfig("a", None, 2, max_rows=18, eviction="lru")
    layers = [
        DynamicEmbedding(2, name="plain"),
        DynamicEmbedding(2, max_rows=18, eviction="lru", name="evicting"),
        DynamicEmbedding(2, admission=sok_embed.admission.FrequencyAdmission(3), name="admitting"),
        DynamicEmbedding(2, storage=storage, name="stored"),
        make(promote_after=2, name="adaptive"),
        DistributedEmbedding(FeatureConfig("f", config, combiner="sum"), name="fields"),
    ]
    inputs = keras.Input((2,), dtype="int64")
    flat = [keras.layers.Flatten()(layer(inputs)) for layer in layers]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(flat)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trains one model for all tests, since tracing it takes longer than the tests."""
    folder = tmp_path_factory.mktemp("run")
    reference, logs = Reference(), Logs()
    with kv.Storage(folder / "rows") as storage:
        model = model_of(storage)
        metrics = TableMetrics(2, path=folder / "status")
        history = model.fit(
            KEYS,
            np.ones(len(KEYS)),
            batch_size=SIZE,
            epochs=2,
            shuffle=False,
            verbose=0,
            validation_data=(TEST_KEYS, np.ones(SIZE)),
            callbacks=[metrics, reference, logs],
        ).history
        model.evaluate(TEST_KEYS, np.ones(SIZE), verbose=0, callbacks=[metrics, logs])
        yield model, history, reference, logs, folder / "status"


def figures(history, name):
    return {each.removeprefix(f"{name}/") for each in history if each.startswith(f"{name}/")}


def test_each_table_has_the_figures_that_say_something_of_it(run):
    _, history, *_ = run
    assert figures(history, "plain") == COMMON
    assert figures(history, "evicting") == {*COMMON, "evicted", "left_out"}
    assert figures(history, "admitting") == {*COMMON, "refused"}
    assert figures(history, "stored") == {*COMMON, "disk_bytes", "cache_hit_rate"}
    assert figures(history, "adaptive") == {*COMMON, "evicted", "sketch_saturation"}
    assert figures(history, "fields/a") == {*COMMON, "evicted", "left_out"}


def test_figures_of_epochs_are_those_that_the_batches_make(run):
    _, history, reference, *_ = run
    for i, counts in enumerate(reference.epochs):
        for table, expected in counts.items():
            for name in ("rows", "new_rows", "evicted"):
                if f"{table}/{name}" in history:
                    assert history[f"{table}/{name}"][i] == expected[name], (table, name)
            assert history[f"{table}/hit_rate"][i] == pytest.approx(expected["hit_rate"])
            assert history[f"val_{table}/hit_rate"][i] == pytest.approx(expected["val_hit_rate"])
    assert history["evicting/evicted"][1] > 0 and history["fields/a/evicted"][1] > 0


def test_keys_that_an_admission_holds_back_are_refused(run):
    _, history, *_ = run
    seen: dict[int, int] = {}
    expected = [0, 0]
    for epoch in range(2):
        for batch in np.split(KEYS, BATCHES):
            rows = {key for key, times in seen.items() if times >= 3}
            for key in batch.ravel().tolist():
                seen[key] = seen.get(key, 0) + 1
                expected[epoch] += key not in rows and seen[key] < 3
    assert history["admitting/refused"] == expected
    assert expected[0] > expected[1] > 0


def test_every_second_batch_logs_the_epoch_so_far(run):
    _, _, reference, logs, *_ = run
    assert not any(name.startswith("plain/") for name in logs.batches[0])
    for batch in (1, 3, BATCHES + 1, BATCHES + 3):
        for table, expected in reference.batches[batch].items():
            for name in ("rows", "new_rows", "hit_rate"):
                found = logs.batches[batch][f"{table}/{name}"]
                assert found == pytest.approx(expected[name]), (table, name)
    assert logs.batches[2]["plain/rows"] == logs.batches[1]["plain/rows"]


def test_bytes_in_memory_are_those_of_the_table(run):
    model, history, *_ = run
    for name, table in tables_of(model):
        assert history[f"{name}/memory_bytes"][-1] == table.stats()["bytes"] > 0
    assert history["stored/cache_hit_rate"] == [1, 1]  # the rows are new, so they are there still


def test_an_evaluation_by_itself_logs_rates_and_how_tables_stand(run):
    _, history, reference, logs, *_ = run
    last = logs.tests[-1]
    assert last["plain/hit_rate"] == pytest.approx(reference.epochs[1]["plain"]["val_hit_rate"])
    assert last["plain/rows"] == history["plain/rows"][1]
    assert "plain/new_rows" not in last and not any(name.startswith("val_") for name in last)
    assert not any("/" in name for name in logs.tests[0])  # a validation is part of its epoch


def test_the_file_has_the_last_logs(run):
    _, history, *_, folder = run
    status = json.loads((folder / "tables.json").read_text())
    assert [path.name for path in folder.iterdir()] == ["tables.json"]
    assert status["ended"] and (status["epoch"], status["batches"]) == (2, BATCHES)
    assert status["logs"]["fields/a/rows"] == history["fields/a/rows"][1]
    assert status["logs"]["loss"] == pytest.approx(history["loss"][1])


def test_the_command_shows_the_file(run, tmp_path):
    _, history, *_, folder = run
    result = CliRunner().invoke(main, ["top", str(folder)])  # not a terminal: it ends
    assert result.exit_code == 0
    first, metrics, _, head, *lines = result.output.splitlines()
    assert first == f"epoch 2  batch {BATCHES}  workers 1  ended"
    assert f"loss {history['loss'][1]:.4g}" in metrics and "val_loss" in metrics
    cells = [re.split("  +", line) for line in (head, *lines)]
    shown = {each[0]: dict(zip(cells[0], each, strict=True)) for each in cells[1:]}
    assert list(shown) == ["plain", "evicting", "admitting", "stored", "adaptive", "fields/a"]
    assert shown["plain"]["rows"] == f"{history['plain/rows'][1]:,}"
    assert shown["plain"]["val_hit_rate"] == f"{history['val_plain/hit_rate'][1]:.1%}"
    assert shown["plain"]["evicted"] == "-" != shown["evicting"]["evicted"]
    assert json.loads(CliRunner().invoke(main, ["top", str(folder), "--json"]).output)["ended"]
    missing = CliRunner().invoke(main, ["top", str(tmp_path)])
    assert missing.exit_code == 1 and "TableMetrics(path=" in missing.stderr
    (tmp_path / "tables.json").write_text("{}")
    damaged = CliRunner().invoke(main, ["top", str(tmp_path), "--once"])
    assert damaged.exit_code == 1 and "figures of a training" in damaged.stderr


def test_a_storage_counts_rows_that_were_in_its_cache_and_the_bytes_of_its_files(storage):
    zeros = sok_embed.initializers.RowInitializer("constant", 0.0, 0.0, None)
    table = sok_embed.Table(1, zeros, storage=storage)
    table.assign([1, 2], np.zeros([2, 1], np.float32))
    table.lookup([1, 2, 3])
    storage.close()
    with kv.Storage(storage.path) as again:
        table = sok_embed.Table(1, zeros, storage=again)
        table.lookup([1, 3])
        cold = counters_of(table, rank=0)
        table.lookup([1, 3])
        warm = counters_of(table, rank=0)
    names = ("looked_up", "found", "cache_hits", "made")
    assert [cold[name] for name in names] == [2, 1, 0, 0]
    assert [warm[name] for name in names] == [4, 2, 1, 0]
    written = [path.stat().st_size for path in Path(storage.path).glob("*.sst")]
    assert warm["disk_bytes"] >= sum(written) > 0


@pytest.mark.parametrize("update_freq", [0, -1, "batch", 1.5])
def test_other_frequencies_are_refused(update_freq):
    with pytest.raises(ValueError, match="update_freq to be 'epoch' or a number of batches"):
        TableMetrics(update_freq)


def test_unknown_figures_are_refused():
    with pytest.raises(ValueError, match="among rows, .*Received: misses"):
        TableMetrics(figures=["rows", "misses"])
