"""The comparison of types of rows as a person runs it, with few rows."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from running import run_example

run = partial(run_example, "row_types.py")


@pytest.mark.long
def test_ratings_leave_a_picture_and_a_table_of_every_setting(tmp_path: Path) -> None:
    pytest.importorskip("sok_embed")
    lines = [f"{row % 30}\t{row % 41}\t{2 + row % 4}\t{row}\n" for row in range(600)]
    (tmp_path / "ua.base").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "ua.test").write_text("".join(lines[::10]), encoding="utf-8")
    arguments = ["--data", "ua.base", "--seeds", "2", "--batch-size", "50", "--dim", "4"]
    arguments += ["--dims", "2", "--buckets", "7", "--optimizer", "adagrad"]
    status, out, err = run(tmp_path, *arguments, "--learning-rate", "0.1")
    assert status == 0, err
    output = tmp_path / "runs/row-types"
    assert (output / "row-types.png").read_bytes().startswith(b"\x89PNG")
    assert (output / "row-types.md").read_text() in out
    report = json.loads(out.splitlines()[-1])
    assert report == json.loads((output / "row-types.json").read_text())
    assert [row["name"] for row in report["rows"]] == [
        "float32, slots float32",
        "float32, slots bfloat16",
        "bfloat16, slots bfloat16",
        "float16, slots bfloat16",
        "int8, slots bfloat16",
        "dim 2",
        "7 rows",
    ]
    assert all(len(row["test_auc"]) == 2 for row in report["rows"])
    assert report["rows"][0]["differences"] == [0.0, 0.0]


def test_what_cannot_be_is_told_without_training(tmp_path: Path) -> None:
    status, _, err = run(tmp_path, "--dims", "0")
    assert status == 2
    assert "expected a whole number from 1 on" in err
