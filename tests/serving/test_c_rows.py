"""The library for C reads files of rows, and follows deltas, bit for bit as Python does."""

import ctypes
import json
import os
import re
import subprocess
from pathlib import Path

import live_models
import numpy as np
import pytest
from c_programs import compiled, program_of_the_guide
from rows_library import (
    CORRUPT,
    FOLDER,
    INVALID_ARGUMENT,
    LIBRARY,
    NOT_FOUND,
    Export,
    Exported,
    File,
    Info,
    RowsError,
    call,
)
from seeds import seed_of_test

from sok_embed.files.records import checksum_of_json
from sok_embed.kv import CorruptionError
from sok_embed.serving import rows
from sok_embed.serving.delta_files import read_delta

DTYPES = ("float32", "float16", "int8", "int4")
START = rows.MissingRows("uniform", -0.5, 0.5, 7)


def bits(vectors):
    return vectors.view(np.uint32)


@pytest.mark.parametrize("missing", ["zeros", START], ids=["zeros", "start"])
@pytest.mark.parametrize("dim", [1, 3, 16, 33])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_those_of_python(dtype, dim, missing, tmp_path):
    random = np.random.default_rng(seed_of_test())
    extreme = np.array([0, 2**64 - 1], np.uint64)
    keys = np.unique(random.integers(0, 2**64 - 1, 3000, np.uint64, endpoint=True))
    vectors = random.normal(size=[len(keys), dim]).astype(np.float32)
    path = tmp_path / "items é.safetensors"
    written = rows.write(
        path, [(keys, vectors)], dim=dim, dtype=dtype, missing=missing, name="items é"
    )
    asked = np.concatenate([keys[::2], keys[::2] + np.uint64(1), extreme])
    file = File(path)
    with rows.open(path) as python:
        np.testing.assert_array_equal(bits(file.lookup(asked)), bits(python.lookup(asked)))
        np.testing.assert_array_equal(file.contains(asked), python.contains(asked))
        signed = asked.view(np.int64)
        np.testing.assert_array_equal(bits(file.lookup(signed)), bits(python.lookup(asked)))
    assert file.lookup(asked[:0]).shape == (0, dim)
    file.verify()
    info = file.info
    assert (info.rows, info.dim, info.file_bytes) == (len(keys), dim, written.file_bytes)
    assert (info.dtype.decode(), info.name.decode()) == (dtype, "items é")
    assert info.path.decode() == str(path) and info.layers == 0
    file.close()


def assert_as_python(exported, version):
    keys = np.concatenate([exported.keys, np.arange(1000, 1010, dtype=np.uint64)])
    for i, file in enumerate(exported.FILES):
        table = version.table(file)
        expected, there = exported.expected(i, keys)
        np.testing.assert_array_equal(bits(table.lookup(keys)), bits(expected))
        np.testing.assert_array_equal(table.contains(keys), there)
        assert table.info.layers <= 4


