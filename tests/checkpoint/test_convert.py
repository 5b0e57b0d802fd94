"""Rows of checkpoints in other forms and back, bit for bit, as other readers have them."""

import json
import random
import shutil
import sys
import zipfile

import held_state
import keras
import numpy as np
import pyarrow.parquet
import pytest
from checkpoint_files import (
    NAN,
    Table,
    assert_same_rows,
    bits,
    by_key,
    flipped,
    rows_of,
    write_by_hand,
)
from click.testing import CliRunner

import sok_embed as sok
from sok_embed import kv
from sok_embed.checkpoint import Checkpoint
from sok_embed.checkpoint.files import rows_file
from sok_embed.checkpoint.files.rows_file import Rows
from sok_embed.checkpoint.tools.conversion import dump, into_checkpoint
from sok_embed.checkpoint.tools.conversion.tables import in_pieces, joined_rows
from sok_embed.checkpoint.tools.saved import open_saved
from sok_embed.checkpoint.tools.saved import rows_of as rows_of_saved
from sok_embed.cli import main

FORMS = ["parquet", "npz", "dump", "storage"]
ITEMS_NUMBER = 2  # of the table in an index: tables stand in the order of their paths
ITEMS = rows_of([*range(-300, 300), 2**63 - 1, -(2**63)], 3, 6)
ITEMS.embeddings[0], ITEMS.embeddings[1, 1] = NAN, -0.0
ITEMS.slots[2, 0] = NAN  # of the momentum, which may be any number


def tables(items=ITEMS):
    return [
        Table("items", items),
        Table("users", rows_of(range(50), 2, 0, 2), rule="sgd", owners="0"),
        Table(
            "mixed", rows_of(range(100, 130), 3, 6, 3), owners="bucket % size",
            static=rows_of(range(5), 3, 6, 4),
        ),
        Table("aged", rows_of(range(9), 3, 3, 5)._replace(update_times=np.arange(9)),
              "adagrad", step_clock=9, start=0.5),
        Table("hot", rows_of(range(20), 4, 1, 6), "rowwise_adagrad", "every worker"),
    ]  # fmt: skip


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["checkpoint", *(str(each) for each in arguments)])
    assert result.exit_code == code, result.output
    return result


