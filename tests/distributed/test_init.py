"""`init`, `rank` and `size` in one process."""

from __future__ import annotations

import importlib
import sys

import pytest
import tensorflow as tf

import sok_embed
from sok_embed.communicators import Communicator, LocalCommunicator, current


@pytest.fixture(autouse=True)
def a_process_that_nobody_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    # By its full name: the package has a function of the module's name.
    module = importlib.import_module("sok_embed.communicators.current")
    monkeypatch.setattr(module, "_current", None)
    for name in ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)


class SecondOfThree(Communicator):
    """A transport that goes nowhere."""

    rank = 1
    size = 3

    def all_to_all(
        self, tensor: tf.Tensor, splits: tf.Tensor, name: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        raise NotImplementedError

    def all_reduce(self, tensor: tf.Tensor, name: str, average: bool = False) -> tf.Tensor:
        raise NotImplementedError

    def broadcast(self, tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
        raise NotImplementedError

    def barrier(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("name", ["auto", "local"])
def test_a_process_on_its_own_is_one_worker(name: str) -> None:
    assert isinstance(sok_embed.init(name), LocalCommunicator)
    assert (sok_embed.rank(), sok_embed.size()) == (0, 1)


def test_without_init_a_process_is_one_worker() -> None:
    assert (sok_embed.rank(), sok_embed.size()) == (0, 1)
    assert isinstance(current(), LocalCommunicator)


def test_a_communicator_of_ones_own_is_taken() -> None:
    mine = SecondOfThree()
    assert sok_embed.init(mine) is mine
    assert current() is mine
    assert (sok_embed.rank(), sok_embed.size()) == (1, 3)


@pytest.mark.parametrize("wrong", ["nccl", "", None, 2, SecondOfThree])
def test_another_name_is_refused_with_those_that_there_are(wrong: object) -> None:
    with pytest.raises(ValueError, match='"auto", "horovod", "local"') as refusal:
        sok_embed.init(wrong)  # type: ignore[arg-type]
    assert repr(wrong) in str(refusal.value)


@pytest.mark.parametrize("variable", [None, "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK"])
def test_horovod_that_is_missing_is_named_with_a_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    if variable:
        monkeypatch.setenv(variable, "0")
    with pytest.raises(ImportError, match="Expected Horovod .* `make setup`"):
        sok_embed.init("auto" if variable else "horovod")


def test_a_failed_init_leaves_the_communicator_that_was() -> None:
    sok_embed.init(SecondOfThree())
    with pytest.raises(ValueError, match="Received: 'gloo'"):
        sok_embed.init("gloo")
    assert sok_embed.size() == 3
