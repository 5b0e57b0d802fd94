"""A delta that is not as it was written is left alone, with one line in the log."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time

import live_models as live_tests
import numpy as np
import pytest
from tiers import few_or_many

from sok_embed.files.records import record_of
from sok_embed.kv import CorruptionError
from sok_embed.serving import Publisher, delta_files, export, load
from sok_embed.serving import layers as live_layers
from sok_embed.serving import publisher as publishing

IDS = np.arange(live_tests.KEYS - 1).reshape(-1, 3)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("original")
    model = live_tests.telling()
    live_tests.Told().put(model)
    export(model, path)
    publisher, told = Publisher(model, path), live_tests.Told()
    for _ in range(3):
        told.advance(model)
        publisher.publish()
    publisher.close()
    return path


@pytest.fixture
def published(original, tmp_path):
    """An export with three deltas, and the tables of each version."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path, live_tests.versions_to(10)


def folder_of(path, number):
    return path / "1" / "deltas" / f"{number:08d}"


def lines(caplog):
    return [each for each in caplog.records if each.name == "sok_embed.serving"]


def version_served(live, versions):
    return live_tests.version_of(live(ids=IDS)["output_0"].numpy(), IDS, versions)


def mutate(folder, random):
    """Changes a file of a delta at random: bits, its length, a piece of it, or what it is."""
    names = sorted(os.listdir(folder))
    path = folder / names[random.integers(len(names))]
    data = bytearray(path.read_bytes())
    kind = random.integers(6)
    place = int(random.integers(len(data)))
    if kind == 0:
        data[place] ^= 1 << random.integers(8)
    elif kind == 1:
        del data[place:]
    elif kind == 2:
        data += random.bytes(random.integers(1, 100))
    elif kind == 3:
        end = place + int(random.integers(1, 100))
        piece = random.bytes(len(data[place:end]))
        if data[place:end] == piece:
            piece = bytes(each ^ 1 for each in piece)
        data[place:end] = piece
    elif kind == 4:
        other = folder / names[random.integers(len(names))]
        data = bytearray(other.read_bytes() if other != path else b"")
    else:
        path.unlink()
        if random.integers(2):
            os.symlink("/etc/passwd", path)
        return path
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("rounds", few_or_many(300, 20_000))
def test_changed_bytes_of_a_delta_are_noticed(rounds, published):
    path, _ = published
    live = load(path, version=(1, 1))
    base, state = live.snapshot._export.base, live.snapshot.state
    folder, whole = folder_of(path, 2), path / "whole"
    shutil.copytree(folder, whole)
    scratch = path / "scratch"
    scratch.mkdir()
    random = np.random.default_rng(rounds)
    refused = 0
    for _ in range(rounds):
        changed = mutate(folder, random)
        name = changed.name
        before = (whole / name).read_bytes()
        if name == "delta.json" and changed.exists() and not changed.is_symlink():
            same = is_same_json(changed.read_bytes(), before)
        else:
            same = False
        try:
            live_layers.next_state(base, state, str(scratch))
            assert same, f"{name} was changed, and taken up"
        except (CorruptionError, ValueError, OSError) as error:
            assert not same
            assert str(error)
            refused += 1
        assert os.listdir(scratch) == []
        changed.unlink(missing_ok=True)
        shutil.copyfile(whole / name, changed)
    assert live_layers.next_state(base, state, str(scratch)).number == 2
    print(f"{rounds} changed deltas, {refused} refused, the others have the same manifest")


def is_same_json(data, other):
    """Returns whether a text says the same as another, with other spaces for instance."""
    try:
        return json.loads(data) == json.loads(other)
    except ValueError:
        return False


