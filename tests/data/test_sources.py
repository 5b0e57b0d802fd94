"""Datasets of frames and files have the rows that a plain loop reads, as tensors."""

from __future__ import annotations

import decimal
import subprocess
import sys
import time

import keras
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from limits import HANG_S
from tiers import long

import sok_embed as sok
from sok_embed import spark
from sok_embed.checkpoint.batches import Batches
from sok_embed.data import arrow, batches, parquet

ROWS = 23
NAN = float("nan")


def frame_of(rows=ROWS):
    """Returns a frame with a column of each kind."""
    random = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "user": [f"user{i % 5}é" for i in range(rows)],
            "kind": pd.Categorical(random.choice(["a", "b", ""], rows)),
            "item": random.integers(0, 2**62, rows),
            "small": random.integers(-128, 128, rows).astype(np.int8),
            "big": random.integers(0, 2**64, rows, dtype=np.uint64),
            "price": random.normal(size=rows).astype(np.float32),
            "new": random.random(rows) < 0.5,
            "tags": [[f"t{j}" for j in range(i % 4)] for i in range(rows)],
            "seen": [list(range(i % 3)) for i in range(rows)],
            "click": (np.arange(rows) % 2).astype(np.float32),
            "weight": np.arange(rows) / 8,
        }
    )


def plain(value):
    """Returns a value as TensorFlow gives it back: bytes for text, lists for arrays."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def rows_of(frame, columns):
    """Returns what a plain loop over a frame of pandas reads, a dict a row."""
    return [{name: plain(frame[name].iloc[i]) for name in columns} for i in range(len(frame))]


def rows_in(dataset):
    """Returns the rows of a dataset's batches `(features, label, weight)`, a dict a row."""
    rows = []
    for features, label, weight in dataset:
        named = {**features, "click": label, "weight": weight}
        lists = {
            name: each.to_list() if isinstance(each, tf.RaggedTensor) else each.numpy().tolist()
            for name, each in named.items()
        }
        rows += [
            dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)
        ]
    return rows


def from_frame(source, frame, tmp_path, *args, **options):
    if source == "pandas":
        return sok.data.from_pandas(frame, *args, **options)
    if source == "polars":
        return sok.data.from_arrow(pl.from_pandas(frame), *args, **options)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if source == "arrow":
        return sok.data.from_arrow(table, *args, **options)
    if source == "parquet":
        pq.write_table(table, tmp_path / "rows.parquet", row_group_size=5)
        return sok.data.from_parquet(tmp_path / "rows.parquet", *args, **options)
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset(datasets.table.InMemoryTable(table))
    if source == "stream":
        return sok.data.from_huggingface(rows.to_iterable_dataset(), *args, **options)
    return sok.data.from_huggingface(rows, *args, **options)


SOURCES = ["pandas", "polars", "arrow", "parquet", "huggingface", "stream"]
NAMED = {"label": "click", "weight": "weight"}


@pytest.mark.parametrize("source", SOURCES)
def test_rows_are_those_of_a_plain_loop(source, tmp_path) -> None:
    frame = frame_of()
    dataset = from_frame(source, frame, tmp_path, 4, **NAMED)
    sizes = [len(label) for _, label, _ in dataset]
    assert sizes == [4, 4, 4, 4, 4, 3]
    assert int(dataset.cardinality()) == (-2 if source == "stream" else 6)
    features = dataset.element_spec[0]
    assert {name: features[name].dtype.name for name in features if name != "kind"} == {
        **{"user": "string", "item": "int64", "small": "int8", "big": "uint64"},
        **{"price": "float32", "new": "bool", "tags": "string", "seen": "int64"},
    }
    for _ in range(2):
        assert rows_in(dataset) == rows_of(frame, frame.columns)


