"""The command sok-embed: what it prints, what it changes, how it fails."""

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from kv_rows import ENVIRONMENT, adam, damo_file, keys, ones, row, run_python, sgd
from limits import HANG_S

import sok_embed
from sok_embed import __version__, kv
from sok_embed.cli import main

UPDATED = "2023-11-14T22:13:20+00:00"  # 1 700 000 000


def run(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def run_json(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


@pytest.fixture
def path(tmp_path, clock):
    """Group 0: keys 1 to 5, updated once, and key -1, twice. Group 8: key 7."""
    with kv.Storage(tmp_path / "rows", ttl=10**9, clock=clock) as storage:
        embedding = adam(storage)
        embedding.apply_gradients(keys(1, 2, 3, 4, 5, -1), ones(6))
        clock.now += 86400
        embedding.apply_gradients(keys(-1), ones(1))
        sgd(storage, 4, group=8).lookup(keys(7))
    return tmp_path / "rows"


def test_inspect_shows_groups_and_their_rows(path):
    output = run("inspect", path).output
    assert re.search(r"^ttl +1000000000 s$", output, re.MULTILINE)
    assert re.search(r"^0 +2 +adam +6 +0 +[\d,]+ +2$", output, re.MULTILINE)
    assert re.search(r"^8 +4 +sgd +1 +0 +[\d,]+ +0$", output, re.MULTILINE)
    assert re.search(r"^2-3 +1$", output, re.MULTILINE)
    assert "group 8: rows by last update" in output


def test_inspect_as_json(path):
    report = run_json("inspect", path)
    assert report["ttl"] == 10**9
    assert report["file_bytes"] > 0
    first, second = report["groups"]
    assert first["group"] == 0
    assert first["optimizer"] == "adam"
    assert first["slots"] == {"momentum": 2, "velocity": 2}
    assert first["rows"] == 6
    assert first["update_count"] == {"1": 5, "2-3": 1}
    assert sum(first["last_update"].values()) == 6
    assert list(first["last_update"])[0] == "within 1 h"
    assert second["dimension"] == 4
    assert second["update_count"] == {"0": 1}
    assert [group["group"] for group in run_json("inspect", path, "--group", 8)["groups"]] == [8]


def test_inspect_counts_the_journal_of_a_process_that_was_killed(tmp_path):
    program = """
import os, sys
import numpy as np
from sok_embed import kv
storage = kv.Storage(sys.argv[1], durability="update")
embedding = kv.Embedding(storage, kv.Optimizer("sgd", gamma=1), kv.Initializer("zeros"), 64)
embedding.apply_gradients(np.arange(1000, dtype=np.uint64), np.ones([1000, 64], np.float32))
os._exit(9)
"""
    assert run_python(program, tmp_path / "rows").returncode == 9
    assert any(file.name.startswith("sok-journal-") for file in (tmp_path / "rows").iterdir())
    vectors = 1000 * 64 * 4
    report = run_json("inspect", tmp_path / "rows")
    assert report["groups"][0]["rows"] == 1000
    assert vectors < report["file_bytes"] < 2 * vectors
    assert f"file bytes  {report['file_bytes']:,}" in run("inspect", tmp_path / "rows").output


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("-1", -1),
        ("18446744073709551615", 2**64 - 1),
        ("0xffffffffffffffff", 2**64 - 1),
    ],
)
def test_get_takes_a_key_in_three_spellings_and_shows_it_as_it_was_given(path, key, shown):
    found = run_json("get", path, 0, key)
    assert found["key"] == shown
    assert re.search(rf"^key +{shown}$", run("get", path, 0, key).output, re.MULTILINE)
    assert found["update_count"] == 2
    assert found["last_update"] == 1_700_086_400
    assert len(found["embedding"]) == 2
    assert "slots" not in found