def test_a_damaged_delta_is_left_alone_until_it_is_whole(published, caplog):
    path, versions = published
    folder = folder_of(path, 2)
    whole = (folder / "rows-0.safetensors").read_bytes()
    (folder / "rows-0.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with caplog.at_level(logging.WARNING, "sok_embed.serving"):
        live = load(path)
        for _ in range(5):
            assert live.update() == (1, 1)
        assert version_served(live, versions) == 1
        (line,) = lines(caplog)
        assert "00000002 is left alone, version (1, 1) goes on" in line.getMessage()
        assert "checksum" in line.getMessage() and "\n" not in line.getMessage()
        time.sleep(0.02)  # the time of a file may be coarse
        (folder / "rows-0.safetensors").write_bytes(whole)
        assert live.update() == (1, 3)
        assert version_served(live, versions) == 3
        assert len(lines(caplog)) == 1
    with pytest.raises(CorruptionError, match="damaged"):
        (folder / "weights.safetensors").write_bytes(b"")
        load(path, version=(1, 2))


def test_missing_deltas_and_those_out_of_order_are_left_alone(published, caplog):
    path, versions = published
    with caplog.at_level(logging.WARNING, "sok_embed.serving"):
        os.rename(folder_of(path, 2), path / "away")
        live = load(path)
        live.update()
        assert live.version == (1, 1) and len(lines(caplog)) == 1
        assert "no such folder; the newest delta there is 3" in lines(caplog)[0].getMessage()
        shutil.copytree(folder_of(path, 3), folder_of(path, 2))  # 3 where 2 belongs
        live.update()
        live.update()
        assert live.version == (1, 1) and len(lines(caplog)) == 2
        assert "Received: delta 3" in lines(caplog)[1].getMessage()
        shutil.rmtree(folder_of(path, 2))
        os.rename(path / "away", folder_of(path, 2))
        assert live.update() == (1, 3)
        assert version_served(live, versions) == 3


def test_a_version_that_is_not_there_is_told_with_those_that_are(published):
    path, _ = published
    told = "Expected delta 9 of export 1 in .*00000009'. Received: .* newest delta there is 3"
    with pytest.raises(FileNotFoundError, match=told):
        load(path, version=(1, 9))
    (folder_of(path, 2) / "weights.safetensors").unlink()
    with pytest.raises(
        FileNotFoundError, match="a file '.*weights.safetensors'. Received: no such file"
    ):
        load(path, version=(1, 3))
    os.symlink("/etc/passwd", folder_of(path, 2) / "weights.safetensors")
    with pytest.raises(CorruptionError, match="Received: a link"):
        load(path, version=(1, 3))
    shutil.rmtree(path / "1" / "deltas")
    with pytest.raises(FileNotFoundError, match="the export has no deltas"):
        load(path, version=(1, 1))


def test_a_delta_of_another_export_and_one_that_follows_another_are_refused(
    published, tmp_path_factory
):
    path, _ = published
    other = tmp_path_factory.mktemp("other")
    model = live_tests.telling()
    live_tests.Told().put(model)
    export(model, other)
    shutil.copytree(path / "1" / "deltas", other / "1" / "deltas")
    with pytest.raises(ValueError, match="of another"):
        load(other, version=(1, 1))
    rewritten(folder_of(path, 2), lambda content: content.update(previous="0" * 16))
    with pytest.raises(ValueError, match="follows another"):
        load(path, version=(1, 2))


def rewritten(folder, change):
    """Changes the manifest of a delta, and its checksum with it."""
    path = folder / "delta.json"
    content = json.loads(path.read_text())
    change(content)
    del content["checksum"]
    content["checksum"] = delta_files.checksum_of_json(content)
    path.write_text(json.dumps(content))


def lie(field, value):
    def change(content):
        *path, name = field.split(".")
        at = content
        for each in path:
            at = at[int(each) if each.isdigit() else each]
        at[name] = value

    return change


@pytest.mark.cover(6)
@pytest.mark.parametrize(
    "field, value",
    [
        ("tables.0.file", "../../../etc/passwd"),
        ("tables.0.rows.bytes", 2**60),
        ("tables.0.rows.bytes", -1),
        ("tables.0.rows.bytes", 8),
        ("tables.0.rows.rows", 2**40),
        ("tables.0.rows.checksum", "../rows-1.safet"),
        ("tables.0.rows", "rows-1.safetensors"),
        ("tables", []),
        ("weights.bytes", 2**49),
        ("weights", None),
        ("number", 2**80),
        ("number", 2.0),
        ("step", "1"),
        ("format_version", 2),
        ("format", "sok-embed rows"),
        ("base", 7),
    ],
)
def test_a_manifest_that_lies_is_refused_with_a_right_checksum_too(field, value, published):
    path, _ = published
    rewritten(folder_of(path, 2), lie(field, value))
    with pytest.raises((CorruptionError, ValueError), match="Expected"):
        load(path, version=(1, 2))


@pytest.mark.parametrize("kind", ["rows", "gone", "weights"])
def test_a_file_that_is_another_one_is_refused_with_a_right_record_too(kind, published):
    path, _ = published
    for number in (1, 2, 3):
        folder = folder_of(path, number)
        names = [name for name in sorted(os.listdir(folder)) if name.startswith(kind)]
        if not names:
            continue
        table = int(names[0][5]) if kind != "weights" else 0
        # A file of rows of the other table, whose rows have another length.
        shutil.copyfile(folder / f"rows-{1 - table}.safetensors", folder / names[0])
        found = record_of(str(folder), names[0])._asdict()
        del found["name"]

        def change(content, table=table, found=found):
            of = content if kind == "weights" else content["tables"][table]
            of[kind] |= found

        rewritten(folder, change)
        with pytest.raises(CorruptionError, match="Expected"):
            load(path, version=(1, number))
        return
    raise AssertionError(f"Expected a delta with a file of {kind}.")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"delta": -1}', '{"delta": 1e3}', "9" * 9999])