@pytest.mark.parametrize("missing", ["zeros", START], ids=["zeros", "start"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_deltas_are_followed_and_earlier_versions_stay(dtype, missing, tmp_path):
    exported = Exported(tmp_path / "1", dtype, seed_of_test(), missing)
    export = Export(exported.folder)
    assert export.newest() == 0 and export.delta == 0
    kept = export.version()
    first = [kept.table(file).lookup(exported.keys) for file in exported.FILES]
    assert_as_python(exported, kept)
    layers = set()
    for number in range(1, 13):
        exported.publish(most=120 >> number % 5)
        export.update()
        version = export.version()
        assert (version.info.delta, version.info.step) == (number, 10 * number)
        assert version.info.tables == 2
        assert_as_python(exported, version)
        layers.add(version.table(exported.FILES[0]).info.layers)
        version.close()
    assert max(layers) > 1  # else nothing was laid over a layer
    last = export.version()
    export.close()  # versions do not need it
    assert_as_python(exported, last)
    for before, file in zip(first, exported.FILES, strict=True):
        np.testing.assert_array_equal(kept.table(file).lookup(exported.keys), before)
    last.close()
    kept.close()
    # All at once, with the layers merged otherwise.
    export = Export(exported.folder)
    export.update(12)
    version = export.version()
    assert_as_python(exported, version)
    version.close()
    export.close()


def test_an_update_leaves_no_files(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    exported = Exported(tmp_path / "1", "float32", 0)
    exported.publish()
    exported.publish()
    export = Export(exported.folder)
    export.update()
    assert list(scratch.iterdir()) == []
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    exported.publish()
    with pytest.raises(RowsError, match="temporary files") as raised:
        export.update()
    assert raised.value.status == NOT_FOUND and export.delta == 2
    export.close()


def mapped(folder):
    """Returns how many files of a folder this process has mapped or open."""
    maps = Path("/proc/self/maps").read_text().count(f"{folder}/")
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return maps + sum(link.startswith(f"{folder}/") for link in links)


def test_copies_of_deltas_go_with_the_last_version_that_has_them(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    exported = Exported(tmp_path / "1", "float32", 0)
    exported.publish(of_all=True)
    export = Export(exported.folder)
    export.update()
    kept = export.version()
    assert mapped(scratch) == 4
    for _ in range(10):
        exported.publish(of_all=True)
        export.update()
    (tmp_path / "1" / "deltas" / "00000012").mkdir()
    for _ in range(10):
        with pytest.raises(RowsError):
            export.update(12)
    export.close()
    assert mapped(scratch) == 4  # those of the version that is kept
    kept.close()
    assert mapped(scratch) == 0


def flipped(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def rewritten(path, **changes):
    content = json.loads(path.read_text())
    content.update(changes)
    del content["checksum"]
    path.write_text(json.dumps({**content, "checksum": checksum_of_json(content)}))


DELTA_FAULTS = {
    "a flipped bit of the rows": (lambda d: flipped(d / "rows-1.safetensors", -1), CORRUPT),
    "a flipped bit of the keys": (lambda d: flipped(d / "gone-0.safetensors", 4096), CORRUPT),
    "a flipped bit of the weights": (lambda d: flipped(d / "weights.safetensors", 9), CORRUPT),
    "rows that are cut": (lambda d: (d / "rows-0.safetensors").write_bytes(b"x" * 99), CORRUPT),
    "rows that are missing": (lambda d: (d / "rows-0.safetensors").unlink(), NOT_FOUND),
    "weights that are missing": (lambda d: (d / "weights.safetensors").unlink(), NOT_FOUND),
    "no manifest": (lambda d: (d / "delta.json").unlink(), NOT_FOUND),
    "an empty manifest": (lambda d: (d / "delta.json").write_text(""), CORRUPT),
    "a manifest that is no JSON": (lambda d: (d / "delta.json").write_text('{"a"'), CORRUPT),
    "a manifest of lists in lists": (lambda d: (d / "delta.json").write_text("[" * 9999), CORRUPT),
    "a manifest with many values": (
        lambda d: (d / "delta.json").write_text("[" + "1," * 600000 + "1]"),
        CORRUPT,
    ),
    "a manifest of 17 MiB": (lambda d: (d / "delta.json").write_text(" " * (17 << 20)), CORRUPT),
    "a manifest that was changed": (
        lambda d: (d / "delta.json").write_text(
            (d / "delta.json").read_text().replace('"step": 20', '"step": 21')
        ),
        CORRUPT,
    ),
    "a later format": (lambda d: rewritten(d / "delta.json", format_version=2), INVALID_ARGUMENT),
    "another format": (lambda d: rewritten(d / "delta.json", format="rows"), CORRUPT),
    "another number": (lambda d: rewritten(d / "delta.json", number=3), INVALID_ARGUMENT),
    "another export": (lambda d: rewritten(d / "delta.json", base="ab"), INVALID_ARGUMENT),
    "another delta before": (
        lambda d: rewritten(d / "delta.json", previous="ab"),
        INVALID_ARGUMENT,
    ),
    "a step below 0": (lambda d: rewritten(d / "delta.json", step=-1), CORRUPT),
    "no tables": (lambda d: rewritten(d / "delta.json", tables=[]), CORRUPT),
    "tables that are a number": (lambda d: rewritten(d / "delta.json", tables=3), CORRUPT),
    "another file of a table": (
        lambda d: rewritten(d / "delta.json", tables=[{"file": "x", "rows": None, "gone": None}]),
        CORRUPT,
    ),
    "a link as rows": (
        lambda d: (
            (d / "rows-0.safetensors").rename(d / "elsewhere"),
            (d / "rows-0.safetensors").symlink_to(d / "elsewhere"),
        ),
        CORRUPT,
    ),
    "a folder as a manifest": (
        lambda d: ((d / "delta.json").unlink(), (d / "delta.json").mkdir()),
        CORRUPT,
    ),
}


@pytest.mark.parametrize("fault", DELTA_FAULTS)
def test_a_damaged_delta_is_refused_and_the_version_before_stays(fault, tmp_path):
    damage, status = DELTA_FAULTS[fault]
    exported = Exported(tmp_path / "1", "float16", 5)
    exported.publish()
    export = Export(exported.folder)
    export.update()
    version = export.version()
    exported.publish(of_all=True)
    folder = tmp_path / "1" / "deltas" / "00000002"
    before = [version.table(file).lookup(exported.keys) for file in exported.FILES]
    damage(folder)
    with pytest.raises(RowsError, match=r"Expected .* Received: ") as raised:
        export.update()
    assert raised.value.status == status
    assert export.delta == 1
    after = export.version()
    for file, expected in zip(exported.FILES, before, strict=True):
        np.testing.assert_array_equal(after.table(file).lookup(exported.keys), expected)
    for each in (version, after, export):
        each.close()


def test_any_bit_of_a_delta_that_is_flipped_is_found(tmp_path):
    random = np.random.default_rng(seed_of_test())
    exported = Exported(tmp_path / "1", "int4", 5)
    exported.publish(of_all=True)
    export = Export(exported.folder)
    folder = tmp_path / "1" / "deltas" / "00000001"
    for name in [each.name for each in folder.iterdir()] * 30:
        whole = (folder / name).read_bytes()
        content = bytearray(whole)
        content[random.integers(0, len(whole))] ^= 1 << random.integers(0, 8)
        (folder / name).write_bytes(content)
        with pytest.raises(RowsError, match=r"Expected .* Received: "):
            export.update()
        (folder / name).write_bytes(whole)
    export.update()
    assert export.delta == 1
    export.close()


def taken_by_python(exported, scratch):
    try:
        read_delta(exported.base, 1, "", str(scratch))
        return True
    except (ValueError, CorruptionError):
        return False


def taken_by_c(exported):
    export = Export(exported.folder)
    try:
        export.update(1)
        return True
    except RowsError:
        return False
    finally:
        export.close()


def test_changed_manifests_are_taken_where_python_takes_them(tmp_path):
    random = np.random.default_rng(seed_of_test())
    exported = Exported(tmp_path / "1", "float32", 5)
    exported.publish(of_all=True)
    manifest = tmp_path / "1" / "deltas" / "00000001" / "delta.json"
    whole = manifest.read_text()
    taken = 0
    for _ in range(300):
        at = int(random.integers(len(whole)))
        new = str(random.choice(["", " ", "\t", "\f", "0", "1e0", ".0", "-", ",", '"', "}", "é"]))
        until = at + int(random.integers(2))  # inserted, or instead of a character
        manifest.write_text(whole[:at] + new + whole[until:])
        by_python = taken_by_python(exported, tmp_path)
        assert taken_by_c(exported) == by_python, (at, new)
        taken += by_python
    assert 0 < taken < 300


def test_the_rows_of_an_export_follow_its_training(tmp_path):
    """A model and a publisher write the files, with dense weights among them."""
    told, model = live_models.Told(), live_models.telling()
    told.put(model)
    publisher = live_models.publisher(model, tmp_path)
    export = Export(tmp_path / "1")
    keys = np.arange(live_models.KEYS)
    for number in range(6):
        if number:
            told.advance(model)
            publisher.publish()
        export.update()
        version = export.version()
        assert version.info.delta == number
        for name, dim, numbers in zip(("first", "second"), (2, 3), told.tables, strict=True):
            table = version.table(f"{name}.safetensors")
            expected = np.repeat(numbers[:, np.newaxis], dim, 1).astype(np.float32)
            np.testing.assert_array_equal(table.lookup(keys), expected)
            np.testing.assert_array_equal(table.contains(keys), numbers > 0)
        version.close()
    publisher.close()
    export.close()


def test_a_field_that_is_not_known_is_no_fault(tmp_path):
    exported = Exported(tmp_path / "1", "float32", 1)
    exported.publish()
    manifest = tmp_path / "1" / "deltas" / "00000001" / "delta.json"
    rewritten(manifest, comment={"ä\x7f\n": ["\U0001f600", None, True, -3, 2**63], "￿": {}, "": []})
    export = Export(exported.folder)
    export.update()
    assert export.delta == 1
    export.close()


def test_updates_that_cannot_be(tmp_path):
    exported = Exported(tmp_path / "1", "float32", 1)
    exported.publish()
    exported.publish()
    export = Export(exported.folder)
    for number, status, text in (
        (9, NOT_FOUND, "the newest delta there is 2"),
        (1, INVALID_ARGUMENT, "Open the export again to go back"),
    ):
        with pytest.raises(RowsError, match=text) as raised:
            export.update(number)
        assert raised.value.status == status
        assert export.delta == 2
    (tmp_path / "1" / "deltas" / "CURRENT.json").write_text('{"delta": -1}')
    for ask in (export.newest, export.update):
        with pytest.raises(RowsError, match="as 'delta'") as raised:
            ask()
        assert raised.value.status == CORRUPT
    with pytest.raises(RowsError, match="ads.safetensors, items.safetensors") as raised:
        export.version().table("x.safetensors")
    assert raised.value.status == NOT_FOUND
    export.close()
    for folder, status in ((tmp_path, NOT_FOUND), (tmp_path / "9", NOT_FOUND)):
        with pytest.raises(RowsError, match="served/1") as raised:
            Export(folder)
        assert raised.value.status == status
    for file in exported.FILES:
        (tmp_path / "1" / "assets" / file).unlink()
    with pytest.raises(RowsError, match="Received: none") as raised:
        Export(tmp_path / "1")
    assert raised.value.status == INVALID_ARGUMENT


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_damaged_file_is_an_error_and_never_a_crash(dtype, tmp_path):
    random = np.random.default_rng(seed_of_test())
    keys = np.arange(500, dtype=np.uint64)
    path = tmp_path / "items.safetensors"
    rows.write(path, [(keys, random.normal(size=[500, 8]).astype(np.float32))], dim=8, dtype=dtype)
    whole = path.read_bytes()
    unseen = 0
    for i in range(300):
        content = bytearray(whole)
        if i < 40:
            content = content[: random.integers(0, len(whole))]
        else:
            content[random.integers(0, len(whole))] ^= 1 << random.integers(0, 8)
        (tmp_path / "damaged").write_bytes(content)
        try:
            file = File(tmp_path / "damaged")
        except RowsError as error:
            assert error.status == CORRUPT and re.search(r"Expected .*Received: ", str(error))
            continue
        assert i >= 40  # a file that was cut does not open
        try:
            file.lookup(keys)
        except RowsError as error:
            assert error.status == CORRUPT
        try:
            file.verify()
            unseen += 1
        except RowsError as error:
            assert error.status == CORRUPT
        file.close()
    assert unseen == 0
    for other, status in (("none", NOT_FOUND), (".", INVALID_ARGUMENT)):
        with pytest.raises(RowsError) as raised:
            File(tmp_path / other)
        assert raised.value.status == status


def test_null_pointers_and_structs_without_a_size_are_refused(tmp_path):
    path = tmp_path / "items.safetensors"
    rows.write(path, [], dim=4)
    file = File(path)
    for name, arguments in (
        ("sok_rows_open", (None, None)),
        ("sok_rows_lookup", (None, None, 1, None)),
        ("sok_rows_lookup", (file.handle, None, 1, None)),
        ("sok_rows_contains", (file.handle, None, 1, None)),
        ("sok_rows_verify", (None,)),
        ("sok_rows_open_export", (None, None)),
        ("sok_rows_update", (None, 0)),
        ("sok_rows_newest", (None, None)),
        ("sok_rows_open_version", (None, None)),
        ("sok_rows_get_version_info", (None, None)),
        ("sok_rows_table", (None, None, None)),
        ("sok_rows_table_at", (None, 0, None)),
    ):
        with pytest.raises(RowsError, match="Received: null") as raised:
            call(name, *arguments)
        assert raised.value.status == INVALID_ARGUMENT
    info = Info(8)
    with pytest.raises(RowsError, match="Set it to sizeof"):
        call("sok_rows_get_info", file.handle, ctypes.byref(info))
    for close in ("sok_rows_close", "sok_rows_close_export", "sok_rows_close_version"):
        getattr(LIBRARY, close)(None)
    file.close()


class LaterInfo(Info):
    """A struct of a header that is newer than the library."""

    _fields_ = [("later", ctypes.c_uint64)]


def test_a_program_of_a_later_header_gets_the_fields_that_there_are(tmp_path):
    path = tmp_path / "items.safetensors"
    rows.write(path, [], dim=4)
    file = File(path)
    info = LaterInfo(ctypes.sizeof(LaterInfo), later=7)
    call("sok_rows_get_info", file.handle, ctypes.byref(info))
    assert (info.size, info.dim, info.later) == (ctypes.sizeof(LaterInfo), 4, 7)
    file.close()


def test_the_library_shows_what_the_header_declares_and_nothing_else():
    header = (FOLDER / "include" / "sok_rows.h").read_text()
    declared = set(re.findall(r"^[a-z].*?\b(sok_rows_\w+)\(", header, re.MULTILINE))
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", FOLDER / "libsok_rows.so"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    shown = {line.split()[-1] for line in listed if " A " not in line}
    assert shown == {f"{name}@@SOK_ROWS_1" for name in declared}
    assert LIBRARY.sok_rows_abi() == int(re.search(r"SOK_ROWS_ABI (\d+)", header)[1]) == 1


def test_eight_threads_look_up_while_versions_change(tmp_path):
    source = Path(__file__).with_name("rows_threads.cc").read_text()
    program = compiled(source, "rows_threads.cc", tmp_path)
    exported = Exported(tmp_path / "1", "int8", seed_of_test())
    last, expected = 20, {}
    for number in range(last + 1):
        if number:
            exported.publish(most=40)
        answers = [exported.expected(i, exported.keys)[0].tobytes() for i in (0, 1)]
        expected[number] = b"".join(answers)
    (tmp_path / "keys").write_bytes(exported.keys.tobytes())
    ended = subprocess.run(
        [program, exported.folder, str(last), tmp_path / "keys"], capture_output=True
    )
    assert ended.returncode == 0, ended.stderr.decode()
    size = 8 + len(expected[0])
    seen = [ended.stdout[at : at + size] for at in range(0, len(ended.stdout), size)]
    for each in seen:
        assert each[8:] == expected[int.from_bytes(each[:8], "little")]
    assert len(set(seen)) >= 3  # else nothing changed while they looked


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_program_in_c_of_the_guide(dtype, tmp_path):
    program = compiled(program_of_the_guide("lookup.c"), "lookup.c", tmp_path)
    path = tmp_path / "items.safetensors"
    keys = np.array([42, -7, -(2**63)])
    vectors = np.random.default_rng(0).normal(size=[3, 5]).astype(np.float32)
    rows.write(path, [(keys, vectors)], dim=5, dtype=dtype, missing=START)
    asked = np.array([-7, 8, 42, -(2**63)])
    ended = subprocess.run(
        [program, path, *map(str, asked)], capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert [line[:2] for line in lines] == [
        ["-7", "known"], ["8", "unknown"], ["42", "known"], [str(-(2**63)), "known"],
    ]  # fmt: skip
    with rows.open(path) as file:
        found = np.array([line[2:] for line in lines], np.float32)
        np.testing.assert_array_equal(bits(found), bits(file.lookup(asked)))
    ended = subprocess.run([program, tmp_path / "none", "1"], capture_output=True, text=True)
    assert ended.returncode == 1 and "Cannot open" in ended.stderr


def test_the_program_in_cpp_of_the_guide(tmp_path):
    program = compiled(program_of_the_guide("follow.cc"), "follow.cc", tmp_path)
    exported = Exported(tmp_path / "1", "int4", 3)
    key = int(exported.keys[9])
    expected = {0: exported.expected(1, np.array([key]))[0]}
    arguments = [program, exported.folder, exported.FILES[1], str(key), "5"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as running:
        for number in range(1, 6):
            exported.publish()
            expected[number] = exported.expected(1, np.array([key]))[0]
        lines = [line.split() for line in running.stdout]
    assert running.returncode == 0
    assert [int(line[0]) for line in lines] == sorted({int(line[0]) for line in lines})
    assert int(lines[-1][0]) == 5
    for line in lines:
        found = np.array(line[1:], np.float32)
        np.testing.assert_array_equal(bits(found), bits(expected[int(line[0])][0]))
