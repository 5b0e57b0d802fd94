"""Workers that write one checkpoint say what their numbers are for."""

import pytest
import tensorflow as tf

from sok_embed.checkpoint.agreement import Agreement


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
