"""Several workers export one model, together or from a checkpoint, and publish to it together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
from limits import HANG_S
from served_models import answered, assert_same_bits
from tiers import long
from trained_by_two import OPTIONS, make_model

from sok_embed.serving import export, load, rows

PROGRAM = Path(__file__).with_name("trained_by_two.py")


@pytest.fixture(scope="module", params=["tcp", long("horovod")])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    worker = forked.command(PROGRAM, folder)
    command = [sys.executable, "-m", "sok_embed", "run", "-np", "2", "--", *worker]
    if request.param == "horovod":
        pytest.importorskip("horovod")
        command = [*forked.horovodrun(), "--gloo", "-np", "2", *worker]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder


@pytest.mark.cover(1)
@pytest.mark.parametrize("ops", ["native", "stock"])
def test_a_checkpoint_of_two_workers_is_served_as_they_predict(ops, trained, tmp_path):
    predicted = np.load(trained / "predicted.npz")
    folder = export(make_model(), tmp_path, ops=ops, source=trained / "saved")
    found = answered(folder, {"ids": predicted["asked"]})
    assert_same_bits(found, [predicted["vectors"], predicted["scores"]])


@pytest.mark.cover(2)
@pytest.mark.parametrize("number", range(1, len(OPTIONS) + 2))
def test_workers_export_together_what_one_process_exports(number, trained, tmp_path):
    options = [*OPTIONS, {}][number - 1]
    alone = Path(export(make_model(), tmp_path, source=trained / "saved", **options))
    together = trained / "together" / str(number)
    files = sorted(path.name for path in (alone / "assets").iterdir())
    assert len(files) == (0 if options.get("ops") == "stock" else 7)
    for name in files:
        assert (together / "assets" / name).read_bytes() == (alone / "assets" / name).read_bytes()
    predicted = np.load(trained / "predicted.npz")
    asked = {"ids": predicted["asked"]}
    assert_same_bits(answered(str(together), asked), answered(str(alone), asked))
    if "dtype" not in options:
        found = answered(str(together), asked)
        assert_same_bits(found, [predicted["vectors"], predicted["scores"]])


@pytest.mark.parametrize(
    "name, version", [("after", (2, 3)), ("removed", (2, 4)), ("exported", (3, 1))]
)
def test_deltas_of_workers_have_the_changes_of_all(name, version, trained):
    predicted = np.load(trained / f"{name}.npz")
    served = load(trained / "published", version=version)
    answer = served(ids=predicted["asked"])
    found = [answer[each].numpy() for each in sorted(answer)]
    assert_same_bits(found, [predicted["vectors"], predicted["scores"]])
    assert served.snapshot.step == 3 + 6


def test_a_delta_of_workers_has_each_changed_row_once(trained):
    folder = trained / "published/2/deltas/00000004"
    changed = []
    for path in sorted(folder.glob("*.safetensors")):
        if path.name != "weights.safetensors":
            with rows.open(path) as file:
                changed.append((path.name[:4], sorted(file.keys().view(np.int64))))
    # Each of two workers has removed five of its keys, and assigned two.
    assert [(kind, len(keys)) for kind, keys in changed] == [("gone", 10), ("rows", 4)]
    assert {key % 2 for _, keys in changed for key in keys} == {0, 1}


@pytest.mark.parametrize("version", [4, 8])
def test_rows_in_storages_of_workers_are_published_as_they_predict(version, trained):
    predicted = np.load(trained / f"stored-{version}.npz")
    served = load(trained / "stored", version=(1, version))
    answer = served(ids=predicted["asked"])
    found = [answer[each].numpy() for each in sorted(answer)]
    assert_same_bits(found, [predicted["vectors"], predicted["scores"]])


def test_a_delta_of_storages_has_only_the_rows_that_differ(trained):
    changed = {}
    for number in (3, 4):
        for path in sorted((trained / f"stored/1/deltas/{number:08}").glob("*-0.safetensors")):
            with rows.open(path) as file:
                changed[number, path.name[:4]] = sorted(file.keys().view(np.int64))
    # Each of two workers has removed two of its keys, and assigned two; then one another key.
    counts = {what: len(keys) for what, keys in changed.items()}
    assert counts == {(3, "gone"): 4, (3, "rows"): 4, (4, "gone"): 1}
    assert changed[4, "gone"][0] % 2 == 1