@pytest.mark.parametrize("source", SOURCES)
def test_a_shuffle_has_all_rows_in_another_order_in_each_pass(source, tmp_path) -> None:
    frame = frame_of()
    expected = rows_of(frame, frame.columns)

    def order(dataset):
        places = [expected.index(row) for row in rows_in(dataset)]
        assert sorted(places) == list(range(ROWS))
        return places

    for buffer in (6, 1000):
        datasets = [
            from_frame(source, frame, tmp_path, 4, shuffle=buffer, seed=seed, **NAMED)
            for seed in (1, 1, 2)
        ]
        first, again, other = [[order(each) for _ in range(2)] for each in datasets]
        assert first == again
        assert len({tuple(each) for each in [*first, *other]}) == 4


def test_the_seed_of_keras_is_that_of_a_shuffle_without_one() -> None:
    frame = pd.DataFrame({"a": range(100)})
    orders = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        dataset = sok.data.from_pandas(frame, 100, shuffle=100)
        orders.append(next(iter(dataset))[0]["a"].numpy().tolist())
    assert orders[0] == orders[1] != orders[2]


def test_with_all_rows_waiting_each_order_is_as_likely() -> None:
    dataset = sok.data.from_pandas(pd.DataFrame({"a": range(4)}), 4, shuffle=4, seed=3)
    places = np.zeros([4, 4])
    for _ in range(100):
        ((features,),) = dataset
        places[np.arange(4), features["a"]] += 1
    assert np.abs(places - 25).max() < 18  # four standard deviations


@pytest.mark.parametrize("buffer", [1, 2, 7, 100])
def test_a_shuffle_of_any_size_hands_over_many_rows_at_once(buffer) -> None:
    table = pa.table({"a": range(1000)})
    tables = [table.slice(0, 600), table.slice(600)]
    found = list(batches.shuffled(tables, buffer, np.random.default_rng(1), ["a"]))
    rows = np.concatenate([each["a"] for each in found])
    assert len(found) <= 3
    assert sorted(rows) == list(range(1000))
    assert (rows - np.arange(1000) < buffer).all()  # it had not come before
    assert (rows.tolist() == list(range(1000))) == (buffer == 1)