def run_json(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


@pytest.fixture(scope="module", params=[1, 3])
def saved(request, tmp_path_factory):
    """A checkpoint of one worker, and one of three."""
    folder = tmp_path_factory.mktemp(f"by-{request.param}") / "checkpoint"
    return write_by_hand(folder, tables(), workers=request.param)


def rows_in(folder, label):
    """The rows of a table of a checkpoint."""
    opened = open_saved(str(folder))
    return joined_rows([rows for _, rows in rows_of_saved(opened, [opened.one(label)])])


def test_pyarrow_reads_the_parquet_file(saved, tmp_path):
    found = run_json("convert", saved, tmp_path / "items.parquet", "--table", "items")
    assert found == {
        "rows": 602, "left_out": 0, "form": "parquet", "tables": ["model/items"],
        "target": str(tmp_path / "items.parquet"),
    }  # fmt: skip
    table = pyarrow.parquet.read_table(tmp_path / "items.parquet")
    assert [str(each) for each in table.schema.types] == [
        "int64", "fixed_size_list<element: float>[3]", "fixed_size_list<element: float>[6]",
        "int64", "int64",
    ]  # fmt: skip
    columns = [table.column(i).combine_chunks() for i in range(5)]
    assert table.column_names == ["key", "embedding", "slots", "update_num", "update_time"]
    keys, embeddings, slots, nums, times = (
        (column.flatten() if i in (1, 2) else column).to_numpy() for i, column in enumerate(columns)
    )
    read = Rows(keys, embeddings.reshape(-1, 3), slots.reshape(-1, 6), nums, times)
    assert_same_rows(read, ITEMS)
    metadata = json.loads(table.schema.metadata[b"sok_embed"])
    assert (metadata["rule"], metadata["dim"], metadata["rows"]) == ("adam", 3, 602)
    assert [slot["name"] for slot in metadata["slots"]] == ["momentum", "velocity"]
    assert metadata["initializer"] == {"kind": "uniform", "a": -0.5, "b": 0.5, "seed": 3}
    assert metadata["steps"] == max(
        each["steps"] for each in run_json("show", saved, "--table", "items")["tables"]
    )


def test_numpy_reads_the_npz(saved, tmp_path):
    run("convert", saved, tmp_path / "items.npz", "--table", "model/items")
    with np.load(tmp_path / "items.npz", allow_pickle=False) as arrays:
        read = Rows(*(arrays[name] for name in
                      ("key", "embedding", "slots", "update_num", "update_time")))  # fmt: skip
        metadata = json.loads(str(arrays["sok_embed"]))
    assert_same_rows(read, ITEMS)
    assert metadata["label"] == "model/items" and metadata["step_clock"] == -1


def assert_stored(storage, group, rows):
    assert {each.number: each.rows for each in storage.groups()}[group] == len(rows.keys)
    for at in range(0, len(rows.keys), 7):
        row = storage.ready().get(group, int(rows.keys[at]) % 2**64)
        floats = np.concatenate([rows.embeddings[at], rows.slots[at]])
        np.testing.assert_array_equal(bits(row["floats"]), bits(floats))
        assert row["update_num"] == rows.update_nums[at]
        assert row["update_time"] == rows.update_times[at]


@pytest.mark.parametrize("form", ["dump", "storage"])
def test_a_storage_has_the_tables_as_groups(saved, tmp_path, form):
    chosen = ["--table", "items", "--table", "users", "--table", "mixed", "--table", "hot"]
    found = run_json("convert", saved, tmp_path / "rows", "--to", form, *chosen)
    assert found["tables"] == [
        "model/hot", "model/items", "model/mixed:own", "model/mixed:static", "model/users",
    ]  # fmt: skip
    if form == "dump":
        assert kv.read_dump(tmp_path / "rows").ttl == 0
        with kv.Storage(tmp_path / "loaded") as storage:
            assert storage.load(tmp_path / "rows") == found["rows"] == 602 + 50 + 35 + 20
        path = tmp_path / "loaded"
    else:
        path = tmp_path / "rows"
    of_table = {each.name: each for each in tables()}
    expected = [of_table["hot"].rows, of_table["items"].rows, *of_table["mixed"].parts.values(),
                of_table["users"].rows]  # fmt: skip
    with kv.Storage(path, read_only=True) as storage:
        for group, rows in enumerate(expected):
            assert_stored(storage, group, rows)
        groups = storage.groups()
    assert groups[1].slots == (("momentum", 3), ("velocity", 3)) and groups[0].slots == (
        ("accumulator", 1),
    )
    assert groups[1].optimizer == "keras.adam" and groups[4].optimizer == "keras.sgd"
    assert groups[1].initializer["b"] == 0.5 and groups[1].initializer["seed"] == 3


@pytest.mark.cover(2)
@pytest.mark.parametrize("form", FORMS)
def test_rows_come_back_into_a_checkpoint_bit_for_bit(saved, tmp_path, form):
    for label in ("items", "users", "mixed:own", "mixed:static", "hot"):
        there, back = tmp_path / f"rows-of-{label}", tmp_path / f"back-{label}"
        run("convert", saved, there, "--to", form, "--table", label)
        run(
            "convert", there, back, "--to", "checkpoint", "--base", saved, "--base-table", label
        )  # fmt: skip
        assert run_json("diff", saved, back)["same"], label
        assert run_json("verify", back)["whole"]
        shutil.rmtree(there) if there.is_dir() else there.unlink()
        # Everything but the number of the save is as it was, counts too.
        shown = [run_json("show", folder)["tables"] for folder in (saved, back)]
        workers = len(shown[0][0]["rows_of_workers"])
        if label.startswith("mixed") and workers > 1:
            assert {each["owners"] for each in shown[1] if each["name"] == "mixed"} == {
                "any worker"
            }
        else:
            for each in (*shown[0], *shown[1]):
                each.pop("rows_of_workers")
            assert shown[0] == shown[1]


def test_times_in_steps_travel_but_not_into_a_storage(saved, tmp_path):
    for form in ("parquet", "npz"):
        there, back = tmp_path / f"aged.{form}", tmp_path / f"back-of-{form}"
        run("convert", saved, there, "--table", "aged")
        run("convert", there, back, "--to", "checkpoint", "--base", saved)
        assert run_json("diff", saved, back)["same"]
    for form in ("dump", "storage"):
        result = run("convert", saved, tmp_path / "no", "--to", form, "--table", "aged", code=1)
        assert "expected times of updates in seconds" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "aged.npz", "aged.parquet", "back-of-npz", "back-of-parquet",
    ]  # fmt: skip


