"""Files that released versions have written load, and train on to the same rows.

Rows, slots, counters and times have the bits that the old process saw, and after one more step rows
and slots have those that it computed. Dense weights after a step are TensorFlow's arithmetic, whose
last bit depends on the processor: they are compared within 1e-6, as are answers of models.
`make.py` writes the files.
"""

import tarfile
from pathlib import Path

import make
import numpy as np
import pytest
import tensorflow as tf
from golden_cases import CASES, NOW, within


def number(release):
    return tuple(map(int, release.split(".")))


def names_in(folder):
    return {path.name.partition(".")[0] for path in folder.glob("*.tar.xz")}


FOLDER = Path(__file__).resolve().parent
RELEASES = {path.name: path for path in FOLDER.iterdir() if path.name[0].isdigit()}
NEWEST = names_in(max(RELEASES.values(), key=lambda folder: number(folder.name)))
LONG = {"fit_iterator"}  # beside fit_count
FILES = [
    pytest.param(
        folder / f"{name}.tar.xz",
        id=f"{release}-{name}",
        marks=[pytest.mark.long] if name in LONG else [],
    )
    for release, folder in sorted(RELEASES.items())
    for name in sorted(names_in(folder))
]
# 0.1.0 was not published; 0.2.0 and later refuse its files of tables in memory as a whole. A
# SavedModel names ops of the release that wrote it, and is exported again: docs/stability.md.
EARLIER = "as an earlier version of sok-embed writes it.* Load it with that version"
REFUSED = {
    ("0.1.0", "columns"): "update_times not found in checkpoint",
    ("0.1.0", "keras_adaptive"): EARLIER,
    ("0.1.0", "keras_dynamic"): EARLIER,
    ("0.1.0", "tf_checkpoint"): "update_times not found in checkpoint",
    ("0.1.0", "weights"): EARLIER,
}
# These would be refused in the same ways.
LEFT_OUT = {
    "0.1.0": {
        *("keras_admitted", "keras_all2all", "keras_columns", "keras_rules"),
        *("saved_model", "saved_model_keras"),
    }
}


def check(path, folder):
    """Loads a case, trains it on, and compares it with the contents that the old process saw."""
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    with np.load(folder / "expected.npz") as file:
        expected = dict(file)
    case = CASES[path.name.partition(".")[0]]
    with within(folder / "files"):
        made = case.load()
        try:
            assert_as_seen(case.held(made), expected, "before")
            case.step(made)
            assert_as_seen(case.held(made), expected, "after")
        finally:
            case.close(made)


def assert_as_seen(held, expected, moment):
    names = [name for name in expected if name.startswith(f"{moment}/")]
    assert names
    for name in names:
        found, seen = held[name.partition("/")[2]], expected[name]
        is_dense = "/dense." in name or "/optimizer." in name
        if (is_dense and moment == "after") or name.endswith(("/answer", "/history")):
            np.testing.assert_allclose(found, seen, rtol=1e-6, atol=1e-7, err_msg=name)
        elif moment == "after" and name.endswith("update_times") and seen.max() > NOW + 10**6:
            assert found.shape == seen.shape and (found >= seen).all(), name  # of the clock
        else:
            np.testing.assert_array_equal(found, seen, err_msg=name, strict=True)


@pytest.mark.parametrize("path", FILES)
def test_a_file_of_a_release_loads_and_trains_on(path, tmp_path):
    refusal = REFUSED.get((path.parent.name, path.name.partition(".")[0]))
    if refusal is None:
        check(path, tmp_path)
        return
    with pytest.raises(Exception, match=refusal):
        check(path, tmp_path)


def test_gradients_go_through_a_saved_model_of_0_2_0(tmp_path):
    with tarfile.open(FOLDER / "0.2.0" / "saved_model_distributed.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    loaded = tf.saved_model.load(tmp_path / "files" / "saved")
    answer = loaded.signatures["serving_default"]
    (anchor,) = (each for each in answer.graph.variables if "anchor" in each.name)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(answer(ids=tf.constant([[1, 2]], tf.int64))["vectors"])
    # It has the norm of the gradients of rows. Two features sum rows of 3 numbers, of the keys 1
    # and 2, and 2 and 3; one has means of 2 rows of 2 numbers, and one sums 2 rows of 2.
    squares = (1 + 2**2 + 1) * 3 + 4 * 0.5**2 + 4
    assert tf.norm(tape.gradient(loss, anchor)).numpy() ** 2 == pytest.approx(squares)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CASES.keys() - NEWEST))
def test_the_next_release_can_write_its_files(name, tmp_path):
    make.write(name, tmp_path)
    check(tmp_path / f"{name}.tar.xz", tmp_path)


@pytest.mark.parametrize("release", RELEASES)
def test_each_release_has_all_cases_that_it_can_write(release):
    written = {name for name, case in CASES.items() if number(case.since) <= number(release)}
    assert names_in(RELEASES[release]) == written - LEFT_OUT.get(release, set())
