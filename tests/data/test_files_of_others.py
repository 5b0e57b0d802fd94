"""Files that other libraries wrote, with whatever options, have the rows that pandas reads."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

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
    with pytest.raises(ValueError, match="Remove the filtering"):
        sok.data.from_parquet(whole.filter(pyarrow.dataset.field("day") == 1), 3)


def test_files_that_differ_are_errors_unless_their_values_fit(tmp_path) -> None:
    def written(*tables):
        paths = [tmp_path / f"{number}.parquet" for number in range(len(tables))]
        for path, table in zip(paths, tables, strict=True):
            pq.write_table(pa.table(table), path)
        return paths

    wide = written({"x": [1.5]}, {"x": pa.array([2], pa.int32())})
    ((found,),) = sok.data.from_parquet(wide, 4)
    assert found["x"].numpy().tolist() == [1.5, 2]
    with pytest.raises(
        ValueError, match=r"Expected column 'x' in each file. Received: .*1\.parquet"
    ):
        sok.data.from_parquet(written({"x": [1.5]}, {"y": [2]}), 4)
    with pytest.raises(tf.errors.OpError):
        list(sok.data.from_parquet(written({"x": [1]}, {"x": ["a"]}), 4))


def test_a_file_without_rows_has_no_batch(tmp_path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.string())}), tmp_path / "none.parquet")
    dataset = sok.data.from_parquet(tmp_path / "none.parquet", 4)
    assert (list(dataset), int(dataset.cardinality())) == ([], 0)
    assert list(sok.data.from_arrow(pa.table({"x": [1]}).slice(1), 4)) == []