def test_other_rows_take_the_place_of_those_of_a_table(saved, tmp_path):
    other = rows_of(range(1000, 1100), 3, 6, 9)
    source = write_by_hand(tmp_path / "source", [Table("others", other)], workers=2)
    made = tmp_path / "made"
    arguments = ("convert", source, made, "--to", "checkpoint", "--base", saved)
    run(*arguments, "--base-table", "items")
    assert_same_rows(rows_in(made, "items"), other)
    for label in ("users", "mixed:own", "mixed:static", "aged", "hot"):
        assert_same_rows(rows_in(made, label), rows_in(saved, label))
    opened = open_saved(str(made))
    # Each row lies with the worker that a reader of as many workers looks for it with.
    for worker, reader in enumerate(opened.readers):
        for block in reader.blocks():
            if block.kind == rows_file.ROWS and block.table == ITEMS_NUMBER:
                assert (reader.rows_of(block).keys % len(opened.readers) == worker).all()
    # An adaptive table becomes a plain one.
    plain = tmp_path / "plain"
    run("convert", saved, plain, "--to", "checkpoint", "--base", saved,
        "--table", "mixed:own", "--base-table", "items")  # fmt: skip
    assert_same_rows(rows_in(plain, "items"), rows_in(saved, "mixed:own"))


def test_rows_that_do_not_fit_into_a_checkpoint_are_refused(saved, tmp_path):
    def refused(source, table, *more):
        arguments = ("--to", "checkpoint", "--base", saved, "--base-table", table, *more)
        return run("convert", source, tmp_path / "no", *arguments, code=1).output

    assert "rows of dim 3" in refused(saved, "items", "--table", "users")
    momentum = write_by_hand(
        tmp_path / "momentum", [Table("x", rows_of([1], 3, 3), rule="momentum")]
    )
    assert "optimizer keras.adam" in refused(momentum, "items")
    far = write_by_hand(tmp_path / "far", [Table("x", rows_of([4, 5], 3, 6))])
    assert "buckets in [0, 5)" in refused(far, "mixed:static")
    twice = write_by_hand(tmp_path / "twice", [Table("x", rows_of([4, 5, 4], 3, 6))])
    assert "every key of table 'model/items' once" in refused(twice, "items")
    assert "times in steps" in refused(
        write_by_hand(tmp_path / "seconds", [Table("x", rows_of([1], 3, 3), rule="adagrad")]),
        "aged",
    )
    assert "which no table has" in refused(far, "nothing")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "far", "momentum", "seconds", "twice",
    ]  # fmt: skip


def test_what_cannot_be_converted_is_refused_and_leaves_nothing(saved, tmp_path, monkeypatch):
    def refused(*arguments, code=1):
        before = sorted(tmp_path.iterdir())
        output = run("convert", *arguments, code=code).output
        assert sorted(tmp_path.iterdir()) == before
        return output

    there = tmp_path / "there.npz"
    there.write_bytes(b"text")
    assert "Expected nothing at" in refused(saved, there, "--table", "items")
    assert there.read_bytes() == b"text"
    assert "Expected one table" in refused(saved, tmp_path / "a.npz")
    assert "Name the form with --to" in refused(saved, tmp_path / "a.rows", "--table", "items")
    assert "'model/items'" in refused(saved, tmp_path / "a.npz", "--table", "item")
    assert "Give --base" in refused(saved, tmp_path / "c", "--to", "checkpoint")
    assert "Leave --group out" in refused(
        saved, tmp_path / "a.npz", "--table", "items", "--group", 3
    )
    assert "begins with b'text'" in refused(there, tmp_path / "b.npz")
    np.savez(tmp_path / "theirs.npz", key=np.arange(3))
    assert "to have 'sok_embed'" in refused(tmp_path / "theirs.npz", tmp_path / "b.npz")
    theirs = pyarrow.table({"key": [1]})
    pyarrow.parquet.write_table(theirs, tmp_path / "theirs.parquet")
    assert "metadata 'sok_embed'" in refused(tmp_path / "theirs.parquet", tmp_path / "b.npz")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install pyarrow" in refused(saved, tmp_path / "b.parquet", "--table", "items")