@pytest.mark.parametrize("shards", [1, 2, 7, long(3), long(30)])
@pytest.mark.parametrize("source", ["pandas", "parquet", "huggingface"])
def test_parts_of_workers_have_each_row_once(source, shards, tmp_path) -> None:
    frame = frame_of()
    parts = [
        from_frame(source, frame, tmp_path, 2, num_shards=shards, index=index, **NAMED)
        for index in range(shards)
    ]
    rows = [rows_in(part) for part in parts]
    assert sum(rows, []) == rows_of(frame, frame.columns)
    counts = [sum(1 for _ in part) for part in parts]
    assert counts == [int(part.cardinality()) for part in parts]
    assert max(counts) - min(counts) <= 1
    parts = [
        from_frame(
            source, frame, tmp_path, 2, num_shards=shards, index=i, drop_remainder=True, **NAMED
        )
        for i in range(shards)
    ]
    assert [sum(1 for _ in part) for part in parts] == [ROWS // shards // 2] * shards
    for part, of_all in zip(parts, rows, strict=True):
        found = rows_in(part)
        assert found == of_all[: len(found)]
        assert int(part.cardinality()) == ROWS // shards // 2


def test_a_stream_has_no_parts_but_drops_its_remainder(tmp_path) -> None:
    frame = frame_of()
    dataset = from_frame("stream", frame, tmp_path, 4, drop_remainder=True, **NAMED)
    assert rows_in(dataset) == rows_of(frame, frame.columns)[:20]
    with pytest.raises(ValueError, match="Expected num_shards=1 of an IterableDataset"):
        from_frame("stream", frame, tmp_path, 4, num_shards=2)


MISSING = {
    "float": (pa.array([1.5, None, NAN]), {}, [1.5, NAN, NAN]),
    "float that is given": (pa.array([1.5, None, NAN]), {float: -1}, [1.5, -1, -1]),
    "int": (pa.array([1, None, 3]), {int: -1}, [1, -1, 3]),
    "column before type": (pa.array([1, None, 3]), {int: -1, "x": 7}, [1, 7, 3]),
    "uint": (pa.array([1, None, 2**64 - 1], pa.uint64()), {"x": 0}, [1, 0, 2**64 - 1]),
    "bool": (pa.array([True, None, False]), {bool: False}, [True, False, False]),
    "text": (pa.array(["a", None, ""]), {str: "none"}, [b"a", b"none", b""]),
    "category": (pa.array(["a", None, "a"]).dictionary_encode(), {str: ""}, [b"a", b"", b"a"]),
    "list": (pa.array([[1], None, []]), {list: []}, [[1], [], []]),
    "value in a list": (pa.array([[1, None], [], [None]]), {int: 0}, [[1, 0], [], [0]]),
    "both": (pa.array([["a", None], None, []]), {"x": [], str: "?"}, [[b"a", b"?"], [], []]),
    "lists in lists": (pa.array([[[1], None], None]), {list: []}, [[[1], []], []]),
    "fixed": (
        pa.array([[1.0, 2], None, [3, None]], pa.list_(pa.float32(), 2)),
        {float: 0},
        [[1, 2], [0, 0], [3, 0]],
    ),
}


@pytest.mark.parametrize("case", MISSING)
@pytest.mark.parametrize("first", [0, 1])
def test_missing_values_are_what_was_said(case, first) -> None:
    values, missing, expected = MISSING[case]
    table = pa.table({"x": values}).slice(first)
    ((found,),) = sok.data.from_arrow(table, 8, features="x", missing=missing)
    found = found.to_list() if isinstance(found, tf.RaggedTensor) else found.numpy().tolist()
    np.testing.assert_equal(found, expected[first:])


@pytest.mark.parametrize("case", [case for case in MISSING if case != "float"])
def test_missing_values_without_a_choice_are_an_error(case, tmp_path) -> None:
    values = MISSING[case][0]
    if case in ("float that is given", "fixed"):  # NaN unless it is the label's
        values = pa.array([1.5, None, NAN])
        with pytest.raises(ValueError, match=r"in column 'x'\. Received: 1 of 3 that are missing"):
            sok.data.from_arrow(pa.table({"x": values, "y": [1, 2, 3]}), 8, label="x")
        return
    with pytest.raises(
        (ValueError, tf.errors.InvalidArgumentError), match=r"column 'x'\. Received: [12] of"
    ):
        list(sok.data.from_arrow(pa.table({"x": values}), 8))


def test_files_tell_of_missing_values_before_they_are_read(tmp_path) -> None:
    table = pa.table({"x": ["a", None, "b", None], "n": [1, 2, None, 4]})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=1)
    with pytest.raises(
        ValueError, match=r"column 'x'\. Received: 2 of 4 that .* missing=\{'x': ''\}"
    ):
        sok.data.from_parquet(tmp_path / "rows.parquet", 2, features="x")
    with pytest.raises(
        ValueError, match=r"column 'n'\. Received: 1 of 4 that .* missing=\{'n': 0\}"
    ):
        sok.data.from_parquet(tmp_path / "rows.parquet", 2, missing={str: ""})
    pq.write_table(table, tmp_path / "rows.parquet", write_statistics=False)
    dataset = sok.data.from_parquet(tmp_path / "rows.parquet", 2, features="x")
    with pytest.raises(tf.errors.InvalidArgumentError, match="column 'x'. Received: 2 of 4 that"):
        list(dataset)


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        (pa.array([1, None]), {int: 0.5}),
        (pa.array([1, None], pa.uint8()), {int: -1}),
        (pa.array([1, None], pa.uint8()), {int: 256}),
        (pa.array([1, None]), {int: "0"}),
        (pa.array([1, None]), {int: None}),
        (pa.array(["a", None]), {str: 0}),
        (pa.array([True, None]), {bool: 0}),
    ],
)
def test_a_value_that_a_column_cannot_hold_is_an_error(values, missing) -> None:
    with pytest.raises(ValueError, match="Expected missing= of column 'x'"):
        sok.data.from_arrow(pa.table({"x": values}), 2, missing=missing)


