"""The job of a day: five days in a row, days that are killed, a bad day, and forgotten users."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
from running import EXAMPLES, TIME_LIMIT_S
from tiers import long

from sok_embed import fingerprint, serving
from sok_embed.checkpoint.tools.difference import difference
from sok_embed.checkpoint.tools.saved import open_saved
from sok_embed.checkpoint.tools.survey import rows_of_keys
from sok_embed.serving import rows as rows_files

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import csv, parquet  # noqa: E402

DAYS = [f"2026-12-0{day}" for day in range(1, 6)]
USERS, ITEMS, NEW_ITEMS, PARTS, ROWS = 40, 120, 30, 3, 400
FEW = ["--batch-size", "64", "--dim", "4", "--learning-rate", "0.02", "--max-age", "2"]
FEW += ["--keep-checkpoints", "3", "--keep-versions", "2", "--user", "0", "--max-drop", "0.05"]
ASKED = {
    "keys": fingerprint(np.stack([np.arange(USERS), np.arange(USERS) + NEW_ITEMS], axis=1)),
    "dense": np.linspace(-1, 1, USERS, dtype=np.float32)[:, None],
}

# Kills a script as it is about to make, rename or remove something under a folder, or to take a
# step: at the moment of a number, or the first one that a regular expression describes. At 0 it
# prints all moments.
KILLED = """
    import os, re, runpy, signal, sys
    from sok_embed.checkpoint.run import Run

    folder, at, *sys.argv = sys.argv[1:]
    moments = []

    def moment(what, path=""):
        moments.append(f"{what} {os.path.relpath(path, folder) if path.startswith('/') else path}")
        if at == str(len(moments)) or (not at.isdigit() and re.search(at, moments[-1])):
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, arguments):
        if event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            path = os.fspath(arguments[event == "os.rename"])
            within = event in ("os.remove", "os.rmdir") and arguments[-1] != -1  # of a rmtree
            if path.startswith(folder) or within:
                moment(event, path)

    step = Run._step
    Run._step = lambda run: (moment("step"), step(run))[1]
    sys.addaudithook(hook)
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        if at == "0":
            print("moments", *moments, sep="\\n")
