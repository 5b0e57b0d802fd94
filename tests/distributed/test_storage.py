"""Each worker has a storage of its own: together they hold what one process would."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sharded.launch import launch, require_horovod
from sharded.results import Results, assert_equal_tables, assert_equal_weights

import sok_embed
from sok_embed import kv

WORKER = Path(__file__).parent / "sharded" / "storage_worker.py"
TABLES = ("dynamic", "hashed")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Path, Results]]:
    """The folder and the results of a number of workers."""

    @cache
    def start(workers: int) -> tuple[Path, Results]:
        if workers > 1:
            require_horovod()
        folder = tmp_path_factory.mktemp(f"stored_{workers}")
        return folder, Results(folder, workers, launch(WORKER, workers, [str(folder)]))

    return start


def test_two_workers_together_hold_the_rows_of_one(run) -> None:
    (_, one), (_, two) = run(1), run(2)
    assert_equal_tables(one, two, "storing", *TABLES)
    assert_equal_weights(one, two, "storing")
    for name in TABLES:
        for rank, worker in enumerate(two.of("storing")):
            assert (worker[f"{name}.keys"] % 2 == rank).all()
    for results in (one, two):
        for worker in results.of("storing"):
            counts = [len(worker[f"{name}.keys"]) for name in TABLES]
            np.testing.assert_array_equal(worker["rows"], counts)
            np.testing.assert_array_equal(worker["steps"], [2, 2])


def test_each_worker_has_a_folder_of_its_own(run) -> None:
    (alone, one), (folder, two) = run(1), run(2)
    assert str(one.of("storing")[0]["folder"]) == str(alone / "rows")
    for rank, worker in enumerate(two.of("storing")):
        assert str(worker["folder"]) == str(folder / "rows" / f"worker-{rank}-of-2")


def test_the_folder_of_a_worker_opens_by_itself(run) -> None:
    folder, two = run(2)
    for rank, worker in enumerate(two.of("storing")):
        with kv.Storage(folder / "rows" / f"worker-{rank}-of-2", read_only=True) as storage:
            np.testing.assert_array_equal([g.rows for g in storage.groups()], worker["rows"])


def test_dumps_of_all_workers_make_one_storage(run, tmp_path: Path) -> None:
    folder, two = run(2)
    with kv.Storage(tmp_path / "joined") as joined:
        for rank in range(2):
            part = folder / "rows" / f"worker-{rank}-of-2"
            with kv.Storage(part, read_only=True) as storage:
                storage.dump(tmp_path / "dump")
            joined.load(tmp_path / "dump")
        layer = sok_embed.DynamicEmbedding(4, name="dynamic", seed=2, storage=joined)
        keys, rows = two.table("storing", "dynamic")
        np.testing.assert_array_equal(layer.table.lookup(keys), rows)
        assert layer.table.size() == keys.size


def test_several_workers_refuse_to_write_a_saved_model_of_their_part(run) -> None:
    for worker in run(2)[1].of("storing"):
        assert "one part of 2" in str(worker["refusal"])
    assert "refusal" not in run(1)[1].of("storing")[0]


def test_an_embedding_without_a_layer_is_the_workers_own(run) -> None:
    for rank, worker in enumerate(run(2)[1].of("updating_without_layers")):
        assert worker["vector"].tolist() == [[-1.0, -1.0] if rank == 0 else [0.0, 0.0]]


@pytest.mark.parametrize("arguments", [{}, {"read_only": True}], ids=["to_write", "to_read"])
def test_a_storage_of_two_workers_is_refused_to_one(tmp_path: Path, arguments: dict) -> None:
    (tmp_path / "rows" / "worker-1-of-2").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"of 1 worker\. .*'worker-1-of-2', which 2 workers made"):
        kv.Storage(tmp_path / "rows", **arguments)
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["worker-1-of-2"]


@pytest.mark.usefixtures("first_of_two")
def test_a_storage_of_three_workers_is_refused_to_two(tmp_path: Path) -> None:
    (tmp_path / "rows" / "worker-0-of-3").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"of 2 workers\. .*'worker-0-of-3', which 3 workers made"):
        kv.Storage(tmp_path / "rows")
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["worker-0-of-3"]


def test_a_storage_of_one_worker_is_refused_to_two(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kv.Storage(tmp_path / "rows") as storage:
        layer = sok_embed.DynamicEmbedding(4, storage=storage)
        layer(np.arange(5), training=True)
    files = sorted(path.name for path in (tmp_path / "rows").iterdir())
    request.getfixturevalue("first_of_two")
    with pytest.raises(ValueError, match="of 2 workers.*1 worker"):
        kv.Storage(tmp_path / "rows")
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == files