@pytest.mark.parametrize("key", ["-5", "18446744073709551611", "0x63"])
def test_a_key_without_a_row_is_named_as_it_was_given(path, key):
    shown = str(int(key, 0))
    assert f"there is no row of key {shown} in group 0" in run("get", path, 0, key, code=1).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["get", "{path}", 3, 1],
        ["remove", "{path}", 3, 1, "--yes"],
        ["dump", "{path}", "file", "--group", 3],
        ["inspect", "{path}", "--group", 3],
        ["inspect", "{dump}", "--group", 3],
    ],
)
def test_a_group_that_is_not_there_is_told_with_those_that_are(path, tmp_path, arguments):
    run("dump", path, tmp_path / "dump")
    names = {"path": path, "dump": tmp_path / "dump"}
    result = run(*(str(each).format(**names) for each in arguments), code=1)
    assert re.search(r"there is no group 3 in '.*', which has the groups 0, 8\n", result.stderr)


def test_a_dump_replaces_a_file_only_if_it_is_told_to(path, tmp_path):
    run("dump", path, tmp_path / "dump", "--group", 8)
    before = (tmp_path / "dump").read_bytes()
    refused = run("dump", path, tmp_path / "dump", code=1)
    assert "Expected nothing at" in refused.stderr and "--overwrite" in refused.stderr
    assert (tmp_path / "dump").read_bytes() == before
    assert run_json("dump", path, tmp_path / "dump", "--overwrite")["rows"] == 7


def test_the_version_is_printed():
    assert run("--version").output == f"sok-embed {__version__}\n"


def test_remove_takes_keys_as_arguments_and_from_a_file(path, tmp_path):
    (tmp_path / "users").write_text("2\n0x3 99\n18446744073709551615\n")
    arguments = ("remove", path, 0, 1, -1, "--keys-from", tmp_path / "users")
    expected = {"dry_run": True, "removed": 4, "missing": [99]}
    assert run_json(*arguments, "--dry-run") == expected
    assert run_json("inspect", path)["groups"][0]["rows"] == 6
    assert run_json(*arguments, "--yes") == {**expected, "dry_run": False}
    assert run_json("inspect", path)["groups"][0]["rows"] == 2
    assert run("remove", path, 0, -7, "--yes").output == (
        "0 rows removed; 1 keys have none, such as -7\n"
    )
    assert "sok-embed compact" in run("remove", path, 0, 4, "--yes").output


def test_a_string_id_is_got_and_removed(tmp_path):
    ids = ["alice", "bob smith", "-7", "zoe"]
    with kv.Storage(tmp_path / "rows") as storage:
        sgd(storage).apply_gradients(sok_embed.fingerprint(ids), ones(4))
    path = tmp_path / "rows"
    assert run_json("get", path, 0, "alice", "--string")["key"] == "alice"
    assert "pass --string" in run("get", path, 0, "alice", code=2).stderr
    gone = run("get", path, 0, "carol", "--string", code=1)
    assert "no row of key carol" in gone.stderr
    (tmp_path / "users").write_text("bob smith\ncarol\n")
    arguments = ("remove", path, 0, "alice", "-7", "--string", "--keys-from", tmp_path / "users")
    found = run_json(*arguments, "--yes")
    assert found == {"dry_run": False, "removed": 3, "missing": ["carol"]}
    assert run_json("inspect", path)["groups"][0]["rows"] == 1


def test_remove_asks_and_takes_no_for_an_answer(path, monkeypatch):
    monkeypatch.setattr("sok_embed.cli.storage_commands.can_ask", lambda: True)
    command = ["remove", str(path), "0", "1"]
    refused = CliRunner().invoke(main, command, input="n\n")
    assert refused.exit_code == 1 and "Remove 1 rows of group 0" in refused.stderr
    assert run_json("inspect", path)["groups"][0]["rows"] == 6
    assert CliRunner().invoke(main, command, input="y\n").exit_code == 0
    assert run_json("inspect", path)["groups"][0]["rows"] == 5


def test_remove_reads_stdin(path):
    result = CliRunner().invoke(
        main, ["remove", str(path), "0", "--keys-from", "-", "--yes"], input="1 2 -1"
    )
    assert result.output.startswith("3 rows removed"), result.output


