"""A checkpoint that is not as it was written is refused, and changes nothing."""

import random
import re
import shutil

import held_state
import pytest
import tensorflow as tf
from changed_files import copied, flipped, rewritten

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint


@pytest.mark.parametrize("more", [1, -1])
def test_rows_that_no_worker_takes_are_missed(saved, tmp_path, more):
    _, folder = copied(saved, tmp_path)

    def change(content):
        (entry,) = (each for each in content["tables"] if each["name"].startswith("counted"))
        entry["parts"]["rows"]["size"] += more

    rewritten(folder, change)
    error = restored_from(saved, folder)
    assert isinstance(error, sok.kv.CorruptionError)
    assert re.search(r"as 'tables\[\d+\]\.parts\.rows\.size' in '.*manifest\.json'", str(error))


def restored_from(saved, folder):
    """Restores another model, and says whether it is as it was if that fails."""
    other = held_state.every_kind()
    before = held_state.held_by(other)
    try:
        Checkpoint(other).restore(folder)
    except (sok.kv.CorruptionError, ValueError, FileNotFoundError) as error:
        held_state.assert_same(held_state.held_by(other), before)
        return error
    held_state.assert_same(held_state.held_by(other), held_state.held_by(saved[0]))
    return None


@pytest.mark.parametrize("kind", ["rows-", "dense-", "manifest"])
def test_a_file_that_was_cut_or_changed_is_refused_and_changes_nothing(saved, tmp_path, kind):
    model, folder = copied(saved, tmp_path)
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    other = held_state.every_kind()
    before = held_state.held_by(other)
    for path in sorted(path for path in folder.iterdir() if path.name.startswith(kind)):
        data = path.read_bytes()
        ends = [0, 1, 9, len(data) - 1, len(data) - 9, len(data) - 20]
        places = sorted({*ends, *(draw.randrange(len(data)) for _ in range(12))})
        changed = [flipped(data, place) for place in places]
        changed += [data[:place] for place in (0, 1, len(data) // 2, len(data) - 1)]
        changed += [data + b"\0", data[: len(data) // 2] * 2]
        for each in changed:
            path.write_bytes(each)
            with pytest.raises((sok.kv.CorruptionError, ValueError)) as caught:
                Checkpoint(other).restore(folder)
            assert "Expected" in str(caught.value)
        path.write_bytes(data)
        held_state.assert_same(held_state.held_by(other), before)
    Checkpoint(other).restore(folder)
    held_state.assert_same(held_state.held_by(other), held_state.held_by(model))


def test_a_file_of_another_save_is_refused(saved, tmp_path):
    model, folder = copied(saved, tmp_path)
    (rows,) = folder.glob("rows-*")
    other = tmp_path / "other"
    Checkpoint(model).save(other)
    (theirs,) = other.glob("rows-*")
    shutil.copy(theirs, rows)
    assert isinstance(restored_from(saved, folder), sok.kv.CorruptionError)


@pytest.mark.parametrize("kind", ["rows-*", "dense-*.index", "dense-*.data-*"])
def test_a_file_that_is_gone_is_missed(saved, tmp_path, kind):
    _, folder = copied(saved, tmp_path)
    (path,) = folder.glob(kind)
    path.unlink()
    assert "Received: none" in str(restored_from(saved, folder))


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", ["../rows", "/etc/passwd", "a/b", "", ".", "..", 7])
def test_a_name_that_leads_elsewhere_is_refused(saved, tmp_path, name):
    _, folder = copied(saved, tmp_path)
    rewritten(folder, lambda content: content["rows"][0].update(name=name))
    assert "the plain name of a file or a folder as 'rows[0].name'" in str(
        restored_from(saved, folder)
    )
    _, folder = copied(saved, tmp_path / "other")
    rewritten(folder, lambda content: content["dense"].update(prefix=name))
    assert "as 'dense.prefix'" in str(restored_from(saved, folder))


def test_a_checkpoint_of_a_later_version_is_refused(saved, tmp_path):
    _, folder = copied(saved, tmp_path)
    rewritten(folder, lambda content: content["features"].append("new"))
    assert "'new'" in str(restored_from(saved, folder))
    rewritten(folder, lambda content: content.update(features=[], least_reader=2))
    assert "version 2" in str(restored_from(saved, folder))


def test_a_folder_without_a_manifest_is_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"without manifest\.json"):
        Checkpoint(variable=tf.Variable(1.0)).restore(tmp_path)