def test_a_current_that_lies_changes_nothing(text, published, caplog):
    path, versions = published
    live = load(path)
    (path / "1" / "deltas" / "CURRENT.json").write_text(text)
    with caplog.at_level(logging.WARNING, "sok_embed.serving"):
        for _ in range(3):
            assert live.update() == (1, 3)
    assert len(lines(caplog)) == 1
    assert version_served(live, versions) == 3


def test_a_current_that_names_what_is_not_there_is_one_line(published, caplog):
    path, _ = published
    (path / "1" / "deltas" / "CURRENT.json").write_text('{"delta": 9007199254740991}')
    with caplog.at_level(logging.WARNING, "sok_embed.serving"):
        live = load(path)
        live.update()
    assert live.version == (1, 3) and len(lines(caplog)) == 1


@pytest.mark.parametrize("gone", ["the folder", "a file"])
def test_temporary_files_that_are_cleaned_away_are_made_again(gone, published, monkeypatch):
    path, versions = published
    temporary = path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    model, told = live_tests.telling(), live_tests.Told()
    for _ in range(3):
        told.advance()
    told.put(model)
    publisher = Publisher(model, path)
    live = load(path)
    (scratch,) = temporary.glob(".sok-served.*")
    if gone == "a file":
        next(scratch.iterdir()).unlink()
    else:
        shutil.rmtree(scratch)
    assert version_served(live, versions) == 3
    for number in (4, 5):
        told.advance(model)
        publisher.publish()
        assert live.update() == (1, number)
        assert version_served(live, versions) == number


def test_a_start_leaves_a_damaged_export_alone(tmp_path, caplog):
    model = live_tests.telling()
    for number in (1, 2):
        live_tests.tell(model, number)
        export(model, tmp_path)
    live_tests.tell(model, 3)
    export(model, tmp_path)
    (tmp_path / "3/saved_model.pb").write_bytes(b"torn")
    ids = np.zeros((1, 3), np.int64)
    with load(tmp_path) as live:
        assert live.version == (2, 0)
        assert set(np.ravel(live(ids=ids)["output_0"])) == {2}
    assert "3 is left alone, version (2, 0) goes on" in caplog.text
    for number in (1, 2):
        (tmp_path / f"{number}/saved_model.pb").write_bytes(b"torn")
    with pytest.raises(OSError):
        load(tmp_path)


def test_a_publisher_says_what_to_do_after_a_damaged_delta(published):
    path, _ = published
    (folder_of(path, 2) / "weights.safetensors").write_bytes(b"")
    model = live_tests.telling()
    with pytest.raises(CorruptionError, match="Call sok_embed.serving.export"):
        Publisher(model, path)
    export(model, path)
    Publisher(model, path).close()  # of the new export


def test_what_a_killed_publisher_has_left_goes(published):
    path, _ = published
    left = path / "1" / "deltas" / ".delta.0000000000000001.saving"
    left.mkdir()
    (left / "rows-0.safetensors").write_bytes(b"half")
    current = path / "1" / "deltas" / "CURRENT.json"
    current.write_text('{"delta": 2}')  # killed before it was replaced
    publisher = Publisher(live_tests.telling(), path)
    assert publisher.number == 3
    assert json.loads(current.read_text()) == {"delta": 3}
    assert not left.exists()