"""

# One moment in each step of the third day, and some in the midst of one, in the order of time.
IN_EACH_STEP = [
    "mkdir days",  # before anything is known of the day
    "rename work/.*/forget.txt",  # loading
    r"rename work/.*/step-0*42/manifest.json",  # users have been forgotten
    "^step",  # training
    r"rename .*/delta.json",  # publishing
    "rename served/2/deltas/CURRENT.json",  # a delta has its number, and is not the newest yet
    r"rename work/.*/step-0*49/manifest.json",  # the delta is newer than the checkpoint
    "rename served/2/deltas/00000003",
    r"rename work/.*/step-0*63/manifest.json",  # tested
    "rename days/.*json",  # judged, and not noted
    r"rename served/\.version.*/made/assets",  # exporting
    "rename served/3$",
    "mkdir checkpoints/step",  # exported, and not noted
    "rename checkpoints/.*/manifest.json",  # saving
    "remove saved_model.pb",  # removing an old version
    "rename days/.*json",  # kept, and not noted
    "rmdir work",
]


def write_day(folder: Path, number: int, is_good: bool = True) -> None:
    """Writes the files of a day, the first of them in Parquet. New items come, and old ones go."""
    tastes = np.random.default_rng(0)
    of_users, of_items = tastes.normal(size=USERS), tastes.normal(size=ITEMS + 5 * NEW_ITEMS)
    random = np.random.default_rng(number + 1)
    (folder / DAYS[number]).mkdir(parents=True)
    for part in range(PARTS):
        users = random.integers(0, USERS, ROWS)
        items = random.integers(0, ITEMS, ROWS) + NEW_ITEMS * number
        likes = of_users[users] + of_items[items] + random.normal(scale=0.3, size=ROWS) > 0
        columns = {
            "label": (likes if is_good else random.permutation(likes)).astype(int),
            "I1": random.normal(size=ROWS).astype(np.float32),
            "C1": users,
            "C2": items,
        }
        path = folder / DAYS[number] / f"{part:02}"
        if part:
            csv.write_csv(pyarrow.table(columns), path.with_suffix(".csv"))
        else:
            parquet.write_table(pyarrow.table(columns), path.with_suffix(".parquet"))


def arguments(root: Path, logs: Path, day: str, *others: str) -> list[str]:
    return [str(EXAMPLES / "daily.py"), str(root), "--day", day, "--data", str(logs), *FEW, *others]


def ended(command: list[str], *statuses: int) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    assert done.returncode in statuses, done.stderr
    return done


def run(root: Path, logs: Path, day: str, *others: str) -> dict:
    """Runs a day; returns its notes with the exit status."""
    done = ended(forked.command(*arguments(root, logs, day, *others)), 0, 3)
    return {"status": done.returncode, **json.loads(done.stdout.splitlines()[-1])}


def kill(root: Path, logs: Path, day: str, at: int | str, *others: str) -> None:
    ended(forked.program(KILLED, root, at, *arguments(root, logs, day, *others)), -9)


def moments_of(root: Path, logs: Path, day: str) -> list[str]:
    done = ended(forked.program(KILLED, root, 0, *arguments(root, logs, day)), 0, 3)
    return done.stdout.partition("moments\n")[2].splitlines()


def checkpoints(root: Path) -> list[Path]:
    return sorted((root / "checkpoints").iterdir())


def versions(root: Path) -> list[int]:
    return sorted(int(each.name) for each in (root / "served").iterdir() if each.name.isdecimal())


def answers(root: Path, version: tuple[int, int] | None = None) -> np.ndarray:
    with serving.load(root / "served", version=version) as served:
        return served(**ASKED)["output_0"].numpy()


def notes_of(root: Path) -> dict[str, dict]:
    found = {path.stem: json.loads(path.read_text()) for path in (root / "days").iterdir()}
    return {day: {**notes, "seconds": None} for day, notes in found.items()}


def assert_same_rows(one: Path, two: Path) -> None:
    """Checks rows with slots, counts and times, and dense weights with slots, bit by bit.

    The slots of an anchor, which have 192 numbers, are left out: the numbers of deposits are in
    them, which no step reads again.
    """
    found = difference(open_saved(str(one)), open_saved(str(two)))
    assert not found.only_a + found.only_b and all(each.same for each in found.tables), found
    assert {each.a for each in found.variables} <= {"float32 [192]"}, found.variables
    assert found.steps[0] == found.steps[1]


def assert_same(root: Path, other: Path) -> None:
    """Checks all that is kept: checkpoints, versions with their deltas, answers and notes."""
    assert [each.name for each in checkpoints(root)] == [each.name for each in checkpoints(other)]
    for one, two in zip(checkpoints(root), checkpoints(other), strict=True):
        assert_same_rows(one, two)
    assert versions(root) == versions(other)
    for number in versions(root):
        deltas, others = (
            [each.name for each in sorted((where / f"served/{number}").glob("deltas/*"))]
            for where in (root, other)
        )
        assert deltas == others
        for delta in {0, len([each for each in deltas if each.isdecimal()])}:
            np.testing.assert_array_equal(
                answers(root, (number, delta)), answers(other, (number, delta))
            )
    assert notes_of(root) == notes_of(other)
    assert not list(root.glob("work/*"))
    # The folder in which a version was made goes with the next one, if a kill has left it.
    assert not any(os.listdir(each) for each in root.glob("served/.*"))


def copied(root: Path, to: Path) -> Path:
    return shutil.copytree(root, to)


def user_rows(root: Path, user: int) -> list[str]:
    """Returns the files of checkpoints, exports and deltas that have a row of a user."""
    (key,) = fingerprint([user])
    found = []
    for folder in [*checkpoints(root), *root.glob("work/*/checkpoints/step-*")]:
        saved = open_saved(str(folder))
        if rows_of_keys(saved, saved.one("field_0"), [int(key)])["rows"]:
            found.append(folder.name)
    for path in [*root.glob("served/*/assets/field_0*"), *root.glob("served/*/deltas/*/rows-0*")]:
        with rows_files.open(str(path)) as file:
            if file.contains(np.array([key])).any():
                found.append(str(path.relative_to(root)))
    return sorted(found)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    for number in range(len(DAYS)):
        write_day(folder, number)
    return folder


@pytest.fixture(scope="module")
def after(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What there is before and after each of five days in a row."""
    folder = tmp_path_factory.mktemp("after")
    root = folder / "root"
    root.mkdir()
    states = [copied(root, folder / "0")]
    for number, day in enumerate(DAYS, 1):
        assert run(root, logs, day)["verdict"] == "kept"
        states.append(copied(root, folder / str(number)))
    return states


