"""Workers that are threads of one process, for tests of what they send each other."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from limits import HANG_S

from sok_embed import communicators


class Thread(communicators.LocalCommunicator):
    """A worker that is a thread of this process; messages are arrays in a list."""

    def __init__(self, rank, meeting, post):
        self._rank, self._meeting, self._post = rank, meeting, post
        self.names = []

    rank = property(lambda self: self._rank)
    size = property(lambda self: self._meeting.parties)

    def all_to_all(self, tensor, splits, name):
        self.names.append(name)
        parts = np.split(tensor.numpy(), np.cumsum(splits.numpy())[:-1])
        self._post[self._rank] = parts
        self._meeting.wait()
        received = [sent[self._rank] for sent in self._post]
        self._meeting.wait()
        counts = [len(part) for part in received]
        return tf.constant(np.concatenate(received)), tf.constant(counts, tf.int32)


@pytest.fixture
def on_workers(monkeypatch):
    """Runs `work(rank)` on so many workers at once; returns what each returned, and its names."""

    def run(workers, work):
        meeting, post = threading.Barrier(workers, timeout=HANG_S), [None] * workers
        mine = threading.local()
        monkeypatch.setattr(communicators, "current", lambda: mine.communicator)

        def one(rank):
            mine.communicator = Thread(rank, meeting, post)
            return work(rank), mine.communicator.names

        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(one, range(workers)))

    return run