def test_labels_have_missing_values_by_their_name_alone() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [1.0, NAN]})
    with pytest.raises(ValueError, match=r"column 'y'\. Received: 1 of 2"):
        sok.data.from_pandas(frame, 2, label="y", missing={float: 0.0})
    ((_, label),) = sok.data.from_pandas(frame, 2, label="y", missing={"y": 0.5})
    assert label.numpy().tolist() == [1, 0.5]


def test_types_of_pandas_become_tensors() -> None:
    frame = pd.DataFrame(
        {
            "Int64": pd.array([1, None, 2**60 + 1], "Int64"),
            "string": pd.array(["a", pd.NA, "c"], "string"),
            "boolean": pd.array([True, None, False], "boolean"),
            "Float32": pd.array([1.5, None, 2], "Float32"),
            "arrow": pd.array(["a", None, "c"], pd.ArrowDtype(pa.large_string())),
            "object": [b"\xff", None, b"c"],
            "arrays": [np.array([1.0, 2.0]), np.array([]), np.array([3.0])],
            "money": [decimal.Decimal("1.50"), decimal.Decimal("2"), decimal.Decimal("-0.25")],
            "whole": [decimal.Decimal(2**40), decimal.Decimal(2), decimal.Decimal(-3)],
        },
        index=["p", "q", "r"],
    )
    missing = {int: -1, str: "?", bool: False}
    ((found,),) = sok.data.from_pandas(frame, 3, missing=missing)
    assert list(found) == list(frame.columns)
    lists = {
        name: each.to_list() if name == "arrays" else each.numpy().tolist()
        for name, each in found.items()
    }
    np.testing.assert_equal(
        lists,
        {
            "Int64": [1, -1, 2**60 + 1],
            "string": [b"a", b"?", b"c"],
            "boolean": [True, False, False],
            "Float32": [1.5, NAN, 2],
            "arrow": [b"a", b"?", b"c"],
            "object": [b"\xff", b"?", b"c"],
            "arrays": [[1, 2], [], [3]],
            "money": [1.5, 2, -0.25],
            "whole": [2**40, 2, -3],
        },
    )


@pytest.mark.parametrize(
    "values",
    [pd.to_datetime(["2026-01-01"]), [{"a": 1}], [1j], [None], pd.to_timedelta([1])],
    ids=lambda values: str(type(values[0]).__name__),
)
def test_a_column_of_another_type_is_an_error_that_names_it(values) -> None:
    with pytest.raises(ValueError, match="when"):
        sok.data.from_pandas(pd.DataFrame({"when": values, "x": 1}), 1)
    ((found,),) = sok.data.from_pandas(pd.DataFrame({"when": values, "x": 1}), 1, features=["x"])
    assert list(found) == ["x"]


