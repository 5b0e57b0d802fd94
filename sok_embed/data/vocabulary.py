"""Keeps the strings of keys while a model trains."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sok_embed.arguments import check_integer, check_keys, check_path, check_type, keys_of
from sok_embed.fingerprints import fingerprint, flat_strings

# The most values that a statement of SQLite takes in its oldest builds is 999.
_MOST_ASKED = 900
# The most new strings that wait in memory.
_MOST_WAITING = 10_000
# The key of a second hash, which tells strings of one fingerprint apart.
_SECOND = [0x5EED, 0xC0DE]
_TABLES = (
    "strings (key INTEGER PRIMARY KEY, string BLOB NOT NULL)",
    "collisions (string BLOB PRIMARY KEY) WITHOUT ROWID",
)

_Integers = npt.NDArray[np.int64]


class Vocabulary:
    """The strings of keys: a file that learns them while a model trains.

    A table knows the `sok_embed.fingerprint` of a string alone. A vocabulary keeps the first string
    of each fingerprint that it sees, from the batches of a dataset or from arrays, so that rows can
    be shown with their strings: `to_pandas` and `to_arrow` of a table, and plots, take it.

    The file is a database of SQLite. It has what was learned after every 10,000 new strings, and
    after `flush`. Several processes of a host may learn into one file.

    Example:
    >>> import sok_embed
    >>> with Vocabulary("words.db") as words:
    ...     words.add(["cat", "dog", "cat"])
    ...     words.strings(sok_embed.fingerprint(["dog", "cow"]))
    array(['dog', None], dtype=object)

    Args:
        path: The path of the file, which is made if it is not there.
        max_strings: The most strings that it learns. Each takes 16 bytes of memory in each process,
            and its length and about 10 bytes on disk.

    Raises:
        FileNotFoundError: For a path in a folder that is not there.
        ValueError: For another file, and a `max_strings` that is not a positive integer.
    """

    def __init__(
        self, path: str | bytes | os.PathLike[Any], *, max_strings: int = 10_000_000
    ) -> None:
        self._path = check_path(path)
        self._most = check_integer("max_strings", max_strings, 1)
        self._lock = threading.RLock()
        self._waiting: list[tuple[int, bytes]] = []
        self._left_out = 0
        self._closed = False
        try:
            self._file = sqlite3.connect(self._path, timeout=60, check_same_thread=False)
        except sqlite3.OperationalError as error:
            raise FileNotFoundError(
                f"Expected a folder for the file of a Vocabulary, '{self._path}'. Received: "
                f"{error}."
            ) from error
        try:
            self._make_tables()
            learned = self._file.execute("SELECT key, string FROM strings ORDER BY key").fetchall()
        except sqlite3.DatabaseError as error:
            self._file.close()
            raise ValueError(
                f"Expected a file of a Vocabulary at '{self._path}'. Received: {error}."
            ) from error
        keys = np.array([key for key, _ in learned], np.int64)
        hashes = _second_hash(tf.constant([string for _, string in learned], tf.string)).numpy()
        self._known = [_Known(keys, hashes), _Known(keys[:0], hashes[:0])]

    def _make_tables(self) -> None:
        """Makes the tables of a new file; raises for a database that is not a vocabulary."""
        there = {name for (name,) in self._file.execute("SELECT name FROM sqlite_master")}
        if there and "collisions" not in there:
            raise sqlite3.DatabaseError(f"a database with {', '.join(sorted(there))}")
        self._file.execute("PRAGMA journal_mode=WAL")
        for table in _TABLES:
            self._file.execute(f"CREATE TABLE IF NOT EXISTS {table}")

    @property
    def path(self) -> str:
        """Returns the path of the file."""
        return self._path

    @property
    def collisions(self) -> int:
        """Returns how many strings have the fingerprint of another one, and are not kept."""
        with self._lock:
            return int(self._file.execute("SELECT COUNT(*) FROM collisions").fetchone()[0])

    @property
    def left_out(self) -> int:
        """Returns how often this object was given a new string for which it had no room."""
        return self._left_out

    def __len__(self) -> int:
        """Returns the number of strings that this object knows."""
        return sum(len(known.keys) for known in self._known)

    def __bool__(self) -> bool:
        return True  # a vocabulary without strings is true, too

    def add(self, values: Any) -> None:
        """Learns strings.

        Args:
            values: The strings or integers, in the forms that `sok_embed.fingerprint` takes, but no
                symbolic tensors.

        Raises:
            ValueError: As `sok_embed.fingerprint`.
            sqlite3.Error: For a vocabulary that is closed, and a file that cannot be written.
        """
        self._learn(*(each.numpy() for each in _distinct(flat_strings(values))))

    def watch(
        self, dataset: tf.data.Dataset, names: Collection[str] | None = None
    ) -> tf.data.Dataset:
        """Returns a dataset with the same batches, whose strings are learned as they are read.

        Batch before you watch: a call for each example takes longer.

        Args:
            dataset: The dataset. Its elements have any structure.
            names: The names of the features whose strings are learned, of a dataset of
                dictionaries, or of tuples that begin with one; `None`: all strings.

        Raises:
            ValueError: For names of features that are not there, and a dataset without strings.
        """

        def read(*batch: Any) -> Any:
            parts = tf.nest.flatten(_watched(batch, names), expand_composites=True)
            parts = [tf.reshape(part, [-1]) for part in parts if part.dtype == tf.string]
            if not parts:
                raise ValueError(
                    f"Expected a dataset with strings. Received: {dataset.element_spec}."
                )
            learned = tf.numpy_function(self._learn, _distinct(tf.concat(parts, 0)), [])
            with tf.control_dependencies([learned]):
                same = tf.nest.map_structure(tf.identity, batch, expand_composites=True)
            return same if isinstance(dataset.element_spec, tuple) else same[0]

        return dataset.map(read)

    def strings(self, keys: Any) -> npt.NDArray[np.object_]:
        r"""Returns the strings of keys.

        Args:
            keys: int64 or uint64 keys of any shape, an array or a tensor; or a sequence of
                integers.

        Returns:
            Objects of the shape of the keys: `str`, and `None` for a key whose string is not known.
            Bytes that are not UTF-8 are written as `\\\\xff`.

        Raises:
            TypeError: For keys that are not integers.
            sqlite3.Error: For a vocabulary that is closed.
        """
        keys = np.ascontiguousarray(keys.numpy() if tf.is_tensor(keys) else keys_of(keys))
        distinct, places = np.unique(check_keys(keys).view(np.int64), return_inverse=True)
        found: dict[int, str] = {}
        with self._lock:
            self.flush()
            for begin in range(0, len(distinct), _MOST_ASKED):
                asked = distinct[begin : begin + _MOST_ASKED].tolist()
                marks = ",".join("?" * len(asked))
                query = f"SELECT key, string FROM strings WHERE key IN ({marks})"
                for key, string in self._file.execute(query, asked):
                    found[key] = string.decode(errors="backslashreplace")
        texts = np.array([found.get(key) for key in distinct.tolist()], object)
        return texts[places].reshape(keys.shape)

    def flush(self) -> None:
        """Writes all strings that were learned into the file.

        Raises:
            sqlite3.Error: For a vocabulary that is closed, and a file that cannot be written.
        """
        with self._lock:
            self._write("strings VALUES (?, ?)", self._waiting)
            self._waiting = []

    def close(self) -> None:
        """Writes all strings that were learned, and closes the file."""
        with self._lock:
            if self._waiting:
                self.flush()
            self._closed = True
            self._file.close()

    def __enter__(self) -> Vocabulary:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Vocabulary({self._path!r}: {len(self)} strings)"

    def _learn(self, keys: _Integers, hashes: _Integers, strings: npt.NDArray[Any]) -> None:
        """Learns strings by their fingerprints and second hashes, all `[n]`."""
        order = np.lexsort((hashes, keys))
        keys, hashes = keys[order], hashes[order]
        is_first = np.ones(len(keys), np.bool_)  # of those with this key
        is_first[1:] = keys[1:] != keys[:-1]
        is_other = is_first.copy()  # another string than the one before
        is_other[1:] |= hashes[1:] != hashes[:-1]
        keys, hashes, order, is_first = (each[is_other] for each in (keys, hashes, order, is_first))
        with self._lock:
            if self._closed:
                raise sqlite3.ProgrammingError(f"Vocabulary '{self._path}': it is closed.")
            is_new = is_first.copy()
            collides = ~is_first
            for known in self._known:
                there, of_known = known.find(keys)
                is_new &= ~there
                collides = np.where(there, of_known != hashes, collides)
            new = np.flatnonzero(is_new)
            room = max(0, self._most - len(self))
            self._left_out += len(new[room:])
            new = new[:room]
            if len(new):
                self._waiting += zip(keys[new].tolist(), strings[order[new]].tolist(), strict=True)
                self._remember(keys[new], hashes[new])
            if collides.any():
                self._write("collisions VALUES (?)", ((each,) for each in strings[order[collides]]))
            if len(self._waiting) >= _MOST_WAITING:
                self.flush()

    def _remember(self, keys: _Integers, hashes: _Integers) -> None:
        """Notes keys that are new, in the smaller one of two arrays as long as that is small."""
        old, recent = self._known
        recent = recent.merged(keys, hashes)
        if len(recent.keys) > 65_536:
            old, recent = old.merged(recent.keys, recent.hashes), _Known(keys[:0], hashes[:0])
        self._known = [old, recent]

    def _write(self, place: str, rows: Iterable[tuple[Any, ...]]) -> None:
        with self._file:  # a transaction
            self._file.executemany(f"INSERT OR IGNORE INTO {place}", rows)


def _watched(batch: tuple[Any, ...], names: Collection[str] | None) -> Any:
    """Returns the features of these names, or all of a batch."""
    if names is None:
        return batch
    check_type("names", names, list, tuple, set, frozenset)
    features = batch[0] if isinstance(batch[0], dict) else {}
    lacking = sorted(set(names) - set(features))
    if lacking:
        raise ValueError(
            f"Expected features with the names {', '.join(names)}. Received: {sorted(features)}."
        )
    return [features[name] for name in names]


class _Known:
    """Keys, ascending, and a second hash of the string of each."""

    def __init__(self, keys: _Integers, hashes: _Integers) -> None:
        self.keys = keys
        self.hashes = hashes

    def find(self, keys: _Integers) -> tuple[npt.NDArray[np.bool_], _Integers]:
        """Returns which keys are there, and a second hash for each of these."""
        if not len(self.keys):
            return np.zeros(keys.shape, np.bool_), np.zeros_like(keys)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return self.keys[places] == keys, self.hashes[places]

    def merged(self, keys: _Integers, hashes: _Integers) -> _Known:
        """Returns these and further keys, which are ascending and not there."""
        places = np.searchsorted(self.keys, keys)
        return _Known(np.insert(self.keys, places, keys), np.insert(self.hashes, places, hashes))


def _distinct(strings: tf.Tensor) -> list[tf.Tensor]:
    """Returns the fingerprints, the second hashes and the strings of distinct strings `[n]`."""
    keys, hashes = fingerprint(strings), _second_hash(strings)
    # An odd factor keeps all bits; two strings with one of these 64 bits would be taken for one.
    both, groups = tf.unique(keys + hashes * 0x2545F4914F6CDD1D)
    first = tf.math.unsorted_segment_min(tf.range(tf.size(keys)), groups, tf.size(both))
    return [tf.gather(each, first) for each in (keys, hashes, strings)]


def _second_hash(strings: tf.Tensor) -> tf.Tensor:
    """Returns a hash that has nothing to do with the fingerprint, int64 `[n]`."""
    return tf.strings.to_hash_bucket_strong(strings, 2**63 - 1, _SECOND)
