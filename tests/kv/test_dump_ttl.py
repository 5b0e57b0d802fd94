"""A dump says how long its rows were kept, and who loads it learns of it."""

import json
import re
import warnings

import pytest
from click.testing import CliRunner
from dump_descriptions import with_descriptions
from kv_rows import adam, damo_file, keys, ones, sgd

from sok_embed import kv
from sok_embed.cli import main

TTL = 500_000


def run(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def dumped(tmp_path):
    with kv.Storage(tmp_path / "source", ttl=TTL) as storage:
        adam(storage).apply_gradients(keys(1, 2), ones(2))
        sgd(storage, 4, group=8).apply_gradients(keys(7), ones(1, 4))
        storage.dump(tmp_path / "dump")
    return tmp_path / "dump"


def ttl_of(path):
    with kv.Storage(path, read_only=True) as storage:
        return storage.ttl


def test_a_dump_says_what_is_in_it(dumped):
    read = kv.read_dump(dumped)
    assert read.ttl == TTL
    shown = [(g.number, g.dimension, g.optimizer, g.rows, g.steps) for g in read.groups]
    assert shown == [(0, 2, "adam", 2, 1), (8, 4, "sgd", 1, 1)]
    assert read.groups[0].slots == (("momentum", 2), ("velocity", 2))


def test_a_dump_of_some_rows_counts_those(dumped, tmp_path):
    with kv.Storage(tmp_path / "source") as storage:
        adam(storage).apply_gradients(keys(1), ones(1))
        storage.dump(tmp_path / "often", min_count=2)
    assert [group.rows for group in kv.read_dump(tmp_path / "often").groups] == [1, 0]


def test_a_storage_without_a_ttl_says_so_and_a_dump_without_groups_knows_none(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        storage.dump(tmp_path / "empty")
        adam(storage)
        storage.dump(tmp_path / "dump")
    assert kv.read_dump(tmp_path / "empty") == (None, ())
    assert kv.read_dump(tmp_path / "dump").ttl == 0


def test_inspect_shows_a_dump(dumped):
    output = run("inspect", dumped)
    assert re.search(rf"^ttl +{TTL} s$", output, re.MULTILINE)
    assert re.search(r"^0 +2 +adam +2 +1$", output, re.MULTILINE)
    assert re.search(r"^8 +4 +sgd +1 +1$", output, re.MULTILINE)
    report = json.loads(run("inspect", dumped, "--group", 8, "--json"))
    assert (report["ttl"], [group["rows"] for group in report["groups"]]) == (TTL, [1])
    missing = CliRunner().invoke(main, ["inspect", str(dumped), "--group", "3"])
    assert missing.exit_code == 1 and "no group 3" in missing.output


def test_load_makes_a_folder_with_the_ttl_of_the_rows(dumped, tmp_path):
    assert run("load", tmp_path / "new", dumped) == f"3 rows from {dumped}\nttl {TTL} s\n"
    assert ttl_of(tmp_path / "new") == TTL


@pytest.mark.parametrize("ttl", [0, 77])
def test_load_takes_a_ttl(dumped, tmp_path, ttl):
    output = run("load", tmp_path / "new", dumped, "--ttl", ttl)
    assert f"where the rows come from, {TTL} s" in output
    assert ttl_of(tmp_path / "new") == ttl
    assert json.loads(run("load", tmp_path / "new", dumped, "--json"))["ttl"] == ttl


def test_load_leaves_the_ttl_of_a_folder_that_is_there(dumped, tmp_path):
    kv.Storage(tmp_path / "there", ttl=99).close()
    output = run("load", tmp_path / "there", dumped)
    assert f"ttl 99 s; where the rows come from, {TTL} s" in output
    assert ttl_of(tmp_path / "there") == 99
    run("load", tmp_path / "there", dumped, "--ttl", 98)
    assert ttl_of(tmp_path / "there") == 98


def test_load_of_damo_takes_a_ttl(tmp_path):
    file = damo_file(tmp_path / "damo", {0: {1: [1.0, 2.0]}})
    run("load", tmp_path / "new", file, "--damo", "--ttl", 33)
    assert ttl_of(tmp_path / "new") == 33


def test_a_file_that_is_no_dump_makes_no_folder(tmp_path):
    (tmp_path / "file").write_text("nothing")
    result = CliRunner().invoke(main, ["load", str(tmp_path / "new"), str(tmp_path / "file")])
    assert result.exit_code == 1 and "not a sok-embed dump" in result.output
    assert not (tmp_path / "new").exists()


def test_rows_that_would_be_kept_for_ever_by_oversight_are_told(dumped, tmp_path):
    with kv.Storage(tmp_path / "new") as storage:
        with pytest.warns(UserWarning, match=rf"expire {TTL} s .*never in .*ttl={TTL}.*ttl=0"):
            storage.load(dumped)
        assert storage.ttl == 0
    for name, ttl in (("never", 0), ("own", 60), ("same", TTL)):
        with warnings.catch_warnings(), kv.Storage(tmp_path / name, ttl=ttl) as storage:
            warnings.simplefilter("error")
            storage.load(dumped)


def test_a_dump_of_an_older_version_has_no_ttl_and_loads(dumped, tmp_path):
    """The field is one more in the JSON of each group: files without it are read, and older
    readers, which take the fields that they know, read files with it."""

    def without_ttl(text):
        meta = json.loads(text)
        del meta["ttl"]
        return json.dumps(meta).encode()

    old = tmp_path / "old"
    old.write_bytes(with_descriptions(dumped, without_ttl))
    assert kv.read_dump(old).ttl is None
    assert "ttl         not in the file" in run("inspect", old)
    run("load", tmp_path / "new", old)
    assert ttl_of(tmp_path / "new") == 0


@pytest.mark.parametrize(
    "text", [b'{"\xff\xfe":1}', b"{", b"[" * 4000, b'{"' + b"a" * 4000 + b'":1}']
)
def test_a_damaged_description_is_an_error_that_names_its_file(dumped, tmp_path, text):
    damaged = tmp_path / "damaged"
    damaged.write_bytes(with_descriptions(dumped, lambda _: text))
    for read in (kv.read_dump, kv.Storage(tmp_path / "new").load):
        with pytest.raises(kv.CorruptionError, match="damaged., group 0: expected the description"):
            read(damaged)
