"""Finds the launcher of this process, its rank, the number of workers, and where they meet.

Launchers set environment variables. If variables of several launchers are set, one launcher was
started within another, and the innermost knows how many processes there are, since the outer one
started launchers. `_LAUNCHERS`, at the end of this module, is in that order:

1. `horovodrun`: it starts workers itself, in whatever allocation or container it runs.
2. `torchrun`, which is known by `TORCHELASTIC_RUN_ID`: `srun` and `mpirun` may start one of it on
   each host, and a worker of it starts no other launcher.
3. Open MPI, MVAPICH, MPICH and its relatives: `mpirun` reads the hosts of a Slurm allocation, and
   stands in containers whose operator has set `RANK` and `WORLD_SIZE`.
4. `RANK` and `WORLD_SIZE`: `sok-embed run`, Kubeflow, Accelerate, DeepSpeed, or a script that
   translates Slurm's variables. In a Kubernetes Indexed Job `JOB_COMPLETION_INDEX` stands for
   `RANK`.
5. `jsrun`, `flux run` and `srun`: their variables are inherited by all programs that their tasks
   start.
6. What describes a group of containers or hosts and starts one process in each: `TF_CONFIG`,
   Vertex AI, SageMaker, Kubeflow Trainer without `torchrun`, a LeaderWorkerSet, an Indexed Job.

A launcher that starts several processes and does not say enough to join them is an error: each
process would train a model of its own.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sok_embed.communicators.clusters import (
    describes_cluster,
    is_of_vertex,
    sagemaker_workers,
    tensorflow_workers,
    vertex_workers,
)
from sok_embed.communicators.launcher_variables import Variables
from sok_embed.communicators.workers import Workers

# Slurm's step ids from here on stand for the batch script, an interactive shell and the like.
_SLURM_RESERVED_STEPS = 0xFFFFFFF0


@dataclass(frozen=True)
class _Launcher:
    """A launcher, and how it tells a process its place.

    Attributes:
        name: The name of the launcher, for messages.
        marks: The variables of which it sets at least one.
        workers: The function that reads the place of a process with such a mark. It returns `None`
            for a process that is alone.
        is_set: A function that returns whether the marks come from this launcher; `None`: they
            always do.
        sets: Other variables that it sets for each worker. Names that end in _ are the beginnings
            of names.
        options: The arguments of `Variables`, except for the environment and the name.
    """

    name: str
    marks: tuple[str, ...]
    workers: Callable[[Variables], Workers | None]
    is_set: Callable[[Variables], bool] | None = None
    sets: tuple[str, ...] = ()
    options: Mapping[str, object] | None = None

    def variables(self, environ: Mapping[str, str]) -> Variables:
        """Returns the environment as the variables of this launcher."""
        return Variables(environ, self.name, **(self.options or {}))  # type: ignore[arg-type]


def find_workers(environ: Mapping[str, str] = os.environ) -> Workers | None:
    """Reads from the environment which launcher started this process, its rank, and the workers.

    Args:
        environ: The environment of this process.

    Returns:
        This process among the workers; `None` if it is alone.

    Raises:
        ValueError: If the variables of a launcher contradict each other or are not all there, or if
            the workers are on several hosts and nothing says where they can meet.
    """
    for launcher in _LAUNCHERS:
        variables = launcher.variables(environ)
        is_marked = variables.text(*launcher.marks) is not None
        if is_marked and (launcher.is_set is None or launcher.is_set(variables)):
            return launcher.workers(variables)
    return None


def without_launchers(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which no launcher says that it started the process.

    The variables of an outer launcher would mislead `find_workers` in a worker of an inner one.
    Those that describe a group of containers or hosts stay, since programs read them too: the inner
    launcher sets RANK and WORLD_SIZE, which come first.
    """
    last = next(i for i, each in enumerate(_LAUNCHERS) if each.name == "TF_CONFIG")
    names = {name for each in _LAUNCHERS[: last + 1] for name in (*each.marks, *each.sets)}
    beginnings = tuple(name for name in names if name.endswith("_"))
    return {
        name: value
        for name, value in environ.items()
        if name not in names and not name.startswith(beginnings)
    }


def _by_rank(
    variables: Variables,
    rank: tuple[str, ...],
    size: str,
    local_rank: tuple[str, ...] = (),
    local_size: tuple[str, ...] = (),
    job: tuple[str, ...] = (),
    host: str | None = None,
) -> Workers | None:
    """Reads the variables of a launcher that gives each worker its rank.

    Args:
        variables: The environment.
        rank: The variables of the rank, of which the first that is set counts, as in all of these.
        size: The variable of the number of workers.
        local_rank: The variables of the rank on this host.
        local_size: The variables of the number of workers on this host.
        job: The variables that are the same in all workers of a job and differ between jobs.
        host: The variable of the host of worker 0.
    """
    placed = _placed(variables, rank, size, local_rank, local_size)
    if placed is None:
        return None
    name = variables.text(*job)
    if name is None:
        rank_name = next(each for each in rank if variables.text(each) is not None)
        name = f"process {_launcher_process(rank_name, variables.environ[rank_name])}"
    first = variables.text(host) if host is not None else None
    address = variables.address(placed.size, placed.local_size, name, first)
    return replace(placed, address=address)


