"""Finds the launcher of this process, its rank, the number of workers, and where they meet.

Launchers set environment variables. If variables of several launchers are set, one launcher was
started within another, and the innermost knows how many processes there are, since the outer one
started launchers. The order in which they are checked:

1. `horovodrun`: it starts workers itself, in whatever allocation or container it runs.
2. `torchrun`, which is known by `TORCHELASTIC_RUN_ID`: `srun` and `mpirun` may start one of it on
   each host, and a worker of it starts no other launcher.
3. Open MPI, MVAPICH, MPICH and its relatives: `mpirun` reads the hosts of a Slurm allocation, and
   stands in containers whose operator has set `RANK` and `WORLD_SIZE`.
4. `RANK` and `WORLD_SIZE`: `sok-embed run`, Kubeflow, Accelerate, DeepSpeed, or a script that
   translates Slurm's variables.
5. `srun`: its variables are inherited by all programs that its tasks start.
6. `TF_CONFIG`: a description of a cluster, which starts nothing.
"""

from __future__ import annotations

import json
import os
import re
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

# Slurm's step ids from here on stand for the batch script, an interactive shell and the like.
_SLURM_RESERVED_STEPS = 0xFFFFFFF0
# The tasks of TF_CONFIG that train, one process each, in the order of their ranks. A cluster has a
# chief or a master, two names for the same task.
_TF_TRAINERS = ("chief", "master", "worker")
_TF_EVALUATOR = "evaluator"
# Ports of workers for which none is given lie below those that Linux gives to outgoing connections.
_FIRST_PORT, _PORTS = 20000, 10000

