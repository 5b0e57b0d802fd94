"""Workers that write one checkpoint say what their numbers are for."""

import threading

import pytest
import tensorflow as tf

from sok_embed.communicators import agreement as agreement_module
from sok_embed.communicators.agreement import Agreement


class FirstOfTwo:
    """Two workers, of which the other one adds a number to the second place."""

    rank, size = 0, 2

    def __init__(self, other=0):
        self.names = []
        self._other = other

    def all_reduce(self, tensor, name):
        self.names.append(name)
        return tensor + tf.constant([0, self._other], tensor.dtype)


def test_numbers_for_different_purposes_travel_under_different_names():
    communicator = FirstOfTwo()
    agreement = Agreement(communicator)
    agreement.gather(0, "step")
    agreement.gather(0, "attempt")
    agreement.check_same("folder", 0, "")
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

    def all_reduce(tensor, name):
        told.append((name, int(tensor[0])))
        if sum("sign" in name for name, _ in told) == 3:
            three_signs.set()
        return tensor

    communicator.all_reduce = all_reduce
    assert Agreement(communicator).first_alone("write", lambda: three_signs.wait(60))
    signs = [number for name, number in told if "sign" in name]
    assert signs == [1] * (len(signs) - 1) + [0]
    assert told[-1] == ("sok_embed.checkpoint.write", 0)


def test_a_worker_that_is_lost_while_worker_0_works_is_an_error_of_worker_0(monkeypatch):
    monkeypatch.setattr(agreement_module, "SECONDS_BETWEEN_SIGNS", 0.01)
    communicator = FirstOfTwo()
    lost = threading.Event()

    def all_reduce(tensor, name):
        lost.set()
        raise ConnectionError("worker 1 is lost")

    communicator.all_reduce = all_reduce
    with pytest.raises(ConnectionError, match="lost"):
        Agreement(communicator).first_alone("write", lambda: lost.wait(60))


def test_the_others_wait_until_worker_0_has_ended():
    communicator = FirstOfTwo()
    communicator.rank = 1
    signs = iter([1, 1, 0, 0])

    def all_reduce(tensor, name):
        return tensor + tf.constant([next(signs), 0], tensor.dtype)

    communicator.all_reduce = all_reduce
    Agreement(communicator).first_alone("write", lambda: pytest.fail("that is for worker 0"))
    assert next(signs, None) is None
