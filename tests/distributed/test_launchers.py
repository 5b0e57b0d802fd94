"""Who started a process, read from the environments that launchers make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib

import pytest

from sok_embed.communicators import launchers
from sok_embed.communicators.launchers import find_workers, first_host, without_launchers
from sok_embed.communicators.workers import Workers

Environ = dict[str, str]
MEETING = {"MASTER_ADDR": "host0", "MASTER_PORT": "1234"}
MEET = ("host0", 1234)
LWS = "a LeaderWorkerSet"


def horovodrun(rank: int = 1, size: int = 4, local_rank: int = 1, local_size: int = 2) -> Environ:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = (rank, size, local_rank, local_size)
    return {f"HOROVOD_{name}": str(n) for name, n in zip(names, values, strict=True)}


def of_prefix(prefix: str, rank: int, size: int, local_rank: int, local_size: int) -> Environ:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = (rank, size, local_rank, local_size)
    return {f"{prefix}_{name}": str(n) for name, n in zip(names, values, strict=True)}


def open_mpi(rank: int = 1, size: int = 2, local_rank: int = 1, local_size: int = 2) -> Environ:
    job = {"PMIX_NAMESPACE": "prterun-host-7@1", "PMIX_RANK": str(rank)}
    return of_prefix("OMPI_COMM_WORLD", rank, size, local_rank, local_size) | job


def hydra(rank: int = 1, size: int = 2, local_rank: int = 1, local_size: int = 2) -> Environ:
    local = {"MPI_LOCALRANKID": str(local_rank), "MPI_LOCALNRANKS": str(local_size)}
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(size), **local}


def ranked(rank: object = 1, size: object = 2, **more: object) -> Environ:
    given = {"RANK": rank, "WORLD_SIZE": size, **more}
    return {name: str(value) for name, value in given.items()}


def torchrun(rank: int = 1, size: int = 2, local_rank: int = 1, local_size: int = 2) -> Environ:
    return ranked(
        *(rank, size),
        LOCAL_RANK=local_rank,
        LOCAL_WORLD_SIZE=local_size,
        TORCHELASTIC_RUN_ID="none",
        **MEETING,
    )


def srun(rank: int = 1, size: int = 2, tasks: str = "2", **more: object) -> Environ:
    given = {
        "SLURM_JOB_ID": 77,
        "SLURM_STEP_ID": 0,
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": rank,
        "SLURM_NODEID": 0,
        "SLURM_STEP_NUM_TASKS": size,
        "SLURM_NTASKS": 64,  # that of the allocation
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_STEP_NODELIST": "gpu[03-05,9]",
        **more,
    }
    return {name: str(value) for name, value in given.items()}


def tf_config(kind: str | None, index: int, **cluster: list[str]) -> Environ:
    task = {} if kind is None else {"task": {"type": kind, "index": index}}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, **task})}


def vertex(pool: str, index: int, **cluster: list[str]) -> Environ:
    task = {"type": pool, "index": index}
    return {"CLUSTER_SPEC": json.dumps({"cluster": cluster, "environment": "cloud", "task": task})}


def sagemaker(here: str, *hosts: str) -> Environ:
    job = {"TRAINING_JOB_NAME": "ctr-1"}
    return {"SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": here} | job


def kubeflow_trainer(rank: int = 1, nodes: object = 2, processes: object = 1) -> Environ:
    given = {"PET_NNODES": nodes, "PET_NODE_RANK": rank, "PET_NPROC_PER_NODE": processes}
    meeting = {f"PET_{name}": value for name, value in MEETING.items()}
    return {name: str(value) for name, value in given.items()} | meeting | indexed(rank)


def leader_worker_set(rank: int = 1, size: int = 2) -> Environ:
    given = {"LWS_WORKER_INDEX": rank, "LWS_GROUP_SIZE": size, "LWS_LEADER_ADDRESS": "ctr-0.ctr"}
    return {name: str(value) for name, value in given.items()}


def indexed(rank: int) -> Environ:
    return {"JOB_COMPLETION_INDEX": str(rank)}


def flux(rank: int = 1, size: int = 2, local_rank: int = 1) -> Environ:
    given = {"FLUX_TASK_RANK": rank, "FLUX_JOB_SIZE": size, "FLUX_TASK_LOCAL_ID": local_rank}
    return {name: str(value) for name, value in given.items()} | {"FLUX_JOB_ID": "f3"}


def port(job: str) -> int:
    return 20000 + zlib.crc32(job.encode()) % 10000


def beside(addresses: str) -> int:
    """The port that workers of these addresses meet at, where TensorFlow does not listen."""
    return port(f"TF_CONFIG {addresses}")


def placed(environ: Environ) -> tuple[int, int, int, int]:
    workers = find_workers(environ)
    assert workers is not None
    return workers.rank, workers.size, workers.local_rank, workers.local_size


def address(environ: Environ) -> tuple[str, int]:
    workers = find_workers(environ)
    assert workers is not None and workers.address is not None
    return workers.address


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (horovodrun(), Workers(1, 4, 1, 2, None, "horovodrun")),
        (horovodrun() | MEETING, Workers(1, 4, 1, 2, None, "horovodrun")),
        (open_mpi(5, 8, 1, 4) | MEETING, Workers(5, 8, 1, 4, MEET, "mpirun of Open MPI")),
        (
            of_prefix("MV2_COMM_WORLD", 5, 8, 1, 4) | {"PMI_RANK": "5", "PMI_SIZE": "8"} | MEETING,
            Workers(5, 8, 1, 4, MEET, "mpirun of MVAPICH"),
        ),
        (hydra(5, 8, 1, 4) | MEETING, Workers(5, 8, 1, 4, MEET, "mpiexec of MPICH or Intel MPI")),
        (
            of_prefix("PMI", 5, 8, 1, 4) | MEETING,
            Workers(5, 8, 1, 4, MEET, "mpiexec of MPICH or Intel MPI"),
        ),
        (torchrun(5, 8, 1, 4), Workers(5, 8, 1, 4, MEET, "torchrun")),
        (
            torchrun(5, 8, 1, 4) | {"TORCHELASTIC_USE_AGENT_STORE": "True"},
            Workers(5, 8, 1, 4, ("host0", 1235), "torchrun"),
        ),
        (
            torchrun() | {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "65535"},
            Workers(1, 2, 1, 2, ("host0", 65534), "torchrun"),
        ),
        (
            torchrun() | {"TORCHELASTIC_USE_AGENT_STORE": "False"},
            Workers(1, 2, 1, 2, MEET, "torchrun"),
        ),
        (
            ranked(5, 8, LOCAL_RANK=1, LOCAL_WORLD_SIZE=4, **MEETING),
            Workers(5, 8, 1, 4, MEET, "a launcher that sets RANK and WORLD_SIZE"),
        ),
        (srun(1, 2) | MEETING, Workers(1, 2, 1, 2, MEET, "srun")),
        (
            srun(5, 7, "4,3", SLURM_LOCALID=1, SLURM_NODEID=1),
            Workers(5, 7, 1, 3, ("gpu03", 20000 + zlib.crc32(b"srun 77.0") % 10000), "srun"),
        ),
        (
            tf_config("worker", 1, worker=["a:2222", "b:2223"]),
            Workers(1, 2, 0, 1, ("a", beside("a:2222 b:2223")), "TF_CONFIG"),
        ),
        (
            tf_config("worker", 1, worker=["b:1", "a:1"], chief=["a:2222"], ps=["p:1"]),
            Workers(2, 3, 1, 2, ("a", beside("a:2222 b:1 a:1")), "TF_CONFIG"),
        ),
        (
            tf_config("master", 0, master=["[::1]:2222"], worker=["b:1"]),
            Workers(0, 2, 0, 1, ("::1", beside("[::1]:2222 b:1")), "TF_CONFIG"),
        ),
        (
            tf_config("worker", 1, worker=["a:1", "a:2"]) | MEETING,
            Workers(1, 2, 1, 2, MEET, "TF_CONFIG"),
        ),
        (
            vertex("workerpool1", 1, workerpool0=["m:2222"], workerpool1=["a:2222", "b:2222"]),
            Workers(2, 3, 0, 1, ("m", port("Vertex AI m:2222 a:2222 b:2222")), "Vertex AI"),
        ),
        (
            sagemaker("algo-2", "algo-2", "algo-10", "algo-1"),
            Workers(2, 3, 0, 1, ("algo-1", port("SageMaker ctr-1")), "SageMaker"),
        ),
        (kubeflow_trainer(3, 4), Workers(3, 4, 0, 1, MEET, "Kubeflow Trainer")),
        (
            leader_worker_set(3, 4),
            Workers(3, 4, 0, 1, ("ctr-0.ctr", port("a LeaderWorkerSet ctr-0.ctr")), LWS),
        ),
        (
            indexed(3) | {"WORLD_SIZE": "4"} | MEETING,
            Workers(3, 4, 0, 1, MEET, "a launcher that sets RANK and WORLD_SIZE"),
        ),
        # A JobSet of several Jobs counts the pods of each: RANK counts those of all.
        (
            indexed(0) | ranked(3, 4) | MEETING,
            Workers(3, 4, 0, 1, MEET, "a launcher that sets RANK and WORLD_SIZE"),
        ),
        (of_prefix("JSM_NAMESPACE", 5, 8, 1, 4) | MEETING, Workers(5, 8, 1, 4, MEET, "jsrun")),
        (flux(5, 8, 1) | MEETING, Workers(5, 8, 1, 2, MEET, "flux run")),
        # A TF_CONFIG without a cluster does not count.
        (
            {"TF_CONFIG": "{}"} | leader_worker_set(1, 2) | MEETING,
            Workers(1, 2, 0, 1, MEET, LWS),
        ),
    ],
)
def test_each_launcher_is_understood(environ: Environ, expected: Workers) -> None:
    assert find_workers(environ) == expected


def test_workers_of_tf_config_meet_where_none_of_its_servers_listens() -> None:
    # There are so many clusters here that one of them names the port at which it would meet.
    met = {}
    for port in range(20000, 30000):
        workers = [f"a:{port}", f"b:{port + 1}"]
        met[port] = address(tf_config("worker", 0, worker=workers))
    hits = [port for port in met if beside(f"a:{port} b:{port + 1}") in (port, port + 1)]
    assert hits
    for port, (host, at) in met.items():
        assert host == "a" and 20000 <= at < 30000 and at not in (port, port + 1)


ALLOCATION = {
    **{"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "4", "SLURM_PROCID": "0"},
}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WORLD_SIZE": "", "RANK": " "},
        {"LOCAL_RANK": "3", **MEETING},
        horovodrun(0, 1, 0, 1),
        open_mpi(0, 1, 0, 1),
        hydra(0, 1, 0, 1),
        torchrun(0, 1, 0, 1),
        {"WORLD_SIZE": "1"},
        srun(0, 1, "1"),
        # An allocation sets variables for a shell in it, the batch script and an interactive step.
        ALLOCATION,
        ALLOCATION | {"SLURM_STEP_ID": str(0xFFFFFFFB)},
        ALLOCATION | {"SLURM_STEP_ID": str(0xFFFFFFFA), "SLURM_STEP_NUM_TASKS": "4"},
        {"TF_CONFIG": "{}"},
        {"TF_CONFIG": '{"cluster": null}'},
        tf_config("worker", 0, worker=["a:1"], ps=["b:1", "c:1"]),
        tf_config("ps", 0, worker=["a:1", "b:1"], ps=["c:1"]),
        vertex("workerpool0", 0, workerpool0=["m:1"]),
        vertex("workerpool2", 0, workerpool0=["m:1"], workerpool1=["a:1"]),
        sagemaker("algo-1", "algo-1"),
        kubeflow_trainer(0, 1),
        leader_worker_set(0, 1),
        indexed(0) | {"WORLD_SIZE": "1"},
        kubeflow_trainer(0, 1, "auto"),
        {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "8"},
        {"CLUSTER_SPEC": "/etc/cluster.yaml"},
        {"CLUSTER_SPEC": '{"worker": ["a:1", "b:2"]}'},
        tf_config("gateway", 0, gateway=["a:1"]),
        flux(0, 1, 0),
        of_prefix("JSM_NAMESPACE", 0, 1, 0, 1),
    ],
)
def test_a_process_alone_is_told_from_workers(environ: Environ) -> None:
    assert find_workers(environ) is None


@pytest.mark.parametrize(
    "environ",
    [
        tf_config("evaluator", 0, chief=["a:1"], worker=["b:1"]),
        vertex("workerpool3", 0, workerpool0=["a:1"], workerpool1=["b:1"]),
    ],
)
def test_an_evaluator_works_alone_and_is_told_not_to_write(environ: Environ) -> None:
    with pytest.warns(UserWarning, match="evaluator.* must not write"):
        assert find_workers(environ) is None


# Has all variables that each launcher of the table sets for one of several workers.
WHOLE = {
    "horovodrun": horovodrun(),
    "torchrun": torchrun(),
    "mpirun of Open MPI": open_mpi(),
    "mpirun of MVAPICH": of_prefix("MV2_COMM_WORLD", 1, 2, 1, 2),
    "mpiexec of MPICH or Intel MPI": hydra(),
    "jsrun": of_prefix("JSM_NAMESPACE", 1, 2, 1, 2),
    "flux run": flux() | MEETING,
    "a launcher that sets RANK and WORLD_SIZE": ranked(LOCAL_RANK=1, **MEETING),
    "srun": srun(),
    "TF_CONFIG": tf_config("worker", 1, worker=["a:1", "b:1"]),
    "Vertex AI": vertex("workerpool1", 0, workerpool0=["a:1"], workerpool1=["b:1"]),
    "SageMaker": sagemaker("algo-2", "algo-1", "algo-2"),
    "Kubeflow Trainer": kubeflow_trainer(),
    "a LeaderWorkerSet": leader_worker_set(),
    "an Indexed Job or a JobSet of Kubernetes": indexed(1) | {"WORLD_SIZE": "2"} | MEETING,
}
# Without one of these the process is taken for one of an allocation's shell, or nothing is left.
TELL_ALONE = {"SLURM_PROCID", "SLURM_STEP_ID", "TF_CONFIG", "CLUSTER_SPEC", "SM_HOSTS"}


@pytest.mark.parametrize("launcher", launchers._LAUNCHERS, ids=lambda each: each.name)
def test_no_worker_of_a_launcher_of_the_table_trains_alone(launcher: object) -> None:
    whole = WHOLE[launcher.name]
    workers = find_workers(whole)
    assert workers is not None and (workers.rank, workers.size > 1) == (1, True)
    for name in whole.keys() - TELL_ALONE:
        for value in ("", "?", "7"):  # incomplete, and contradicting
            try:
                found = find_workers(whole | {name: value})
            except ValueError as error:
                assert str(error).startswith("Expected ") and "Received: " in str(error)
            else:
                assert found is not None, (name, value)


@pytest.mark.parametrize("outer", WHOLE.values(), ids=WHOLE)
def test_workers_of_a_script_within_any_launcher_are_those_of_the_script(outer: Environ) -> None:
    inner = ranked(2, 4, LOCAL_RANK=2, LOCAL_WORLD_SIZE=4, **MEETING)
    workers = find_workers(without_launchers(outer) | inner)  # by `sok-embed run`
    assert workers is not None and (workers.rank, workers.size) == (2, 4)
    # By a script that does not remove the variables of these.
    if not outer.keys() & {
        "HOROVOD_RANK",
        "OMPI_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_RANK",
        "PMI_RANK",
    }:
        workers = find_workers(outer | inner)
        assert workers is not None and (workers.rank, workers.size) == (2, 4)


def test_what_describes_a_group_of_hosts_stays_for_programs_to_read() -> None:
    for name in (
        "SM_HOSTS",
        "SM_CURRENT_HOST",
        "CLUSTER_SPEC",
        "JOB_COMPLETION_INDEX",
        "PET_NNODES",
    ):
        assert without_launchers({name: "1"}) == {name: "1"}


def test_a_pod_of_an_indexed_job_is_asked_how_many_there_are() -> None:
    message = "WORLD_SIZE to be set too.*=3 without it.*Set WORLD_SIZE.*MASTER_ADDR.*local"
    with pytest.raises(ValueError, match=message):
        find_workers(indexed(3))


def test_tasks_of_flux_on_one_host_meet_there() -> None:
    one = {"FLUX_JOB_NNODES": "1"}
    assert {address(flux(rank, 3, rank) | one)[0] for rank in range(3)} == {"127.0.0.1"}
    assert len({address(flux(rank, 3, rank) | one)[1] for rank in range(3)}) == 1
    assert placed(flux(0, 3, 0) | one) == (0, 3, 0, 3)


def test_a_container_that_does_not_start_torchrun_runs_one_process() -> None:
    for processes in ("auto", 2, "gpu"):
        with pytest.raises(ValueError, match="PET_NPROC_PER_NODE=1.*torchrun"):
            find_workers(kubeflow_trainer(processes=processes))


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        (horovodrun() | open_mpi() | srun(), "horovodrun"),
        (open_mpi() | srun(3, 9, "9"), "mpirun of Open MPI"),
        (hydra() | srun(3, 9, "9"), "mpiexec of MPICH or Intel MPI"),
        # An operator of containers sets these, and mpirun runs in them.
        (open_mpi() | ranked(0, 5, **MEETING), "mpirun of Open MPI"),
        # One torchrun for each host.
        (torchrun() | open_mpi(0, 9, 0, 9), "torchrun"),
        (torchrun() | hydra(0, 9, 0, 9), "torchrun"),
        (torchrun() | srun(0, 9, "9"), "torchrun"),
        (ranked(**MEETING) | srun(3, 9, "9"), "a launcher that sets RANK and WORLD_SIZE"),
        (srun() | tf_config("worker", 0, worker=["a:1", "b:1", "c:1"]), "srun"),
        # srun speaks the protocol of MPICH, and other programs as well.
        (srun() | {"PMI_RANK": "1", "PMI_SIZE": "2"}, "srun"),
    ],
)
def test_the_innermost_launcher_counts(environ: Environ, launcher: str) -> None:
    workers = find_workers(environ)
    assert workers is not None
    assert (workers.launcher, workers.size) == (launcher, 4 if launcher == "horovodrun" else 2)


@pytest.mark.parametrize("outer", [ranked(2, 5), srun(2, 5, "5")])
def test_a_launcher_that_started_one_process_within_another_started_it_alone(
    outer: Environ,
) -> None:
    assert find_workers(open_mpi(0, 1, 0, 1) | outer) is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        # Kubeflow says nothing of hosts and starts one worker on each.
        (ranked(3, 4, **MEETING), (3, 4, 0, 1)),
        (ranked(3, 4, LOCAL_RANK=1, **MEETING), (3, 4, 1, 2)),
        (ranked(3, 4, LOCAL_WORLD_SIZE=2, **MEETING), (3, 4, 1, 2)),
        (srun(6, 8, "2(x2),4", SLURM_LOCALID=2, SLURM_NODEID=2), (6, 8, 2, 4)),
        (srun(2, 4, "2(x2)", SLURM_LOCALID=0, SLURM_NODEID=1), (2, 4, 0, 2)),
        (srun(2, 4, "?", SLURM_LOCALID=1), (2, 4, 1, 2)),
        (srun(2, 4, "", SLURM_TASKS_PER_NODE="3,1", SLURM_LOCALID=2), (2, 4, 2, 3)),
        (
            {k: v for k, v in srun(1, 2).items() if k != "SLURM_STEP_NUM_TASKS"}
            | {"SLURM_NTASKS": "2"},
            (1, 2, 1, 2),
        ),
        (tf_config(None, 0, worker=["a:1", "a:2"]), (0, 2, 0, 2)),
    ],
)
def test_what_a_launcher_leaves_out_is_taken_to_be_the_least(
    environ: Environ, expected: tuple[int, int, int, int]
) -> None:
    assert placed(environ) == expected


WITHOUT_MEETING = [
    open_mpi(),
    open_mpi() | {"PMIX_NAMESPACE": "", "OMPI_MCA_ess_base_jobid": "123"},
    open_mpi() | {"PMIX_NAMESPACE": "", "OMPI_MCA_orte_ess_jobid": "123"},
    hydra() | {"PMI_JOBID": "a"},
    of_prefix("MV2_COMM_WORLD", 1, 2, 1, 2) | {"PMI_JOBID": "a"},
    hydra(),
    ranked(LOCAL_RANK=1, LOCAL_WORLD_SIZE=2),
    srun(),
    srun() | {"PMI_RANK": "1", "PMI_SIZE": "2"},
]


@pytest.mark.parametrize("environ", WITHOUT_MEETING)
def test_workers_of_one_host_meet_there_at_a_port_of_their_job(environ: Environ) -> None:
    host, port = address(environ)
    assert host == "127.0.0.1" and 20000 <= port < 30000
    # Worker 0 of the same job.
    others = {name: value for name, value in environ.items() if value != "1"}
    zero = dict.fromkeys(environ, "0") | others
    assert placed(zero)[0] == 0 and address(zero) == (host, port)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (open_mpi(), open_mpi() | {"PMIX_NAMESPACE": "prterun-host-8@1"}),
        (hydra() | {"PMI_JOBID": "a"}, hydra() | {"PMI_JOBID": "b"}),
        (srun(), srun(SLURM_STEP_ID=1)),
        (srun(), srun(SLURM_JOB_ID=78)),
        (srun(0, 4, "2(x2)"), srun(0, 4, "2(x2)", SLURM_STEP_ID=1)),
    ],
)
def test_other_jobs_meet_at_other_ports(one: Environ, other: Environ) -> None:
    assert address(one)[0] == address(other)[0] and address(one)[1] != address(other)[1]


def test_workers_with_a_script_around_each_meet_by_the_process_that_started_them() -> None:
    program = """