def test_get_shows_slots_by_name(path):
    with kv.Storage(path, ttl=None) as storage:
        floats = row(storage, 1)["floats"].tolist()
    found = run_json("get", path, 0, 1, "--slots")
    assert found["embedding"] == floats[:2]
    assert found["slots"] == {"momentum": floats[2:4], "velocity": floats[4:]}
    output = run("get", path, 0, "-1", "--slots").output
    assert re.search(r"^update_count +2$", output, re.MULTILINE)
    assert re.search(r"^velocity +\S+ \S+$", output, re.MULTILINE)


def test_dump_and_load_carry_rows(path, tmp_path):
    file, other = tmp_path / "dump", tmp_path / "other"
    assert run_json("dump", path, file) == {"rows": 7, "file": str(file)}
    assert run("load", other, file).output == f"7 rows from {file}\nttl {10**9} s\n"
    assert run_json("inspect", other)["groups"] == [
        {**group, "last_update": run_json("inspect", other)["groups"][i]["last_update"]}
        for i, group in enumerate(run_json("inspect", path)["groups"])
    ]


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (["--group", 8], 1),
        (["--min-count", 2], 1),
        (["--newer-than", 1_700_000_000], 2),
        (["--newer-than", UPDATED], 2),
        (["--newer-than", "2030-01-01"], 0),
    ],
)
def test_dump_chooses_rows(path, tmp_path, options, rows):
    assert run_json("dump", path, tmp_path / "dump", *options)["rows"] == rows


def test_a_load_that_fails_leaves_the_ttl_and_the_rows(path, tmp_path):
    file = tmp_path / "dump"
    run("dump", path, file)
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[-100] ^= 1  # in the rows, which are checked in full before any is taken in
    (tmp_path / "damaged").write_bytes(damaged)
    with kv.Storage(tmp_path / "wide") as wide:
        sgd(wide, 3).lookup(keys(1))
        wide.dump(tmp_path / "wider")
    for wrong in ("damaged", "wider"):
        run("load", path, tmp_path / wrong, "--ttl", 5, code=1)
        report = run_json("inspect", path)
        assert report["ttl"] == 10**9 and [group["rows"] for group in report["groups"]] == [6, 1]
    # Rows that expire by the TTL that is given stay out, and those that are there expire.
    assert run_json("load", path, file, "--ttl", 5) == {"rows": 0, "file": str(file), "ttl": 5}
    after = run_json("inspect", path)
    assert after["ttl"] == 5 and [group["rows"] for group in after["groups"]] == [0, 0]
    assert run_json("load", path, file, "--ttl", 10**9)["rows"] == 7


def test_load_takes_damos_files(tmp_path):
    file = damo_file(tmp_path / "damo", {3: {1: [1.0, 2.0]}})
    assert run_json("load", tmp_path / "new", file, "--damo")["rows"] == 1
    assert run_json("get", tmp_path / "new", 3, 1)["embedding"] == [1.0, 2.0]