def test_five_days_in_a_row_learn_and_keep_what_they_say(after: list[Path]) -> None:
    last = after[-1]
    notes = notes_of(last)
    assert list(sorted(notes)) == DAYS
    assert all(0.8 < each["auc"] < 1 for each in notes.values())
    assert versions(last) == [4, 5]
    assert [each.name for each in checkpoints(last)] == [
        notes[day]["checkpoint"] for day in DAYS[2:]
    ]
    # An export is the model that was saved, and the deltas of a day lead to it.
    with serving.load(last / "served") as served:
        assert served.version == (notes[DAYS[-1]]["version"], 0)
    np.testing.assert_array_equal(answers(last, (4, PARTS)), answers(last, (5, 0)))
    assert not np.array_equal(answers(last, (4, 0)), answers(last, (5, 0)))


def test_items_that_are_not_trained_for_two_days_are_evicted(after: list[Path]) -> None:
    saved = open_saved(str(checkpoints(after[-1])[-1]))
    keys = fingerprint(np.array([0, NEW_ITEMS - 1, 4 * NEW_ITEMS, ITEMS + 4 * NEW_ITEMS - 1]))
    found = rows_of_keys(saved, saved.one("field_1"), keys.tolist())
    assert [each["key"] for each in found["rows"]] == keys[2:].tolist()
    assert found["missing"] == keys[:2].tolist()


@pytest.mark.parametrize("last", [3, long(5)])
def test_a_day_that_is_killed_in_each_step_ends_as_if_it_had_not_been(
    last: int, after: list[Path], logs: Path, tmp_path: Path
) -> None:
    root = copied(after[2], tmp_path / "root")
    for moment in IN_EACH_STEP:
        kill(root, logs, DAYS[2], moment)
    run(root, logs, DAYS[2])
    assert_same(root, after[3])
    assert run(root, logs, DAYS[2])["status"] == 0  # which changes nothing
    assert_same(root, after[3])
    for day in DAYS[3:last]:
        run(root, logs, day)
    assert_same(root, after[last])


