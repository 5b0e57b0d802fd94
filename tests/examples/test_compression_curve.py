"""The compression curve as a person runs it, with few rows."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
from running import run_example

run = partial(run_example, "compression_curve.py")


@pytest.mark.long
def test_ratings_leave_a_picture_and_a_table(tmp_path: Path) -> None:
    pytest.importorskip("sok_embed")
    lines = [f"{row * 7 % 31}\t{row * 11 % 37}\t{2 + row % 4}\t{row}\n" for row in range(600)]
    (tmp_path / "u.data").write_text("".join(lines), encoding="utf-8")
    arguments = ["--data", "u.data", "--seeds", "1", "--compression", "1", "1/8", "--dim", "4"]
    arguments += ["--block-size", "2", "--batch-size", "64", "--optimizer", "sgd"]
    status, out, err = run(tmp_path, *arguments, "--learning-rate", "0.1")
    assert status == 0, err
    output = tmp_path / "runs/compression"
    figures = json.loads(out.splitlines()[-1])
    assert figures == json.loads((output / "compression-curve.json").read_text())
    assert (output / "compression-curve.png").read_bytes().startswith(b"\x89PNG")
    table = (output / "compression-curve.md").read_text()
    assert table.splitlines()[-2].startswith("| 1 | 280 |")  # 31 users, 37 films, 2 for unknown
    assert table.splitlines()[-1].startswith("| 1/8 | 36 |")  # 9 rows of 70
    assert table in out
    assert figures["compression"] == ["1", "1/8"]
    aucs = figures["test_auc"]
    assert [len(values) for kind in aucs.values() for values in kind] == [1] * 6
    # Rows that nothing shares are those of the table, which starts from the same numbers.
    assert aucs["row hashing"][0] == pytest.approx(figures["full_table"], abs=1e-3)
    assert aucs["row hashing"][1] != pytest.approx(figures["full_table"], abs=1e-3)


@pytest.mark.cover(2)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compression", "2"], "expected a number above 0 and up to 1"),
        (["--compression", "1/0"], "expected a number above 0 and up to 1"),
        (["--data", "none.txt"], "expected a file. Received: none.txt"),
        (["--data", "none.txt", "--samples", "5"], "--samples: expected only without --data"),
    ],
)
def test_wrong_options_are_refused_with_what_was_expected(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    status, _, err = run(tmp_path, *arguments)
    assert status == 2
    assert message in err
    assert "Traceback" not in err


def test_compression_is_read_as_a_number_or_a_fraction() -> None:
    from compression_curve import compression

    assert compression("1/64") == compression("0.015625") == Fraction(1, 64)
