"""Random tables from random sources, in random parts and orders, have the rows of plain lists."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from seeds import seed_of_test
from tiers import few_or_many

import sok_embed as sok

WORDS = ["", "a", "ü", "long" * 20, "\0", "same"]
# Types of values, with one that stands for a missing one.
VALUES = {
    "string": (pa.string(), lambda r: str(r.choice(WORDS)), "none"),
    "large_string": (pa.large_string(), lambda r: str(r.choice(WORDS)), ""),
    "view": (pa.string_view(), lambda r: str(r.choice(WORDS)), "?"),
    "binary": (pa.binary(), lambda r: r.bytes(int(r.integers(4))), b"\xff"),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), lambda r: str(r.choice(WORDS)), "none"),
    "int8": (pa.int8(), lambda r: int(r.integers(-128, 128)), -1),
    "int64": (pa.int64(), lambda r: int(r.integers(-(2**63), 2**63 - 1)), -(2**63)),
    "uint64": (pa.uint64(), lambda r: int(r.integers(0, 2**64, dtype=np.uint64)), 2**64 - 1),
    "float": (pa.float32(), lambda r: float(np.float32(r.normal())), 0.5),
    "double": (pa.float64(), lambda r: float(r.choice([r.normal(), math.inf, -0.0])), -2.0),
    "bool": (pa.bool_(), lambda r: bool(r.integers(2)), True),
}


def drawn_column(random, rows):
    """Returns a type, values, what stands for the missing ones, and the values expected."""
    kind, draw, stand_in = VALUES[str(random.choice(list(VALUES)))]
    form = str(random.choice(["flat", "flat", "list", "lists", "fixed"]))
    holes = float(random.choice([0, 0, 0.3, 1]))

    def value():
        missing = random.random() < holes
        given = None if missing else draw(random)
        expected = stand_in if missing else given
        return given, expected.encode() if isinstance(expected, str) else expected

    def several(make, size):
        if random.random() < holes / 2:
            return None, []
        given = [make() for _ in range(size())]
        return [each for each, _ in given], [each for _, each in given]

    def length():
        return int(random.integers(4))

    if form == "flat":
        pairs = [value() for _ in range(rows)]
    elif form == "fixed":
        kind = pa.list_(kind, 3)
        pairs = [([g for g, _ in own], [e for _, e in own]) for own in _threes(value, rows)]
    elif form == "list":
        kind = pa.list_(kind)
        pairs = [several(value, length) for _ in range(rows)]
    else:
        kind = pa.large_list(pa.list_(kind))
        pairs = [several(lambda: several(value, length), length) for _ in range(rows)]
    given, expected = [list(each) for each in zip(*pairs, strict=True)] if pairs else ([], [])
    return kind, given, stand_in, expected


def _threes(value, rows):
    return [[value() for _ in range(3)] for _ in range(rows)]


def drawn_source(random, table, path):
    """Returns a function that makes the dataset, from a source of a random kind."""
    cuts = sorted(random.integers(0, len(table) + 1, int(random.integers(4))).tolist())
    ends = zip([0, *cuts], [*cuts, len(table)], strict=True)
    chunks = pa.concat_tables([table.slice(first, last - first) for first, last in ends])
    kind = str(random.choice(["arrow", "slice", "parquet", "files", "polars", "huggingface"]))
    print(kind, chunks.schema, len(table))
    if kind == "arrow":
        return lambda *args, **options: sok.data.from_arrow(chunks, *args, **options)
    if kind == "slice":
        longer = pa.concat_tables([table, chunks, table]).slice(len(table), len(table))
        return lambda *args, **options: sok.data.from_arrow(longer, *args, **options)
    if kind == "polars" and not any(pa.types.is_dictionary(each) for each in table.schema.types):
        frame = pl.from_arrow(table)
        return lambda *args, **options: sok.data.from_arrow(frame, *args, **options)
    if kind == "huggingface":
        datasets = pytest.importorskip("datasets")
        try:
            rows = datasets.Dataset(datasets.table.InMemoryTable(chunks.combine_chunks()))
        except (ValueError, NotImplementedError):  # of types that it does not have
            return drawn_source(random, table, path)
        return lambda *args, **options: sok.data.from_huggingface(rows, *args, **options)
    parts = [chunks]
    if kind == "files":
        half = int(random.integers(len(table) + 1))
        parts = [table.slice(0, half), table.slice(half)]
    paths = [path / f"{number}.parquet" for number in range(len(parts))]
    for each, part in zip(paths, parts, strict=True):
        pq.write_table(
            part,
            each,
            row_group_size=int(random.integers(1, 20)),
            use_dictionary=bool(random.integers(2)),
            data_page_size=int(random.choice([16, 2**20])),
            write_statistics=bool(random.integers(2)),
        )
    return lambda *args, **options: sok.data.from_parquet(paths, *args, **options)


def rows_in(batches, names):
    """Returns the rows of batches as tuples that can be compared and sorted."""
    rows = []
    for (features,) in batches:
        lists = [
            each.to_list() if isinstance(each, tf.RaggedTensor) else each.numpy().tolist()
            for each in (features[name] for name in names)
        ]
        rows += [repr(each) for each in zip(*lists, strict=True)]
    return rows


@pytest.mark.parametrize("rounds", few_or_many(20, 400))
def test_random_tables_have_their_rows(rounds, tmp_path) -> None:
    seed = seed_of_test()
    for number in range(rounds):
        print("round", number)
        check(np.random.default_rng([seed, number]), tmp_path)


def check(random, path) -> None:
    rows = int(random.choice([0, 1, 7, 40, 90]))
    names = [f"c{i}" for i in range(int(random.integers(1, 4)))]
    columns = {name: drawn_column(random, rows) for name in names}
    arrays = {name: pa.array(given, kind) for name, (kind, given, _, _) in columns.items()}
    table = pa.table(arrays)
    missing = {list: []} | {name: stand_in for name, (_, _, stand_in, _) in columns.items()}
    expected = [repr(each) for each in zip(*(c[3] for c in columns.values()), strict=True)]
    batch = int(random.choice([1, 3, 16, 100]))
    parts = int(random.choice([1, 1, 2, 5]))
    drop = bool(random.integers(2))
    shuffle = [None, 1, 5, 1000][int(random.integers(4))]
    seed = None if shuffle is None else 3
    make = drawn_source(random, table, path)
    print(batch, parts, drop, shuffle)
    found = []
    for index in range(parts):
        own = expected[rows * index // parts : rows * (index + 1) // parts]
        dataset = make(
            batch,
            missing=missing,
            num_shards=parts,
            index=index,
            drop_remainder=drop,
            shuffle=shuffle,
            seed=seed,
        )
        for _ in range(2):
            batches = list(dataset)
            assert len(batches) == int(dataset.cardinality())
            assert len(batches) == (rows // parts // batch if drop else -(-len(own) // batch))
            found = rows_in(batches, names)
            if drop:
                assert len(found) == len(batches) * batch
            if shuffle is None:
                assert found == own[: len(found)]
            elif not drop:
                assert sorted(found) == sorted(own)
            else:
                assert not set(found) - set(own)
