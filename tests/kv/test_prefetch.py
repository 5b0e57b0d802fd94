"""Rows are read ahead of the calls that need them, which return what they would without it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from kv_rows import keys, sgd
from seeds import seed_of_test
from tiers import few_or_many

from sok_embed import kv
from sok_embed.eviction import LeastRecentlyUsed

DIMENSION, KEYS = 256, 4_000  # with Adam's slots four times what the least cache holds
SEARCHED = ("cache_hits", "read_ahead", "left_behind", "index_bytes", "row_bytes")


def test_rows_that_were_read_ahead_are_found_in_the_cache(tmp_path):
    chosen = np.arange(1000, dtype=np.uint64)
    with kv.Storage(tmp_path / "rows") as storage:
        sgd(storage).lookup(chosen)
    with kv.Storage(tmp_path / "rows") as storage:
        embedding = sgd(storage)
        embedding.prefetch(np.arange(-500, 500).reshape(2, 500))
        stats = embedding.stats()
        assert (stats["read_ahead"], stats["made"], stats["rows"]) == (500, 0, 1000)
        assert (stats["looked_up"], stats["cache_hits"], stats["left_behind"]) == (0, 0, 0)
        embedding.lookup(chosen)
        assert embedding.stats()["cache_hits"] == 500


def test_keys_without_room_in_the_cache_are_left_behind_and_counted(tmp_path):
    chosen = np.arange(20 * KEYS, dtype=np.uint64)
    with kv.Storage(tmp_path / "rows", cache_bytes=1 << 20) as storage:
        sgd(storage, DIMENSION).lookup(chosen)
    with kv.Storage(tmp_path / "rows", cache_bytes=1 << 20) as storage:
        embedding = sgd(storage, DIMENSION)
        embedding.prefetch(chosen)
        stats = embedding.stats()
        assert stats["read_ahead"] + stats["left_behind"] == len(chosen)
        assert 0 < stats["read_ahead"] * DIMENSION * 4 <= (1 << 20) / 4
        assert (embedding.lookup(chosen, train=False) == 0).all()


def test_a_storage_that_is_read_only_is_read_ahead_too(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        sgd(storage).assign(keys(1, 2), np.ones((2, 2), np.float32))
    with kv.Storage(tmp_path / "rows", read_only=True) as storage:
        embedding = sgd(storage)
        embedding.prefetch(keys(1, 2, 3))
        assert embedding.stats()["read_ahead"] == 2
        assert (embedding.lookup(keys(1, 2)) == 1).all()


def test_other_keys_and_a_closed_storage_are_refused(tmp_path):
    storage = kv.Storage(tmp_path / "rows")
    embedding = sgd(storage)
    with pytest.raises(TypeError, match="keys"):
        embedding.prefetch(np.array([1.5]))
    storage.close()
    with pytest.raises(RuntimeError, match="closed"):
        embedding.prefetch(keys(1))


class Program:
    """A random program of a group of a storage, which may read rows ahead.

    Args:
        folder: The folder of the storage.
        seed: The seed of the program. The same one has the same calls with and without.
        ahead: The number of batches that are read ahead; 0: none is.
    """

    def __init__(self, folder, seed, ahead):
        random = np.random.default_rng(seed)
        self.now = 1_000
        self.seen = []  # all that calls return
        self._random, self._ahead, self._folder = random, ahead, folder
        self._ttl = int(random.choice([0, 0, 20]))
        self._durability = str(random.choice(["checkpoint", "checkpoint", "update"]))
        self._optimizer = str(random.choice(["sgd", "adam"]))
        self._admission = random.choice([None, None, kv.FrequencyAdmission(2)])
        self._more = {}
        if random.random() < 0.3:
            self._more = {"max_rows": KEYS // 2, "eviction": LeastRecentlyUsed()}
        self._batches = [self._drawn() for _ in range(10)]
        self._open()

    def run(self):
        """Runs the program. Returns all that calls have returned, and the rows at the end."""
        with ThreadPoolExecutor(2) as threads:
            for step, batch in enumerate(self._batches):
                # A batch is read beside the calls of steps before, and perhaps its own.
                coming = self._batches[step : step + self._ahead]
                reads = [threads.submit(self.embedding.prefetch, each) for each in coming]
                self._step(batch)
                for read in reads:
                    read.result()
                self._between()
        chosen = np.arange(KEYS, dtype=np.uint64)
        self.seen += [*self.embedding.metadata(chosen), len(self.embedding)]
        self.seen.append(self.embedding.lookup(chosen, train=False))
        stats = self.embedding.stats()
        self.seen += [value for name, value in stats.items() if name not in SEARCHED]
        self.storage.close()
        return self.seen, stats["read_ahead"]

    def _drawn(self):
        size = int(self._random.integers(1, 800))
        uniform = self._random.integers(0, KEYS, size)
        skewed = (KEYS * self._random.random(size) ** 4).astype(np.int64)
        return np.where(self._random.random() < 0.5, uniform, skewed).astype(np.uint64)

    def _open(self):
        self.storage = kv.Storage(
            self._folder,
            ttl=self._ttl,
            cache_bytes=1 << 20,
            durability=self._durability,
            clock=lambda: self.now,
        )
        self.embedding = kv.Embedding(
            self.storage,
            kv.Optimizer(self._optimizer),
            kv.Initializer("uniform", seed=4),
            DIMENSION,
            admission=self._admission,
            **self._more,
        )

    def _step(self, batch):
        train = bool(self._random.random() < 0.8)
        self.seen += self.embedding.lookup(batch, train=train, return_exists=True)
        if train:
            gradients = self._random.normal(size=(len(batch), DIMENSION)).astype(np.float32)
            self.embedding.apply_gradients(batch, gradients)
        if self._random.random() < 0.2:
            gone = batch[: len(batch) // 3]
            self.seen.append(self.embedding.remove(gone))
        if self._random.random() < 0.3:
            self.storage.flush(wait=bool(self._random.random() < 0.5))

    def _between(self):
        # Evictions and expiry depend on the time of the calls.
        self.now += int(self._random.integers(0, 4))
        if self._random.random() < 0.1:
            self.storage.close()
            self._open()


@pytest.mark.parametrize("programs", few_or_many(10, 500))
def test_programs_return_what_they_do_without_reading_ahead(tmp_path, programs):
    seed, read = seed_of_test(), 0
    for number in range(programs):
        expected, none = Program(tmp_path / f"{number}", (seed, number), 0).run()
        found, rows = Program(tmp_path / f"{number}-ahead", (seed, number), 1 + number % 8).run()
        assert none == 0
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"program {number} of seed {seed}")
        read += rows
    assert read > programs