def test_a_conversion_that_is_interrupted_leaves_nothing(saved, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    run("convert", saved, tmp_path / "items.npz", "--table", "items")
    arguments = ("convert", tmp_path / "items.npz", tmp_path / "made", "--to", "checkpoint",
                 "--base", saved)  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(into_checkpoint, "verify", interrupted)
        assert "Aborted" in run(*arguments, code=1).output
    assert [path.name for path in tmp_path.iterdir()] == ["items.npz"]
    run(*arguments)
    # Others may read it as they may read what they make themselves.
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "made").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("form", ["npz", "dump", "parquet"])
def test_a_damaged_file_is_refused_or_reads_as_before(tmp_path, form):
    seed = random.randrange(2**32)
    print("seed", seed)
    random.seed(seed)
    saved = write_by_hand(tmp_path / "saved", [Table("items", ITEMS)])
    there = tmp_path / "rows"
    run("convert", saved, there, "--to", form)
    (tmp_path / "out").mkdir()
    refusals = 0
    for at in random.sample(range(there.stat().st_size), 60):
        whole = flipped(there, at)
        made = tmp_path / "out" / "made"
        arguments = ["convert", there, made, "--to", "checkpoint", "--base", saved,
                     "--base-table", "items"]  # fmt: skip
        result = CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])
        there.write_bytes(whole)
        if result.exit_code == 0:
            # Bytes of a zip or a Parquet file that say nothing of the rows.
            assert_same_rows(rows_in(made, "items"), ITEMS)
            shutil.rmtree(made)
        else:
            assert result.exit_code == 1 and result.output.startswith("error: "), result.output
            refusals += 1
        assert not list((tmp_path / "out").iterdir())
    assert refusals > 30
    there.write_bytes(there.read_bytes()[:-50])
    run(*arguments, code=1)


def test_groups_of_a_storage_keep_their_numbers(tmp_path):
    saved = write_by_hand(tmp_path / "saved", [Table("items", ITEMS)])
    run("convert", saved, tmp_path / "rows", "--to", "storage", "--group", 7)
    run("convert", tmp_path / "rows", tmp_path / "dump", "--to", "dump", "--table", "7")
    assert [group.number for group in kv.read_dump(tmp_path / "dump").groups] == [7]
    run("convert", tmp_path / "dump", tmp_path / "items.npz")
    with np.load(tmp_path / "items.npz") as arrays:
        np.testing.assert_array_equal(np.sort(arrays["key"]), by_key(ITEMS).keys)


def test_expired_rows_stay_out_of_a_storage_and_are_counted(tmp_path):
    saved = write_by_hand(tmp_path / "saved", [Table("items", ITEMS)])
    dumped, items = tmp_path / "dump", tmp_path / "items.npz"
    with kv.Storage(tmp_path / "short", ttl=100) as storage:
        embedding = kv.Embedding(storage, kv.Optimizer("sgd"), kv.Initializer("zeros"), 2)
        embedding.assign(np.arange(4, dtype=np.uint64), np.ones((4, 2), np.float32))
    run("convert", tmp_path / "short", items)
    with np.load(items) as arrays:
        columns = dict(arrays)
    columns["update_time"][:3] = 5
    np.savez(items, **columns)
    found = run_json("convert", items, tmp_path / "kept", "--to", "storage")
    assert (found["rows"], found["left_out"]) == (1, 3)
    with kv.Storage(tmp_path / "kept") as storage:
        assert storage.ttl == 100 and storage.groups()[0].rows == 1
    run("convert", saved, dumped, "--to", "dump")
    assert kv.read_dump(dumped).groups[0].rows == 602


def test_pieces_are_the_rows_in_their_order():
    random_numbers = np.random.default_rng(5)
    for _ in range(50):
        cuts = np.sort(random_numbers.integers(0, 602, random_numbers.integers(0, 20)))
        parts = [ITEMS.between(*ends) for ends in zip([0, *cuts], [*cuts, 602], strict=True)]
        most = int(random_numbers.integers(1, 300))
        pieces = list(in_pieces(parts, most))
        assert all(len(piece.keys) == most for piece in pieces[:-1])
        assert 0 < len(pieces[-1].keys) <= most
        for found, expected in zip(joined_rows(pieces), ITEMS, strict=True):
            np.testing.assert_array_equal(bits(found), bits(expected))


