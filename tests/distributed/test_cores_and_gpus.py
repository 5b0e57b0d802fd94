"""What a worker takes of its host: a share of the cores, and one GPU."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import tensorflow as tf

from sok_embed.communicators.cores import share_cores, share_of
from sok_embed.communicators.gpus import pin_gpu


@pytest.mark.parametrize(
    ("workers", "cores", "allowed", "share"),
    [
        (2, 2, 2, 1),
        (2, 64, 64, 32),
        (8, 12, 12, 1),
        (4, 2, 2, 1),  # more workers than cores
        (4, 16, 4, 4),  # the launcher has divided them
        (2, 16, 1, 1),
    ],
)
def test_workers_of_a_host_divide_its_cores(
    workers: int, cores: int, allowed: int, share: int
) -> None:
    assert share_of(workers, cores, allowed) == share


class Threading:
    """Stands for `tf.config.threading`."""

    def __init__(self, chosen: int = 0, started: bool = False) -> None:
        self.threads = chosen
        self.started = started

    def get_intra_op_parallelism_threads(self) -> int:
        return self.threads

    def set_intra_op_parallelism_threads(self, threads: int) -> None:
        if self.started:
            raise RuntimeError("Intra op parallelism cannot be modified after initialization.")
        self.threads = threads


@pytest.fixture
def a_host_of_eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)


@pytest.mark.usefixtures("a_host_of_eight_cores")
@pytest.mark.parametrize(
    ("workers", "chosen", "variable", "threads"),
    [(2, 0, None, 4), (1, 0, None, 0), (2, 3, None, 3), (2, 0, "5", 0)],
    ids=["two_workers", "alone", "chosen_by_the_script", "chosen_by_the_environment"],
)
def test_threads_are_shared_unless_somebody_has_chosen(
    monkeypatch: pytest.MonkeyPatch, workers: int, chosen: int, variable: str | None, threads: int
) -> None:
    if variable is not None:
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", variable)
    threading = Threading(chosen)
    monkeypatch.setattr(tf.config, "threading", threading)
    share_cores(workers)
    assert threading.threads == threads


@pytest.mark.usefixtures("a_host_of_eight_cores")
def test_threads_that_have_started_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tf.config, "threading", Threading(started=True))
    with caplog.at_level(logging.WARNING, "sok_embed"):
        share_cores(2)
    assert "call sok_embed.init() before" in caplog.text


class Gpus:
    """Stands for the GPUs of a host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, started: bool = False) -> None:
        self.visible: Any = None
        self.growing: list[str] = []
        self._started = started
        names = [f"GPU:{i}" for i in range(count)]
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: names)
        monkeypatch.setattr(tf.config, "set_visible_devices", self._see)
        monkeypatch.setattr(
            tf.config.experimental, "set_memory_growth", lambda gpu, grows: self.growing.append(gpu)
        )

    def _see(self, devices: list[str], kind: str) -> None:
        if self._started:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        self.visible = devices


@pytest.mark.parametrize(
    ("count", "rank", "workers", "seen"),
    [
        (4, 2, 4, ["GPU:2"]),
        (4, 1, 2, ["GPU:1"]),
        (1, 1, 2, ["GPU:0"]),  # the launcher shows each its own
        (0, 1, 2, None),
        (4, 0, 1, None),  # alone, it may have all
    ],
)
def test_a_worker_sees_the_gpu_of_its_rank(
    monkeypatch: pytest.MonkeyPatch, count: int, rank: int, workers: int, seen: list[str] | None
) -> None:
    gpus = Gpus(monkeypatch, count)
    pin_gpu(rank, workers)
    assert gpus.visible == seen
    assert gpus.growing == (seen or [])


def test_fewer_gpus_than_workers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Gpus(monkeypatch, 2)
    with pytest.raises(ValueError, match="a GPU for each of 3 workers.*Received: 2"):
        pin_gpu(0, 3)


def test_gpus_that_are_in_use_are_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Gpus(monkeypatch, 2, started=True)
    with pytest.raises(RuntimeError, match=r"init\(\) before TensorFlow computes"):
        pin_gpu(0, 2)
