"""The example scripts as a person runs them, with few rows."""

from __future__ import annotations

import importlib.util
import json
from functools import partial
from pathlib import Path

import pytest
from running import EXAMPLES, run_example


def _installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # a bare folder has no origin


needs_sok_embed = pytest.mark.skipif(
    not _installed("sok_embed"), reason="sok_embed is not installed"
)


run = partial(run_example, "train_ctr.py")


def write_ratings(tmp_path: Path, ratings: int = 600) -> Path:
    """Users who like films of their own parity."""
    for name, first in (("ua.base", 0), ("ua.test", ratings)):
        lines = []
        for row in range(first, first + ratings):
            user, film = row * 7 % 31, row * 11 % 37
            lines.append(f"{user}\t{film}\t{5 if (user + film) % 2 else 2}\t{row}\n")
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    return tmp_path / "ua.base"


@pytest.mark.cover(1)
@pytest.mark.parametrize("embedding", ["static", pytest.param("hash", marks=needs_sok_embed)])
def test_generated_clicks_leave_a_picture_and_a_json_line(tmp_path: Path, embedding: str) -> None:
    status, out, err = run(
        tmp_path, "--samples", "3000", "--batch-size", "256", "--embedding", embedding
    )
    assert status == 0, err
    figures = json.loads(out.splitlines()[-1])
    assert figures == json.loads((tmp_path / "runs/ctr/report.json").read_text())
    assert (tmp_path / "runs/ctr/training.png").read_bytes().startswith(b"\x89PNG")
    assert figures["steps"] == 12
    assert 0.4 < figures["test_auc"] < figures["best_possible_test_auc"] < 1.0
    assert figures["table_rows"] > 3000
    assert figures["keys_per_second"] > 0
    assert figures["peak_memory_bytes"] > 1e8
    assert "test AUC:" in out
    assert "12/12" in err


@needs_sok_embed
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_a_model_is_saved_published_and_exported(tmp_path: Path, workers: str) -> None:
    import ctr.model  # noqa: F401  (registers what the file refers to)
    import keras
    import numpy as np
    import tensorflow as tf
    from click.testing import CliRunner

    from sok_embed.cli import main
    from sok_embed.serving import load

    arguments = ["--samples", "1000", "--batch-size", "256", "--workers", workers, "--quiet"]
    status, _, err = run(tmp_path, *arguments, "--save", "ctr.keras", "--publish", "live")
    assert status == 0, err
    loaded = keras.saving.load_model(tmp_path / "ctr.keras")
    random = np.random.default_rng(0)
    asked = {"dense": random.normal(size=(8, 13)), "keys": random.integers(0, 99, (8, 26))}
    asked["dense"] = asked["dense"].astype(np.float32)
    predicted = loaded.predict(asked, verbose=0)
    assert np.isfinite(predicted).all() and loaded.optimizer.iterations == 4
    command = ["export", str(tmp_path / "ctr.keras"), str(tmp_path), "--import", "ctr.model"]
    ended = CliRunner().invoke(main, command)
    assert ended.exit_code == 0, ended.output
    served = tf.saved_model.load(ended.stdout.strip())
    (found,) = served.signatures["serving_default"](**asked).values()
    np.testing.assert_array_equal(found, predicted)
    followed = load(tmp_path / "live")
    assert followed.version == (1, 1) and followed.snapshot.step == 4
    (found,) = followed(**asked).values()
    np.testing.assert_array_equal(found, predicted)


@pytest.mark.long
@needs_sok_embed
def test_hash_and_static_tables_hold_the_same_keys(tmp_path: Path) -> None:
    rows = {}
    for embedding in ("hash", "static"):
        status, out, err = run(tmp_path, "--samples", "2000", "--quiet", "--embedding", embedding)
        assert status == 0, err
        rows[embedding] = json.loads(out)["table_rows"]
    assert rows["static"] == rows["hash"] + 26  # one row a field for unknown keys


