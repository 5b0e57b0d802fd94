"""Files of rows: written, read by this package and by the safetensors package, looked up."""

import json
import re
import threading

import numpy as np
import pytest
from rows_reference import RANGES, metadata_of, quantised, read, unpacked
from safetensors.numpy import load_file, save_file
from seeds import seed_of_test

from sok_embed import kv
from sok_embed.initializers import RowInitializer
from sok_embed.serving import rows
from sok_embed.tables.table import Table

DTYPES = ("float32", "float16", "int8", "int4")
EXTREME = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1, 42], np.uint64)


def random_rows(n, dim, seed=None):
    rng = np.random.default_rng(seed_of_test() if seed is None else seed)
    drawn = rng.integers(0, 2**64 - 1, n, np.uint64, endpoint=True)
    keys = np.setdiff1d(drawn, EXTREME)[: max(n - len(EXTREME), 0)]
    keys = rng.permutation(np.concatenate([EXTREME, keys])[:n])
    return keys, rng.normal(0.1, 0.5, (len(keys), dim)).astype(np.float32)


def bound(vectors, dtype):
    """Returns by how much the values of each row may be off."""
    size = np.abs(vectors).max(axis=1, initial=0)
    if dtype == "float32":
        return 0 * size
    if dtype == "float16":
        return size * 2.0**-11
    least, most = RANGES[dtype]
    step = (vectors.max(axis=1) - vectors.min(axis=1)) / (most - least)
    return (step / 2 + size * 2.0**-11 / most) * (1 + 2.0**-9) + size * 2.0**-22 + 2.0**-24


@pytest.mark.cover("pairs")
@pytest.mark.parametrize("n", [0, 1, 6, 3000])
@pytest.mark.parametrize("dim", [1, 3, 16, 64, 129])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_file_has_the_rows_that_were_written(tmp_path, n, dim, dtype):
    keys, vectors = random_rows(n, dim)
    path = tmp_path / "items.safetensors"
    batches = [(keys[:7], vectors[:7]), (keys[7:7], vectors[7:7]), (keys[7:], vectors[7:])]
    written = rows.write(path, iter(batches), dim=dim, dtype=dtype, name="items")
    assert written == rows.RowsInfo(str(path), "items", n, dim, dtype, path.stat().st_size)

    with rows.open(path) as file:
        file.verify()
        assert (len(file), file.dim, file.dtype, file.name) == (n, dim, dtype, "items")
        assert file.file_bytes == path.stat().st_size
        found = file.lookup(keys)
        assert found.dtype == np.float32 and found.shape == (n, dim)
        assert (np.abs(found - vectors) <= bound(vectors, dtype)[:, None]).all()
        assert file.contains(keys).all()
        absent = np.array([[3, 4], [5, 6]], np.int64)
        np.testing.assert_array_equal(file.lookup(absent), np.zeros((2, 2, dim), np.float32))
        assert not file.contains(absent).any() and file.contains(absent).shape == (2, 2)
        in_file, all_rows = read(path)
        np.testing.assert_array_equal(file.keys(), in_file)
        np.testing.assert_array_equal(file.lookup(in_file), all_rows)
        for size in (1000, 10_000):
            parts = list(file.batches(size))
            assert all(len(part[0]) <= size for part in parts)
            if n:
                np.testing.assert_array_equal(np.concatenate([p[0] for p in parts]), in_file)
                np.testing.assert_array_equal(np.concatenate([p[1] for p in parts]), all_rows)


@pytest.mark.parametrize("dim", [1, 5, 16])
@pytest.mark.parametrize("dtype", RANGES)
def test_integers_are_those_of_float64(tmp_path, dtype, dim):
    rng = np.random.default_rng(seed_of_test())
    rows_of_kinds = [
        rng.normal(0, 0.1, (500, dim)),
        rng.normal(100, 1e-4, (100, dim)),  # the bias is off by more than the range
        np.full((3, dim), [[0.0], [0.25], [-1 / 3]]),
        rng.normal(0, 1e-7, (50, dim)),  # below the least float16
        rng.uniform(-60_000, 60_000, (50, dim)),
    ]
    vectors = np.concatenate(rows_of_kinds).astype(np.float32)
    keys = np.arange(len(vectors))
    rows.write(tmp_path / "rows", [(keys, vectors)], dim=dim, dtype=dtype)
    tensors = load_file(tmp_path / "rows")
    order = tensors["keys"].astype(np.int64)
    scale, bias, numbers = quantised(vectors[order], dtype)
    np.testing.assert_array_equal(tensors["scale_bias"], np.stack([scale, bias], axis=1))
    stored = tensors["rows"] if dtype == "int8" else unpacked(tensors["rows"], dim)
    np.testing.assert_array_equal(stored, numbers)
    with rows.open(tmp_path / "rows") as file:
        off = np.abs(file.lookup(order) - vectors[order].astype(np.float64))
    halves = scale.astype(np.float64)[:, None] / 2
    assert (off <= halves * (1 + 1e-6) + np.abs(vectors[order]) * 2.0**-22).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_a_row_stay_below_the_budget(tmp_path, dtype):
    budget = {"float32": 73, "float16": 41, "int8": 29, "int4": 21}
    rng = np.random.default_rng(0)
    for n in (100_000, 180_000):  # about the fewest and the most keys a bucket
        vectors = rng.normal(size=(n, 16)).astype(np.float32)
        info = rows.write(tmp_path / "rows", [(np.arange(n), vectors)], dim=16, dtype=dtype)
        assert info.file_bytes <= budget[dtype] * n


