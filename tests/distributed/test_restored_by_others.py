"""What n workers have saved, m workers restore, and train on as if nothing had happened."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import object_store
import pytest
import s3fs
from click.testing import CliRunner
from limits import HANG_S
from sharded.launch import launch
from sharded.shards import (
    COLUMNS,
    EVERYWHERE,
    Held,
    assert_as_trained,
    held,
    numbers_that_write,
    optimizers_that_are_read,
    rows_of,
    tables_of,
)
from tiers import long

from sok_embed.cli import main

PROGRAM = Path(__file__).parent / "sharded" / "checkpointing.py"
WORKERS = tuple(range(1, 1 + int(os.environ.get("SOK_CHECKPOINT_WORKERS", "3"))))
# `make test` has one worker, as many and more restore what two have written: rows of several are
# put together, stay, and are divided anew where no number divides the other.
WROTE = [2, *(long(workers) for workers in WORKERS if workers != 2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """What numbers of workers wrote, and all numbers restored of them."""
    folder = tmp_path_factory.mktemp("restored_by_others")
    wrote = numbers_that_write(request)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SOK_CHECKPOINT_WROTE", " ".join(map(str, wrote)))
        environment.setenv("SOK_CHECKPOINT_READ", " ".join(optimizers_that_are_read(request)))
        start_all(folder, wrote)
    return folder


def start_all(folder: Path, wrote: list[int]) -> None:
    for task in ("write", "read"):
        for workers in wrote if task == "write" else WORKERS:
            ended = launch(PROGRAM, workers, [str(folder), task], horovod=False)
            assert ended.status == 0, f"{task} of {workers} workers:\n{ended.output[-6000:]}"
        if task == "write":
            compact_some(folder)
            convert_some(folder)


def command(*arguments: object) -> Any:
    """What `sok-embed checkpoint` prints as JSON."""
    result = CliRunner().invoke(main, ["checkpoint", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def last_of(run: Path) -> Path:
    """The checkpoint that workers restore of a run."""
    last = run.with_name(f"{run.name}.last")
    return Path(last.read_text()) if last.exists() else run


def compact_some(folder: Path) -> None:
    """Has a copy of a chain of two workers end in a checkpoint that has everything."""
    shutil.copytree(folder / "adam-2", folder / "whole-2")
    last = folder / "whole-2" / last_of(folder / "adam-2").name
    assert command("compact", last)["built_on"] == 2
    for each in (folder / "whole-2").glob("step-*"):
        if each != last:
            shutil.rmtree(each)
    last.rename(folder / "whole")


def convert_some(folder: Path) -> None:
    """Has rows of two tables of two workers go out of a checkpoint, and into one like it."""
    base = folder / "whole"
    for table in ("spread", "adaptive:own"):
        rows, made = folder / f"{table}.npz", folder / f"with-{table}"
        command("convert", base, rows, "--table", table)
        command("convert", rows, made, "--to", "checkpoint", "--base", base)
        base = made
    base.rename(folder / "converted")


@pytest.mark.cover(3)
@pytest.mark.parametrize("optimizer", [long("sgd"), "adam"])
@pytest.mark.parametrize("reads", WORKERS)
@pytest.mark.parametrize("wrote", WROTE)
def test_every_row_slot_count_and_time_comes_back(folder, optimizer, wrote, reads) -> None:
    saved, restored = before_and_after(folder, optimizer, wrote, reads)
    tables = tables_of(saved)
    assert len(tables) == 10, tables
    for table in tables:
        expected, found = rows_of(saved, table), rows_of(restored, table)
        assert len(expected["keys"]) == len(np.unique(expected["keys"])) > 0
        for column in COLUMNS:
            np.testing.assert_array_equal(found[column], expected[column], err_msg=table + column)
        for field in ("rule", "steps", "step_clock", "slot_start"):
            values = [shard[table + field].tolist() for shard in saved]
            if wrote != reads:  # all have what those with rows had
                values = [max(values)] * reads
            assert [shard[table + field].tolist() for shard in restored] == values, table + field
    for name in saved[0]:
        if name.startswith("variable."):
            for shard in restored:
                np.testing.assert_array_equal(shard[name], saved[0][name], err_msg=name)


def test_workers_restore_rows_that_went_out_and_came_back(folder) -> None:
    saved, restored = held(folder, "adam-2.saved", 2), held(folder, "converted.restored", 2)
    chain = last_of(folder / "adam-2")
    assert command("diff", chain, folder / "whole")["same"]
    assert command("diff", folder / "whole", folder / "converted")["same"]
    for before, after in zip(saved, restored, strict=True):
        assert after.keys() == before.keys()
        for table in tables_of([before]):
            # A checkpoint has the rows of a replicated table as worker 0 held them, and workers
            # that update a row in the same step read their clocks by themselves.
            source = saved[0] if table.startswith(EVERYWHERE) else before
            orders = [np.argsort(each[f"{table}keys"]) for each in (after, source)]
            for column in COLUMNS:
                name = table + column
                ours, theirs = after[name][orders[0]], source[name][orders[1]]
                np.testing.assert_array_equal(ours, theirs, err_msg=name)
        np.testing.assert_array_equal(after["adaptive.cells"], before["adaptive.cells"])
    figures = [
        np.sum([each["adaptive.counters"] for each in both], 0) for both in (saved, restored)
    ]
    np.testing.assert_array_equal(*figures)


@pytest.mark.parametrize("wrote", WROTE)
def test_the_command_tells_what_workers_have_saved(folder, wrote, tmp_path) -> None:
    path = last_of(folder / f"adam-{wrote}")
    for each in (path, path.parent, folder / f"sgd-{wrote}"):
        assert command("verify", each)["whole"]
    saved = held(folder, f"adam-{wrote}.saved", wrote)
    shown = {each["table"]: each for each in command("show", path)["tables"]}
    assert len(shown) == len(tables_of(saved)) == 10  # an adaptive table is two
    for name in ("plain", "spread", "everywhere", "adaptive:own", "adaptive:static", "stored"):
        table = next(each for each in saved[0] if each.endswith(f"{held_name(name)}keys"))
        expected = rows_of(saved, table.removesuffix("keys"))
        command("convert", path, tmp_path / f"{name}.npz", "--table", name)
        with np.load(tmp_path / f"{name}.npz") as arrays:
            order = np.argsort(arrays["key"])
            for column, member in zip(
                COLUMNS, ("key", "embedding", "slots", "update_num", "update_time"), strict=True
            ):
                np.testing.assert_array_equal(arrays[member][order], expected[column])
        told = next(
            each for each in shown.values()
            if name in (each["name"], f"{each['name']}:{each['part']}")
        )  # fmt: skip
        assert told["rows"] == len(expected["keys"]) and len(told["rows_of_workers"]) == wrote


def held_name(table: str) -> str:
    """What the names of a table's fields end with, before that of the column."""
    name, _, part = table.partition(":")
    return f"{name}.{part}_" if part else f"{name}."


