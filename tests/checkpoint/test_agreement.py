"""Workers that write one checkpoint say what their numbers are for."""

import functools
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from limits import HANG_S

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint, CheckpointManager
from sok_embed.checkpoint.files import manifest
from sok_embed.checkpoint.transfer import saves
from sok_embed.communicators import agreement as agreement_module
from sok_embed.communicators.agreement import Agreement, check_same, number_of_text
from sok_embed.initializers import RowInitializer


class FirstOfTwo:
    """Two workers, of which the other one says the same number for all of this one's."""

    rank, size = 0, 2

    def __init__(self, other=0):
        self.names = []
        self._other = other

    def all_gather(self, tensor, name):
        self.names.append(name)
        other = tf.constant([self._other] * len(tensor), tensor.dtype)
        return tf.concat([tensor, other], 0), tf.constant([len(tensor)] * 2)


def test_numbers_for_different_purposes_travel_under_different_names():
    communicator = FirstOfTwo()
    agreement = Agreement(communicator)
    agreement.gather(0, "step")
    agreement.gather(0, "attempt")
    agreement.gather_lists([0, 0], "folder")
    agreement.together("write their parts", lambda: None)
    agreement.together("finish the checkpoint", lambda: None)
    assert len(set(communicator.names)) == 5
    assert not [name for name in communicator.names if " " in name]


@pytest.mark.parametrize("number", [1, 5])
def test_the_worker_that_failed_is_named_whatever_number_it_gave(number):
    with pytest.raises(RuntimeError, match="an error on worker 1"):
        Agreement(FirstOfTwo(number)).together("write", lambda: None)


def test_worker_0_gives_signs_while_the_others_wait_for_it(monkeypatch):
    monkeypatch.setattr(agreement_module, "SECONDS_BETWEEN_SIGNS", 0.01)
    communicator = FirstOfTwo()
    three_signs = threading.Event()
    told = []

    def all_gather(tensor, name):
        told.append((name, int(tensor[0])))
        if sum("sign" in name for name, _ in told) == 3:
            three_signs.set()
        return FirstOfTwo.all_gather(communicator, tensor, name)

    communicator.all_gather = all_gather
    assert Agreement(communicator).first_alone("write", lambda: three_signs.wait(HANG_S))
    signs = [number for name, number in told if "sign" in name]
    assert signs == [1] * (len(signs) - 1) + [0]
    assert told[-1] == ("sok_embed.agreement.write", 0)


def test_a_worker_that_is_lost_while_worker_0_works_is_an_error_of_worker_0(monkeypatch):
    monkeypatch.setattr(agreement_module, "SECONDS_BETWEEN_SIGNS", 0.01)
    communicator = FirstOfTwo()
    lost = threading.Event()

    def all_gather(tensor, name):
        lost.set()
        raise ConnectionError("worker 1 is lost")

    communicator.all_gather = all_gather
    with pytest.raises(ConnectionError, match="lost"):
        Agreement(communicator).first_alone("write", lambda: lost.wait(HANG_S))


def test_the_others_wait_until_worker_0_has_ended():
    communicator = FirstOfTwo()
    communicator.rank = 1
    signs = iter([1, 1, 0, 0])

    def all_gather(tensor, name):
        return tf.constant([next(signs), int(tensor[0])], tensor.dtype), tf.constant([1, 1])

    communicator.all_gather = all_gather
    Agreement(communicator).first_alone("write", lambda: pytest.fail("that is for worker 0"))
    assert next(signs, None) is None


class OfTwo:
    """One of two workers that are threads."""

    size = 2

    def __init__(self, rank, meeting, post):
        self.rank, self._meeting, self._post = rank, meeting, post
        self.names = []

    def all_gather(self, tensor, name):
        self.names.append(name)
        self._post[self.rank] = tensor
        self._meeting.wait()
        found = list(self._post)
        self._meeting.wait()
        return tf.concat(found, 0), tf.constant([len(each) for each in found])