def test_keys_are_the_same_bits_signed_and_unsigned(tmp_path):
    signed = np.array([-1, -(2**63), 2**63 - 1, 0])
    vectors = np.arange(4, dtype=np.float32)[:, None]
    rows.write(tmp_path / "rows", [(signed, vectors)], dim=1)
    with rows.open(tmp_path / "rows") as file:
        np.testing.assert_array_equal(file.lookup(signed.view(np.uint64)), vectors)
        np.testing.assert_array_equal(file.lookup(signed), vectors)
        assert file.lookup(np.uint64(2**64 - 1)).tolist() == [0.0]
        assert file.lookup([[0], [-1]]).tolist() == [[[3.0]], [[0.0]]]
        with pytest.raises(TypeError, match="uint64 or int64"):
            file.lookup(np.array([1.0]))
        strided = np.arange(8)[::2]
        assert file.lookup(strided).shape == (4, 1)


@pytest.mark.parametrize(
    "start",
    [
        RowInitializer("uniform", -0.05, 0.05, 2**64 - 3),
        RowInitializer("normal", 0.0, 0.1, -7),
        RowInitializer("truncated_normal", 1.0, 0.3, 5),
        RowInitializer("constant", 0.1, 0.0, 0),
    ],
    ids=lambda start: start.kind,
)
def test_missing_keys_get_the_rows_of_the_live_table(tmp_path, start):
    rows.write(tmp_path / "rows", [], dim=5, missing=start)
    table = Table(5, initializer=start, seed=start.seed)
    keys = np.concatenate([EXTREME, np.arange(1000, 1500, dtype=np.uint64)])
    with rows.open(tmp_path / "rows") as file:
        np.testing.assert_array_equal(file.lookup(keys), table.lookup(keys.view(np.int64)))
        missing = json.loads(file.metadata["missing"])
    assert missing["kind"] == start.kind and missing["seed"] == start.seed % 2**64


def test_missing_keys_get_the_rows_of_a_group_of_a_storage(tmp_path):
    keys = np.arange(100, dtype=np.uint64)
    with kv.Storage(tmp_path / "storage") as storage:
        initializer = kv.Initializer("uniform", min=-0.3, max=0.2, seed=11)
        stored = kv.Embedding(storage, kv.Optimizer("sgd"), initializer, 3, group=9)
        expected = stored.lookup(keys, train=False)
    missing = rows.MissingRows("uniform", -0.3, 0.2, seed=11, group=9)
    rows.write(tmp_path / "rows", [], dim=3, missing=missing)
    with rows.open(tmp_path / "rows") as file:
        np.testing.assert_array_equal(file.lookup(keys), expected)


def test_the_metadata_has_extra_strings_and_other_readers_see_it(tmp_path):
    extra = {"model": 'a "quoted" name\n', "größe": "ß"}
    rows.write(tmp_path / "rows", [], dim=2, name="Artikel ä", extra=extra)
    metadata = metadata_of(tmp_path / "rows")
    with rows.open(tmp_path / "rows") as file:
        assert file.metadata == metadata and file.name == "Artikel ä"
    assert extra.items() < metadata.items()
    assert metadata["format"] == "sok-embed rows" and metadata["missing"] == "zeros"
    with pytest.raises(ValueError, match="'dim', which the file uses itself"):
        rows.write(tmp_path / "rows", [], dim=2, extra={"dim": "3"})
    with pytest.raises(TypeError, match="Received: 7 under 'epoch'"):
        rows.write(tmp_path / "rows", [], dim=2, extra={"epoch": 7})


@pytest.mark.parametrize(
    ("batches", "error", "words"),
    [
        ([([7, 7], [[1.0], [2.0]])], ValueError, "key 7 more than once"),
        ([([7], [[1.0]]), ([-1, 7], [[1.0], [2.0]])], ValueError, "key 7 more than once"),
        ([([7], [[np.nan]])], ValueError, "row of key 7"),
        ([([-1], [[np.inf]])], ValueError, r"key 18446744073709551615 \(-1 as int64\)"),
        ([([7], [[1.0, 2.0]])], ValueError, r"rows \[n, 1\]"),
        ([([7, 8], [[1.0]])], ValueError, r"rows \[n, 1\]"),
    ],
)
def test_rows_that_cannot_be_written_are_refused_and_leave_nothing(tmp_path, batches, error, words):
    given = [(np.array(k), np.array(v, np.float32)) for k, v in batches]
    with pytest.raises(error, match=words):
        rows.write(tmp_path / "rows", given, dim=1)
    assert list(tmp_path.iterdir()) == []


