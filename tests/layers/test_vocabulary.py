"""Strings that a vocabulary learns, against a dictionary under random operations."""

import sqlite3
import subprocess
import sys

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

import sok_embed
from sok_embed.data import Vocabulary, vocabulary


@pytest.fixture
def path(tmp_path):
    return tmp_path / "words.db"


def forms(words):
    """Returns the same strings as each of the forms that data comes in."""
    return [
        words,
        np.array(words, object),
        np.array(words),
        pandas.Series(words),
        [word.encode() for word in words],
        tf.constant(words),
        tf.RaggedTensor.from_row_lengths(words, [len(words), 0]),
        tf.sparse.from_dense(tf.constant([words])),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_it_knows_the_strings_of_all_keys_that_it_has_seen(path, seed, monkeypatch):
    monkeypatch.setattr(vocabulary, "_MOST_WAITING", 20)
    random = np.random.default_rng(seed)
    seen: dict[int, str] = {}
    words = Vocabulary(path)
    for _ in range(60):
        if random.random() < 0.1:
            words.close()
            words = Vocabulary(path)
        given = [f"{random.integers(300)} é" for _ in range(random.integers(1, 30))]
        words.add(forms(given)[random.integers(8)])
        seen |= zip(sok_embed.fingerprint(given).tolist(), given, strict=True)
        assert len(words) == len(seen)
        every = sok_embed.fingerprint([f"{i} é" for i in range(300)]).reshape(30, 10)
        asked = every.astype(np.uint64) if random.random() < 0.5 else every
        expected = np.vectorize(seen.get, otypes=[object])(every)
        np.testing.assert_array_equal(words.strings(asked), expected)
    assert (words.collisions, words.left_out) == (0, 0)
    words.close()


@pytest.mark.parametrize("seed", range(5))
def test_strings_of_one_fingerprint_are_counted_and_the_first_stays(path, seed, monkeypatch):
    def short(values):  # a fingerprint of 4 bits, so that many strings have the same
        return tf.strings.to_hash_bucket_fast(values, 16)

    monkeypatch.setattr(vocabulary, "fingerprint", short)
    random = np.random.default_rng(seed)
    seen, collided = {}, set()
    words = Vocabulary(path)
    for _ in range(20):
        if random.random() < 0.3:
            words.close()
            words = Vocabulary(path)
        given = [str(random.integers(40)) for _ in range(random.integers(1, 8))]
        words.add(given)
        for key in np.unique(short(tf.constant(given)).numpy()):
            same = {each for each in given if short(tf.constant([each])).numpy()[0] == key}
            if int(key) not in seen:
                seen[int(key)] = words.strings([key])[0]
                assert seen[int(key)] in same
            collided |= same - {seen[int(key)]}
        assert words.collisions == len(collided)
    assert dict(zip(seen, words.strings(list(seen)), strict=True)) == seen
    assert collided
    words.close()


@pytest.mark.parametrize("as_tuple", [True, False])
def test_a_dataset_is_learned_as_it_is_read_and_stays_the_same(path, as_tuple):
    texts = tf.ragged.constant([["a", "b"], [], ["c"], ["b", "d"]])
    features = {"user": tf.constant(["u1", "u2", "u1", "u3"]), "words": texts, "n": tf.range(4)}
    parts = (features, tf.ones([4]), tf.constant(list("wxyz"))) if as_tuple else features
    dataset = tf.data.Dataset.from_tensor_slices(parts).batch(3)
    with Vocabulary(path) as words:
        watched = words.watch(dataset)
        assert watched.element_spec == dataset.element_spec
        assert watched.cardinality() == 2 and len(words) == 0
        for one, other in zip(dataset, watched, strict=True):
            for a, b in zip(*(tf.nest.flatten(x, True) for x in (one, other)), strict=True):
                np.testing.assert_array_equal(a, b)
        every = [*"abcd", "u1", "u2", "u3", *("wxyz" if as_tuple else "")]
        assert words.strings(sok_embed.fingerprint(every)).tolist() == every
        assert len(words) == len(every)
    with Vocabulary(f"{path}2") as words:
        list(words.watch(dataset, names=["user"]))
        assert words.strings(sok_embed.fingerprint(["u3", "a"])).tolist() == ["u3", None]
        with pytest.raises(ValueError, match=r"names user, item\. Received: .*'n', 'user'"):
            words.watch(dataset, names=["user", "item"])
        with pytest.raises(ValueError, match="dataset with strings"):
            words.watch(tf.data.Dataset.range(3))


def test_a_model_learns_the_strings_that_it_trains(path):
    inputs = keras.Input((), dtype="string")
    layer = sok_embed.DynamicEmbedding(2)
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices(([f"u{i % 9}" for i in range(40)], [1.0] * 40))
    with Vocabulary(path) as words:
        model.fit(words.watch(data.batch(4)), epochs=2, verbose=0)
        assert sorted(layer.table.to_pandas(words).index) == [f"u{i}" for i in range(9)]


def test_a_full_one_learns_no_more(path):
    with Vocabulary(path, max_strings=5) as words:
        words.add(list("abc"))
        words.add(list("abcdefg"))
        assert (len(words), words.left_out) == (5, 2)
        known = words.strings(sok_embed.fingerprint(list("abcdefg")))
        assert known[:3].tolist() == list("abc") and sum(known != None) == 5  # noqa: E711


def test_bytes_that_are_no_text_are_shown_as_bytes(path):
    with Vocabulary(path) as words:
        words.add([b"\xff\x00a"])
        assert words.strings(sok_embed.fingerprint([b"\xff\x00a"])).tolist() == ["\\xff\x00a"]


def test_several_processes_learn_into_one_file_and_a_kill_loses_what_waits(path):
    code = (
        "import sys, os, signal; from sok_embed.data import Vocabulary\n"
        "words = Vocabulary(sys.argv[1]); n = int(sys.argv[2])\n"
        "for i in range(40):\n"
        "    words.add([str(n * 15 * i + j) for j in range(15)])\n"
        "    if i % 4 == 0: words.flush()\n"
        "words.flush(); words.add(['lost']); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    runs = [subprocess.Popen([sys.executable, "-c", code, str(path), str(n)]) for n in (1, 2)]
    assert [run.wait() for run in runs] == [-9, -9]
    expected = {str(n * 15 * i + j) for n in (1, 2) for i in range(40) for j in range(15)}
    with Vocabulary(path) as words:
        assert len(words) == len(expected)
        asked = sorted(expected)
        assert words.strings(sok_embed.fingerprint(asked)).tolist() == asked
        assert words.strings(sok_embed.fingerprint(["lost"])).tolist() == [None]


def test_what_cannot_be_is_an_error(path):
    path.write_text("not a database, and long enough to be looked at" * 9)
    with pytest.raises(ValueError, match="Expected a file of a Vocabulary at"):
        Vocabulary(path)
    with pytest.raises(ValueError, match="max_strings"):
        Vocabulary(path, max_strings=0)
    words = Vocabulary(f"{path}2")
    with pytest.raises(ValueError, match="strings or integers"):
        words.add([1.5])
    with pytest.raises(TypeError, match="fingerprint"):
        words.strings(["a"])
    assert words and len(words) == 0 and "0 strings" in repr(words)
    with pytest.raises(FileNotFoundError, match="folder for the file"):
        Vocabulary(path.parent / "nowhere" / "words.db")
    with pytest.raises(TypeError, match="names"):
        words.watch(tf.data.Dataset.from_tensors({"user": "a"}), names="user")
    watched = words.watch(tf.data.Dataset.from_tensors({"user": "a"}))
    words.close()
    for use in (lambda: words.strings([1]), lambda: words.add(["a"])):
        with pytest.raises(sqlite3.Error, match="closed"):
            use()
    with pytest.raises(tf.errors.OpError, match="closed"):
        list(watched)
    with sqlite3.connect(path.with_name("other.db")) as other:
        other.execute("CREATE TABLE clicks (user TEXT)")
    other.close()
    with pytest.raises(ValueError, match="a database with clicks"):
        Vocabulary(path.with_name("other.db"))


def test_keys_may_be_a_tensor(path):
    with Vocabulary(path) as words:
        words.add(["a", "b"])
        assert words.strings(sok_embed.fingerprint(tf.constant(["b"]))).tolist() == ["b"]