def test_arguments_that_do_not_fit_are_errors(tmp_path) -> None:
    frame = pd.DataFrame({"x": ["a", "b"], "y": [1.0, 2.0]})
    make = sok.data.from_pandas
    with pytest.raises(ValueError, match=r"Expected columns among \['x', 'y'\], each there once"):
        make(frame, 2, label="z")
    with pytest.raises(ValueError, match="no feature column"):
        make(frame, 2, features=[])
    for names in ([0, 1], ["x", "x"]):
        with pytest.raises(ValueError, match="Expected columns whose names are strings, each"):
            make(frame.set_axis(names, axis=1), 2)
    with pytest.raises(ValueError, match=r"Received: \['y'\] as both"):
        make(frame, 2, features=["x", "y"], label="y")
    with pytest.raises(ValueError, match="Expected a label beside the weight"):
        make(frame, 2, weight="y")
    with pytest.raises(ValueError, match=r"as keys of missing=. Received: \['z'\]"):
        make(frame, 2, missing={"z": 0})
    with pytest.raises(ValueError, match="Expected seed with shuffle"):
        make(frame, 2, seed=1)
    with pytest.raises(ValueError, match=r"Expected index to be an integer in \[0, 2\)"):
        make(frame, 2, num_shards=2, index=2)
    with pytest.raises(ValueError, match="Expected batch_size to be a positive integer"):
        make(frame, 0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'labels'"):
        make(frame, 2, labels="y")
    with pytest.raises(TypeError, match="to_frame"):
        make(frame["x"], 2)
    with pytest.raises(ValueError, match="Expected columns whose values have one type"):
        make(pd.DataFrame({"x": ["a", 1]}), 2)
    with pytest.raises(TypeError, match="For pandas there is from_pandas"):
        sok.data.from_arrow(frame, 2)
    with pytest.raises(TypeError, match="from_pandas"):
        sok.data.from_arrow({"x": [1]}, 2)
    with pytest.raises(TypeError, match="Of a DatasetDict take one split"):
        sok.data.from_huggingface({"train": frame}, 2)
    with pytest.raises(FileNotFoundError):
        sok.data.from_parquet(tmp_path / "none.parquet", 2)


def test_several_labels_are_a_dictionary_and_one_feature_is_a_tensor() -> None:
    frame = pd.DataFrame({"x": ["a", "b"], "y": [1.0, 2.0], "z": [3, 4]})
    ((feature, labels),) = sok.data.from_pandas(frame, 2, features="x", label=["y", "z"])
    assert feature.numpy().tolist() == [b"a", b"b"]
    assert {name: each.numpy().tolist() for name, each in labels.items()} == {
        "y": [1, 2],
        "z": [3, 4],
    }
    ((features, label),) = sok.data.from_pandas(frame, 2, label="z")
    assert (sorted(features), label.dtype) == (["x", "y"], tf.int64)


def test_a_filtered_dataset_of_huggingface_has_its_rows_alone() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": ["a", None, "b", "c"], "n": [3, 2, 1, 0]})
    chosen = rows.select([3, 0, 2])
    ((features,),) = sok.data.from_huggingface(chosen, 4)
    assert features["x"].numpy().tolist() == [b"c", b"a", b"b"]
    assert features["n"].numpy().tolist() == [0, 3, 1]


def string_model():
    keras.utils.set_random_seed(5)
    inputs = {
        "user": keras.Input((), dtype="string", name="user"),
        "tags": keras.Input((None,), dtype="string", name="tags", ragged=True),
        "price": keras.Input((), name="price"),
    }
    user = sok.DynamicEmbedding(4, name="users")(inputs["user"])
    tags = sok.DynamicEmbedding(4, combiner="sum", name="tags_")(inputs["tags"])
    price = keras.layers.Reshape((1,))(inputs["price"])
    joined = keras.layers.Concatenate()([user, tags, price])
    output = keras.layers.Dense(1, activation="sigmoid")(joined)
    model = keras.Model(inputs, output)
    model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", weighted_metrics=["auc"])
    return model


def test_a_fit_is_that_on_tensors_made_by_hand_bit_for_bit() -> None:
    frame = frame_of(200)[["user", "tags", "price", "click", "weight"]]
    ours = string_model()
    dataset = sok.data.from_pandas(frame, 16, **NAMED)
    history = ours.fit(dataset, epochs=3, verbose=0)
    by_hand = string_model()
    tensors = (
        {
            "user": tf.constant(frame["user"].tolist()),
            "tags": tf.ragged.constant(frame["tags"].tolist()),
            "price": tf.constant(frame["price"].to_numpy()),
        },
        tf.constant(frame["click"].to_numpy()),
        tf.constant(frame["weight"].to_numpy()),
    )
    expected = by_hand.fit(
        tf.data.Dataset.from_tensor_slices(tensors).batch(16), epochs=3, verbose=0
    )
    assert history.history == expected.history
    for one, other in zip(ours.get_weights(), by_hand.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    keys = sok.fingerprint(sorted(set(frame["user"])))
    rows = [model.get_layer("users").table.lookup(keys) for model in (ours, by_hand)]
    np.testing.assert_array_equal(*rows)


def test_a_run_goes_on_at_the_next_batch_of_a_shuffle(tmp_path) -> None:
    def begun(seed=4):
        dataset = sok.data.from_pandas(frame_of(40), 4, features="item", shuffle=100, seed=seed)
        return Batches(dataset, "count")

    def order(run, count):
        return [next(run.iterator)[0].numpy().tolist() for _ in range(count)]

    whole, stopped = begun(), begun()
    for _ in range(3):
        whole.begin_pass()
        expected = order(whole, 10)
    stopped.skip_to(3, 6)
    assert order(stopped, 4) == expected[6:]
    assert whole.batch_size() == 4
    tf.random.set_seed(None)
    with pytest.raises(ValueError, match="Received: RandomDataset without a seed"):
        begun(None)


def test_the_bytes_of_a_row_are_those_of_its_text(tmp_path) -> None:
    text = pa.array(["x" * 1000] * 5000)
    for column in (text, text.dictionary_encode()):
        pq.write_table(pa.table({"x": column, "n": range(5000)}), tmp_path / "rows.parquet")
        dataset = parquet.opened(tmp_path / "rows.parquet")
        (groups,) = [each.split_by_row_group() for each in dataset.get_fragments()]
        assert parquet.row_bytes(groups, dataset, ["n", "x"]) >= 1000
        assert parquet.row_bytes(groups, dataset, ["n"]) < 100


def test_what_is_read_stays_as_it_is() -> None:
    numbers = pa.array(range(64), pa.float32())  # in memory that TensorFlow takes as it is
    table = pa.table({"x": numbers, "s": ["abc"] * 64})
    columns = arrow.columns_of(table.schema)[0]
    (values,) = arrow.arrays_of(columns["x"], table["x"].chunk(0))
    assert values.ctypes.data == table["x"].chunk(0).buffers()[1].address
    frame = pd.DataFrame({"x": np.arange(64), "s": ["abc"] * 64})
    with_features = sok.data.from_pandas(frame, 64, features="x")
    frame.loc[3, "x"] = 300  # which shows that the numbers are not a copy
    ((found,),) = with_features
    assert found[3] == 300
    doubled = sok.data.from_arrow(table, 16).map(lambda features: features["x"] * 2)
    for _ in range(20):  # TensorFlow writes into memory that no other tensor refers to
        assert np.concatenate(list(doubled)).tolist() == [2 * i for i in range(64)]
    assert table["x"].to_pylist() == list(range(64))


ENDS = """
import pandas as pd
import sok_embed as sok
from sok_embed import spark

dataset = sok.data.from_pandas(pd.DataFrame({"x": range(100_000)}), 10)
iterator = iter(dataset)
next(iterator)
for batch in dataset:
    raise RuntimeError("a fault of the program")
"""


def test_a_program_ends_while_batches_are_left(tmp_path) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", ENDS], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S
    )
    assert "a fault of the program" in done.stderr
    assert done.returncode == 1, time.monotonic() - began


def test_rows_that_spark_has_stored_are_dicts_of_scalars(tmp_path) -> None:
    table = pa.table({"x": ["a", "b", "c"], "n": [[1], [], [2, 3]]})
    path = str(tmp_path / "rows.arrow")
    assert spark._stored(iter(table.to_batches(max_chunksize=2)), path) == 3
    for _ in range(2):
        dataset = spark._dataset(path, 3, table.schema)
        assert int(dataset.cardinality()) == 3
        assert [row["x"].numpy() for row in dataset] == [b"a", b"b", b"c"]
        (batch,) = dataset.batch(3)
        assert batch["n"].to_list() == [[1], [], [2, 3]]
    assert list(spark._dataset(path, 0, table.schema)) == []
