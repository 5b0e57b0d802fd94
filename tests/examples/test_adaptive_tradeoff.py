"""The trade-off of adaptive embeddings as a person runs it, with few rows."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from running import run_example

run = partial(run_example, "adaptive_tradeoff.py")


@pytest.mark.long
def test_ratings_leave_a_picture_and_a_table_of_every_setting(tmp_path: Path) -> None:
    pytest.importorskip("sok_embed")
    # 30 users with 20 ratings each, and 100 films with 3 or 20.
    films = [film for film in range(100) for _ in range(20 if film < 18 else 3)][:600]
    lines = [f"{row % 30}\t{film}\t{2 + row % 4}\t{row}\n" for row, film in enumerate(films)]
    (tmp_path / "ua.base").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "ua.test").write_text("".join(lines[::10]), encoding="utf-8")
    arguments = ["--data", "ua.base", "--seeds", "2", "--batch-size", "50", "--dim", "4"]
    arguments += ["--static-buckets", "7", "--promote-after", "4", "300", "--max-rows", "9"]
    arguments += ["--min-count", "4", "--capacity", "1000", "--optimizer", "adagrad"]
    status, out, err = run(tmp_path, *arguments, "--learning-rate", "0.1")
    assert status == 0, err
    output = tmp_path / "runs/adaptive"
    assert (output / "adaptive-tradeoff.png").read_bytes().startswith(b"\x89PNG")
    assert (output / "adaptive-tradeoff.md").read_text() in out
    report = json.loads(out.splitlines()[-1])
    assert report == json.loads((output / "adaptive-tradeoff.json").read_text())

    ids, counts = zip(*((each["ids"], each["once"]) for each in report["ids"]), strict=True)
    assert set(ids) == {30 + len(set(films))}
    assert set(counts) == {0.0}
    frequent = 30 + sum(films.count(film) >= 4 for film in set(films))
    kinds = [setting["kind"] for setting in report["settings"]]
    assert kinds == [
        "own rows only",
        "static rows only",
        "exact filter",
        "Bloom filter",
        *["adaptive"] * 3,
    ]
    rows = [[r["own_rows"] for r in setting["runs"]] for setting in report["settings"]]
    assert rows[0] == list(ids)
    assert rows[1] == [0, 0]
    assert rows[2] == [frequent] * 2
    # Bloom filter and sketch may be early, never late.
    assert all(frequent <= number <= frequent + 2 for number in rows[3] + rows[4])
    assert rows[5:] == [[0, 0], [9, 9]]
    for setting in report["settings"]:
        for figures in setting["runs"]:
            assert figures["bytes"] == sum(figures["parts"].values())
            assert 0 < figures["test_auc"] < 1
    filters = [report["settings"][i]["runs"][0]["parts"]["filter"] for i in (2, 3)]
    assert filters[0] == (ids[0] - frequent) * 16
    assert filters[1] == pytest.approx(1000 * 9.6 / 2, rel=0.02)  # 9.6 counters of 4 bits an id


def test_generated_clicks_have_rare_and_new_ids_and_other_ones_with_each_seed() -> None:
    from ctr.arrays import collect
    from ctr.generated import LARGE, Generated
    from ctr.tradeoff import count_ids

    sources = [Generated(16_384, seed, LARGE) for seed in (0, 1)]
    train, other = (collect(source, "train") for source in sources)
    assert train.keys.shape == other.keys.shape == (16_384, 8)
    assert (train.keys != other.keys).any()
    counts = count_ids(train, collect(sources[0], "test"))
    assert counts["ids"] == len(np.unique(train.keys))
    assert counts["once"] > 0.6
    assert 0.1 < counts["new_in_test"] < 0.3


def test_a_summary_compares_seed_by_seed_with_own_rows_only() -> None:
    from ctr.tradeoff import markdown, summary

    def setting(kind: str, aucs: list[float], size: int) -> dict[str, object]:
        runs = [
            {"test_auc": auc, "own_rows": 5, "static_rows": 2, "bytes": size, "parts": {}}
            for auc in aucs
        ]
        return {"kind": kind, "name": "so", "runs": runs}

    ids = {"ids": 10, "once": 0.5, "twice": 0.25, "new_in_test": 0.125}
    report = {
        "source": "clicks",
        "training_rows": 20,
        "ids": [ids, ids],
        "dim": 4,
        "optimizer": "adam",
        "learning_rate": 0.1,
        "epochs": 1,
        "best_possible_test_auc": [None, None],
        "settings": [
            setting("own rows only", [0.70, 0.80], 3_000_000),
            setting("adaptive", [0.69, 0.809], 1_000_000),
            setting("exact filter", [0.70, 0.795], 900_000),
            setting("Bloom filter", [0.70, 0.80], 1_100_000),
        ],
    }
    adaptive = summary(report)[1]
    assert adaptive["share"] == pytest.approx(1 / 3)
    assert adaptive["differences"] == pytest.approx([-0.01, 0.009])
    lines = markdown(report).splitlines()
    assert lines[5].endswith("| 1.0 MB | 33% | 0.7495 ± 0.0841 | -0.0005 ± 0.0134 |")
    assert lines[-1].endswith("less: adaptive, so.")  # the others lose too much, or take too much


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--static-buckets", "0"], "expected a whole number from 1 on"),
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
