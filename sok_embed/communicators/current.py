"""The communicator of this process."""

from __future__ import annotations

import sys
from typing import Any

from sok_embed.arguments import check_choice
from sok_embed.communicators.base import Communicator
from sok_embed.communicators.engines import NoMeeting, find_engine_workers
from sok_embed.communicators.launchers import find_workers
from sok_embed.communicators.local import LocalCommunicator
from sok_embed.communicators.workers import Workers

_EXCHANGES = ("tcp", "horovod")

_current: Communicator | None = None


def _has_horovod() -> bool:
    """Returns whether Horovod is initialised with several processes, of which this is one."""
    hvd = sys.modules.get("horovod.tensorflow")
    return hvd is not None and bool(hvd.is_initialized()) and int(hvd.size()) > 1


def _workers() -> Workers | None:
    """Returns this process among the workers of its engine or launcher; `None`: it is alone."""
    try:
        return find_engine_workers() or find_workers()
    except NoMeeting:
        workers = find_workers()  # such as by the TF_CONFIG of Ray's TensorflowTrainer
        if workers is None:
            raise
        return workers


def _joined(exchange: str, **options: Any) -> Communicator:
    """Makes the communicator for the environment of this process."""
    if _has_horovod():
        return _horovod(exchange, **options)
    workers = _workers()
    if workers is None:
        return LocalCommunicator()
    if workers.address is None:  # horovodrun
        return _horovod(exchange, **options)
    return _tcp(workers, exchange, **options)


def _horovod(exchange: str, **options: Any) -> Communicator:
    from sok_embed.communicators.horovod import HorovodCommunicator

    return HorovodCommunicator(exchange, **options)


def _tcp(workers: Workers | None, exchange: str, **options: Any) -> Communicator:
    if workers is None:
        raise ValueError(
            'Expected several workers, for init("tcp"). Received: none of the variables by which '
            "launchers say so. Start them with `sok-embed run -np 2 python train.py`, or set RANK, "
            "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT."
        )
    if exchange != "tcp":
        raise ValueError(
            f'Expected exchange="tcp" without Horovod. Received: {exchange!r} under '
            f"{workers.launcher}."
        )
    from sok_embed.communicators.tcp import TcpCommunicator

    return TcpCommunicator(workers, **options)


def init(
    communicator: str | Communicator = "auto",
    *,
    exchange: str = "tcp",
    timeout: float = 600.0,
    pin_gpu: bool = True,
    levels: int = 1,
) -> Communicator:
    """Chooses how this process talks to other workers. Call it before any layer is made.

    Without a call, the first layer does what `init("auto")` does. With several workers it is
    collective. A second call for the same workers, with the same timeout and levels, returns a
    communicator over the same connections; otherwise it makes new ones.

    Args:
        communicator: `"auto"`: Horovod if `horovodrun` has started this process, or if Horovod is
            initialised with more than one worker; TCP connections if another launcher has started
            several, which are `sok-embed run`, `torchrun` and others that set RANK and WORLD_SIZE,
            `mpirun` of Open MPI, MPICH, Intel MPI and MVAPICH, `srun`, `jsrun` and `flux run`, any
            trainer of Ray Train, a barrier stage of Spark, an Indexed Job of Kubernetes, Kubeflow
            Trainer, a LeaderWorkerSet, SageMaker, Vertex AI, and others with TF_CONFIG; else one
            worker alone. `"horovod"`, `"tcp"`, `"local"`, or a `Communicator` of your
            own.
        exchange: Under Horovod, the transport of tensors: `"tcp"`, connections of our own, except
            for dense tensors if Horovod was built with NCCL; or `"horovod"` for all tensors.
        timeout: The seconds that an exchange over TCP waits for a worker without a sign of life,
            and that workers wait for each other at the start.
        pin_gpu: True if each of several workers of a host uses one GPU alone.
        levels: The levels of exchanges over TCP, alike on all workers. 1: each worker is connected
            to all others. 2: workers of a host exchange first, then those of several hosts, so that
            a worker of 64 hosts of 8 has 70 connections instead of 511. Results have the same bits.
            An exchange waits for workers of other hosts for twice the timeout.

    Returns:
        The communicator.

    Raises:
        ValueError: For another name or number of levels; for workers with different levels; for two
            levels of hosts with different numbers of workers, or of what Horovod carries; if
            variables of launchers contradict each other; if workers on several hosts are not told
            where to meet; for a SOK_EMBED_SECRET that cannot be a secret, and a SOK_EMBED_HOST that
            has no address; for a launcher that does not say enough to join its workers; for fewer
            GPUs of a host than workers.
        ImportError: If Horovod is asked for and missing.
        ConnectionError: If a worker cannot be reached.
        TimeoutError: If a worker does not come.
        RuntimeError: If TensorFlow uses the GPUs already, so that this worker cannot take one
            alone.
    """
    global _current
    check_choice("exchange", exchange, _EXCHANGES)
    check_choice("levels", levels, (1, 2))
    options = {"timeout": timeout, "pin_gpu": pin_gpu, "levels": levels}
    if isinstance(communicator, Communicator):
        chosen = communicator
    elif communicator == "local":
        chosen = LocalCommunicator()
    elif communicator == "auto":
        chosen = _joined(exchange, **options)
    elif communicator == "horovod":
        chosen = _horovod(exchange, **options)
    elif communicator == "tcp":
        chosen = _tcp(_workers(), exchange, **options)
    else:
        raise ValueError(
            'Expected communicator to be "auto", "horovod", "tcp", "local" or a '
            f"sok_embed.communicators.Communicator. Received: {communicator!r}."
        )
    _current = chosen
    return chosen


def current() -> Communicator:
    """Returns the communicator that `init` chose; calls `init("auto")` if it was not called."""
    return _current if _current is not None else init()


def rank() -> int:
    """Returns the number of this worker, in `[0, size())`."""
    return current().rank


def size() -> int:
    """Returns how many workers there are."""
    return current().size