from sok_embed.communicators.launchers import find_workers
print(find_workers().address)
"""

    def worker(rank: int, *wrapper: str) -> str:
        return subprocess.run(
            [*wrapper, sys.executable, "-c", program],
            env={**os.environ, **hydra(rank, 3, rank, 3)},
            cwd=os.path.dirname(sys.executable),
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    wrapper = ("/bin/sh", "-c", '"$@"; exit $?', "sh")
    addresses = {worker(0), worker(1, *wrapper), worker(2, *wrapper, *wrapper)}
    assert len(addresses) == 1


@pytest.mark.parametrize(
    "environ",
    [
        open_mpi(5, 8, 1, 4),
        hydra(5, 8, 1, 4),
        ranked(1, 2),
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
        {name: value for name, value in srun(0, 4, "2(x2)").items() if "LIST" not in name},
    ],
)
def test_workers_of_several_hosts_are_asked_where_they_meet(environ: Environ) -> None:
    with pytest.raises(ValueError, match="Expected MASTER_ADDR and MASTER_PORT to say where.*Set"):
        find_workers(environ)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (ranked(2, 2), "Expected RANK to be less than WORLD_SIZE. Received: RANK=2 and WORLD_S"),
        (ranked(1, 1), "Expected RANK to be less than WORLD_SIZE. Received: RANK=1 and WORLD_S"),
        (ranked(0, 0), "Expected RANK to be less than WORLD_SIZE. Received: RANK=0 and WORLD_S"),
        ({"RANK": "0"}, "Expected WORLD_SIZE to be set too. Received: RANK=0 without it"),
        ({"WORLD_SIZE": "2"}, "Expected RANK to be set too. Received: WORLD_SIZE=2 without it"),
        ({"PMI_SIZE": "2"}, "Expected PMI_RANK to be set too. Received: PMI_SIZE=2 without it"),
        (ranked("one", 2), "Expected RANK to be a number from 0 on. Received: 'one'"),
        (ranked(-1, 2), "Expected RANK to be a number from 0 on. Received: '-1'"),
        (ranked(0, "2.0"), "Expected WORLD_SIZE to be a number from 0 on. Received: '2.0'"),
        (horovodrun(4, 4), "Expected HOROVOD_RANK to be less than HOROVOD_SIZE"),
        (open_mpi(0, 2, 2, 2), "less than the number of workers on this host.*rank 2 of 2 on"),
        (hydra(0, 2, 0, 3), "at most the number of all. Received: rank 0 of 3 on this host, of 2"),
        (srun(2, 2), "Expected SLURM_PROCID to be less than SLURM_STEP_NUM_TASKS"),
        (torchrun() | {"MASTER_PORT": ""}, "MASTER_PORT to be set too. Received: MASTER_ADDR=h"),
        (torchrun() | {"MASTER_ADDR": ""}, "MASTER_ADDR to be set too. Received: MASTER_PORT=1"),
        (torchrun() | {"MASTER_PORT": "0"}, "a port from 1 to 65535 of MASTER_PORT. Received: '0"),
        (torchrun() | {"MASTER_PORT": "65536"}, "a port from 1 to 65535 of MASTER_PORT"),
        (torchrun() | {"MASTER_PORT": "http"}, "a port from 1 to 65535 of MASTER_PORT"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG to be JSON such as"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG to be JSON such as"),
        ({"TF_CONFIG": '{"cluster": {"worker": 2}}'}, "TF_CONFIG to be JSON such as"),
        (tf_config("worker", 2, worker=["a:1", "b:1"]), "task of TF_CONFIG.*: worker 2 of 2"),
        (tf_config("chief", 0, worker=["a:1", "b:1"]), "task of TF_CONFIG.*: chief 0 of 0"),
        (tf_config("worker", 0, worker=["a", "b"]), "a port from 1 to 65535 of each address"),
        (tf_config("Worker", 0, worker=["a:1", "b:1"]), "kind that trains.*Received: 'Worker'"),
        (tf_config("trainer", 0, trainer=["a:1", "b:1"]), "kind that trains.*'trainer'"),
        (vertex("chief", 0, chief=["a:1", "b:1"]), "kind that trains.*Received: 'chief'"),
        ({"CLUSTER_SPEC": '{"cluster": 3, "task": 3}'}, "CLUSTER_SPEC to be JSON such as"),
        ({"SM_HOSTS": "algo-1"}, "SM_HOSTS to be JSON such as"),
        (sagemaker("algo-3", "algo-1", "algo-2"), "SM_CURRENT_HOST to be one of SM_HOSTS"),
    ],
)
def test_what_contradicts_itself_is_refused(environ: Environ, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        find_workers(environ)
    assert "Unset what an earlier launcher has left" in str(error.value)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("a", "a"),
        ("a1,a2", "a1"),
        ("a[01-03,5],b7", "a01"),
        ("a[7,9-11]", "a7"),
        ("a[5]b", "a5b"),
        ("rack[1-2]node[03,04],x", "rack1node03"),
        ("a-b-1,c", "a-b-1"),
        ("gpu-[003-100].cluster", "gpu-003.cluster"),
    ],
)
def test_the_first_host_of_a_list_of_slurm(nodes: str, expected: str) -> None:
    assert first_host(nodes) == expected


@pytest.mark.parametrize(
    "environ",
    [WHOLE[name] for name in list(WHOLE)[: list(WHOLE).index("TF_CONFIG") + 1]],
)
def test_without_launchers_nobody_has_started_workers(environ: Environ) -> None:
    others = {"HOROVOD_CYCLE_TIME": "1", "SLURM_JOB_ID": "7", "PATH": "/bin", "RANKS": "2"}
    left = without_launchers(environ | others)
    assert find_workers(left) is None
    assert left.items() >= others.items()