def test_compact_removes_expired_rows(tmp_path, clock):
    with kv.Storage(tmp_path / "rows", ttl=1, clock=clock) as storage:
        sgd(storage, 64).lookup(keys(*range(1000)))
    result = run_json("compact", tmp_path / "rows")
    assert result["bytes_after"] < result["bytes_before"]
    assert run_json("inspect", tmp_path / "rows")["groups"][0]["expired"] == 0
    assert "bytes before" in run("compact", tmp_path / "rows").output


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "missing"],
        ["get", "missing", 0, 1],
        ["dump", "missing", "file"],
        ["compact", "missing"],
        ["get", "{path}", 0, 99],
        ["get", "{path}", 77, 1],
        ["inspect", "{path}", "--group", 77],
        ["dump", "{path}", "file", "--group", 77],
        ["dump", "{path}", "{wrong}"],
        ["remove", "missing", 0, 1, "--yes"],
        ["remove", "{path}", 77, 1, "--yes"],
        ["load", "{path}", "{wrong}"],
        ["load", "{path}", "{wrong}", "--damo"],
    ],
)
def test_an_error_is_one_line_and_exit_status_1(path, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong").write_text("no dump")
    names = {"path": path, "wrong": tmp_path / "wrong"}
    result = run(*(str(each).format(**names) for each in arguments), code=1)
    assert re.fullmatch(r"error: .+\n", result.stderr), result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["frobnicate"],
        ["inspect", "{path}", "--group", 256],
        ["get", "{path}", 0, "seven"],
        ["get", "{path}", 0, 2**64],
        ["get", "{path}", 0, -(2**63) - 1],
        ["get", "{path}", 0, 1, "--wrong"],
        ["dump", "{path}", "file", "--newer-than", "yesterday"],
        ["remove", "{path}", 0],
        ["remove", "{path}", 0, "seven", "--yes"],
        ["remove", "{path}", 0, 1],
        ["load", "{path}", "missing"],
    ],
)
def test_a_wrong_use_is_exit_status_2(path, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    result = run(*(str(each).format(path=path) for each in arguments), code=2)
    assert "Usage:" in result.stderr


def test_the_greatest_group_is_the_last_of_a_storage(path):
    result = run("inspect", path, "--group", kv.GROUPS - 1, code=1)
    assert "there is no group 255 in" in result.stderr


# Help and completion in the shell shall answer at once.
def test_help_imports_nothing_heavy():
    heavy = "numpy", "tensorflow", "rich", "sok_embed.kv"
    done = run_python(
        "import sys; from click.testing import CliRunner; from sok_embed.cli import main; "
        "print(CliRunner().invoke(main, ['--help']).output); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert "inspect" in done.stdout, done.stderr
    assert done.stdout.endswith("[]\n")


def test_a_storage_in_use_is_refused(storage):
    sgd(storage)
    result = run("inspect", storage.path, code=1)
    assert f"'{storage.path}'" in result.stderr and "this process" in result.stderr


@pytest.mark.parametrize("module", ["sok_embed", "sok_embed.cli"])
def test_the_command_runs_in_a_shell(path, module):
    result = subprocess.run(
        [sys.executable, "-m", module, "get", str(path), "0", "-1"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr
    assert "update_count  2" in result.stdout


def test_a_plan_is_printed_as_a_table_and_as_json(tmp_path):
    described = {
        "tables": [{"name": "items", "vocabulary_size": 1000, "embedding_dim": 4}],
        "features": [{"name": "item", "table": "items", "max_length": 1}],
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(described))
    arguments = ("plan", file, "--workers", 4, "--batch-size", 64)
    printed = run(*arguments, "--memory", "1GiB").stdout
    assert re.search(r"^items +1,000 +4 +adam +item +key +all ", printed, re.MULTILINE)
    assert "4 workers, 64 examples on each" in printed
    made = run_json(*arguments)
    assert made["workers"] == 4 and made["tables"][0]["placement"] == "key"
    assert made["computed"]["tables"]["items"]["sent"] > 0


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "to be a JSON file"),
        ('{"features": []}', "at least one feature"),
        ('[{"name": "a", "table": "t"}]', "a feature of 't'. Put it into tables"),
        ('{"features": [{"name": "a", "table": {"name": "t"}}]}', "Expected embedding_dim"),
    ],
)
def test_a_plan_of_another_file_is_one_line_of_error(tmp_path, content, text):
    file = tmp_path / "config.json"
    file.write_text(content)
    result = run("plan", file, "--workers", 2, "--batch-size", 8, code=1)
    assert result.stderr.startswith("error: ") and text in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_plan_needs_no_tensorflow(tmp_path):
    file = tmp_path / "config.json"
    table = {"name": "t", "vocabulary_size": 10, "embedding_dim": 4}
    file.write_text(json.dumps([{"name": "a", "table": table}]))
    done = run_python(
        "import sys; from click.testing import CliRunner; from sok_embed.cli import main; "
        f"arguments = ['plan', {str(file)!r}, '--workers', '2', '--batch-size', '8']; "
        "print(CliRunner().invoke(main, arguments).exit_code, 'tensorflow' in sys.modules)"
    )
    assert done.stdout == "0 False\n", done.stdout + done.stderr