def _placed(
    variables: Variables,
    rank: tuple[str, ...],
    size: str,
    local_rank: tuple[str, ...],
    local_size: tuple[str, ...],
) -> Workers | None:
    """Reads the place of a worker, without an address; arguments as of `_by_rank`."""
    rank_and_size = variables.rank_and_size(rank, size)
    if rank_and_size is None:
        return None
    here = variables.number(*local_size)
    local = variables.number(*local_rank)
    if local is None:
        # A launcher that sets no variables for hosts, such as Kubeflow's, starts one worker on each
        # host.
        local = rank_and_size[0] % here if here else 0
    return variables.workers(*rank_and_size, local, here)


def _horovodrun_workers(variables: Variables) -> Workers | None:
    local = (("HOROVOD_LOCAL_RANK",), ("HOROVOD_LOCAL_SIZE",))
    return _placed(variables, ("HOROVOD_RANK",), "HOROVOD_SIZE", *local)


def _torchrun_workers(variables: Variables) -> Workers | None:
    workers = _RANKED(variables, job=("TORCHELASTIC_RUN_ID",))
    agent_listens = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if workers is None or not agent_listens or variables.given_address() is None:
        return workers
    # torchrun listens at its port itself, and reserves none for its workers.
    assert workers.address is not None
    host, port = workers.address
    return replace(workers, address=(host, port + 1 if port < 65535 else port - 1))


def _mpich_workers(variables: Variables) -> Workers | None:
    local_size = ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")  # of Hydra, then of Cray's PALS
    if variables.text(*local_size) is None and _is_task_of_slurm(variables):
        # srun sets variables of MPICH too, but its own variables say more.
        slurm = _slurm_workers(_SRUN.variables(variables.environ))
        place = variables.rank_and_size(("PMI_RANK",), "PMI_SIZE")
        if slurm is not None and (slurm.rank, slurm.size) == place:
            return slurm
    local_rank = ("MPI_LOCALRANKID", "PMI_LOCAL_RANK")
    return _by_rank(variables, ("PMI_RANK",), "PMI_SIZE", local_rank, local_size, ("PMI_JOBID",))


def _flux_workers(variables: Variables) -> Workers | None:
    # Flux does not say how many tasks a host has, but how many hosts there are.
    here = ("FLUX_JOB_SIZE",) if variables.number("FLUX_JOB_NNODES") == 1 else ()
    names = (("FLUX_TASK_RANK",), "FLUX_JOB_SIZE", ("FLUX_TASK_LOCAL_ID",), here, ("FLUX_JOB_ID",))
    return _by_rank(variables, *names)


def _is_task_of_slurm(variables: Variables) -> bool:
    """Returns whether srun started this process; an allocation sets some of its variables too."""
    step = variables.text("SLURM_STEP_ID")
    if variables.text("SLURM_PROCID") is None or step is None:
        return False
    return not (step.isdecimal() and int(step) >= _SLURM_RESERVED_STEPS)


def _slurm_workers(variables: Variables) -> Workers | None:
    # An allocation sets SLURM_NTASKS too, and a step may have fewer tasks.
    in_step = variables.text("SLURM_STEP_NUM_TASKS") is not None
    size_name = "SLURM_STEP_NUM_TASKS" if in_step else "SLURM_NTASKS"
    rank_and_size = variables.rank_and_size(("SLURM_PROCID",), size_name)
    if rank_and_size is None:
        return None
    local = variables.number("SLURM_LOCALID") or 0
    placed = variables.workers(*rank_and_size, local, _slurm_tasks_of_node(variables))
    job = f"{variables.text('SLURM_JOB_ID', 'SLURM_JOBID')}.{variables.text('SLURM_STEP_ID')}"
    nodes = variables.text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    host = None if nodes is None else first_host(nodes)
    return replace(placed, address=variables.address(placed.size, placed.local_size, job, host))


def _slurm_tasks_of_node(variables: Variables) -> int | None:
    """Returns how many tasks of the step this node has, by a list such as `2(x3),1`."""
    text = variables.text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    tasks: list[int] = []
    for part in (text or "").split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if found is None:
            return None
        tasks += [int(found[1])] * int(found[2] or 1)
    node = variables.number("SLURM_NODEID") or 0
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


def _elastic_workers(variables: Variables) -> Workers | None:
    """Reads what Kubeflow Trainer tells torchrun, in a container that does not start torchrun."""
    processes = variables.text("PET_NPROC_PER_NODE")
    if processes not in (None, "1") and variables.text("PET_NNODES") not in (None, "1"):
        raise variables.error(
            "PET_NPROC_PER_NODE=1 for a container that starts one process itself",
            f"PET_NPROC_PER_NODE={processes}",
        )
    return _by_rank(variables, ("PET_NODE_RANK",), "PET_NNODES", job=("PET_MASTER_ADDR",))