def fails(*arguments, **options):
    raise OSError(28, "No space left on device")


@pytest.mark.cover(2)
@pytest.mark.parametrize("moment", ["rows", "rename", "sync", "current"])
def test_an_error_of_the_disk_loses_no_change(moment, published, monkeypatch):
    path, _ = published
    model, told = live_tests.telling(), live_tests.Told()
    for _ in range(3):
        told.advance()
    told.put(model)
    publisher = Publisher(model, path)
    publisher.publish()

    places = {
        "rows": (delta_files.rows_files, "write"),
        "rename": (delta_files.os, "rename"),
        "sync": (delta_files, "sync"),
        "current": (publishing, "write_current"),
    }
    told.advance(model)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(*places[moment], fails)
        publisher.publish()
    told.advance(model)
    last = publisher.publish()
    assert publisher.publish() == last
    live = load(path)
    assert live.version.delta == last
    answer = live(ids=IDS)["output_0"].numpy()
    np.testing.assert_array_equal(answer, told.answer(IDS))


def test_a_delta_that_nobody_was_told_of_is_told_by_the_next_call(published, monkeypatch):
    path, _ = published
    model, told = live_tests.telling(), live_tests.Told()
    for _ in range(4):
        told.advance()
    told.put(model)
    publisher = Publisher(model, path)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(publishing, "write_current", fails)
        publisher.publish()
    assert load(path).version == (1, 3)
    assert publisher.publish() == 4  # nothing has changed
    assert load(path).version == (1, 4)
    publisher.close()
    with pytest.raises(RuntimeError, match="closed"):
        publisher.publish()


def full(monkeypatch):
    """Makes the folder of temporary files full. Returns what ends that."""
    patched = monkeypatch.context()
    patched.__enter__().setattr(delta_files, "read_recorded", fails)
    return lambda: patched.__exit__(None, None, None)


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_model_goes_on_to_follow_after_a_full_temporary_folder(published, monkeypatch, caplog):
    path, versions = published
    make_room = full(monkeypatch)
    with caplog.at_level(logging.WARNING, "sok_embed.serving"):
        with load(path, follow=True, poll_seconds=0.01) as live:
            assert live.version == (1, 0)
            time.sleep(0.1)  # several looks
            assert live.version == (1, 0) and len(lines(caplog)) == 1
            assert "No space left on device" in lines(caplog)[0].getMessage()
            make_room()
            wait_for(lambda: live.version == (1, 3))
            assert version_served(live, versions) == 3
        assert len(lines(caplog)) == 1


def test_update_tries_at_once_what_has_failed(published, monkeypatch):
    path, _ = published
    make_room = full(monkeypatch)
    live = load(path, poll_seconds=1000)
    assert live.update() == (1, 0)
    make_room()
    assert live.update() == (1, 3)


def test_a_version_that_was_seen_half_copied_is_taken_up_once_it_is_whole(published, caplog):
    path, versions = published
    shutil.copytree(path / "1", path / "whole", ignore=shutil.ignore_patterns("deltas"))
    with caplog.at_level(logging.WARNING, "sok_embed.serving"):
        # So long are the pauses that only files that have changed are looked at again.
        with load(path, version=(1, 0)) as first:
            expected = first(ids=IDS)["output_0"].numpy()
        live = load(path, follow=True, poll_seconds=1000)
        os.rename(path / "whole", path / "2")
        names = sorted(each for each in (path / "2").glob("*/*") if each.stat().st_size)
        contents = {name: name.read_bytes() for name in names}
        for name in names:
            name.write_bytes(contents[name][:10])
        for number, name in enumerate(names):
            live._look()
            live._look()
            assert live.version == (1, 3) and len(lines(caplog)) == number + 1
            time.sleep(0.02)  # the time of a file may be coarse
            name.write_bytes(contents[name])
        live._look()
    assert live.version == (2, 0)
    np.testing.assert_array_equal(live(ids=IDS)["output_0"], expected)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_a_passing_error_of_a_publisher_is_not_called_damage(error, published, monkeypatch):
    def fail(*arguments):
        raise error

    path, _ = published
    model = live_tests.telling()
    with monkeypatch.context() as patched, pytest.raises(type(error)) as raised:
        patched.setattr(delta_files, "read_recorded", fail)
        Publisher(model, path)
    assert raised.value is error
    Publisher(model, path).close()
