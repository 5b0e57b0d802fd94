"""Pictures of tables show what NumPy computes from the same rows."""

import csv

import keras
import matplotlib
import numpy as np
import pytest
from click.testing import CliRunner
from google.protobuf import text_format
from tensorboard.plugins.projector import ProjectorConfig

import sok_embed
from sok_embed import FeatureConfig, TableConfig, kv, plot, serving
from sok_embed.callbacks import Projector, TableMetrics
from sok_embed.cli import main
from sok_embed.data import Vocabulary

matplotlib.use("Agg")
KEYS = np.random.default_rng(2).zipf(1.5, (600, 1)) % 50


@pytest.fixture
def storage(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        yield storage


@pytest.fixture
def trained(storage, tmp_path):
    inputs = keras.Input((1,), dtype="int64")
    layers = [
        sok_embed.DynamicEmbedding(3, storage=storage, name="stored"),
        sok_embed.DynamicEmbedding(3, max_rows=40, eviction="lru", name="evicting"),
    ]
    x = keras.layers.Concatenate()([keras.layers.Flatten()(layer(inputs)) for layer in layers])
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse")
    callbacks = [TableMetrics(), keras.callbacks.CSVLogger(tmp_path / "epochs.csv")]
    log = model.fit(KEYS, np.ones([600, 1]), batch_size=6, epochs=3, verbose=0, callbacks=callbacks)
    return model, log.history, tmp_path / "epochs.csv"


def heights(ax):
    return [bar.get_height() for bar in ax.patches]


@pytest.mark.parametrize("figure", ["rows", "hit_rate", "new_rows"])
def test_figures_over_time_are_those_of_the_logs(trained, figure):
    _, history, path = trained
    for logs in (history, path, str(path)):
        ax = plot.over_time(logs, figure)
        lines = {line.get_label(): line.get_ydata().tolist() for line in ax.lines}
        assert set(lines) == {"stored", "evicting"}
        for name, values in lines.items():
            assert values == pytest.approx(history[f"{name}/{figure}"])
            assert len(values) == 3


def test_of_many_tables_the_greatest_are_drawn():
    ax = plot.over_time({f"t{i}/rows": [i, 2 * i] for i in range(30)})
    assert {line.get_label() for line in ax.lines} == {f"t{i}" for i in range(20, 30)}
    assert "10 of 30 lines" in ax.get_title()
    with pytest.raises(ValueError, match=r"figure 'rows' of a table.*Received: loss"):
        plot.over_time({"loss": [1.0]})


def test_lines_stand_at_the_epochs_of_the_file(tmp_path):
    path = tmp_path / "epochs.csv"
    path.write_text(
        "epoch,items/hit_rate,note,val_items/hit_rate\n3,0.1,a,NA\n4,0.2,b,0.5\n5,0.3,c,NA\n"
    )
    ax = plot.over_time(path, "hit_rate")
    found = {line.get_label(): line.get_xydata().tolist() for line in ax.lines}
    assert found == {"items": [[4, 0.1], [5, 0.2], [6, 0.3]], "val_items": [[5, 0.5]]}
    history = {"items/hit_rate": [0.1, 0.2, 0.3, 0.4], "val_items/hit_rate": [0.5, 0.6]}
    with pytest.raises(ValueError, match=r"4 values of 'val_items/hit_rate'.*Received: 2"):
        plot.over_time(history, "hit_rate")
    path.write_text("epoch,items/rows\n0,5\n")
    result = CliRunner().invoke(main, ["plot", str(path), "--output", str(tmp_path / "a.png")])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", ["stored", "evicting"])
def test_counts_ages_and_norms_are_those_of_the_rows(trained, name):
    table = trained[0].get_layer(name).table
    keys, vectors = table.export()
    meta = table.metadata(keys)
    (line,) = plot.updates_by_rank(table).lines
    counts = np.sort(meta.update_nums)[::-1]
    assert line.get_ydata().tolist() == counts[line.get_xdata() - 1].tolist()
    assert line.get_xdata()[0] == 1 and line.get_xdata()[-1] == len(keys)
    ax = plot.ages(table)
    since = meta.update_times.max() - meta.update_times
    expected, _ = np.histogram(since, bins=min(50, 1 + since.max()))
    assert heights(ax) == expected.tolist()
    assert ax.get_xlabel().startswith("seconds" if name == "stored" else "steps")
    expected, _ = np.histogram(np.linalg.norm(vectors, axis=1), bins=50)
    assert sum(heights(plot.norms(table))) == expected.sum() == len(keys)


def test_a_file_of_rows_has_norms_and_no_counts(tmp_path):
    path = tmp_path / "rows.safetensors"
    rows = np.array([[3, 4], [0, 1]], np.float32)
    serving.rows.write(path, [(np.arange(2, dtype=np.uint64), rows)], dim=2)
    with serving.rows.open(path) as file:
        assert heights(plot.norms(file)) == [1, *[0] * 48, 1]
        with pytest.raises(TypeError, match="RowsFile"):
            plot.ages(file)


def test_rows_that_are_not_finite_are_counted_beside_their_norms():
    table = sok_embed.DynamicEmbedding(2).table
    table.assign([1, 2, 3], np.array([[3, 4], [np.inf, 0], [0, np.nan]]))
    ax = plot.norms(table)
    assert sum(heights(ax)) == 1 and "2 that are not finite" in ax.get_title()


def test_memory_and_load_are_those_of_tables_and_plan(trained):
    tables = {layer.name: layer.table for layer in trained[0].layers if hasattr(layer, "table")}
    ax = plot.memory(tables)
    assert sorted(bar.get_width() for bar in ax.patches) == sorted(
        table.stats()["bytes"] for table in tables.values()
    )
    configs = [FeatureConfig("f", TableConfig("t", 1000, 16), max_length=2)]
    plan = sok_embed.plan(configs, workers=4, batch_size=64)
    expected = [
        getattr(load, kind) for kind in ("sent", "received", "touched") for load in plan.loads
    ]
    assert heights(plot.load(plan)) == expected


def test_the_command_draws_a_storage_and_a_file_of_logs(trained, storage, tmp_path):
    _, _, path = trained
    storage.close()
    for source, output in ((storage.path, "storage.png"), (path, "epochs.svg")):
        target = tmp_path / output
        result = CliRunner().invoke(main, ["plot", str(source), "--output", str(target)])
        assert (result.exit_code, result.output) == (0, f"{target}\n")
        assert target.stat().st_size > 10_000
    bad = CliRunner().invoke(main, ["plot", str(storage.path), "--group", "7"])
    assert bad.exit_code == 1 and "7" in bad.stderr


def read_points(folder):
    config = text_format.Parse((folder / "projector_config.pbtxt").read_text(), ProjectorConfig())
    found = {}
    for each in config.embeddings:
        labels = (folder / each.metadata_path).read_text().splitlines()
        rows = np.loadtxt(folder / each.tensor_path, delimiter="\t", ndmin=2)
        found[each.tensor_name] = dict(zip(labels, rows, strict=True))
    return found


def test_the_projector_gets_the_rows_that_were_trained_most(trained, tmp_path):
    model, *_ = trained
    callback = Projector(tmp_path / "logs", freq=2, most=10)
    model.fit(KEYS, np.ones([600, 1]), batch_size=6, verbose=0, callbacks=[callback])
    points = read_points(tmp_path / "logs")
    assert set(points) == {"stored", "evicting"}
    for name, found in points.items():
        table = model.get_layer(name).table
        keys = table.export()[0]
        assert len(found) == 10
        for label, row in found.items():
            np.testing.assert_allclose(row, table.lookup([int(label)])[0], rtol=1e-5)
        least = table.metadata([int(label) for label in found]).update_nums.min()
        assert (table.metadata(keys).update_nums > least).sum() < 10


def test_points_have_strings_and_one_line_each(tmp_path):
    words = ["a", "two\nlines\tand tabs", "", "é"]
    table = sok_embed.DynamicEmbedding(2, name="words").table
    table.assign(sok_embed.fingerprint(words), np.arange(8).reshape(4, 2))
    with Vocabulary(tmp_path / "words.db") as vocabulary:
        vocabulary.add(words)
        plot.projector(tmp_path, {"words": table}, vocabulary=vocabulary)
    found = read_points(tmp_path)["words"]
    assert {label: row.tolist() for label, row in found.items()} == {
        "a": [0, 1],
        "two lines and tabs": [2, 3],
        "(empty)": [4, 5],
        "é": [6, 7],
    }


def test_two_names_of_tables_have_two_files(tmp_path):
    tables = {name: sok_embed.DynamicEmbedding(1).table for name in ("a/b", "a.b", "a%2Fb")}
    for number, table in enumerate(tables.values()):
        table.assign([number], np.array([[number]]))
    plot.projector(tmp_path, tables)
    found = read_points(tmp_path)
    assert {name: list(points) for name, points in found.items()} == {
        "a/b": ["0"],
        "a.b": ["1"],
        "a%2Fb": ["2"],
    }


def test_a_projector_before_the_figures_that_it_would_change_is_refused(trained, tmp_path):
    model, *_ = trained
    callbacks = [Projector(tmp_path), TableMetrics()]
    with pytest.raises(ValueError, match="TableMetrics before Projector"):
        model.fit(KEYS, KEYS, verbose=0, callbacks=callbacks)
    rates = []
    for callbacks in ([TableMetrics(), Projector(tmp_path)], [TableMetrics()]):
        unseen = np.arange(600).reshape(600, 1) + 10**6 * (1 + len(rates))
        log = model.fit(unseen, KEYS, epochs=1, verbose=0, callbacks=callbacks).history
        rates.append(log["stored/hit_rate"])
    assert rates == [[0], [0]]


def test_what_shows_nothing_is_refused(trained, tmp_path, monkeypatch):
    model, *_ = trained
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"Projector\('logs'\)"):
        model.fit(KEYS, KEYS, callbacks=[keras.callbacks.TensorBoard("logs", embeddings_freq=1)])
    dense = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    dense.compile("sgd", "mse")
    with pytest.raises(ValueError, match="layers with tables"):
        dense.fit(KEYS, KEYS, verbose=0, callbacks=[Projector(tmp_path)])
    with pytest.raises(ValueError, match="most"):
        plot.projector(tmp_path, {}, most=0)


def test_logs_of_the_file_are_those_of_keras(trained):
    _, history, path = trained
    with open(path) as file:
        rows = list(csv.DictReader(file))
    assert [float(row["stored/rows"]) for row in rows] == history["stored/rows"]
