"""Several workers write one Keras file, which any number of workers loads."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from sharded.keras_files import SCORES
from sharded.launch import launch
from sharded.shards import (
    COLUMNS,
    Held,
    assert_as_trained,
    held,
    numbers_that_read,
    numbers_that_write,
    rows_of,
    tables_of,
)
from tiers import long

import sok_embed
from sok_embed.binding._core import merge_admissions

PROGRAM = Path(__file__).parent / "sharded" / "keras_files.py"
WORKERS = (1, 2, 3)
# `make test` has one worker and three load what two have written.
WROTE = [2, *(long(workers) for workers in WORKERS if workers != 2)]
READS = [1, 3, long(2)]
BEST = 1  # of the averaged scores


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """What numbers of workers wrote, and all numbers loaded of them."""
    folder = tmp_path_factory.mktemp("keras_files")
    wrote = numbers_that_write(request)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SOK_CHECKPOINT_WROTE", " ".join(map(str, wrote)))
        for task in ("write", "read"):
            for workers in wrote if task == "write" else numbers_that_read(request):
                ended = launch(PROGRAM, workers, [str(folder), task], horovod=False)
                assert ended.status == 0, f"{task} of {workers} workers:\n{ended.output[-6000:]}"
    return folder


def assert_same_rows(found: list[Held], expected: list[Held], count: int = 9) -> None:
    """All workers together have the same rows, slots, counts, times and variables, bit for bit."""
    tables = tables_of(expected)
    assert len(tables) == count, tables
    for table in tables:
        ours, theirs = rows_of(found, table), rows_of(expected, table)
        assert len(theirs["keys"]) == len(np.unique(theirs["keys"])) > 0
        for column in COLUMNS:
            np.testing.assert_array_equal(ours[column], theirs[column], err_msg=table + column)
        for field in ("rule", "steps", "step_clock", "slot_start"):
            values = max(shard[table + field].tolist() for shard in expected)
            assert [shard[table + field].tolist() for shard in found] == [values] * len(found)
    for name in expected[0]:
        if name.startswith("variable."):
            for shard in found:
                np.testing.assert_array_equal(shard[name], expected[0][name], err_msg=name)


@pytest.mark.cover(3)
@pytest.mark.parametrize("way", ["loaded", "weights"])
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("wrote", WROTE)
def test_a_file_of_any_workers_gives_any_workers_their_rows(folder, wrote, reads, way) -> None:
    found = held(folder, f"{wrote}-on-{reads}.{way}", reads)
    assert_same_rows(found, held(folder, f"{wrote}.saved", wrote))


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("wrote", WROTE)
def test_what_was_counted_comes_along(folder, wrote, reads) -> None:
    found = held(folder, f"{wrote}-on-{reads}.loaded", reads)
    expected = held(folder, f"{wrote}.saved", wrote)
    figures = [np.sum([s["adaptive.counters"][1:] for s in each], 0) for each in (found, expected)]
    np.testing.assert_array_equal(*figures)
    cells = [sum(s["adaptive.cells"][36:].sum() for s in each) for each in (found, expected)]
    assert cells[0] == cells[1] > 0
    for table in ("counted", "filtered"):
        assert merged(found, table) == merged(expected, table) != b""


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("wrote", WROTE)
def test_own_rows_of_feature_columns_come_along(folder, wrote, reads) -> None:
    found = held(folder, f"columns-{wrote}-on-{reads}.loaded", reads)
    assert_same_rows(found, held(folder, f"columns-{wrote}.saved", wrote), count=1)


def merged(shards: list[Held], table: str) -> bytes:
    """What the admissions of all workers have counted, without chunks that are empty."""
    parts = [shard[f"{table}.admission"].tobytes() for shard in shards]
    return merge_admissions(parts, lambda keys: np.ones(keys.shape, np.bool_))


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("wrote", WROTE)
def test_training_goes_on_from_a_file(folder, wrote, reads) -> None:
    found = held(folder, f"{wrote}-on-{reads}.trained", reads)
    assert_as_trained(found, held(folder, f"{wrote}.trained", wrote))


@pytest.mark.parametrize("wrote", [long(WORKERS)])
def test_files_of_all_numbers_of_workers_are_of_one_form(folder, wrote) -> None:
    """Those of several workers have the entries of that of one, and nothing else is left there."""
    entries, configs = [], []
    for workers in wrote:
        with zipfile.ZipFile(folder / f"{workers}.keras") as file:
            entries.append(file.namelist())
            config = file.read("config.json").decode()
            # Addresses in memory, by which Keras tells policies apart.
            configs.append(re.sub(r'"shared_object_id": \d+', "", config))
    assert entries == [entries[0]] * 3
    assert configs == [configs[0]] * 3
    assert not list(folder.glob("**/*.saving"))


def keras_choice() -> tuple[Any, list[str]]:
    """What Keras' own callbacks choose by the averaged scores, for a model without tables."""

    class Averages(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["score"] = SCORES[epoch].mean()

    class Names(keras.callbacks.ModelCheckpoint):
        saved: list[str] = []

        def _should_save_model(self, epoch: int, batch: Any, logs: Any, filepath: str) -> bool:
            if super()._should_save_model(epoch, batch, logs, filepath):
                self.saved.append(filepath)
            return False

    stop = keras.callbacks.EarlyStopping("score", patience=2, mode="min", restore_best_weights=True)
    names = Names("{epoch}-{score:.2f}.keras", monitor="score", mode="min", save_best_only=True)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    ones, epochs = np.ones((4, 1)), len(SCORES)
    model.fit(ones, ones, epochs=epochs, verbose=0, callbacks=[Averages(), names, stop])
    return stop, names.saved


# Three workers have other averages of the same best epoch.
@pytest.mark.parametrize("wrote", WROTE)
def test_all_workers_choose_the_epochs_that_keras_chooses_by_averages(folder, wrote) -> None:
    stop, names = keras_choice()
    assert stop.best_epoch == BEST
    for shard in held(folder, f"{wrote}.chosen", wrote):
        assert shard["stopped"] == stop.stopped_epoch == 3
        assert shard["best"] == BEST
        assert shard["epochs"].tolist() == list(range(stop.stopped_epoch + 1))
    files = sorted(path.name for path in (folder / f"chosen-by-{wrote}").iterdir())
    assert [name[0] for name in files] == ["1", "2", "a", "b"]
    if wrote < 3:
        assert files[:2] == names


@pytest.mark.parametrize("wrote", WROTE)
def test_average_metrics_gives_all_workers_the_same_figures(folder, wrote) -> None:
    shards = held(folder, f"{wrote}.chosen", wrote)
    of_workers = SCORES[:4, [rank % 2 for rank in range(wrote)]] if wrote > 1 else SCORES[:4]
    expected = of_workers.mean(1)
    for shard in shards:
        # Sums of a few float64.
        np.testing.assert_allclose(shard["scores"], expected, rtol=1e-12)
        for name in ("scores", "losses", "rates", "averaged"):
            assert (shard[name] == shards[0][name]).all()
    own = [float(shard["own"]) for shard in shards]
    assert len(set(own)) == wrote
    np.testing.assert_allclose(shards[0]["averaged"], np.mean(own), rtol=1e-12)
    assert shards[0]["rates"][-1] < shards[0]["rates"][0]


@pytest.mark.parametrize("wrote", WROTE)
def test_the_best_epoch_comes_back_as_it_was(folder, wrote) -> None:
    found = held(folder, f"{wrote}.restored", wrote)
    expected = held(folder, f"{wrote}.epoch-{BEST}", wrote)
    last = held(folder, f"{wrote}.epoch-3", wrote)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, values in theirs.items():
            np.testing.assert_array_equal(ours[name], values, err_msg=name)
    assert (found[0]["plain.steps"] < last[0]["plain.steps"]).all()


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("wrote", WROTE)
def test_files_of_callbacks_have_the_epoch_that_they_were_written_in(folder, wrote, reads) -> None:
    for name, epoch in (("best", BEST), ("last", 3)):
        found = held(folder, f"{wrote}-on-{reads}.{name}", reads)
        assert_same_rows(found, held(folder, f"{wrote}.epoch-{epoch}", wrote))


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> list[Held]:
    """What two workers raised where one of them was at fault."""
    folder = tmp_path_factory.mktemp("refusals")
    ended = launch(PROGRAM, 2, [str(folder), "refuse"], horovod=False)
    assert ended.status == 0, ended.output[-6000:]
    return held(folder, "refusals", 2)


@pytest.mark.parametrize(
    ("fault", "texts"),
    [
        ("steps", ["same step. Received: 0 on worker 0 and 1 on worker 1"] * 2),
        ("paths", ["same path"] * 2),
        ("ending", ["an error on worker 1", "ends in .keras"]),
        ("rows", ["an error on worker 1", "No space left on device"]),
        ("keras_saving", ["No space left on device", "an error on worker 0"]),
        ("folder", ["No space left on device", "an error on worker 0"]),
        ("seen", ["an error on worker 1", "Use a folder that all workers share"]),
        ("names", ["same numbers in the logs"] * 2),
        ("keras", ["Call sok_embed.save_model(model, 'model.keras') on all workers"] * 2),
        ("weights", ["model.load_weights takes weights from a .keras file too"] * 2),
        ("directory", ["Expected a directory that all workers share"] * 2),
        ("keras_callback", ["expected sok_embed.callbacks.ModelCheckpoint with 2 workers"] * 2),
        ("keras_stopping", ["Use sok_embed.callbacks.EarlyStopping"] * 2),
        ("stored", ["Table 'stored': expected rows in memory"] * 2),
        ("stored_fit", ["Table 'stored': expected rows in memory"] * 2),
    ],
)
def test_an_error_of_one_worker_is_one_of_all_and_the_old_file_stays(
    refusals, fault, texts
) -> None:
    for worker, text in zip(refusals, texts, strict=True):
        assert text in str(worker[fault]), worker[fault]
        assert worker[f"{fault}.same"], "the file, or its folder, was changed"


@pytest.mark.parametrize("rank", [long("0"), "1"])
def test_the_kill_of_a_worker_leaves_the_old_file(tmp_path, rank) -> None:
    ended = launch(PROGRAM, 2, [str(tmp_path), "die", rank], horovod=False)
    assert ended.status != 0 and not ended.timed_out
    model = keras.saving.load_model(tmp_path / "model.keras")
    assert model.optimizer.iterations == 0
    sok_embed.save_model(model, tmp_path / "model.keras")  # removes what the other one has left
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]