def test_arguments_are_checked(tmp_path):
    batch = (np.array([1]), np.zeros((1, 2)))
    with pytest.raises(TypeError, match="float32"):
        rows.write(tmp_path / "rows", [batch], dim=2)
    with pytest.raises(ValueError, match="Pass batches as pairs"):
        rows.write(tmp_path / "rows", (np.array([1, 2]), np.zeros((2, 2))), dim=2)
    with pytest.raises(ValueError, match="dtype to be one of 'float32', 'float16', 'int8', 'int4'"):
        rows.write(tmp_path / "rows", [], dim=2, dtype="bfloat16")
    with pytest.raises(ValueError, match="missing to be 'zeros'"):
        rows.write(tmp_path / "rows", [], dim=2, missing=RowInitializer("uniform", 0, 1, None))
    with pytest.raises(ValueError, match="dim"):
        rows.write(tmp_path / "rows", [], dim=0)
    with pytest.raises(FileNotFoundError):
        rows.write(tmp_path / "absent" / "rows", [], dim=2)
    with pytest.raises(FileNotFoundError):
        rows.open(tmp_path / "rows")


def test_a_generator_that_fails_leaves_the_older_file(tmp_path):
    def failing():
        yield np.array([1]), np.ones((1, 1), np.float32)
        raise KeyError("source")

    path = tmp_path / "rows"
    rows.write(path, [(np.array([5]), np.ones((1, 1), np.float32))], dim=1)
    before = path.read_bytes()
    with pytest.raises(KeyError, match="source"):
        rows.write(path, failing(), dim=1)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_file_that_was_changed_is_refused_or_found(tmp_path):
    path = tmp_path / "rows"
    keys, vectors = random_rows(50, 4)
    rows.write(path, [(keys, vectors)], dim=4, dtype="int8")
    good = path.read_bytes()
    rng = np.random.default_rng(seed_of_test())
    for _ in range(300):
        place, bit = int(rng.integers(len(good))), 1 << int(rng.integers(8))
        changed = bytearray(good)
        changed[place] ^= bit
        path.write_bytes(changed)
        with pytest.raises((kv.CorruptionError, ValueError), match=str(path)):
            with rows.open(path) as file:
                file.lookup(keys)
                file.verify()
    for length in (0, 5, 4095, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(kv.CorruptionError, match=str(path)):
            rows.open(path)
    save_file({"weight": vectors}, path)
    with pytest.raises(kv.CorruptionError, match="is not a file of rows of sok-embed, or"):
        rows.open(path)


def test_errors_show_what_a_header_and_offsets_say(tmp_path):
    path = tmp_path / "rows"
    keys, vectors = random_rows(100, 4)
    rows.write(path, [(keys, vectors)], dim=4)
    good = path.read_bytes()

    def refused(data, words):
        path.write_bytes(data)
        with pytest.raises(kv.CorruptionError, match=words):
            rows.open(path).lookup(keys)

    header = "of dtype U64 and shape [100] at data offsets "
    expected = f"Expected the tensor 'keys' {header}[0, 800], as the __metadata__ of this file"
    lies = {
        b'"data_offsets":[8,808]': f"Received: the tensor 'keys' {header}[8, 808].",
        b'"data_offsets":[0,"9"]': f"Received: the tensor 'keys' {header}[0].",
    }
    for lie, received in lies.items():
        words = re.escape(expected) + ".*" + re.escape(received)
        refused(good.replace(b'"data_offsets":[0,800]', lie), words)
    refused(good.replace(b'"keys":', b'"k3ys":'), "Received: no tensor of that name")
    first = int.from_bytes(good[:8], "little") + 8
    header = json.loads(good[8:first])
    begin = first + header["offsets"]["data_offsets"][0]
    last = header["offsets"]["shape"][0] - 1
    after = int.from_bytes(good[begin + 8 : begin + 12], "little")
    wrong = good[: begin + 12] + b"\xff\xff\xff\xff" + good[begin + 16 :]
    refused(wrong, f"from 0 to 100. Received: 4294967295 as offset 3 of {last}, after {after}")
    refused(good[:begin] + b"\x07" + good[begin + 1 :], f"Received: 7 as offset 0 of {last}.")


def test_a_file_may_be_closed_while_others_look_up(tmp_path):
    keys, vectors = random_rows(20_000, 16)
    rows.write(tmp_path / "rows", [(keys, vectors)], dim=16)
    for _ in range(20):
        file = rows.open(tmp_path / "rows")
        mapped = file.keys()
        wrong, ready = [], threading.Barrier(4)

        def look_up(file=file, wrong=wrong, ready=ready):
            ready.wait()
            try:
                while True:
                    if not np.array_equal(file.lookup(keys), vectors):
                        wrong.append("another row")
                        return
            except RuntimeError as error:
                if "closed" not in str(error):
                    wrong.append(error)

        threads = [threading.Thread(target=look_up) for _ in range(3)]
        for thread in threads:
            thread.start()
        ready.wait()
        file.close()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert set(mapped) == set(keys)
        file.close()
        with pytest.raises(RuntimeError, match="closed"):
            file.verify()
