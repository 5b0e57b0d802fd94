"""Exchanges go between GPUs if a tensor is on a GPU and Horovod has NCCL.

NCCL is not here. A stand-in for Horovod notes what it is asked to exchange.
"""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from sok_embed.communicators import horovod
from sok_embed.communicators.local import LocalCommunicator

CPU, GPU = "/device:CPU:0", "/device:GPU:0"
Asked = list[tuple[str, str, str]]


class Horovod:
    """Stands for `horovod.tensorflow` on the first of two workers."""

    Sum = Average = None

    def __init__(self, nccl: bool, asked: Asked) -> None:
        self._nccl, self._asked = nccl, asked

    def nccl_built(self) -> bool:
        return self._nccl

    def init(self) -> None:
        pass

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    local_rank, local_size = rank, size

    def alltoall(self, tensor: Any, splits: Any, name: str) -> Any:
        self._asked.append(("nccl", name, tensor.device))
        return tensor, splits


class Connections(LocalCommunicator):
    """Stands for the connections of a worker."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def all_to_all(self, tensor: Any, splits: Any, name: str) -> Any:
        self._asked.append(("tcp", name, tensor.device))
        return tensor, splits


@pytest.fixture
def asked() -> Asked:
    """Notes an exchange: who made it, its name, and the device of the tensor."""
    return []


def communicator(patch: pytest.MonkeyPatch, asked: Asked, nccl: bool) -> Any:
    patch.setattr(horovod, "_import_horovod", lambda: Horovod(nccl, asked))
    patch.setattr(horovod, "_connections", lambda *_: Connections(asked))
    patch.setattr(horovod, "share_cores", lambda _: None)
    return horovod.HorovodCommunicator()


def exchange(communicator: Any, device: str) -> Any:
    """Exchanges a tensor of a device, and its gradient, in a graph that is not run."""
    with tf.Graph().as_default(), tf.device(device):
        rows = tf.compat.v1.placeholder(tf.float32, [None])
        splits = tf.constant([1, 1])
        received, _ = communicator.exchange(rows, splits, splits, "a")
        (gradient,) = tf.gradients(received, rows)
    assert gradient is not None
    return received


@pytest.mark.parametrize(
    ("nccl", "device", "by"),
    [(True, GPU, "nccl"), (True, CPU, "tcp"), (False, GPU, "tcp"), (False, CPU, "tcp")],
)
def test_rows_and_gradients_go_where_they_lie(
    monkeypatch: pytest.MonkeyPatch, asked: Asked, nccl: bool, device: str, by: str
) -> None:
    made = communicator(monkeypatch, asked, nccl)
    assert made.exchanges_on_gpu == nccl
    exchange(made, device)
    assert [each[:2] for each in asked] == [(by, "a.rows"), (by, "a.gradients")]
    assert all(each[2] == device for each in asked)


def test_keys_of_the_host_go_over_connections(
    monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    made = communicator(monkeypatch, asked, nccl=True)
    made.all_to_all(tf.zeros([2], tf.int64), tf.constant([1, 1]), "keys")
    assert [each[:2] for each in asked] == [("tcp", "keys")]


def test_connections_alone_take_tensors_of_the_host() -> None:
    assert not LocalCommunicator().exchanges_on_gpu
