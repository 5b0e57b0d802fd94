"""The example streams: parsers, detection, cutting into batches, and the generated clicks."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from ctr.auc import exact_auc
from ctr.batches import Batch, InputError, Source, Split, rebatch, share, steps
from ctr.criteo import Criteo
from ctr.days import Day, generated_parts, parts_in
from ctr.embeddings import StaticRows
from ctr.generated import CHUNK, Generated, ids_at
from ctr.keys import MISSING, field_keys
from ctr.movielens import MovieLens
from ctr.sources import open_source

HEADER = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


def criteo_rows(count: int) -> list[list[str]]:
    return [
        [str(row % 2), *[str(row)] * 13, *[format(row + field, "08x") for field in range(26)]]
        for row in range(count)
    ]


def write_criteo(
    path: Path, rows: list[list[str]], separator: str = "\t", header: bool = False
) -> Path:
    lines = ([HEADER] if header else []) + rows
    path.write_text("".join(separator.join(line) + "\n" for line in lines), encoding="utf-8")
    return path


def write_ratings(path: Path, ratings: list[tuple[int, int, int, int]]) -> Path:
    path.write_text("".join("\t".join(map(str, r)) + "\n" for r in ratings), encoding="utf-8")
    return path


def whole(source: Source, split: Split) -> Batch:
    (batch,) = source.batches(split, source.rows(split))
    return batch


@pytest.mark.parametrize("separator", ["\t", ","])
@pytest.mark.parametrize("header", [False, True])
def test_criteo_is_read_with_tabs_or_commas_and_with_or_without_a_header(
    tmp_path: Path, separator: str, header: bool
) -> None:
    path = write_criteo(tmp_path / "clicks.txt", criteo_rows(20), separator, header)
    source = open_source(path, None, 0)
    assert isinstance(source, Criteo)
    assert (source.rows("train"), source.rows("test")) == (18, 2)
    train, test = whole(source, "train"), whole(source, "test")
    assert train.labels.tolist() == [row % 2 for row in range(18)]
    np.testing.assert_allclose(train.dense[:, 12], np.log1p(np.arange(18)), rtol=1e-6)
    ids = np.arange(20)[:, None] + np.arange(26)
    np.testing.assert_array_equal(np.concatenate([train.keys, test.keys]), field_keys(ids))


def test_a_missing_count_is_zero_and_a_missing_category_has_a_key_of_its_own(
    tmp_path: Path,
) -> None:
    rows = criteo_rows(10)
    rows[0][1], rows[0][2], rows[0][14] = "", "-3", ""
    batch = whole(Criteo(write_criteo(tmp_path / "clicks.txt", rows)), "train")
    assert batch.dense[0, 0] == 0.0
    assert batch.dense[0, 1] == pytest.approx(-math.log(4))
    assert batch.keys[0, 0] == field_keys(np.array([[MISSING]]))[0, 0]
    assert batch.keys[0, 0] not in batch.keys[1:, 0]


@pytest.mark.parametrize(
    ("column", "cell", "expected"),
    [
        (0, "2", "a label of 0 or 1"),
        (3, "many", "a finite number or nothing"),
        (3, "nan", "a finite number or nothing"),
        (20, "xyz", "hexadecimal digits"),
        (20, "-1", "hexadecimal digits"),
        (39, "1\t2", "40 columns, received 41"),
    ],
)
@pytest.mark.parametrize("header", [False, True])
def test_a_malformed_criteo_line_is_named_by_its_number(
    tmp_path: Path, column: int, cell: str, expected: str, header: bool
) -> None:
    rows = criteo_rows(20)
    rows[7][column] = cell
    source = Criteo(write_criteo(tmp_path / "clicks.txt", rows, header=header))
    with pytest.raises(InputError, match=rf"line {8 + header}: expected .*{expected}"):
        list(source.batches("train", 4))


def test_a_malformed_line_of_the_second_workers_share_keeps_its_number(tmp_path: Path) -> None:
    rows = criteo_rows(20)
    rows[7][0] = "?"
    source = Criteo(write_criteo(tmp_path / "clicks.txt", rows))
    list(source.batches("train", 8, rank=0, size=2))
    with pytest.raises(InputError, match="line 8: "):
        list(source.batches("train", 8, rank=1, size=2))


def test_ua_base_brings_ua_test_and_four_stars_are_positive(tmp_path: Path) -> None:
    path = write_ratings(tmp_path / "ua.base", [(1, 2, 4, 9), (1, 3, 3, 8), (2, 2, 5, 7)])
    write_ratings(tmp_path / "ua.test", [(2, 3, 1, 6)])
    source = open_source(path, None, 0)
    assert isinstance(source, MovieLens)
    train = whole(source, "train")
    got = {
        (tuple(key), label) for key, label in zip(train.keys.tolist(), train.labels, strict=True)
    }
    keys = [tuple(key) for key in field_keys(np.array([[1, 2], [1, 3], [2, 2]])).tolist()]
    assert got == {(keys[0], 1.0), (keys[1], 0.0), (keys[2], 1.0)}
    test = whole(source, "test")
    assert test.keys.tolist() == field_keys(np.array([[2, 3]])).tolist()
    assert test.labels.tolist() == [0.0]


def test_other_ratings_are_split_by_time(tmp_path: Path) -> None:
    ratings = [(user, user, 5, 1000 - user) for user in range(20)]
    source = MovieLens(write_ratings(tmp_path / "u.data", ratings))
    latest = field_keys(np.array([[1, 1], [0, 0]]))
    assert whole(source, "test").keys.tolist() == latest.tolist()
    assert source.rows("train") == 18


def test_ratings_are_shuffled_by_seed_and_epoch_alone(tmp_path: Path) -> None:
    path = write_ratings(tmp_path / "u.data", [(user, 1, 5, user) for user in range(60)])

    def order(seed: int, epoch: int) -> list[list[int]]:
        batches = MovieLens(path, seed).batches("train", 7, epoch=epoch)
        return [key for batch in batches for key in batch.keys.tolist()]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    assert sorted(order(0, 0)) == sorted(order(1, 3))


def test_ua_base_without_ua_test_says_which_file_is_missing(tmp_path: Path) -> None:
    path = write_ratings(tmp_path / "ua.base", [(1, 2, 4, 9)])
    with pytest.raises(InputError, match=r"ua\.test"):
        open_source(path, None, 0)


def test_a_malformed_rating_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "u.data"
    path.write_text("1\t2\t3\t4\n1\t2\tthree\t4\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2: expected 4 whole numbers"):
        open_source(path, None, 0)


@pytest.mark.parametrize("content", [b"", b"a,b,c\n", b"\x1f\x8b\x08\x00\xff\xfe"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "clicks.bin"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"expected Criteo .* or MovieLens"):
        open_source(path, None, 0)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a file"):
        open_source(tmp_path / "none.txt", None, 0)


def test_the_number_of_samples_of_a_file_is_not_an_option(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only without --data"):
        open_source(write_criteo(tmp_path / "clicks.txt", criteo_rows(10)), 5, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", ["criteo", "movielens", "generated"])
def test_workers_get_equally_many_batches_that_make_up_the_global_ones(
    tmp_path: Path, kind: str, size: int
) -> None:
    source: Source = {
        "criteo": lambda: Criteo(write_criteo(tmp_path / "clicks.txt", criteo_rows(50))),
        "movielens": lambda: MovieLens(
            write_ratings(tmp_path / "u.data", [(row, 1, 5, row) for row in range(50)])
        ),
        "generated": lambda: Generated(41),
    }[kind]()
    alone = list(source.batches("train", 8))
    assert len(alone) == steps(source.rows("train"), 8)
    assert sum(len(batch) for batch in alone) == source.rows("train")
    shares = [list(source.batches("train", 8, rank, size)) for rank in range(size)]
    assert {len(batches) for batches in shares} == {len(alone)}
    for step, batch in enumerate(alone):
        parts = [batches[step] for batches in shares]
        np.testing.assert_array_equal(np.concatenate([p.keys for p in parts]), batch.keys)
        np.testing.assert_array_equal(np.concatenate([p.labels for p in parts]), batch.labels)
        assert {p.global_rows for p in parts} == {len(batch)}


def test_row_weights_average_over_workers_to_the_mean_of_the_global_batch() -> None:
    losses = np.array([3.0, 1.0, 5.0, 2.0, 8.0])
    summed = []
    for rank in range(7):
        part = losses[share(5, rank, 7)]
        rows = len(part)
        batch = Batch(np.zeros((rows, 0)), np.zeros((rows, 1), np.int64), np.zeros(rows), 5)
        summed.append((part * batch.weights(7)).sum())
    assert np.mean(summed) == pytest.approx(losses.mean())


@pytest.mark.parametrize("batch_size", [1, 3, 10, 100])
def test_rebatching_keeps_every_row_and_its_order(batch_size: int) -> None:
    stream = np.arange(23)

    def rows(part: np.ndarray) -> Batch:
        return Batch(np.zeros((len(part), 0)), part[:, None], part, len(part))

    chunks = [rows(stream[a:b]) for a, b in [(0, 7), (7, 7), (7, 8), (8, 23)]]
    batches = list(rebatch(chunks, batch_size))
    assert np.concatenate([b.labels for b in batches]).tolist() == stream.tolist()
    assert {len(b) for b in batches[:-1]} <= {batch_size}
    assert 0 < len(batches[-1]) <= batch_size


def test_keys_of_equal_ids_differ_between_fields_and_none_meet_within_one() -> None:
    keys = field_keys(np.tile(np.arange(-1, 20_000)[:, None], (1, 26)))
    assert len(np.unique(keys)) == keys.size


def test_generated_clicks_depend_on_the_seed_and_not_on_batch_size_or_samples() -> None:
    def first_rows(source: Generated, batch_size: int) -> Batch:
        return next(rebatch(source.batches("train", batch_size), 10_000))

    one = first_rows(Generated(20_000, seed=3), 512)
    two = first_rows(Generated(12_000, seed=3), 3_000)
    other = first_rows(Generated(20_000, seed=4), 512)
    np.testing.assert_array_equal(one.keys, two.keys)
    np.testing.assert_array_equal(one.dense, two.dense)
    np.testing.assert_array_equal(one.labels, two.labels)
    assert (one.keys != other.keys).any()


def test_generated_test_rows_follow_the_training_rows_in_time() -> None:
    short, long = Generated(CHUNK, seed=1), Generated(3 * CHUNK, seed=1)
    later = list(long.batches("train", CHUNK))[1]
    np.testing.assert_array_equal(whole(short, "test").keys, later.keys[: CHUNK // 10])


def test_new_ids_keep_arriving_while_open_fields_grow() -> None:
    source = Generated(10 * CHUNK)
    seen: set[int] = set()
    new = []
    for batch in source.batches("train", 2 * CHUNK):
        keys = set(batch.keys.ravel().tolist())
        new.append(len(keys - seen))
        seen |= keys
    assert min(new) > 10_000
    sizes = ids_at(np.array([0, 100_000]))
    assert sizes[1, 0] == sizes[0, 0]
    assert sizes[1, -1] == 2 * sizes[0, -1]


def test_the_planted_signal_is_learnable_from_the_true_effects() -> None:
    source = Generated(20_000, seed=5)
    train, test = whole(source, "train"), whole(source, "test")

    def features(batch: Batch) -> np.ndarray:
        effects = [source.id_effects(batch.keys), source.pair_effects(batch.keys)]
        return np.hstack([np.ones((len(batch), 1)), batch.dense, *effects])

    x, weights = features(train), np.zeros(1 + 13 + 26 + 4)
    for _ in range(8):  # Newton's method on the log loss, lightly regularised
        p = 1.0 / (1.0 + np.exp(-x @ weights))
        gradient = x.T @ (p - train.labels) + weights
        hessian = (x.T * (p * (1 - p))) @ x + np.eye(len(weights))
        weights -= np.linalg.solve(hessian, gradient)
    learned = exact_auc(features(test) @ weights, test.labels)
    best = exact_auc(source.true_logits(test), test.labels)
    assert best > 0.75
    assert learned > best - 0.02
    assert 0.1 < train.labels.mean() < 0.5


def test_generated_days_are_parts_of_one_stream() -> None:
    stream = whole(Generated(4 * 33, seed=1), "train")
    parts = [part for day in (0, 1) for part in generated_parts(day, 60, 2, seed=1)]
    found = [whole(part, split) for part in parts for split in ("train", "test")]
    assert [len(each) for each in found] == [30, 3] * 4
    for field in ("dense", "keys", "labels"):
        joined = np.concatenate([getattr(each, field) for each in found])
        np.testing.assert_array_equal(joined, getattr(stream, field))


def test_forgotten_users_are_left_out_of_a_day_and_others_stay_in_order() -> None:
    parts = generated_parts(0, 3000, 3, seed=2)
    every = [whole(part, "train") for part in parts]
    ids = np.unique(ids_of_keys := parts[0].keys_of(3, [str(each) for each in range(1, 30)]))
    assert len(ids) == len(ids_of_keys) and np.isin(every[1].keys[:, 3], ids).any()
    day = Day("today", parts, user=3, forgotten=["1", "7"])
    forgotten = parts[0].keys_of(3, ["1", "7"])
    for number, before in enumerate(every):
        left = ~np.isin(before.keys[:, 3], forgotten)
        assert left.sum() < 1000
        found = list(day.batches("train", 64, epoch=number))
        assert {each.global_rows for each in found[:-1]} == {64}
        np.testing.assert_array_equal(
            np.concatenate([each.keys for each in found]), before.keys[left]
        )
    halves = [list(day.batches("test", 64, rank, 2)) for rank in (0, 1)]
    one = list(day.batches("test", 64))
    for whole_batch, first, second in zip(one, *halves, strict=True):
        np.testing.assert_array_equal(
            np.concatenate([first.labels, second.labels]), whole_batch.labels
        )
    with pytest.raises(InputError, match="which are integers. Received: .*'ann'"):
        Day("today", parts, user=3, forgotten=["ann"])


TABLE = {
    "label": [0, 1] * 10,
    "I2": [None, *range(1, 20)],
    "C10": [str(row) if row else None for row in range(20)],
    "I1": [row / 4 for row in range(20)],
    "C2": [row + 2**60 for row in range(20)],
    "other": ["left alone"] * 20,
}


def write_columns(folder: Path, columns: dict, *formats: str) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    folder.mkdir()
    for name in formats:
        write = csv.write_csv if name == "csv" else parquet.write_table
        write(pyarrow.table(columns), folder / f"00.{name}")
    return folder


def test_parquet_and_csv_have_the_same_keys(tmp_path: Path) -> None:
    from sok_embed import fingerprint

    found = parts_in(write_columns(tmp_path / "day", TABLE, "csv", "parquet"))
    assert [each.name for each in found] == ["00.csv", "00.parquet"]
    for source in found:
        assert (source.rows("train"), source.rows("test")) == (18, 2)
        train, test = whole(source, "train"), whole(source, "test")
        labels = np.concatenate([train.labels, test.labels])
        np.testing.assert_array_equal(labels, TABLE["label"])
        dense = np.concatenate([train.dense, test.dense])
        np.testing.assert_array_equal(dense.T, [TABLE["I1"], [0, *TABLE["I2"][1:]]])
        keys = np.concatenate([train.keys, test.keys])
        np.testing.assert_array_equal(keys[:, 0], fingerprint(np.array(TABLE["C2"])))
        strings = np.array([each or "" for each in TABLE["C10"]], object)
        np.testing.assert_array_equal(keys[:, 1], fingerprint(strings))
        np.testing.assert_array_equal(source.keys_of(0, [str(2**60)]), keys[:1, 0])


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("label", [0, 2] * 10, "labels of 0 or 1. Received: 2"),
        ("label", [0, None] * 10, "labels of 0 or 1. Received: nan"),
        ("I1", [float("inf")] * 20, "finite numbers in I1"),
        ("C2", [0.5] * 20, "integers or strings in C2. Received: double"),
    ],
)
def test_values_that_would_be_read_wrongly_are_refused(
    name: str, values: list, message: str, tmp_path: Path
) -> None:
    folder = write_columns(tmp_path / "day", {**TABLE, name: values}, "parquet")
    (source,) = parts_in(folder)
    with pytest.raises(InputError, match=message):
        whole(source, "train")


def test_files_without_the_columns_are_refused(tmp_path: Path) -> None:
    without = {name: values for name, values in TABLE.items() if not name.startswith("C")}
    with pytest.raises(InputError, match="00.csv: expected columns label, C1, C2"):
        parts_in(write_columns(tmp_path / "day", without, "csv"))
    (tmp_path / "day" / "00.csv").write_bytes(b"\xff\x00,")
    with pytest.raises(InputError, match="00.csv: expected"):
        parts_in(tmp_path / "day")
    write_columns(tmp_path / "next", TABLE, "csv")
    first = parts_in(tmp_path / "next")
    with pytest.raises(InputError, match=r"expected 2 columns of ids and 2 of numbers"):
        Day("today", [*first, Generated(20)], 0, [])


def test_auc_counts_pairs_with_ties_as_half() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 9, 200) / 8.0, rng.integers(0, 2, 200)
    difference = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    pairs = np.where(difference > 0, 1.0, np.where(difference == 0, 0.5, 0.0))
    assert exact_auc(scores, labels) == pytest.approx(pairs.mean(), abs=1e-12)
    assert math.isnan(exact_auc(scores, np.zeros(200)))


def test_the_static_vocabulary_gives_unknown_keys_one_row_a_field(tmp_path: Path) -> None:
    path = write_ratings(tmp_path / "ua.base", [(1, 2, 4, 9), (1, 3, 3, 8)])
    write_ratings(tmp_path / "ua.test", [(1, 4, 1, 6)])
    embedding = StaticRows(4, MovieLens(path), seed=0)
    assert embedding.rows() == 3 + 2
    rows = embedding.inputs(field_keys(np.array([[1, 2], [1, 3], [8, 9], [2, 1]])))
    assert rows[0, 0] == rows[1, 0]
    assert len({rows[0, 0], rows[0, 1], rows[1, 1]} & {0, 1, 2}) == 3
    assert rows[2:].tolist() == [[3, 4], [3, 4]]