@pytest.mark.parametrize("optimizer", [long("sgd"), "adam"])
@pytest.mark.parametrize("reads", WORKERS)
@pytest.mark.parametrize("wrote", WROTE)
def test_figures_of_adaptive_tables_add_up_to_what_they_were(
    folder, optimizer, wrote, reads
) -> None:
    saved, restored = before_and_after(folder, optimizer, wrote, reads)
    name = "adaptive.counters"
    before, after = (np.sum([s[name][1:] for s in shards], 0) for shards in (saved, restored))
    np.testing.assert_array_equal(after, before)
    assert before[0] > 0 and before[2] > 0
    cells = [
        np.sum([s["adaptive.cells"][36:].sum() for s in shards]) for shards in (saved, restored)
    ]
    assert cells[0] == cells[1] > 0


@pytest.mark.parametrize("optimizer", [long("sgd"), "adam"])
@pytest.mark.parametrize("reads", WORKERS)
@pytest.mark.parametrize("wrote", WROTE)
def test_training_goes_on_as_if_it_had_never_stopped(folder, optimizer, wrote, reads) -> None:
    run = f"{optimizer}-{wrote}"
    expected = held(folder, f"{run}.trained", wrote)
    found = held(folder, f"{run}.trained-on-{reads}", reads)
    assert_as_trained(found, expected)


def before_and_after(folder: Path, optimizer: str, wrote: int, reads: int) -> tuple[Any, Any]:
    """What the workers that wrote had, and what those that read had after their restore."""
    run = f"{optimizer}-{wrote}"
    return held(folder, f"{run}.saved", wrote), held(folder, f"{run}.restored-on-{reads}", reads)


