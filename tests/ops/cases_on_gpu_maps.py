"""Lookups within `tf.vectorized_map` on a GPU of TensorFlow's, against a loop.

`test_guarded_device.py` runs this on a device of its own, whose memory only kernels of the stand-in
for a GPU may touch: an op that reads there on the host ends the process. It computes nothing else,
and all other ops are on the CPU.
"""

import os

import guarded_device
import pytest
import tensorflow as tf
from mapped_lookups import check_as_loop
from tensorflow.python.client import device_lib  # noqa: F401, which makes the devices

guarded_device.let_kernels_touch_memory(os.environ["SOK_CUDA_DRIVER"])

NAMES = ("plain", "own_rows", "mean", "max", "sparse", "shared_keys", "ragged", "collection")


@pytest.mark.cover(4)
@pytest.mark.parametrize("in_function", [True, False], ids=["function", "eager"])
@pytest.mark.parametrize("case", NAMES)
def test_a_lookup_within_a_vectorized_map_is_that_of_a_loop(case, in_function):
    with tf.device("/device:CPU:0"):
        check_as_loop(case, in_function, "gpu")
