"""The commands that look into checkpoints, check them, compare them and remove old ones."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from checkpoint_files import (
    NAN,
    Table,
    copied,
    flipped,
    rewrite_manifest,
    rows_of,
    write_by_hand,
)
from click.testing import CliRunner
from limits import HANG_S

import sok_embed
from sok_embed.checkpoint import Checkpoint
from sok_embed.checkpoint.files import partitions
from sok_embed.cli import main

ITEMS = rows_of([*range(-40, 40), 2**63 - 1, -(2**63)], 3, 6)


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["checkpoint", *(str(each) for each in arguments)])
    assert result.exit_code == code, result.output
    return result


def run_json(*arguments, code=0):
    return json.loads(run(*arguments, "--json", code=code).stdout)


def tables(items=ITEMS):
    return [
        Table("items", items),
        Table("users", rows_of(range(50), 2, 0, 2), rule="sgd"),
        Table(
            "mixed", rows_of(range(100, 130), 4, 1, 3), "rowwise_adagrad", "bucket % size",
            rows_of(range(5), 4, 1, 4),
        ),
    ]  # fmt: skip


@pytest.fixture(scope="module", params=[1, 3])
def saved(request, tmp_path_factory):
    """A checkpoint of one worker, and one of three."""
    folder = tmp_path_factory.mktemp(f"by-{request.param}") / "checkpoint"
    return write_by_hand(folder, tables(), workers=request.param)


@pytest.fixture
def small_parts(monkeypatch):
    """Has few rows lie in many files, as many rows do."""
    monkeypatch.setattr(partitions, "PART_BYTES", 1000)


def test_ls_lists_checkpoints_as_they_were_saved(tmp_path):
    write_by_hand(tmp_path / "step-000000030", tables(), serial=1)
    write_by_hand(tmp_path / "step-000000012", tables(), 2, step=12, serial=2)
    write_by_hand(tmp_path / "step-000000040", tables(), serial=3)
    write_by_hand(tmp_path / "step-000000050", tables(), serial=4)
    os.remove(tmp_path / "step-000000040" / "manifest.json")
    flipped(tmp_path / "step-000000050" / "manifest.json", 200)
    (tmp_path / "notes").mkdir()
    found = run_json("ls", tmp_path)["checkpoints"]
    assert [(each["step"], each["state"]) for each in found] == [
        (40, "no manifest"), (30, "whole"), (12, "whole"), (50, "damaged"),
    ]  # fmt: skip
    twelve = next(each for each in found if each["step"] == 12)
    folder = tmp_path / "step-000000012"
    assert twelve["path"] == str(folder) and twelve["serial"] == 2
    assert (twelve["workers"], twelve["tables"]) == (2, 3)
    assert twelve["rows"] == len(ITEMS.keys) + 50 + 30 + 5
    assert twelve["bytes"] == sum(file.stat().st_size for file in folder.iterdir())
    assert twelve["saved"] == (folder / "manifest.json").stat().st_mtime
    output = run("ls", tmp_path).output
    assert re.search(r"^step-000000040 +40 .*no manifest$", output, re.MULTILINE)
    assert re.search(rf"^step-000000012 +12 .* 2 +3 +167 +{twelve['bytes']:,}$", output, re.M)
    (tmp_path / "none").mkdir()
    assert "no checkpoints" in run("ls", tmp_path / "none").output


def test_show_tells_tables_and_files(saved):
    found = run_json("show", saved)
    workers = found["workers"]
    shown = {each["table"]: each for each in found["tables"]}
    assert list(shown) == ["model/items", "model/mixed:own", "model/mixed:static", "model/users"]
    items = shown["model/items"]
    assert (items["name"], items["kind"], items["dim"], items["rule"]) == (
        "items", "table", 3, "adam",
    )  # fmt: skip
    assert items["slots"] == ["momentum", "velocity"] and items["slot_floats"] == 6
    assert items["steps"] == 8 + workers and items["step_clock"] is None
    assert items["rows"] == sum(items["rows_of_workers"]) == len(ITEMS.keys)
    assert len(items["rows_of_workers"]) == workers
    assert items["bytes"] == len(ITEMS.keys) * (16 + 4 * 9)
    assert shown["model/users"]["rows"] == 50 and shown["model/mixed:static"]["rows"] == 5
    assert shown["model/mixed:own"]["sketch_bytes"] == 6 * workers
    files = {each["name"] for each in found["files"]}
    assert files == {file.name for file in saved.iterdir()} - {"manifest.json"}
    output = run("show", saved).output
    assert re.search(r"^model/mixed:own +mixed +adaptive +4 ", output, re.MULTILINE)
    assert [each["table"] for each in run_json("show", saved, "--table", "mixed")["tables"]] == [
        "model/mixed:own", "model/mixed:static",
    ]  # fmt: skip


def test_show_prints_rows_of_keys(saved):
    found = run_json("show", saved, "--table", "items", "--keys", "5,-7,0x7fffffffffffffff")
    assert found["missing"] == [] and found["times"] == "seconds"
    assert [row["key"] for row in found["rows"]] == [5, -7, 2**63 - 1]
    for row in found["rows"]:
        (at,) = np.flatnonzero(ITEMS.keys == row["key"])
        assert row["embedding"] == ITEMS.embeddings[at].tolist()
        assert row["slots"] == {
            "momentum": ITEMS.slots[at, :3].tolist(), "velocity": ITEMS.slots[at, 3:].tolist()
        }  # fmt: skip
        assert row["update_count"] == ITEMS.update_nums[at]
        assert row["last_update"] == ITEMS.update_times[at]
    # Keys are unsigned, too.
    assert run_json("show", saved, "--table", "items", "--key", str(2**64 - 1))["rows"][0][
        "key"
    ] == -1  # fmt: skip
    result = run("show", saved, "--table", "model/users", "--keys", "3,77", code=1)
    assert re.search(r"^key +3$", result.output, re.MULTILINE)
    assert "no rows of keys 77 in table 'model/users'" in result.output
    ids = ("--keys", "alice,bob", "--string")
    unknown = run("show", saved, "--table", "items", *ids, code=1).output
    wanted = ", ".join(map(str, sok_embed.fingerprint(["alice", "bob"])))
    assert f"no rows of keys {wanted} in table" in unknown
    assert "which no table has" in run("show", saved, "--table", "item", code=1).output
    assert "Expected one table" in run("show", saved, "--table", "mixed", "--key", 1, code=1).output
    run("show", saved, "--keys", "3", code=2)


def test_a_whole_checkpoint_is_found_whole(saved, small_parts):
    (found,) = run_json("verify", saved)["checkpoints"]
    assert found["faults"] == [] and found["rows"] == len(ITEMS.keys) + 85
    files = [file for file in saved.iterdir() if file.name != "manifest.json"]
    assert found["bytes"] == sum(file.stat().st_size for file in files)
    assert "whole, 167 rows" in run("verify", saved).output


def test_every_flipped_bit_is_found(saved):
    seed = random.randrange(2**32)
    print("seed", seed)
    random.seed(seed)
    for path in sorted(saved.iterdir()):
        size = path.stat().st_size
        for at in [0, size - 1, *random.sample(range(size), min(size, 20))]:
            whole = flipped(path, at)
            try:
                report = run_json("verify", saved, code=1)
            finally:
                path.write_bytes(whole)
            (found,) = report["checkpoints"]
            assert not report["whole"] and path.name in found["faults"][0], (path, at)


def test_files_that_are_cut_or_gone_are_found_one_line_each(saved, tmp_path):
    folder = copied(saved, f"cut-{tmp_path.name}")
    first, *others = sorted(folder.glob("rows-*"))
    first.write_bytes(first.read_bytes()[:-9])
    for other in others:
        other.unlink()
    lines = run("verify", folder, code=1).output.splitlines()
    assert len(lines) == 1 + len(others)
    for line, path in zip(lines, [first, *others], strict=True):
        assert line.startswith(f"{folder}: Expected") and path.name in line


@pytest.mark.parametrize("spilled", [False, True])
def test_a_key_that_stands_twice_is_found(tmp_path, monkeypatch, spilled):
    if spilled:
        monkeypatch.setattr(partitions, "PART_BYTES", 100)
    rows = rows_of([1, 2, 3, 7, 7, 2, 11], 3, 6)
    same_key = Table("users", rows_of([1, 2, 3], 2, 0), rule="sgd")
    folder = write_by_hand(tmp_path / "twice", [Table("items", rows), same_key], workers=2)
    (found,) = run_json("verify", folder, code=1)["checkpoints"]
    (fault,) = found["faults"]
    assert "every key of table 'model/items' once" in fault and "and 1 more keys" in fault
    assert re.search(
        r"key (7 twice in the rows of worker 1|2 twice in the rows of worker 0)", fault
    )


def test_numbers_of_rows_that_do_not_agree_are_found(tmp_path):
    folder = write_by_hand(tmp_path / "checkpoint", tables(), workers=2)

    def miscounted(manifest):
        for field in ("rows", "size"):
            manifest.tables[2]["parts"]["rows"][field] += 1
        return manifest

    rewrite_manifest(folder, miscounted)
    (found,) = run_json("verify", folder, code=1)["checkpoints"]
    (fault,) = found["faults"]
    assert "Expected 50 as 'rows' of table 'model/users'" in fault and "Received: 51." in fault


def test_all_checkpoints_of_a_directory_are_verified(tmp_path):
    for step in (1, 2, 3):
        write_by_hand(tmp_path / f"step-{step:09d}", tables(), step=step, serial=step)
    os.remove(tmp_path / "step-000000002" / "manifest.json")
    found = run_json("verify", tmp_path)
    assert [Path(each["path"]).name for each in found["checkpoints"]] == [
        "step-000000001", "step-000000003",
    ]  # fmt: skip
    assert [Path(each).name for each in found["not_whole"]] == ["step-000000002"]
    assert "step-000000002: not whole" in run("verify", tmp_path).output
    flipped(tmp_path / "step-000000001" / "manifest.json", 100)
    assert not run_json("verify", tmp_path, code=1)["whole"]
    (tmp_path / "empty").mkdir()
    assert "Expected a checkpoint" in run("verify", tmp_path / "empty", code=1).output


def changed_rows():
    """Rows of other keys, and some of the same keys with other content."""
    rows = ITEMS.where(ITEMS.keys != 5)
    more = rows_of([1000, 2000, 3000], 3, 6, 8)
    rows = rows._make(np.concatenate(pair) for pair in zip(rows, more, strict=True))
    embeddings, slots, nums = rows.embeddings.copy(), rows.slots.copy(), rows.update_nums.copy()
    embeddings[3, 1] += 2.5
    embeddings[4] = NAN
    slots[7, 0] -= 0.25
    nums[9] += 1
    return rows._replace(embeddings=embeddings, slots=slots, update_nums=nums)


@pytest.mark.parametrize("parts", ["one", "many"])
@pytest.mark.parametrize("workers", [1, 2])
def test_diff_counts_rows_that_differ(saved, tmp_path, workers, parts, monkeypatch):
    if parts == "many":
        monkeypatch.setattr(partitions, "PART_BYTES", 500)
    other = write_by_hand(tmp_path / "other", tables(changed_rows()), workers, step=8)
    found = run_json("diff", saved, other)
    assert not found["same"] and found["steps"] == [7, 8]
    of_table = {each["table"]: each for each in found["tables"]}
    items = of_table["model/items"]
    assert (items["only_a"], items["only_b"], items["both"]) == (1, 3, len(ITEMS.keys) - 1)
    assert items["differing"] == {
        "embeddings": 2, "slots": 1, "update_nums": 1, "update_times": 0
    }  # fmt: skip
    assert items["largest"]["embeddings"] == "nan"
    np.testing.assert_allclose(items["largest"]["slots"], 0.25, rtol=1e-6)
    steps = [8 + found_workers(saved), 8 + workers]
    heads = {} if steps[0] == steps[1] else {"steps": steps}
    assert items["head"] == heads
    for label in ("model/users", "model/mixed:own", "model/mixed:static"):
        assert sum(of_table[label]["differing"].values()) == 0
        assert of_table[label]["only_a"] == of_table[label]["only_b"] == 0
    output = run("diff", saved, other).output
    assert re.search(r"^model/items +1 +3 +81 +2 +1 +1 +0$", output, re.MULTILINE)
    assert "largest difference of embeddings nan" in output


def found_workers(folder):
    return run_json("show", folder)["workers"]


def test_diff_finds_no_difference_in_copies_and_a_sign_of_zero(tmp_path):
    zeros = ITEMS._replace(embeddings=np.zeros_like(ITEMS.embeddings))
    zeros.embeddings[2] = NAN
    a = write_by_hand(tmp_path / "a", [Table("items", zeros)], workers=2)
    assert run_json("diff", a, copied(a, "copy"))["same"]
    assert "no difference" in run("diff", a, tmp_path / "copy").output
    negative = zeros._replace(embeddings=zeros.embeddings.copy())
    negative.embeddings[0, 0] = -0.0
    b = write_by_hand(tmp_path / "b", [Table("items", negative)], workers=2)
    (items,) = run_json("diff", a, b)["tables"]
    assert items["differing"]["embeddings"] == 1 and items["largest"] == {"embeddings": 0.0}


def test_diff_tells_tables_of_one_alone_and_other_dims(tmp_path):
    a = write_by_hand(tmp_path / "a", tables())
    wider = Table("users", rows_of(range(45), 3, 3, 2), rule="momentum")
    b = write_by_hand(tmp_path / "b", [Table("more", ITEMS), wider])
    found = run_json("diff", a, b)
    assert found["only_a"] == ["model/items", "model/mixed:own", "model/mixed:static"]
    assert found["only_b"] == ["model/more"]
    (users,) = found["tables"]
    assert users["head"]["dim"] == [2, 3] and users["head"]["rule"] == ["sgd", "momentum"]
    assert (users["only_a"], users["only_b"], users["both"]) == (5, 0, 45)
    assert set(users["differing"]) == {"update_nums", "update_times"}
    assert "only in B: table model/more" in run("diff", a, b).output


def test_diff_tells_dense_variables(tmp_path):
    kernel, bias = tf.Variable(tf.random.normal([4, 3], seed=1)), tf.Variable([1.0, 2.0])
    count = tf.Variable(3, dtype=tf.int64)
    half = tf.Variable([1.0, 2.0], dtype=tf.bfloat16)
    objects = {"kernel": kernel, "bias": bias, "count": count, "half": half}
    a = Checkpoint(**objects).save(tmp_path / "a")
    assert run_json("diff", a, a)["variables"] == []
    kernel[1, 2].assign(kernel[1, 2] + 0.5)
    kernel[0, 0].assign(kernel[0, 0] - 0.125)
    half.assign([1.0, 2.5])
    extra = tf.Variable(1.0)
    del objects["count"]
    b = Checkpoint(**objects, extra=extra).save(tmp_path / "b")
    found = run_json("diff", a, b)
    assert not found["same"]
    shown = {each["variable"]: each for each in found["variables"]}
    assert set(shown) == {"kernel", "half", "count", "extra"}
    assert shown["kernel"]["differing"] == 2
    np.testing.assert_allclose(shown["kernel"]["largest"], 0.5, rtol=1e-6)
    assert shown["half"]["differing"] == 1 and shown["half"]["largest"] == 0.5
    assert (shown["count"]["a"], shown["count"]["b"]) == ("int64 []", None)
    assert (shown["extra"]["a"], shown["extra"]["b"]) == (None, "float32 []")
    assert re.search(r"^kernel .*float32 \[4, 3\] .* 2 +0\.5", run("diff", a, b).output, re.M)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def prunable(folder):
    """Saves of the steps 10, 20, 30, 12, 14, in this order; one that did not end, and a folder."""
    for serial, step in enumerate((10, 20, 30, 12, 14), 1):
        write_by_hand(folder / f"step-{step:09d}", tables(), step=step, serial=serial)
    write_by_hand(folder / "step-000000050", tables())
    os.remove(folder / "step-000000050" / "manifest.json")
    write_by_hand(folder / "step-000000060", tables())
    os.remove(folder / "step-000000060" / "manifest.json")
    (folder / "step-000000060" / "mine.txt").touch()
    (folder / "notes").mkdir()
    return folder


def test_prune_keeps_the_last_saves(tmp_path):
    folder = prunable(tmp_path / "run")
    before = names_in(folder)
    tried = run_json("prune", folder, "--keep", 2, "--dry-run")
    assert names_in(folder) == before
    found = run_json("prune", folder, "--keep", 2)
    assert {**found, "dry_run": True} == tried
    assert [Path(each).name for each in found["removed"]] == [
        "step-000000030", "step-000000020", "step-000000010",
    ]  # fmt: skip
    assert [Path(each).name for each in found["leftovers"]] == ["step-000000050"]
    # What has other names in it than those of saves is somebody else's.
    assert names_in(folder) == ["notes", "step-000000012", "step-000000014", "step-000000060"]
    assert "2 kept" in run("prune", folder, "--keep", 2).output
    run("prune", folder, "--keep", 0, code=2)


def test_prune_keeps_the_first_of_so_many_steps(tmp_path):
    folder = prunable(tmp_path / "run")
    run("prune", folder, "--keep", 1, "--keep-every", 15)
    whole = [each["step"] for each in run_json("ls", folder)["checkpoints"]]
    assert sorted(whole) == [10, 14, 20, 30, 60]


def test_prune_leaves_links(tmp_path):
    folder = prunable(tmp_path / "run")
    (folder / "step-000000010").rename(tmp_path / "elsewhere")
    (folder / "step-000000010").symlink_to(tmp_path / "elsewhere")
    found = run_json("prune", folder, "--keep", 1)
    assert str(folder / "step-000000010") in found["kept"]
    assert "step-000000010" in names_in(folder) and len(names_in(tmp_path / "elsewhere")) == 4


def test_prune_never_removes_the_last_that_can_be_read(tmp_path):
    folder = prunable(tmp_path / "run")
    write_by_hand(folder / "step-000000090", tables(), serial=9)
    flipped(folder / "step-000000090" / "manifest.json", 99)
    run("prune", folder, "--keep", 1)
    assert "step-000000014" in names_in(folder) and "step-000000012" not in names_in(folder)


def test_the_command_needs_no_tensorflow_in_a_process_of_its_own(saved, tmp_path):
    program = f"""
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None  # importing one of them is an error
from sok_embed.cli import main
for arguments in (
    ["ls", "{saved.parent}"], ["show", "{saved}"], ["verify", "{saved}"],
    ["diff", "{saved}", "{saved}"], ["prune", "{tmp_path}", "--keep", "1"],
    ["convert", "{saved}", "rows.npz", "--table", "items"],
):
    try:
        main(["checkpoint", *arguments])
    except SystemExit as ended:
        assert not ended.code, arguments
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr
    assert "no difference in rows and variables" in result.stdout
    with np.load(tmp_path / "rows.npz") as arrays:
        assert sorted(arrays["key"]) == sorted(ITEMS.keys)