@pytest.mark.long
def test_workers_restore_from_an_object_store_what_others_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    with object_store.served() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem().mkdir("bucket")
        monkeypatch.setenv("SOK_CHECKPOINT_STORE", "s3://bucket/runs")
        monkeypatch.setenv("SOK_CHECKPOINT_WROTE", "2")
        monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
        for task, workers in (("write", 2), ("read", 3)):
            ended = launch(PROGRAM, workers, [str(tmp_path), task], horovod=False)
            assert ended.status == 0, f"{task} of {workers} workers:\n{ended.output[-6000:]}"
        names = s3fs.S3FileSystem(use_listings_cache=False).find("bucket/runs/adam-2")
    assert len([name for name in names if "rows-00002-of-00002" in name]) == 3
    assert not [name for name in os.listdir(tmp_path / "scratch") if "sok-embed-checkpoint" in name]
    for optimizer in ("sgd", "adam"):
        saved, restored = before_and_after(tmp_path, optimizer, 2, 3)
        for table in tables_of(saved):
            expected, found = rows_of(saved, table), rows_of(restored, table)
            for column in COLUMNS:
                np.testing.assert_array_equal(found[column], expected[column], table + column)
        trained = held(tmp_path, f"{optimizer}-2.trained", 2)
        assert_as_trained(held(tmp_path, f"{optimizer}-2.trained-on-3", 3), trained)


@pytest.mark.long
def test_a_fit_of_two_workers_that_was_killed_goes_on_with_three(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    one = launch(PROGRAM, 1, [str(tmp_path / "one"), "fit"], horovod=False)
    assert one.status == 0, one.output
    killed = launch(PROGRAM, 2, [str(tmp_path), "fit", "die"], horovod=False)
    assert killed.status != 0 and not killed.timed_out
    steps = [f"step-{step:09d}" for step in (4, 8)]
    assert sorted(path.name for path in (tmp_path / "backup").iterdir()) == steps
    ended = launch(PROGRAM, 3, [str(tmp_path), "fit"], horovod=False)
    assert ended.status == 0, ended.output
    found = held(tmp_path, "fit-3", 3)
    for shard in found:
        assert shard.pop("epochs").tolist() == [2, 3]
    expected = held(tmp_path / "one", "fit-1", 1)
    assert expected[0].pop("epochs").tolist() == [0, 1, 2, 3]
    assert_as_trained(found, expected, atol=1e-5)
    assert not (tmp_path / "backup").exists()
    # One command for a kill and what comes after it, with a table on disk that begins empty.
    shutil.rmtree(tmp_path / "storage-of-3")
    command = [sys.executable, "-m", "sok_embed", "run", "-np", "3", "--restarts", "1"]
    command += ["--min-workers", "2", str(PROGRAM), str(tmp_path), "fit", "die"]
    subprocess.run(command, check=True, timeout=HANG_S)
    found = held(tmp_path, "fit-2", 2)
    for shard in found:
        assert shard.pop("epochs").tolist() == [2, 3]
    assert_as_trained(found, expected, atol=1e-5)


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> list[Held]:
    """What two workers raised where one of them, or a file, was at fault."""
    folder = tmp_path_factory.mktemp("refusals")
    ended = launch(PROGRAM, 2, [str(folder), "refuse"], horovod=False)
    assert ended.status == 0, ended.output[-6000:]
    return held(folder, "refusals", 2)


@pytest.mark.parametrize(
    ("fault", "texts"),
    [
        ("steps", ["same step. Received: 0 on worker 0 and 7 on worker 1"] * 2),
        ("paths", ["same folder"] * 2),
        ("disk", ["an error on worker 1", "No space left on device"]),
        ("memory", ["worker 1 has written.*all workers share", "an error on worker 0"]),
        ("manifest", ["No space left on device", "an error on worker 0"]),
        ("rows", ["an error on worker 1", "rows-00002-of-00002"]),
        ("step", ["an error on worker 1", "no step"]),
        ("room", ["No space left on device", "an error on worker 0"]),
        ("last", ["No space left on device", "an error on worker 0"]),
        ("all", ["No space left on device", "an error on worker 0"]),
        ("half", ["restored again. Received: an error on worker 1", "restored in part"]),
        ("torn", ["only partly restored"] * 2),
        ("again", ["nothing"] * 2),
    ],
)
def test_an_error_of_one_worker_is_one_of_all_and_changes_nothing(refusals, fault, texts) -> None:
    for worker, text in zip(refusals, texts, strict=True):
        assert re.search(text, str(worker[fault])), worker[fault]
        assert worker[f"{fault}.same"], "the model was changed"
        assert worker[f"{fault}.files"].tolist() == worker["files"].tolist()