# The variables that launchers set for each worker. If they were inherited from an outer launcher,
# they would mislead find_workers in a worker of an inner one. Names that end in _ are the
# beginnings of names.
_VARIABLES = (
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_", "HOROVOD_CROSS_", "HOROVOD_HOSTNAME"),
    *("HOROVOD_GLOO_", "HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"),
    *("OMPI_COMM_WORLD_", "OMPI_MCA_ess_", "OMPI_MCA_orte_", "PMIX_", "MV2_COMM_WORLD_"),
    *("PMI_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "JSM_NAMESPACE_", "FLUX_JOB_SIZE"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_", "SLURM_STEPID"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE"),
    *("TORCHELASTIC_", "TF_CONFIG"),
)


@dataclass(frozen=True)
class Workers:
    """This process among the workers of a job.

    Attributes:
        rank: The number of this worker, in `[0, size)`.
        size: The number of workers, at least 2.
        local_rank: The number of this worker among those of its host, in `[0, local_size)`.
        local_size: The number of workers on this host, if the launcher says it.
        address: The host, by name or number, and the port at which worker 0 listens for the others.
            `None` under `horovodrun`, which brings a meeting place of its own.
        launcher: The name of the launcher, for messages.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: tuple[str, int] | None
    launcher: str

    @property
    def on_one_host(self) -> bool:
        """True if the launcher says that all workers are on this host."""
        return self.local_size == self.size


@dataclass(frozen=True)
class _Launcher:
    """The variables of a launcher that gives each worker its rank.

    Attributes:
        name: The name of the launcher, for messages.
        rank: The variable of the rank.
        size: The variable of the number of workers.
        local_rank: The variables of the rank on this host, of which the first that is set counts.
        local_size: The variables of the number of workers on this host.
        job: The variables that are the same in all workers of a job and differ between jobs.
        mark: A variable without which it is another launcher.
    """

    name: str
    rank: str
    size: str
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]
    job: tuple[str, ...] = ()
    mark: str | None = None


def _of_one_prefix(name: str, prefix: str, job: tuple[str, ...] = ()) -> _Launcher:
    local = ((f"{prefix}_LOCAL_RANK",), (f"{prefix}_LOCAL_SIZE",))
    return _Launcher(name, f"{prefix}_RANK", f"{prefix}_SIZE", *local, job)


_HOROVODRUN = _of_one_prefix("horovodrun", "HOROVOD")
_TORCHRUN = _Launcher(
    "torchrun",
    *("RANK", "WORLD_SIZE", ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",), ("TORCHELASTIC_RUN_ID",)),
    mark="TORCHELASTIC_RUN_ID",
)
_MPICH = _Launcher(
    "mpiexec of MPICH or Intel MPI",
    *("PMI_RANK", "PMI_SIZE"),
    # The variables of Hydra, then those of Cray's PALS.
    *(("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")),
    job=("PMI_JOBID",),
)
_LAUNCHERS = (
    _HOROVODRUN,
    _TORCHRUN,
    _of_one_prefix(
        "mpirun of Open MPI",
        "OMPI_COMM_WORLD",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
    ),
    _of_one_prefix("mpirun of MVAPICH", "MV2_COMM_WORLD", ("PMI_JOBID",)),
    _MPICH,
    _Launcher(
        "a launcher that sets RANK and WORLD_SIZE",
        *("RANK", "WORLD_SIZE", ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    ),
)


def find_workers(environ: Mapping[str, str] = os.environ) -> Workers | None:
    """Reads from the environment which launcher started this process, its rank, and the workers.

    Args:
        environ: The environment of this process.

    Returns:
        This process among the workers; `None` if it is alone.

    Raises:
        ValueError: If the variables of a launcher contradict each other, or if the workers are on
            several hosts and nothing says where they can meet.
    """
    for launcher in _LAUNCHERS:
        if launcher.mark is None or _text(environ, launcher.mark) is not None:
            if any(_text(environ, name) is not None for name in (launcher.rank, launcher.size)):
                return _workers_of(launcher, environ)
    if _is_task_of_slurm(environ):
        return _slurm_workers(environ)
    return _tensorflow_workers(environ)


def without_launchers(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which no launcher says that it started the process."""
    beginnings = tuple(name for name in _VARIABLES if name.endswith("_"))
    return {
        name: value
        for name, value in environ.items()
        if name not in _VARIABLES and not name.startswith(beginnings)
    }


def _workers_of(launcher: _Launcher, environ: Mapping[str, str]) -> Workers | None:
    rank_and_size = _rank_and_size(launcher.name, launcher.rank, launcher.size, environ)
    if rank_and_size is None:
        return None
    rank, size = rank_and_size
    if launcher is _MPICH and _first(environ, launcher.local_size) is None:
        # srun sets variables of MPICH too, but its own variables say more.
        slurm = _slurm_workers(environ) if _is_task_of_slurm(environ) else None
        if slurm is not None and (slurm.rank, slurm.size) == (rank, size):
            return slurm
    local_size = _number(launcher.name, launcher.local_size, environ)
    local_rank = _number(launcher.name, launcher.local_rank, environ)
    if local_rank is None:
        # A launcher that sets no variables for hosts, such as Kubeflow's, starts one worker on each
        # host.
        local_rank = rank % local_size if local_size else 0
    workers = _placed(launcher.name, rank, size, local_rank, local_size)
    if launcher is _HOROVODRUN:
        return workers
    job = _first(environ, launcher.job)
    if job is None:
        job = f"process {_launcher_process(launcher.rank, environ.get(launcher.rank, ''))}"
    return _with_address(workers, environ, job)


def _is_task_of_slurm(environ: Mapping[str, str]) -> bool:
    """Returns whether srun started this process; an allocation sets some of its variables too."""
    step = _text(environ, "SLURM_STEP_ID")
    if _text(environ, "SLURM_PROCID") is None or step is None:
        return False
    return not (step.isdecimal() and int(step) >= _SLURM_RESERVED_STEPS)


def _slurm_workers(environ: Mapping[str, str]) -> Workers | None:
    name = "srun"
    # An allocation sets SLURM_NTASKS too, and a step may have fewer tasks.
    in_step = _text(environ, "SLURM_STEP_NUM_TASKS") is not None
    size_variable = "SLURM_STEP_NUM_TASKS" if in_step else "SLURM_NTASKS"
    rank_and_size = _rank_and_size(name, "SLURM_PROCID", size_variable, environ)
    if rank_and_size is None:
        return None
    local_rank = _number(name, ("SLURM_LOCALID",), environ) or 0
    workers = _placed(name, *rank_and_size, local_rank, _slurm_tasks_of_node(environ))
    job = f"{_first(environ, ('SLURM_JOB_ID', 'SLURM_JOBID'))}.{environ['SLURM_STEP_ID']}"
    nodes = _first(environ, ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    return _with_address(workers, environ, job, None if nodes is None else first_host(nodes))


def _slurm_tasks_of_node(environ: Mapping[str, str]) -> int | None:
    """Returns how many tasks of the step this node has, by a list such as `2(x3),1`."""
    text = _first(environ, ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    tasks: list[int] = []
    for part in (text or "").split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if found is None:
            return None
        tasks += [int(found[1])] * int(found[2] or 1)
    node = _number("srun", ("SLURM_NODEID",), environ) or 0
    return tasks[node] if node < len(tasks) else None


def first_host(nodes: str) -> str:
    """Returns the first host of a list as Slurm writes it.

    ```python
    first_host("gpu[03-05,7],login1")  # "gpu03"
    ```
    """
    # The list goes on after a comma outside of brackets; the first choice in brackets is a number,
    # or the beginning of a range of them. A name may have several pairs of brackets.
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes.strip())
    return re.sub(r"\[\s*([^\],-]*)[^\]]*\]", r"\1", first[0] if first else "")


def _tensorflow_workers(environ: Mapping[str, str]) -> Workers | None:
    text = _text(environ, "TF_CONFIG")
    if text is None:
        return None
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        kind, index = str(task.get("type", "worker")), int(task.get("index", 0))
        addresses = {each: [str(one) for one in cluster.get(each, ())] for each in _TF_TRAINERS}
    except (ValueError, TypeError, AttributeError) as error:
        raise _contradiction(
            'TF_CONFIG to be JSON such as {"cluster": {"worker": ["host:port", ...]}, "task": '
            '{"type": "worker", "index": 0}}',
            f"TF_CONFIG={text!r} ({error})",
            "TF_CONFIG",
        ) from None
    trainers = [address for each in _TF_TRAINERS for address in addresses[each]]
    if kind == _TF_EVALUATOR and trainers:
        warnings.warn(
            "Expected a process that trains with the others of TF_CONFIG. Received: an evaluator, "
            f"which works alone, as worker 0 of 1, with {len(trainers)} others that train. It must "
            "not write where they do: have it read their checkpoints and evaluate, and leave out "
            "what trains and saves.",
            stacklevel=2,
        )
    if kind not in _TF_TRAINERS or len(trainers) < 2:
        return None  # an evaluator works alone, and a parameter server has no layers
    if not 0 <= index < len(addresses[kind]):
        raise _contradiction(
            "the task of TF_CONFIG to be one of its cluster",
            f"{kind} {index} of {len(addresses[kind])}",
            "TF_CONFIG",
        )
    before = _TF_TRAINERS[: _TF_TRAINERS.index(kind)]
    rank = sum(len(addresses[each]) for each in before) + index
    hosts = [address.rpartition(":")[0].strip("[]") for address in trainers]
    local_rank = hosts[:rank].count(hosts[rank])
    workers = _placed("TF_CONFIG", rank, len(trainers), local_rank, hosts.count(hosts[rank]))
    address = _given_address(environ, "TF_CONFIG") or (hosts[0], _port_beside(trainers))
    return replace(workers, address=address)


def _port_beside(addresses: list[str]) -> int:
    """Returns the port at which the workers of a cluster of TensorFlow meet.

    TensorFlow's own servers listen at the ports in the cluster, once a strategy is made.
    """
    taken = {
        _checked_port("each address of TF_CONFIG", each.rpartition(":")[2], "TF_CONFIG")
        for each in addresses
    }
    first = zlib.crc32(f"TF_CONFIG {' '.join(addresses)}".encode()) % _PORTS
    places = (_FIRST_PORT + (first + more) % _PORTS for more in range(_PORTS))
    return next(port for port in places if port not in taken)


def _rank_and_size(
    launcher: str, rank_variable: str, size_variable: str, environ: Mapping[str, str]
) -> tuple[int, int] | None:
    """Returns the rank and the number of workers; `None` for one worker alone."""
    rank = _number(launcher, (rank_variable,), environ)
    size = _number(launcher, (size_variable,), environ)
    if size == 1 and not rank:
        return None
    if rank is None or size is None:
        missing, there = rank_variable, f"{size_variable}={size}"
        if size is None:
            missing, there = size_variable, f"{rank_variable}={rank}"
        raise _contradiction(f"{missing} to be set too", f"{there} without it", launcher)
    if rank >= size:
        raise _contradiction(
            f"{rank_variable} to be less than {size_variable}",
            f"{rank_variable}={rank} and {size_variable}={size}",
            launcher,
        )
    return rank, size


def _placed(
    launcher: str, rank: int, size: int, local_rank: int, local_size: int | None
) -> Workers:
    """Returns the worker, which has no address yet."""
    if local_size is None:
        local_size = local_rank + 1  # the least number that is possible
    if not local_rank < local_size <= size:
        raise _contradiction(
            "the rank on this host to be less than the number of workers on this host, and that "
            "number to be at most the number of all",
            f"rank {local_rank} of {local_size} on this host, of {size} in all",
            launcher,
        )
    return Workers(rank, size, local_rank, local_size, None, launcher)


def _with_address(
    workers: Workers, environ: Mapping[str, str], job: str, first_host: str | None = None
) -> Workers:
    """Returns the worker with the address at which all meet.

    Args:
        workers: The worker without an address.
        environ: The environment.
        job: A text that all workers of the job share, and that differs in other jobs.
        first_host: The host of worker 0, if the launcher names it.
    """
    address = _given_address(environ, workers.launcher)
    if address is None:
        host = "127.0.0.1" if workers.on_one_host else first_host
        if host is None:
            raise ValueError(
                "Expected MASTER_ADDR and MASTER_PORT to say where workers on several hosts meet. "
                f"Received: {workers.size} workers, of which {workers.local_size} on this host, by "
                f"{workers.launcher}, and neither. Set MASTER_ADDR to the host of worker 0, by a "
                "name that all hosts know, and MASTER_PORT to a free port there, alike on all."
            )
        job_port = _FIRST_PORT + zlib.crc32(f"{workers.launcher} {job}".encode()) % _PORTS
        address = (host, job_port)
    return replace(workers, address=address)


def _given_address(environ: Mapping[str, str], launcher: str) -> tuple[str, int] | None:
    host, port = _text(environ, "MASTER_ADDR"), _text(environ, "MASTER_PORT")
    if host is None and port is None:
        return None
    if host is None or port is None:
        there, missing = ("MASTER_PORT", "MASTER_ADDR")[:: 1 if host is None else -1]
        raise _contradiction(
            f"{missing} to be set too", f"{there}={environ[there]} without it", launcher
        )
    number = _checked_port("MASTER_PORT", port, launcher)
    agent_listens = _text(environ, "TORCHELASTIC_USE_AGENT_STORE") == "True"
    if launcher == _TORCHRUN.name and agent_listens:
        # torchrun listens at its port itself, and reserves none for its workers.
        number += 1 if number < 65535 else -1
    return host.strip("[]"), number


def _checked_port(what: str, text: str, launcher: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise _contradiction(f"a port from 1 to 65535 of {what}", repr(text), launcher)
    return int(text)


def _launcher_process(variable: str, value: str) -> int:
    """Returns the process that started the workers of this host.

    It is the parent, unless each worker runs within a script: the nearest ancestor whose
    environment does not have the worker's rank.
    """
    rank = f"{variable}={value}".encode()
    pid = os.getppid()
    try:
        while rank in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            # The file reads "pid (name) state parent ...", and a name may hold blanks and brackets.
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        pass  # the process of another user, which started the workers; or not Linux
    return pid


def _text(environ: Mapping[str, str], name: str) -> str | None:
    """Returns the value of a variable; `None` if it is empty."""
    return environ.get(name, "").strip() or None


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((text for name in names if (text := _text(environ, name)) is not None), None)


def _number(launcher: str, names: tuple[str, ...], environ: Mapping[str, str]) -> int | None:
    """Returns the number in the first variable that is set."""
    for name in names:
        text = _text(environ, name)
        if text is not None:
            if not text.isdecimal():
                raise _contradiction(f"{name} to be a number from 0 on", repr(text), launcher)
            return int(text)
    return None


def _contradiction(expected: str, received: str, launcher: str) -> ValueError:
    return ValueError(
        f"Expected {expected}. Received: {received}, as if by {launcher}. Unset what an earlier "
        "launcher has left in the environment, or start the workers with a launcher that sets all "
        "of it, such as `sok-embed run`."
    )
