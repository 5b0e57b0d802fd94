"""Keys of strings are the same in models, datasets, NumPy and pandas, and those of FarmHash."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from pathlib import Path

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok

ROOT = Path(__file__).resolve().parents[2]
RANDOM = np.random.default_rng(7)
STRINGS = [
    "",
    "a",
    "68fd1e64",
    "68FD1E64",
    "0x1f",
    "naïve",
    "ключ",
    "日本",
    "a\0b",
    " ",
    *("".join(map(chr, RANDOM.integers(32, 0x2FFF, size))) for size in range(1, 140)),
]
BYTES = [bytes(RANDOM.integers(0, 256, size, np.uint8)) for size in range(140)]
# Of Fingerprint64 by Google's own library, which later versions keep.
KNOWN = {"": 0x9AE16A3B2F90404F, "a": 0xB3454265B6DF75E3, "abc": 0x24A5B3A074E7F369}


def as_uint64(keys):
    return np.asarray(keys).view(np.uint64)


def test_keys_are_the_known_ones():
    found = as_uint64(sok.fingerprint(list(KNOWN)))
    np.testing.assert_array_equal(found, np.array(list(KNOWN.values()), np.uint64))


@pytest.mark.parametrize("buckets", [7, 10**6 + 3, 2**62, 2**63 - 1])
def test_keys_modulo_buckets_are_those_of_tensorflow(buckets):
    for values in (STRINGS, BYTES):
        expected = tf.strings.to_hash_bucket_fast(tf.constant(values), buckets).numpy()
        found = as_uint64(sok.fingerprint(values)) % np.uint64(buckets)
        np.testing.assert_array_equal(found, expected.view(np.uint64))


def test_keys_have_all_64_bits():
    keys = as_uint64(sok.fingerprint([str(number) for number in range(1000)]))
    bits = (keys[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.all(np.abs(bits.mean(0) - 0.5) < 0.1)  # 6 standard deviations
    assert len(set(keys.tolist())) == 1000


def in_a_dataset(values):
    dataset = tf.data.Dataset.from_tensor_slices(values).batch(7).map(sok.fingerprint)
    return np.concatenate([keys.numpy() for keys in dataset])


def in_a_model(values):
    inputs = keras.Input((), dtype="string")
    model = keras.Model(inputs, sok.fingerprint(inputs))
    return model(tf.constant(values)).numpy()


WAYS = {
    "tensor": lambda values: sok.fingerprint(tf.constant(values)).numpy(),
    "dataset": in_a_dataset,
    "model": in_a_model,
    "objects": lambda values: sok.fingerprint(np.array(values, object)),
    "utf8": lambda values: sok.fingerprint([value.encode() for value in values]),
    "matrix": lambda values: sok.fingerprint(np.array([values], object))[0],
    "ragged": lambda values: sok.fingerprint(tf.ragged.constant([values])).flat_values.numpy(),
    "sparse": lambda values: sok.fingerprint(tf.sparse.from_dense([values])).values.numpy(),
    "function": lambda values: tf.function(sok.fingerprint)(tf.constant(values)).numpy(),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_every_way_gives_the_same_keys(way):
    values = STRINGS[1:]  # a sparse tensor has no place for ""
    np.testing.assert_array_equal(WAYS[way](values), sok.fingerprint(values))


def test_arrays_of_text_and_of_bytes_give_the_same_keys():
    values = [value for value in STRINGS if not value.endswith("\0")]
    expected = sok.fingerprint(values)
    np.testing.assert_array_equal(sok.fingerprint(np.array(values)), expected)
    encoded = [value.encode() for value in values]
    np.testing.assert_array_equal(sok.fingerprint(np.array(encoded)), expected)
    assert sok.fingerprint("a") == expected[values.index("a")]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64"])
def test_integers_have_the_keys_of_their_digits(dtype):
    info = np.iinfo(dtype)
    values = np.array([info.min, 0, 7, info.max], dtype)
    expected = sok.fingerprint([str(value) for value in values])
    np.testing.assert_array_equal(sok.fingerprint(values), expected)
    np.testing.assert_array_equal(sok.fingerprint(tf.constant(values)), expected)
    np.testing.assert_array_equal(sok.fingerprint(values.astype(object)), expected)


def test_what_is_missing_is_the_empty_string(monkeypatch):
    class Missing:
        """As `pandas.NA`, which is not equal to itself, nor different."""

        def __eq__(self, other):
            return self

        def __bool__(self):
            raise TypeError("boolean value of NA is ambiguous")

    pandas = types.SimpleNamespace(NA=Missing(), NaT=Missing())
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    values = [None, np.nan, float("nan"), np.float32("nan"), pandas.NA, pandas.NaT, ""]
    assert set(sok.fingerprint(np.array(values, object))) == {int(sok.fingerprint(""))}
    assert sok.fingerprint(np.array([None, 0], object)).tolist() == [
        int(sok.fingerprint("")),
        int(sok.fingerprint("0")),
    ]


@pytest.mark.parametrize("infer_string", [False, True])
def test_columns_of_pandas_have_the_same_keys(infer_string):
    pandas = pytest.importorskip("pandas")
    with pandas.option_context("future.infer_string", infer_string):  # what pandas 3 does
        compare_columns(pandas)


def compare_columns(pandas):
    missing, one = sok.fingerprint(["", "1"])
    frame = pandas.DataFrame({"id": pandas.array([1, None], "Int64"), "name": ["1", None]})
    np.testing.assert_array_equal(sok.fingerprint(frame), [[one, one], [missing, missing]])
    for column in (frame["id"], frame["name"], frame["name"].astype("category")):
        np.testing.assert_array_equal(sok.fingerprint(column), [one, missing])
    with pytest.raises(ValueError, match="dtype='Int64'"):
        sok.fingerprint(pandas.Series([1, None]))


@pytest.mark.parametrize(
    "wrong", [1.0, [1.5], np.array([1.0]), tf.constant([1.0]), True, [False], tf.constant([True]),
              np.array([True]), [object()], ["a", 2.0]],
    # Not repr, which has the address of an object: each process would name the test in another way.
    ids=lambda wrong: type(wrong[0] if isinstance(wrong, list) else wrong).__name__,
)  # fmt: skip
def test_what_is_neither_text_nor_integer_is_refused(wrong):
    with pytest.raises(ValueError, match="Expected strings or integers. Received: "):
        sok.fingerprint(wrong)


@pytest.mark.parametrize("form", ["dense", "ragged"])
def test_a_model_of_strings_is_trained_and_saved(form, tmp_path):
    inputs = keras.Input((None,), dtype="string", ragged=form == "ragged", name="words")
    layer = sok.DynamicEmbedding(2, combiner="sum", seed=1)
    model = keras.Model(inputs, layer(sok.fingerprint(inputs)))
    model.compile("sgd", "mse")
    words = tf.ragged.constant([["a", "b"], ["b"]])
    words = words if form == "ragged" else words.to_tensor("a")
    model.fit(tf.data.Dataset.from_tensors((words, np.ones((2, 2)))), verbose=0)
    assert set(layer.table.export()[0]) == set(sok.fingerprint(["a", "b"]))
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again(words), model(words))


def test_pages_have_no_other_recipe():
    """Hashes modulo something are named where they are explained, and nowhere recommended."""
    explained = {
        "docs/guide/keys.md",
        "docs/guide/feature-columns.md",
        "docs/reference/feature-column.md",
    }
    recipe = re.compile(r"to_hash_bucket_(?:fast|strong)|layers\.Hashing\(")
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    found = [page.relative_to(ROOT).as_posix() for page in pages if recipe.search(page.read_text())]
    assert set(found) <= explained
    sources = [*ROOT.glob("sok_embed/**/*.py"), *ROOT.glob("examples/**/*.py")]
    told = [path.name for path in sources if "layers.Hashing(" in path.read_text()]
    assert told == []


def test_another_process_has_the_same_keys():
    code = "import sok_embed; print(*sok_embed.fingerprint(['a', 'ключ', None]))"
    done = subprocess.run(forked.program(code), capture_output=True, text=True, check=True)
    expected = " ".join(map(str, sok.fingerprint(["a", "ключ", None])))
    assert done.stdout.split("\n")[0] == expected
