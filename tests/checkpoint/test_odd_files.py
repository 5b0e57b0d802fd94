"""What is not a regular file, or far too long, where a checkpoint has its files."""

import json
import os
import resource
import shutil
import signal
import socket

import pytest
import tensorflow as tf
from changed_files import rewritten
from checkpoint_files import Table, rows_of, write_by_hand
from click.testing import CliRunner

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint
from sok_embed.cli import main

COMMANDS = ("show", "verify", "diff", "convert", "compact")


def fifo(path):
    os.mkfifo(path)


def folder(path):
    os.mkdir(path)


def device(path):
    os.symlink("/dev/zero", path)


def loop(path):
    os.symlink(path, path)


def listening(path):
    # The path of a socket is short.
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(os.path.dirname(path))
        server.bind(os.path.basename(path))
        os.chdir(here)


def endless(path):
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # it has no bytes on the disk


KINDS = [fifo, folder, device, loop, listening, endless]


@pytest.fixture(autouse=True)
def no_hang():
    """Ends a test that waits for a file."""
    signal.alarm(120)
    yield
    signal.alarm(0)


@pytest.fixture
def saved(tmp_path):
    tables = [Table("items", rows_of(range(50), 3, 6)), Table("users", rows_of(range(9), 2, 4))]
    for step in range(3):
        write_by_hand(tmp_path / f"run/step-{step:09d}", tables, 2, step=step, serial=step)
    shutil.copytree(tmp_path / "run/step-000000001", tmp_path / "intact")
    return tmp_path / "run/step-000000001"


def invoked(*arguments):
    result = CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def arguments_of(command, saved):
    intact = saved.parent.parent / "intact"
    more = {"diff": [intact], "convert": [saved.parent / "target", "--to", "dump"]}
    return (command, saved, *more.get(command, []))


def assert_refused(saved):
    """Every command says what is wrong in one line, and the others are listed and pruned."""
    before = sorted(os.listdir(saved))
    for command in COMMANDS:
        status, output = invoked(*arguments_of(command, saved))
        assert status == 1 and len(output.strip().splitlines()) == 1, (command, output)
        assert "Expected" in output and "Received" in output, (command, output)
        assert str(saved) in output
    with pytest.raises((sok.kv.CorruptionError, FileNotFoundError), match="Expected"):
        Checkpoint(variable=tf.Variable(1.0)).restore(saved)
    assert sorted(os.listdir(saved)) == before
    status, output = invoked("ls", saved.parent, "--json")
    states = {each["step"]: each["state"] for each in json.loads(output)["checkpoints"]}
    assert status == 0 and (states[0], states[2]) == ("whole", "whole")
    return states[1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_manifest_is_told_and_stays(saved, kind):
    os.remove(saved / "manifest.json")
    kind(str(saved / "manifest.json"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert assert_refused(saved) == ("no manifest" if kind is loop else "damaged")
    status, output = invoked("prune", saved.parent, "--keep", 1)
    assert status == 0, output
    assert saved.exists() and not (saved.parent / "step-000000000").exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10


@pytest.mark.parametrize("name", ["rows-00002*", "dense-*.index", "dense-*.data-*"])
@pytest.mark.parametrize("kind", KINDS)
def test_another_odd_file_is_told(saved, kind, name):
    (path,) = saved.glob(name)
    os.remove(path)
    kind(str(path))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for command in ("verify", "convert"):
        if command == "convert" and not name.startswith("rows") and kind in (endless,):
            continue  # it reads rows alone
        status, output = invoked(*arguments_of(command, saved))
        assert status == 1 and len(output.strip().splitlines()) == 1, (command, output)
        assert str(path) in output and "Expected" in output
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10


@pytest.mark.parametrize(
    "text",
    [
        b"[" * (15 << 20), b"[" * 9000 + b"]" * 9000, b"[" + b"[]," * (5 << 20) + b"1]",
        b'{"a":' * 9000, b"[" + b"{}," * (1 << 18) + b"1]", b"[" + b"0.5," * (1 << 18) + b"1]",
        b'"' + "\U0001f600".encode() + b"a" * (15 << 20) + b'"', b"", b"\xff\xfe", b"[NaN]",
        b"[1e999]", b"9" * 100000, b'{"format": "sok-embed checkpoint", "least_reader": [1]}',
        b'{"format": "sok-embed checkpoint", "least_reader": 1, "features": [[]]}',
    ],
    ids=range(14),
)  # fmt: skip
def test_odd_json_is_told_within_little_memory(saved, text):
    (saved / "manifest.json").write_bytes(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert assert_refused(saved) == "damaged"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("workers", lambda content: content.update(workers=2**62)),
        ("workers", lambda content: content.update(workers=True)),
        ("rows", lambda content: content.update(workers=3)),
        ("rows", lambda content: content.update(rows=[])),
        ("files", lambda content: content.update(files=[])),
        ("dense.metrics", lambda content: content["dense"].pop("metrics")),
        ("dense.variables[0]", lambda content: content["dense"].update(
            variables=[["x", "float32", [2**40]]])),
        ("tables[0].dim", lambda content: content["tables"][0].update(dim=2**40)),
        ("tables[0].parts.rows.rows", lambda content: content["tables"][0]["parts"]["rows"].update(
            rows=2**40, size=2**40)),
        ("tables[0].parts.rows.size", lambda content: content["tables"][0]["parts"]["rows"].update(
            size=7)),
        ("tables[1].path", lambda content: content["tables"].reverse()),
        ("tables[1].path", lambda content: content["tables"].insert(0, content["tables"][0])),
        ("tables[0].owners", lambda content: content["tables"][0].update(owners="2")),
        ("tables[0].owners", lambda content: content["tables"][0].update(owners="1" * 30)),
        ("tables[0].owners", lambda content: content["tables"][0].update(owners="1" * 5000)),
        (
            "tables[0].owners",
            lambda content: content["tables"][0].update(owners=f"mixed_owners(key, {9**30}, size)"),
        ),
        ("rows[0].name", lambda content: content["rows"].reverse()),
        ("parent", lambda content: content.update(
            parent={"folder": "step-000000000", "state": "0" * 16})),
        ("step", lambda content: content.update(step=2**63)),
    ],
)  # fmt: skip
def test_a_field_that_does_not_fit_is_named(saved, field, change):
    rewritten(saved, change)
    status, output = invoked("show", saved)
    assert status == 1 and f"'{field}'" in output and "manifest.json" in output, output
    assert assert_refused(saved) == "damaged"
    (found,) = json.loads(invoked("verify", saved, "--json")[1])["checkpoints"]
    assert len(found["faults"]) == 1


@pytest.mark.parametrize(("name", "value"), [("rule", "sgd"), ("steps", 77), ("slot_floats", 1)])
def test_what_the_files_of_rows_do_not_say_is_found(saved, name, value):
    rewritten(saved, lambda content: content["tables"][0]["parts"]["rows"].update({name: value}))
    for command in COMMANDS:
        if command != "compact":  # it has everything
            status, output = invoked(*arguments_of(command, saved))
            assert status == 1 and f"'{name}' of table 'model/items'" in output, (command, output)