@pytest.mark.parametrize("fails", [False, True])
def test_each_worker_gives_signs_until_the_slowest_has_done_its_work(monkeypatch, fails):
    monkeypatch.setattr(agreement_module, "SECONDS_BETWEEN_SIGNS", 0.01)
    meeting, post = threading.Barrier(2, timeout=HANG_S), [None, None]
    workers = [OfTwo(rank, meeting, post) for rank in range(2)]

    def work(rank):
        if rank == 1:
            return "quick"
        while len(workers[1].names) < 3:
            time.sleep(0.001)
        if fails:
            raise KeyError("the slow one")
        return "slow"

    def one(rank):
        try:
            return Agreement(workers[rank]).together_for_long("copy", lambda: work(rank))
        except Exception as error:
            return type(error)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(one, range(2)))
    assert found == ([KeyError, RuntimeError] if fails else ["slow", "quick"])
    assert workers[0].names == workers[1].names
    *signs, last = workers[0].names
    assert len(signs) >= 3 and {*signs} == {"sok_embed.agreement.sign:_copy"}
    assert last == "sok_embed.agreement.copy"


def test_numbers_of_all_workers_come_with_what_they_did():
    communicator = FirstOfTwo(0)
    result, numbers = Agreement(communicator).gather_together("write", lambda: "abc", lambda _: [7])
    assert (result, numbers) == ("abc", [[7], [0]])
    assert communicator.names == ["sok_embed.agreement.write"]


def test_a_worker_whose_numbers_fail_has_failed():
    with pytest.raises(ZeroDivisionError):
        Agreement(FirstOfTwo()).gather_together("write", lambda: 0, lambda zero: [1 // zero])


def test_texts_that_differ_are_not_shown():
    check_same("model", [number_of_text("a")] * 2, "", texts=True)
    numbers = [number_of_text("a"), number_of_text("a"), number_of_text("b")]
    text = "the same model. Received: one on worker 0 and another on worker 2. Make one."
    with pytest.raises(ValueError, match=re.escape(text)):
        check_same("model", numbers, "Make one.", texts=True)


def saved(folder, incremental=False, on_background=False):
    """Saves twice on a worker, then restores."""
    communicator = sok.communicators.current()
    zeros = RowInitializer("constant", 0.0, 0.0, None)
    rank, size = communicator.rank, communicator.size
    table = sok.Table(2, zeros, owners=size, owner=rank, name="rows")
    table.assign(np.arange(rank, 12, size), np.full([12 // size, 2], rank, np.float32))
    manager = CheckpointManager(Checkpoint(table=table), folder, save_on_background=on_background)
    manager.save(1, incremental)
    table.assign([rank], np.full([1, 2], 7, np.float32))
    manager.save(2, incremental)
    manager.wait()
    before = len(communicator.names)
    assert manager.restore_or_initialize() == str(folder / "step-000000002")
    keys, rows = table.export()
    expected = [[7.0 if key == rank else rank] * 2 for key in keys]
    np.testing.assert_array_equal(rows, expected)
    return [name.removeprefix("sok_embed.agreement.") for name in communicator.names[:before]]


ASKED = ["be_ready_for_a_save", "find_room_for_a_checkpoint"]
ENDED = ["write_their_parts", "finish_the_checkpoint"]


def test_workers_talk_four_times_for_a_save(tmp_path, on_workers):
    for of_all, _ in on_workers(3, lambda rank: saved(tmp_path)):
        assert of_all == (ASKED + ENDED) * 2


def test_workers_talk_four_times_for_a_save_of_changes_alone(tmp_path, on_workers):
    for of_all, _ in on_workers(2, lambda rank: saved(tmp_path, incremental=True)):
        assert of_all == (ASKED + ENDED) * 2
    assert manifest.read(tmp_path / "step-000000002").parent is not None


def test_an_error_at_the_beginning_of_a_save_on_the_background_is_heard_at_once(
    tmp_path, on_workers
):
    for of_all, _ in on_workers(2, lambda rank: saved(tmp_path, on_background=True)):
        assert of_all == [*ASKED, "begin_their_parts", *ENDED] * 2


@pytest.mark.parametrize("place", ["RowsCapture.__init__", "RowsCapture.write"])
def test_an_error_of_one_worker_in_a_save_is_heard_by_all(tmp_path, on_workers, monkeypatch, place):
    whole = functools.reduce(getattr, place.split("."), saves)

    def fails_on_worker_1(self, *arguments, **named):
        if sok.communicators.current().rank == 1:
            raise OSError("No space left")
        return whole(self, *arguments, **named)

    monkeypatch.setattr(saves.RowsCapture, place.split(".")[1], fails_on_worker_1)

    def work(rank):
        expected, text = (RuntimeError, "worker 1") if rank != 1 else (OSError, "No space left")
        with pytest.raises(expected, match=text):
            saved(tmp_path)

    on_workers(3, work)
    assert not list(tmp_path.glob("*/*"))