def _indexed_workers(variables: Variables) -> Workers | None:
    index = variables.text("JOB_COMPLETION_INDEX")
    raise variables.error("WORLD_SIZE to be set too", f"JOB_COMPLETION_INDEX={index} without it")


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


def _of_one_prefix(name: str, prefix: str, job: tuple[str, ...], *sets: str) -> _Launcher:
    """Returns a launcher with variables such as PREFIX_LOCAL_RANK."""
    read = functools.partial(
        _by_rank,
        rank=(f"{prefix}_RANK",),
        size=f"{prefix}_SIZE",
        local_rank=(f"{prefix}_LOCAL_RANK",),
        local_size=(f"{prefix}_LOCAL_SIZE",),
        job=job,
    )
    marks = (f"{prefix}_RANK", f"{prefix}_SIZE")
    return _Launcher(name, marks, read, sets=(f"{prefix}_", *sets))


_RANKED = functools.partial(
    _by_rank,
    rank=("RANK", "JOB_COMPLETION_INDEX"),
    size="WORLD_SIZE",
    local_rank=("LOCAL_RANK",),
    local_size=("LOCAL_WORLD_SIZE",),
)
_SRUN = _Launcher(
    "srun",
    ("SLURM_PROCID",),
    _slurm_workers,
    _is_task_of_slurm,
    ("SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_", "SLURM_STEPID"),
)
_LAUNCHERS = (
    _Launcher(
        "horovodrun",
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        _horovodrun_workers,
        sets=(
            *("HOROVOD_LOCAL_", "HOROVOD_CROSS_", "HOROVOD_HOSTNAME", "HOROVOD_GLOO_"),
            *("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"),
        ),
    ),
    _Launcher(
        "torchrun",
        ("TORCHELASTIC_RUN_ID",),
        _torchrun_workers,
        lambda variables: variables.text("RANK", "WORLD_SIZE") is not None,
        ("TORCHELASTIC_", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME")
        + ("ROLE_WORLD_SIZE",),
    ),
    _of_one_prefix(
        "mpirun of Open MPI",
        "OMPI_COMM_WORLD",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
        *("PMIX_", "OMPI_MCA_ess_", "OMPI_MCA_orte_"),
    ),
    _of_one_prefix("mpirun of MVAPICH", "MV2_COMM_WORLD", ("PMI_JOBID",)),
    _Launcher(
        "mpiexec of MPICH or Intel MPI",
        ("PMI_RANK", "PMI_SIZE"),
        _mpich_workers,
        sets=("PMI_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ),
    _Launcher(
        "a launcher that sets RANK and WORLD_SIZE",
        ("RANK", "WORLD_SIZE"),
        _RANKED,
        sets=("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    ),
    _of_one_prefix("jsrun", "JSM_NAMESPACE", ("LSB_JOBID",)),
    _Launcher(
        "flux run",
        ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
        _flux_workers,
        sets=("FLUX_TASK_LOCAL_ID", "FLUX_JOB_NNODES"),
    ),
    _SRUN,
    _Launcher("TF_CONFIG", ("TF_CONFIG",), tensorflow_workers, describes_cluster),
    _Launcher("Vertex AI", ("CLUSTER_SPEC",), vertex_workers, is_of_vertex),
    _Launcher("SageMaker", ("SM_HOSTS",), sagemaker_workers, sets=("SM_CURRENT_HOST",)),
    _Launcher(
        "Kubeflow Trainer",
        ("PET_NNODES", "PET_NODE_RANK"),
        _elastic_workers,
        sets=("PET_",),
        options={
            "meeting": ("PET_MASTER_ADDR", "PET_MASTER_PORT"),
            "remedy": "Start the workers in each container by torchrun, which reads these "
            "variables, or let the TrainJob run one process a node.",
        },
    ),
    _Launcher(
        "a LeaderWorkerSet",
        ("LWS_WORKER_INDEX", "LWS_GROUP_SIZE"),
        functools.partial(
            _by_rank,
            rank=("LWS_WORKER_INDEX",),
            size="LWS_GROUP_SIZE",
            job=("LWS_LEADER_ADDRESS",),
            host="LWS_LEADER_ADDRESS",
        ),
        sets=("LWS_LEADER_ADDRESS",),
    ),
    _Launcher(
        "an Indexed Job or a JobSet of Kubernetes",
        ("JOB_COMPLETION_INDEX",),
        _indexed_workers,
        options={
            "remedy": "Set WORLD_SIZE to the number of pods, and MASTER_ADDR and MASTER_PORT to "
            "where they meet: the host of the pod with index 0 and a free port there. For pods "
            'that are meant to train alone call sok_embed.init("local").',
        },
    ),
)
