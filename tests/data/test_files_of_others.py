"""Files that other libraries wrote, with whatever options, have the rows that pandas reads."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import sok_embed as sok

ROWS = 50
MISSING = {str: "?", int: -1, bool: True, list: []}


def frame_of():
    """Returns a frame with missing values in each column but the last."""
    random = np.random.default_rng(2)
    none = random.random([5, ROWS]) < 0.3

    def holes(values, where):
        return [None if hole else value for value, hole in zip(values, where, strict=True)]

    return pd.DataFrame(
        {
            "user": holes([f"ü{i % 7}" * (i % 3) for i in range(ROWS)], none[0]),
            "item": pd.array(holes(random.integers(0, 2**62, ROWS).tolist(), none[1]), "Int64"),
            "price": holes(random.normal(size=ROWS).tolist(), none[2]),
            "new": pd.array(holes((random.random(ROWS) < 0.5).tolist(), none[3]), "boolean"),
            "place": np.arange(ROWS),
        }
    )


def expected_of(frame):
    return {
        "user": [b"?" if pd.isna(each) else each.encode() for each in frame["user"]],
        "item": [-1 if pd.isna(each) else each for each in frame["item"]],
        "price": [float("nan") if pd.isna(each) else each for each in frame["price"]],
        "new": [True if pd.isna(each) else each for each in frame["new"]],
        "place": frame["place"].tolist(),
    }


def by_pyarrow(**options):
    return lambda frame, path: pq.write_table(
        pa.Table.from_pandas(frame, preserve_index=False), path, **options
    )


def by_polars(**options):
    return lambda frame, path: pl.from_pandas(frame).write_parquet(path, **options)


def by_pandas(**options):
    return lambda frame, path: frame.to_parquet(path, **options)


def by_fastparquet(**options):
    def write(frame, path):
        fastparquet = pytest.importorskip("fastparquet")
        fastparquet.write(str(path), frame, **options)

    return write


WRITERS = {
    "pyarrow": by_pyarrow(),
    "pyarrow, version 1, small pages": by_pyarrow(
        version="1.0", data_page_size=64, compression="gzip", row_group_size=7
    ),
    "pyarrow, pages of version 2": by_pyarrow(
        data_page_version="2.0", use_dictionary=False, compression="zstd", row_group_size=13
    ),
    "pyarrow, encodings": by_pyarrow(
        use_dictionary=False,
        column_encoding={"user": "DELTA_BYTE_ARRAY", "place": "DELTA_BINARY_PACKED"},
        write_statistics=False,
    ),
    "pyarrow, one row a group": by_pyarrow(row_group_size=1, compression="none"),
    "polars": by_polars(),
    "polars, lz4": by_polars(compression="lz4", row_group_size=11, statistics=False),
    "pandas": by_pandas(),
    "pandas, index": by_pandas(index=True, compression="brotli"),
    "fastparquet": by_fastparquet(),
    "fastparquet, row groups": by_fastparquet(row_group_offsets=[0, 9, 30], compression="GZIP"),
    "fastparquet, no nulls": by_fastparquet(has_nulls=False, object_encoding="utf8"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_files_of_other_writers_have_their_rows(writer, tmp_path) -> None:
    frame = frame_of()
    if writer == "fastparquet, no nulls":
        frame = frame.assign(user=frame["user"].fillna("?"), item=frame["item"].fillna(-1))
        frame["new"] = frame["new"].fillna(True)
    WRITERS[writer](frame, tmp_path / "rows.parquet")
    columns = list(frame.columns)
    for parts in (1, 3):
        datasets = [
            sok.data.from_parquet(
                tmp_path / "rows.parquet",
                8,
                features=columns,
                missing=MISSING,
                num_shards=parts,
                index=index,
            )
            for index in range(parts)
        ]
        batches = [features for each in datasets for (features,) in each]
        found = {
            name: np.concatenate([each[name] for each in batches]).tolist() for name in columns
        }
        np.testing.assert_equal(found, expected_of(frame))


def test_lists_of_other_writers_are_ragged(tmp_path) -> None:
    lists = [["a", "b"], [], None, ["c"]]
    frame = pl.DataFrame({"x": lists, "n": [[1], [2, 3], [], [4]]})
    frame.write_parquet(tmp_path / "rows.parquet")
    pq.write_table(
        pa.table({"x": lists, "n": [[1], [2, 3], [], [4]]}),
        tmp_path / "other.parquet",
        use_compliant_nested_type=False,
    )
    for name in ("rows", "other"):
        ((found,),) = sok.data.from_parquet(tmp_path / f"{name}.parquet", 4, missing={list: []})
        assert found["x"].to_list() == [[b"a", b"b"], [], [], [b"c"]]
        assert found["n"].to_list() == [[1], [2, 3], [], [4]]


def test_dictionaries_of_files_and_frames_are_text(tmp_path) -> None:
    frame = pl.DataFrame(
        {
            "kind": pl.Series(["x", "y", None], dtype=pl.Categorical),
            "state": pl.Series(["on", "off", "on"], dtype=pl.Enum(["on", "off"])),
            "kinds": pl.Series([["x"], [], ["y", "x"]], dtype=pl.List(pl.Categorical)),
        }
    )
    frame.write_parquet(tmp_path / "rows.parquet")
    for dataset in (
        sok.data.from_arrow(frame, 3, missing={str: "?"}),
        sok.data.from_arrow(frame, 3, missing={str: "?"}, shuffle=1, seed=1),
        sok.data.from_parquet(tmp_path / "rows.parquet", 3, missing={str: "?"}),
    ):
        ((found,),) = dataset
        assert found["kind"].numpy().tolist() == [b"x", b"y", b"?"]
        assert found["state"].numpy().tolist() == [b"on", b"off", b"on"]
        assert found["kinds"].to_list() == [[b"x"], [], [b"y", b"x"]]


def test_a_folder_is_read_in_the_order_of_names_with_its_partitions(tmp_path) -> None:
    for day in (1, 2):
        for part in ("b", "a"):
            (tmp_path / f"day={day}").mkdir(exist_ok=True)
            pq.write_table(
                pa.table({"x": [f"{part}{day}"] * 2}), tmp_path / f"day={day}/{part}.parquet"
            )
    ((found,),) = sok.data.from_parquet(tmp_path, 8)
    assert found["x"].numpy().tolist() == [b"a1", b"a1", b"b1", b"b1", b"a2", b"a2", b"b2", b"b2"]
    assert found["day"].numpy().tolist() == [1, 1, 1, 1, 2, 2, 2, 2]
    paths = [tmp_path / "day=2/a.parquet", tmp_path / "day=1/b.parquet"]
    ((found,),) = sok.data.from_parquet(paths, 8, features=["x"])
    assert found["x"].numpy().tolist() == [b"a2", b"a2", b"b1", b"b1"]
    whole = pyarrow.dataset.dataset(tmp_path, partitioning="hive")
    assert int(sok.data.from_parquet(whole, 3).cardinality()) == 3
    with pytest.raises(ValueError, match="Expected a dataset without a filter"):
        sok.data.from_parquet(whole.filter(pyarrow.dataset.field("day") == 1), 3)


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


FITTING = {
    "int32 as int64": ([2**40], pa.array([2], pa.int32()), [2**40, 2]),
    "uint8 as int64": ([2**40], pa.array([2], pa.uint8()), [2**40, 2]),
    "float32 as float64": ([1 / 3], pa.array([1.5], pa.float32()), [1 / 3, 1.5]),
    "large text": (["a"], pa.array(["b"], pa.large_string()), [b"a", b"b"]),
    "dictionary": (["a"], pa.array(["b"]).dictionary_encode(), [b"a", b"b"]),
    "as dictionary": (pa.array(["a"]).dictionary_encode(), ["b"], [b"a", b"b"]),
    "none at all": (["a"], pa.nulls(1), [b"a", b"?"]),
}


@pytest.mark.parametrize("case", FITTING)
def test_types_of_later_files_that_fit_have_their_values(case, tmp_path) -> None:
    first, later, expected = FITTING[case]
    paths = [write(tmp_path / "a.parquet", x=first), write(tmp_path / "b.parquet", x=later)]
    ((found,),) = sok.data.from_parquet(paths, 4, missing={str: "?"})
    assert found["x"].numpy().tolist() == expected


def test_lists_of_later_files_that_fit_have_their_values(tmp_path) -> None:
    write(tmp_path / "a.parquet", x=[[2**40]])
    write(tmp_path / "b.parquet", x=pa.array([[1, 2]], pa.large_list(pa.int32())))
    ((found,),) = sok.data.from_parquet(tmp_path, 4)
    assert found["x"].to_list() == [[2**40], [1, 2]]
    write(tmp_path / "b.parquet", x=[[1.5]])
    with pytest.raises(ValueError, match=r"column 'x' of each file.*Received: list<.*b\.parquet"):
        sok.data.from_parquet(tmp_path, 4)


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ([1], [1.5]),
        ([1.5], [2]),
        (pa.array([1.5], pa.float32()), [1 / 3]),
        (pa.array([1], pa.int32()), [2]),
        (pa.array([1], pa.uint64()), [2]),
        ([1], pa.array([2], pa.uint64())),
        (["a"], [5]),
        ([5], ["7"]),
        ([1.5], ["2.5"]),
        (["a"], [b"b"]),
        ([True], [2]),
        ([1], [True]),
        ([3], pa.array([5], pa.timestamp("s"))),
        (["a"], pa.array([5], pa.timestamp("s"))),
        ([[1]], [1]),
        (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), [[1, 2]]),
    ],
)
def test_a_type_of_a_later_file_that_does_not_fit_is_an_error(first, later, tmp_path) -> None:
    write(tmp_path / "a.parquet", x=first, n=[1])
    write(tmp_path / "b.parquet", x=later, n=[2])
    with pytest.raises(ValueError, match=r"in column 'x' of each file.*Received: .*b\.parquet"):
        sok.data.from_parquet(tmp_path, 4)
    ((found,),) = sok.data.from_parquet(tmp_path, 4, features="n")
    assert found.numpy().tolist() == [1, 2]


def test_a_column_that_not_all_files_have_is_an_error(tmp_path) -> None:
    one, two = write(tmp_path / "1", x=[1], y=[7]), write(tmp_path / "2", x=[2])
    with pytest.raises(ValueError, match=r"Expected column 'y' in each file. Received: .*2 with"):
        sok.data.from_parquet([one, two], 4)
    with pytest.raises(ValueError, match=r"columns \['x'\] in each file. Received: \['y'\], too"):
        sok.data.from_parquet([two, one], 4)
    ((found,),) = sok.data.from_parquet([two, one], 4, features="x")
    assert found.numpy().tolist() == [2, 1]


def test_folders_above_a_source_are_not_columns(tmp_path, monkeypatch) -> None:
    path = write(tmp_path / "run=b" / "day=5" / "c.parquet", run=["x", "y"])
    monkeypatch.chdir(tmp_path)
    sources = [path, [path], "run=b/day=5/c.parquet", path.as_uri(), path.parent]
    for source in sources:
        ((found,),) = sok.data.from_parquet(source, 2)
        assert {name: each.numpy().tolist() for name, each in found.items()} == {
            "run": [b"x", b"y"]
        }
    ((found,),) = sok.data.from_parquet((tmp_path / "run=b").as_uri(), 2)
    assert found["day"].numpy().tolist() == [5, 5]


@pytest.mark.parametrize("values", [["x", "y"], [1, 2]])
def test_a_column_of_files_and_of_folders_is_an_error(values, tmp_path) -> None:
    folder = "s" if isinstance(values[0], str) else "5"
    path = write(tmp_path / f"day={folder}" / "c.parquet", day=values)
    with pytest.raises(ValueError, match=r"column 'day' either .*both, of .*c\.parquet"):
        sok.data.from_parquet(tmp_path, 2)
    write(tmp_path / f"day={folder}" / "a.parquet", x=[0])
    with pytest.raises(ValueError, match=r"column 'day' either .*both, of .*c\.parquet"):
        sok.data.from_parquet(tmp_path, 2, features="day")
    ((found,),) = sok.data.from_parquet([path], 2)
    assert found["day"].numpy().tolist() == (values if folder == "5" else [b"x", b"y"])


def test_folders_whose_zeros_would_be_lost_are_an_error(tmp_path) -> None:
    for number, zip_code in enumerate(("007", "7")):
        write(tmp_path / f"zip={zip_code}" / "a.parquet", x=[number])
    with pytest.raises(ValueError, match="Received: '007', which would be read as 7"):
        sok.data.from_parquet(tmp_path, 2)
    ((found,),) = sok.data.from_parquet(tmp_path, 2, features="x")
    assert found.numpy().tolist() == [0, 1]
    strings = pyarrow.dataset.partitioning(pa.schema([("zip", pa.string())]), flavor="hive")
    for partitioning, expected in ((strings, [b"007", b"7"]), ("hive", [7, 7])):
        dataset = pyarrow.dataset.dataset(tmp_path, partitioning=partitioning)
        ((found,),) = sok.data.from_parquet(dataset, 2, features="zip")
        assert found.numpy().tolist() == expected


def test_a_folder_without_files_is_an_error(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="Expected Parquet files. Received: "):
        sok.data.from_parquet(tmp_path, 2)


def test_a_file_without_rows_has_no_batch(tmp_path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.string())}), tmp_path / "none.parquet")
    dataset = sok.data.from_parquet(tmp_path / "none.parquet", 4)
    assert (list(dataset), int(dataset.cardinality())) == ([], 0)
    assert list(sok.data.from_arrow(pa.table({"x": [1]}).slice(1), 4)) == []
