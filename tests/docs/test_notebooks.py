"""The notebooks run, and print what they have stored."""

import contextlib
import io
import json

import keras
import pytest
from pages import ROOT

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
START_PROCESSES = ["job-on-disk", "several-workers"]
MARKED = [
    pytest.param(path, marks=pytest.mark.long if path.stem in START_PROCESSES else ())
    for path in NOTEBOOKS
]


def test_there_are_notebooks():
    assert len(NOTEBOOKS) == 4


@pytest.mark.parametrize("path", MARKED, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_has_stored(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keras.utils.clear_session()
    names = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        if cell["cell_type"] != "code":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
        stored = "".join(line for output in cell["outputs"] for line in output["text"])
        assert printed.getvalue() == stored, f"cell {number}"
