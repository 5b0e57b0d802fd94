"""Rows of a table in pandas and Arrow, and the nearest ones, against NumPy in float64."""

import keras
import numpy as np
import pandas
import pyarrow
import pytest

import sok_embed
from sok_embed import Table, kv, serving
from sok_embed.data import Vocabulary
from sok_embed.files import row_views

DIM = 5
ZEROS = sok_embed.initializers.RowInitializer("constant", 0.0, 0.0, None)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(row_views, "_ROWS", 7)
    monkeypatch.setattr(row_views, "_QUERIES", 3)


def in_memory(keys, rows, folder):
    table = Table(DIM, ZEROS)
    table.assign(keys, rows)
    return table


def in_storage(keys, rows, folder):
    storage = kv.Storage(folder / "rows")
    embedding = kv.Embedding(storage, kv.Optimizer("sgd"), kv.Initializer("zeros"), DIM)
    embedding.assign(keys.astype(np.uint64), rows)
    return storage.table(0)


def in_file(keys, rows, folder):
    path = folder / "rows.safetensors"
    serving.rows.write(path, [(keys.astype(np.uint64), rows)], dim=DIM)
    return serving.rows.open(path)


KINDS = [in_memory, in_storage, in_file]


def made(kind, folder, count=40, seed=3):
    random = np.random.default_rng(seed)
    keys = (random.permutation(count) - count // 2) * 10**15
    rows = random.normal(size=(count, DIM)).astype(np.float32)
    rows[: count // 8] = rows[count // 8 : 2 * (count // 8)]  # equal rows have equal scores
    if count:
        rows[-1] = 0
    return kind(keys, rows, folder), keys, rows


@pytest.mark.parametrize("count", [0, 1, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_frames_have_all_rows(kind, count, tmp_path):
    table, keys, rows = made(kind, tmp_path, count)
    by_key = dict(zip(keys.tolist(), rows, strict=True))
    frame = table.to_pandas()
    assert (frame.index.name, frame.shape) == ("key", (count, DIM))
    assert sorted(frame.index.astype("int64")) == sorted(by_key)
    for key, row in zip(frame.index.astype("int64"), frame.to_numpy(), strict=True):
        np.testing.assert_array_equal(row, by_key[key])
    arrow = table.to_arrow()
    assert arrow.column_names == ["key", "vector"]
    assert arrow.schema.field("vector").type == pyarrow.list_(pyarrow.float32(), DIM)
    found = arrow.to_pydict()
    assert [list(by_key[np.array(k).astype(np.int64).item()]) for k in found["key"]] == [
        list(np.float32(vector)) for vector in found["vector"]
    ]
    assert [batch.num_rows <= 3 for batch in table.arrow_batches(3)].count(False) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_strings_are_those_of_the_vocabulary(kind, tmp_path):
    words = [f"word {i}" for i in range(20)]
    keys = sok_embed.fingerprint(words)
    rows = np.arange(20 * DIM, dtype=np.float32).reshape(20, DIM)
    table = kind(keys, rows, tmp_path)
    with Vocabulary(tmp_path / "words.db") as vocabulary:
        vocabulary.add(words[1:])
        frame = table.to_pandas(vocabulary)
        arrow = table.to_arrow(vocabulary).to_pandas().set_index("string")
    for i, word in enumerate(words[1:], 1):
        np.testing.assert_array_equal(frame.loc[word], rows[i])
        np.testing.assert_array_equal(arrow.loc[word, "vector"], rows[i])
    assert set(frame.index) - set(words) in ({str(keys[0])}, {str(keys[0].astype(np.uint64))})
    assert arrow.index.isna().sum() == 1


def expected(keys, rows, queries, own, metric):
    """Returns the scores of all rows in float64, and -inf for a row itself."""
    rows, queries = rows.astype(np.float64), queries.astype(np.float64)
    if metric == "cosine":
        rows, queries = (
            each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-300)
            for each in (rows, queries)
        )
    scores = queries @ rows.T
    if own is not None:
        scores[keys[None] == own[:, None]] = -np.inf
    return scores


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_key", [True, False])
def test_the_nearest_rows_are_those_of_a_search_in_float64(kind, metric, by_key, tmp_path):
    table, keys, rows = made(kind, tmp_path)
    random = np.random.default_rng(5)
    places = random.integers(0, 40, 8)
    queries = rows[places] if by_key else random.normal(size=(8, DIM)).astype(np.float32)
    own = keys[places] if by_key else None
    scores = expected(keys, rows, queries, own, metric)
    given = {"keys": own} if by_key else {"vectors": queries}
    found = table.nearest(**given, k=6, metric=metric)
    assert found.keys.shape == found.scores.shape == (8, 6)
    place_of = {key: i for i, key in enumerate(keys.tolist())}
    for i in range(8):
        got = [place_of[key] for key in found.keys[i].astype(np.int64).tolist()]
        assert len(set(got)) == 6
        # float32 products of rows of 5 numbers of about 1 are wrong by less than 1e-5.
        np.testing.assert_allclose(found.scores[i], scores[i, got], rtol=0, atol=1e-5)
        np.testing.assert_allclose(found.scores[i], np.sort(scores[i])[::-1][:6], rtol=0, atol=1e-5)
        ties = found.scores[i][1:] == found.scores[i][:-1]
        assert (found.keys[i][1:][ties] > found.keys[i][:-1][ties]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_few_rows_has_fewer_than_k(kind, tmp_path):
    table, keys, _ = made(kind, tmp_path, 4)
    assert table.nearest(keys[:2], k=10).keys.shape == (2, 3)
    assert table.nearest(vectors=np.ones([3, DIM]), k=10).keys.shape == (3, 4)
    empty, *_ = made(kind, tmp_path / "none", 0) if kind is in_memory else (None,)
    if empty is not None:
        assert empty.nearest(vectors=np.ones([3, DIM])).keys.shape == (3, 0)


def test_rows_that_are_not_finite_are_never_near_and_great_ones_are(tmp_path):
    rows = np.zeros([4, DIM], np.float32)
    rows[0, 0], rows[1, 0], rows[2, 0], rows[3, 0] = 3e38, 1e-40, np.nan, np.inf
    table = in_memory(np.arange(4), rows, tmp_path)
    found = table.nearest(vectors=[[1, 0, 0, 0, 0]])
    assert found.keys.tolist() == [[0, 1]]
    np.testing.assert_allclose(found.scores, 1, rtol=1e-6)


def test_wrong_searches_raise(tmp_path):
    table, keys, _ = made(in_memory, tmp_path)
    with pytest.raises(ValueError, match="1 of 2 without one, such as 5"):
        table.nearest([keys[0], 5])
    with pytest.raises(ValueError, match="cosine, dot"):
        table.nearest(keys, metric="l2")
    for vectors in ([[1.0, 2.0]], np.zeros([0, DIM]), np.zeros(DIM)):
        with pytest.raises(ValueError, match=r"\[n, 5\]"):
            table.nearest(vectors=vectors)
    with pytest.raises(ValueError, match="finite"):
        table.nearest(vectors=np.full([1, DIM], np.nan))
    for given in ({}, {"keys": keys, "vectors": np.zeros([1, DIM])}):
        with pytest.raises(ValueError, match="keys or vectors"):
            table.nearest(**given)
    with pytest.raises(ValueError, match="k "):
        table.nearest(keys, k=0)


def test_a_layer_that_has_trained_tells_what_is_near():
    layer = sok_embed.DynamicEmbedding(DIM)
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Flatten()])
    model.compile("adam", "mse")
    model.fit(np.arange(50)[:, None], np.eye(50, DIM), verbose=0)
    frame = layer.table.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and sorted(frame.index) == list(range(50))
    assert layer.table.nearest([3], k=4).keys.shape == (1, 4)