def test_a_model_restores_what_was_converted_and_trains_on(tmp_path):
    model = held_state.every_kind(tmp_path / "storage", keras.optimizers.Adam(0.01), dropout=0.0)
    held_state.train(model)
    Checkpoint(model).save(tmp_path / "saved")
    held = held_state.held_by(model)
    previous = tmp_path / "saved"
    # The rows of each kind of table go out and come back, those on disk too.
    for label, form in (
        ("plain", "storage"), ("adaptive:own", "npz"), ("adaptive:static", "parquet"),
        ("stored", "dump"), ("everywhere", "parquet"), ("counted", "npz"),
    ):  # fmt: skip
        run("convert", previous, tmp_path / label, "--to", form, "--table", label)
        made = tmp_path / f"with-{label}"
        run("convert", tmp_path / label, made, "--to", "checkpoint", "--base", previous,
            "--base-table", label)  # fmt: skip
        previous = made
    held_state.train(model)
    trained = held_state.held_by(model)
    other = held_state.every_kind(tmp_path / "other", keras.optimizers.Adam(0.01), dropout=0.0)
    Checkpoint(other).restore(previous)
    held_state.assert_same(held_state.held_by(other), held)
    held_state.train(other)
    held_state.assert_as_trained(held_state.held_by(other), trained)


def test_a_layer_on_disk_takes_up_rows_that_were_in_memory(tmp_path):
    layer = sok.DynamicEmbedding(4, name="items")
    model = keras.Sequential([keras.Input((2,), dtype="int64"), layer, keras.layers.Flatten(),
                              keras.layers.Dense(1)])  # fmt: skip
    model.compile("adam", "mse")
    held_state.train(model)
    Checkpoint(model).save(tmp_path / "saved")
    run("convert", tmp_path / "saved", tmp_path / "rows", "--to", "storage", "--group", 4)
    with kv.Storage(tmp_path / "rows") as storage:
        stored = sok.DynamicEmbedding(4, storage=storage, group=4)
        expected = keras.ops.convert_to_numpy(layer(held_state.KEYS))
        np.testing.assert_array_equal(stored(held_state.KEYS), expected)
        keys = np.unique(held_state.KEYS)
        assert stored.table.size() == len(keys)


def resaved(path, change):
    """Changes the metadata of an .npz file, without their checksum."""
    with np.load(path, allow_pickle=False) as arrays:
        columns = dict(arrays)
    metadata = json.loads(str(columns["sok_embed"]))
    metadata.pop("checksum")
    change(metadata)
    columns["sok_embed"] = np.array(json.dumps(metadata))
    np.savez(path, **columns)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dim", 2**40), ("dim", "3"), ("rows", -1), ("rows", 2**62), ("slot_start", {"a": 1}),
        ("slot_start", [None]), ("steps", True), ("initializer", {"seed": "x"}), ("group", 256),
        ("label", ["a"]), ("ttl", -5), ("step_clock", 1e30),
    ],
)  # fmt: skip
def test_metadata_of_wrong_contents_are_refused(tmp_path, field, value):
    saved = write_by_hand(tmp_path / "saved", [Table("items", ITEMS)])
    there = tmp_path / "items.npz"
    run("convert", saved, there)
    resaved(there, lambda metadata: metadata.update({field: value}))
    output = run("convert", there, tmp_path / "dump", "--to", "dump", code=1).output
    assert output.startswith("error: Expected") and "items.npz" in output, output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["items.npz", "saved"]


def test_metadata_of_a_dump_ask_for_no_memory(tmp_path, monkeypatch):
    saved = write_by_hand(tmp_path / "saved", [Table("items", ITEMS)])
    write = dump._meta

    def endless(head):
        meta = write(head)
        meta["slots"][0]["width"] = 2**40
        return meta

    with monkeypatch.context() as patched:
        patched.setattr(dump, "_meta", endless)
        run("convert", saved, tmp_path / "dump", "--to", "dump")
    output = run("convert", tmp_path / "dump", tmp_path / "items.npz", code=1).output
    assert "group 0: expected the description of a" in output and str(2**40) in output


def test_a_header_of_an_npz_asks_for_no_memory(tmp_path):
    path = tmp_path / "items.npz"
    header = b"{'descr': '<U500000000', 'fortran_order': False, 'shape': (), }"
    header = header.ljust(118 - 1) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "sok_embed.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        )
    output = run("convert", path, tmp_path / "rows.npz", code=1).output
    assert "2000000000 bytes of 'sok_embed'" in output