@needs_sok_embed
@pytest.mark.long
def test_workers_of_ray_train_as_those_of_the_command(tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="Ray is not installed")
    figures = []
    for engine in ("run", "ray"):
        arguments = ["--samples", "2049", "--batch-size", "256", "--epochs", "2", "--workers", "2"]
        arguments += ["--engine", engine, "--output", engine]
        status, _, err = run(tmp_path, *arguments)
        assert status == 0, err
        figures.append(json.loads((tmp_path / engine / "report.json").read_text()))
    for name in ("steps", "workers", "final_loss", "test_auc", "table_rows"):
        assert figures[0][name] == figures[1][name]


@pytest.mark.long
@needs_sok_embed
def test_two_workers_train_like_one(tmp_path: Path) -> None:
    figures = []
    for workers in ("1", "2"):
        output = tmp_path / workers
        # 2,049 rows in batches of 256: the second worker has no row of the last one.
        arguments = ["--samples", "2049", "--batch-size", "256", "--workers", workers]
        arguments += ["--optimizer", "sgd", "--learning-rate", "0.2", "--output", str(output)]
        status, _, err = run(tmp_path, *arguments, "--quiet")
        assert status == 0, err
        figures.append(json.loads((output / "report.json").read_text()))
    one, two = figures
    assert two["workers"] == 2
    assert two["steps"] == one["steps"] == 9
    assert two["table_rows"] == one["table_rows"]
    assert two["test_auc"] == pytest.approx(one["test_auc"], abs=2e-3)


@pytest.mark.long
def test_ratings_train_without_dense_columns(tmp_path: Path) -> None:
    path = write_ratings(tmp_path)
    arguments = ["--epochs", "12", "--batch-size", "64", "--learning-rate", "0.01", "--quiet"]
    status, out, err = run(tmp_path, "--data", str(path), "--embedding", "static", *arguments)
    assert status == 0, err
    assert len(out.splitlines()) == 1
    assert json.loads(out)["test_auc"] > 0.9


@pytest.mark.long
@needs_sok_embed
def test_the_comparison_prints_a_line_a_seed_and_the_difference(tmp_path: Path) -> None:
    path = write_ratings(tmp_path)
    arguments = ["--data", str(path), "--seeds", "2", "--epochs", "1"]
    status, out, err = run_example("movielens_auc.py", tmp_path, *arguments)
    assert status == 0, err
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["seed", "0", "1", "mean"]
    figures = json.loads(lines[4])
    hashed, static = sum(figures["hash"]) / 2, sum(figures["static"]) / 2
    assert figures["difference_of_the_means"] == pytest.approx(hashed - static)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "none.txt"], "expected a file. Received: none.txt"),
        (["--batch-size", "0"], "expected a whole number from 1 on"),
        (["--seed", "-1"], "expected a whole number from 0"),
        (["--save", "ctr.h5"], "expected a name that ends in .keras"),
        (["--learning-rate", "nan"], "expected a number above 0"),
    ],
)
def test_wrong_options_are_refused_with_what_was_expected(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    status, _, err = run(tmp_path, *arguments)
    assert status == 2
    assert message in err
    assert "Traceback" not in err


@pytest.mark.long
def test_a_malformed_line_ends_the_run_with_its_number(tmp_path: Path) -> None:
    good = "\t".join(["1", *["3"] * 13, *["0a"] * 26]) + "\n"
    # The broken line is the first of the test rows: the reader meets it inside tf.data.
    (tmp_path / "clicks.txt").write_text(good * 41 + good.replace("0a", "?") + good * 3)
    status, _, err = run(tmp_path, "--data", "clicks.txt", "--embedding", "static")
    assert status == 2
    assert "clicks.txt, line 42: expected at most 15 hexadecimal digits" in err


def test_several_workers_without_the_package_say_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ctr import workers
    from ctr.batches import InputError

    monkeypatch.setattr(workers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"Expected the package sok_embed.*pip install"):
        workers.launch(EXAMPLES / "train_ctr.py", [], 2)


@needs_sok_embed
def test_a_launcher_with_another_number_of_workers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ctr import workers
    from ctr.batches import InputError

    monkeypatch.setattr("sok_embed.size", lambda: 3)
    with pytest.raises(InputError, match=r"Expected 2 workers.*Received: 3"):
        workers.join(2, needs_sok_embed=True)