@pytest.fixture(scope="module")
def bad_logs(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The third day has labels that say nothing."""
    folder = shutil.copytree(logs, tmp_path_factory.mktemp("bad") / "logs")
    shutil.rmtree(folder / DAYS[2])
    write_day(folder, 2, is_good=False)
    return folder


def test_servers_go_back_after_a_bad_day_and_the_next_one_goes_on_from_before(
    after: list[Path], bad_logs: Path, tmp_path: Path
) -> None:
    root, skipped = copied(after[2], tmp_path / "root"), copied(after[2], tmp_path / "skipped")
    with serving.load(root / "served") as served:
        yesterday = served(**ASKED)["output_0"].numpy()
        kill(root, bad_logs, DAYS[2], "rename served/2/deltas/00000004")
        assert served.update() == (2, PARTS)  # judged, and not gone back yet
        assert not np.array_equal(served(**ASKED)["output_0"], yesterday)
        for moment in ("rename served/2/deltas/CURRENT", "rename days", "rmdir work"):
            kill(root, bad_logs, DAYS[2], moment)
        for _ in range(2):
            notes = run(root, bad_logs, DAYS[2])
            assert (notes["status"], notes["verdict"]) == (3, "rolled back")
            assert notes["auc"] < notes["auc_before"] - 0.05
        assert served.update() == (2, PARTS + 1)
        np.testing.assert_array_equal(served(**ASKED)["output_0"], yesterday)
    assert versions(root) == versions(after[2])
    for one, two in zip(checkpoints(root), checkpoints(after[2]), strict=True):
        assert_same_rows(one, two)
    for each in (root, skipped):
        assert run(each, bad_logs, DAYS[3])["verdict"] == "kept"
    assert_same_rows(checkpoints(root)[-1], checkpoints(skipped)[-1])
    np.testing.assert_array_equal(answers(root), answers(skipped))


@pytest.mark.long
def test_servers_do_not_see_a_bad_day_by_nightly_exports(
    after: list[Path], logs: Path, bad_logs: Path, tmp_path: Path
) -> None:
    root = copied(after[2], tmp_path / "root")
    assert run(root, bad_logs, DAYS[2], "--nightly")["verdict"] == "rolled back"
    assert serving.load(root / "served").version == (2, 0)
    assert run(root, logs, DAYS[3], "--nightly")["verdict"] == "kept"
    assert serving.load(root / "served").version == (3, 0)
    assert not list(root.glob("served/2/deltas/0*"))


@pytest.mark.long
def test_a_day_of_numbers_that_are_not_finite_is_neither_kept_nor_published(
    after: list[Path], logs: Path, tmp_path: Path
) -> None:
    too_fast = ["--learning-rate", "1e30"]
    root, fresh = tmp_path / "root", tmp_path / "fresh"
    assert run(root, logs, DAYS[0], *too_fast)["status"] == 3  # no better than chance
    assert not (root / "served").exists() and not (root / "checkpoints").exists()
    for each in (root, fresh):
        assert run(each, logs, DAYS[1])["verdict"] == "kept"
    assert_same_rows(*checkpoints(root), *checkpoints(fresh))
    command = arguments(copied(after[2], tmp_path / "later"), logs, DAYS[2], *too_fast)
    assert "Expected rows of finite values" in ended(forked.command(*command), 1).stderr
    assert serving.load(tmp_path / "later" / "served").version == (2, 0)


@pytest.mark.parametrize("kills", [long(int(os.environ.get("SOK_TEST_MANY", "25")))])
@pytest.mark.parametrize(("number", "verdict"), [(0, "kept"), (2, "kept"), (2, "rolled back")])
def test_a_day_that_is_killed_at_any_moment_ends_as_if_it_had_not_been(
    number: int,
    verdict: str,
    kills: int,
    after: list[Path],
    logs: Path,
    bad_logs: Path,
    tmp_path: Path,
) -> None:
    read = logs if verdict == "kept" else bad_logs
    whole = copied(after[number], tmp_path / "whole")
    moments = moments_of(whole, read, DAYS[number])
    assert notes_of(whole)[DAYS[number]]["verdict"] == verdict
    seed = random.randrange(2**32)
    print("seed", seed, "of", len(moments), "moments")
    every = range(1, len(moments) + 1)
    for at in random.Random(seed).sample(every, min(kills, len(moments))):
        root = copied(after[number], tmp_path / str(at))
        kill(root, read, DAYS[number], at)
        run(root, read, DAYS[number])
        assert_same(root, whole)
        shutil.rmtree(root)


@pytest.mark.parametrize("rounds", [long(int(os.environ.get("SOK_TEST_MANY", "5")))])
def test_a_day_that_is_killed_again_and_again_ends_as_if_it_had_not_been(
    rounds: int, after: list[Path], logs: Path, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    waits, kills = random.Random(seed), 0
    for number in range(rounds):
        root = copied(after[2], tmp_path / str(number))
        status = None
        while status is None:
            process = subprocess.Popen(
                forked.command(*arguments(root, logs, DAYS[2])),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            try:
                process.communicate(timeout=waits.uniform(0.3, 4))
                status = process.returncode
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills += 1
        assert status == 0
        assert_same(root, after[3])
    print(kills, "kills")
    assert kills


@pytest.mark.long
def test_days_that_were_kept_are_taken_back(after: list[Path], logs: Path, tmp_path: Path) -> None:
    root, skipped = copied(after[3], tmp_path / "root"), copied(after[2], tmp_path / "skipped")
    kill(root, logs, DAYS[3], "^step")  # a day that cannot be finished
    refused = ended(forked.command(*arguments(root, logs, DAYS[4])), 2)
    assert f"Received: {DAYS[3]}, which was begun. Run it again" in refused.stderr
    kill(root, logs, DAYS[1], "rename checkpoints", "--take-back")
    assert run(root, logs, DAYS[1], "--take-back")["status"] == 0
    np.testing.assert_array_equal(answers(root), answers(skipped))
    verdicts = {day: notes["verdict"] for day, notes in notes_of(root).items()}
    assert verdicts == dict(
        zip(DAYS[:4], ["kept", "kept", "taken back", "taken back"], strict=True)
    )
    assert run(root, logs, DAYS[2])["status"] == 3
    for each in (root, skipped):
        assert run(each, logs, DAYS[4])["verdict"] == "kept"
    assert_same_rows(checkpoints(root)[-1], checkpoints(skipped)[-1])
    np.testing.assert_array_equal(answers(root), answers(skipped))


def test_forgotten_users_have_no_row_in_what_is_written_from_then_on(
    after: list[Path], logs: Path, tmp_path: Path
) -> None:
    forgotten = tmp_path / "forget.txt"
    forgotten.write_text("3\n17\n")
    others = ["--forget", str(forgotten)]
    root = copied(after[2], tmp_path / "root")
    before = user_rows(root, 3)
    assert before == user_rows(root, 5)
    kill(root, logs, DAYS[2], "rename .*/delta.json", *others)
    run(root, logs, DAYS[2], *others)
    at_once = copied(after[2], tmp_path / "at once")
    run(at_once, logs, DAYS[2], *others, "--keep-checkpoints", "1", "--keep-versions", "1")
    for user in (3, 17):
        assert user_rows(root, user) == [each for each in before if "/1/" not in each]
        assert user_rows(at_once, user) == []
    assert len(user_rows(at_once, 5)) == 2


@pytest.mark.long
def test_files_with_rows_of_forgotten_users_go_with_their_turn(
    after: list[Path], logs: Path, tmp_path: Path
) -> None:
    forgotten = tmp_path / "forget.txt"
    forgotten.write_text("3\n17\n")
    others = ["--forget", str(forgotten)]
    root = copied(after[2], tmp_path / "root")
    for moment in ("rename work/.*manifest.json", "rename .*/delta.json", "rename days"):
        kill(root, logs, DAYS[2], moment, *others)
    run(root, logs, DAYS[2], *others)
    for user in (3, 17):
        assert len(user_rows(root, user)) == 3  # of the days before
    for day in DAYS[3:]:
        run(root, logs, day, *others)
    for user in (3, 17):
        assert user_rows(root, user) == []
    assert len(user_rows(root, 5)) > 5


@pytest.mark.parametrize(
    "moments", [[], long(["rename served/1/deltas/00000002", "rename served/2"])]
)
def test_two_workers_do_the_days_that_one_does(
    moments: list[str], after: list[Path], logs: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    start = [sys.executable, "-m", "sok_embed", "run", "-np", "2", "--"]
    ended([*start, *forked.command(*arguments(root, logs, DAYS[0]))], 0)
    for moment in moments:
        killed = forked.program(KILLED, root, moment, *arguments(root, logs, DAYS[1]))
        assert subprocess.run([*start, *killed], capture_output=True).returncode
    ended([*start, *forked.command(*arguments(root, logs, DAYS[1]))], 0)
    run(root, logs, DAYS[2])  # on one
    assert versions(root) == versions(after[3])
    for one, two in zip(checkpoints(root), checkpoints(after[3]), strict=True):
        found = difference(open_saved(str(one)), open_saved(str(two)))
        for table in found.tables:
            assert table.only_a == table.only_b == 0 < table.both
            assert table.largest.get("embeddings", 0) < 1e-3
    np.testing.assert_allclose(answers(root), answers(after[3]), atol=1e-2)
    for day, notes in notes_of(root).items():
        assert notes["auc"] == pytest.approx(notes_of(after[3])[day]["auc"], abs=1e-3)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (["--take-back"], "Expected a day that was kept. Received: 2026-12-01"),
        (["--user", "2"], "--user: expected the number of one of 2 fields"),
        (["--data", "none"], "expected a folder none/2026-12-01 with a Parquet or CSV file"),
    ],
)
def test_wrong_options_are_refused_with_what_was_expected(
    others: list[str], message: str, logs: Path, tmp_path: Path
) -> None:
    command = forked.command(*arguments(tmp_path / "root", logs, DAYS[0], *others))
    refused = ended(command, 2)
    assert message in refused.stderr and "Traceback" not in refused.stderr
    assert not (tmp_path / "root").exists()


@pytest.mark.long
def test_generated_days_go_on_from_one_to_the_next(tmp_path: Path) -> None:
    few = ["--samples", "20000", "--parts", "4", "--batch-size", "512"]
    found = [
        json.loads(
            ended(forked.command(EXAMPLES / "daily.py", tmp_path, "--day", day, *few), 0).stdout
        )
        for day in DAYS[:3]
    ]
    assert found[2]["auc"] > 0.66 and found[2]["version"] == 3
