"""The communicator of this process."""

from __future__ import annotations

import json
import os
import sys

from sok_embed.communicators.base import Communicator
from sok_embed.communicators.local import LocalCommunicator

_current: Communicator | None = None


# Launchers say in these variables how many processes they started. With horovodrun, and with Open
# MPI's mpirun, there is a rank too, and nobody looks here.
_SIZES = (
    *("PMI_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE"),  # MPICH, Intel MPI, MVAPICH
    *("OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE"),
    "WORLD_SIZE",  # torchrun, Accelerate, DeepSpeed, Kubeflow
    *("JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE"),  # jsrun, Flux
)
# The tasks of TensorFlow's TF_CONFIG that train, each as one process.
_TF_TRAINERS = ("chief", "master", "worker")
# From here on ids of Slurm's steps mean the batch script, an interactive shell and the like.
_SLURM_RESERVED_STEPS = 0xFFFFFFF0


def _started_by_horovod() -> bool:
    if "HOROVOD_RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ:
        return True
    hvd = sys.modules.get("horovod.tensorflow")
    return hvd is not None and bool(hvd.is_initialized()) and int(hvd.size()) > 1


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isdecimal() else None


def _slurm_size() -> str | None:
    """Returns the variable that says how many tasks srun started beside this one, if any."""
    # An allocation by itself sets SLURM_NTASKS, also for a shell in it.
    step = _number("SLURM_STEP_ID")
    if _number("SLURM_PROCID") is None or step is None or step >= _SLURM_RESERVED_STEPS:
        return None
    return "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in os.environ else "SLURM_NTASKS"


def _tensorflow_trainers() -> int:
    """Returns how many processes train, by TF_CONFIG, if this is one of them; else 1."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG", "{}"))
        cluster = config.get("cluster", {})
        if config.get("task", {}).get("type", "worker") not in _TF_TRAINERS:
            return 1  # an evaluator works alone, a parameter server has no layers
        return sum(len(cluster.get(task, ())) for task in _TF_TRAINERS)
    except (ValueError, TypeError, AttributeError):
        return 1  # TensorFlow would not understand it either


def _refuse_other_launchers() -> None:
    """Raises if another launcher started several of these: each would train a model alone."""
    received = None
    for variable in (*_SIZES, _slurm_size()):
        if variable is not None and (_number(variable) or 1) > 1:
            received = f"{variable}={os.environ[variable]}"
    if received is None and (trainers := _tensorflow_trainers()) > 1:
        received = f"TF_CONFIG with a cluster of {trainers} workers"
    if received is None:
        return
    raise ValueError(
        "Expected several workers to be started by horovodrun, or by mpirun of Open MPI. Received: "
        f"{received}, from another launcher: each process would train a model of its own. Start "
        'them with horovodrun, or call sok_embed.init("horovod") before layers are made, if '
        'Horovod was built for that launcher, or sok_embed.init("local") for processes that are '
        "meant to train alone."
    )


def init(communicator: str | Communicator = "auto") -> Communicator:
    """Chooses how this process talks to other workers. Call it before any layer is made.

    Without a call, the first layer does what `init("auto")` does.

    Args:
        communicator: `"auto"`: Horovod if `horovodrun` (or Open MPI's `mpirun`) has started this
            process, or if Horovod is initialised with more than one worker, else one worker alone.
            `"horovod"`, `"local"`, or a `Communicator` of your own.

    Returns:
        The communicator.

    Raises:
        ValueError: For another name; for `"auto"` if another launcher, such as Slurm's `srun` or
            `torchrun`, or TensorFlow's `TF_CONFIG` says that there are several workers.
        ImportError: If Horovod is asked for and missing.
    """
    global _current
    if isinstance(communicator, Communicator):
        chosen = communicator
    elif communicator == "local":
        chosen = LocalCommunicator()
    elif communicator == "auto" and not _started_by_horovod():
        _refuse_other_launchers()
        chosen = LocalCommunicator()
    elif communicator in ("auto", "horovod"):
        from sok_embed.communicators.horovod import HorovodCommunicator

        chosen = HorovodCommunicator()
    else:
        raise ValueError(
            'Expected communicator to be "auto", "horovod", "local" or a '
            f"sok_embed.communicators.Communicator. Received: {communicator!r}."
        )
    _current = chosen
    return chosen


def current() -> Communicator:
    """Returns the communicator that `init` chose; calls `init("auto")` if nobody has."""
    return _current if _current is not None else init()


def rank() -> int:
    """Returns the number of this worker, in `[0, size())`."""
    return current().rank


def size() -> int:
    """Returns how many workers there are."""
    return current().size
