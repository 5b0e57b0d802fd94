"""`init`, `rank` and `size` in one process."""

from __future__ import annotations

import importlib
import json
import sys
import types

import pytest
import tensorflow as tf

import sok_embed
from sok_embed.communicators import Communicator, LocalCommunicator, current

LAUNCHERS = [
    *("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE"),
    *("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK"),
    *("SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"),
    *("OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE", "WORLD_SIZE", "JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE"),
    "TF_CONFIG",
]


@pytest.fixture(autouse=True)
def a_process_that_nobody_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    # The module is asked for by its full name: the package has a function of the module's name.
    module = importlib.import_module("sok_embed.communicators.current")
    monkeypatch.setattr(module, "_current", None)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


class SecondOfThree(Communicator):
    """Tells its place, which is all that init may ask of it."""

    rank = 1
    size = 3

    def all_to_all(
        self, tensor: tf.Tensor, splits: tf.Tensor, name: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        pytest.fail("init must not send anything")

    def all_reduce(self, tensor: tf.Tensor, name: str, average: bool = False) -> tf.Tensor:
        pytest.fail("init must not send anything")

    def broadcast(self, tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
        pytest.fail("init must not send anything")

    def barrier(self) -> None:
        pytest.fail("init must not send anything")


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
    with pytest.raises(ValueError, match='"auto", "horovod", "tcp", "local"') as refusal:
        sok_embed.init(wrong)  # type: ignore[arg-type]
    assert repr(wrong) in str(refusal.value)


@pytest.mark.parametrize("horovodrun", [False, True])
def test_horovod_that_is_missing_is_named_with_a_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, horovodrun: bool
) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    if horovodrun:
        monkeypatch.setenv("HOROVOD_RANK", "0")
        monkeypatch.setenv("HOROVOD_SIZE", "2")
    with pytest.raises(ImportError, match="Expected Horovod .* `make setup`"):
        sok_embed.init("auto" if horovodrun else "horovod")


class FakeHorovod:
    """A `horovod.tensorflow` that a script has imported."""

    def __init__(self, size: int, initialised: bool = True) -> None:
        self.size = lambda: size
        self.rank = self.local_rank = lambda: 0
        self.local_size = lambda: 1
        self.is_initialized = lambda: initialised
        self.init = lambda: None


def import_horovod(monkeypatch: pytest.MonkeyPatch, fake: FakeHorovod) -> None:
    package = types.ModuleType("horovod")
    package.tensorflow = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "horovod", package)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", fake)  # type: ignore[arg-type]


def test_horovod_that_is_initialised_with_several_workers_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")  # a launcher that Horovod knows sets it
    import_horovod(monkeypatch, FakeHorovod(size=2))
    assert sok_embed.init(exchange="horovod").size == 2


@pytest.mark.parametrize("fake", [FakeHorovod(size=1), FakeHorovod(size=2, initialised=False)])
def test_horovod_that_is_only_imported_or_alone_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, fake: FakeHorovod
) -> None:
    import_horovod(monkeypatch, fake)
    assert isinstance(sok_embed.init(), LocalCommunicator)


def tf_config(task: str, **cluster: int) -> dict[str, str]:
    """TF_CONFIG of a task in a cluster with so many tasks of each kind."""
    addresses = {kind: [f"host{i}:2222" for i in range(n)] for kind, n in cluster.items()}
    return {"TF_CONFIG": json.dumps({"cluster": addresses, "task": {"type": task, "index": 0}})}


SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0"}


# What says that there are several workers, and not all that they have to know.
CONTRADICTIONS = [
    *({"PMI_SIZE": "2"}, {"MV2_COMM_WORLD_SIZE": "2"}, {"OMPI_COMM_WORLD_SIZE": "2"}),
    *({"HOROVOD_SIZE": "2"}, {"WORLD_SIZE": " 2 "}, {"WORLD_SIZE": "2", "RANK": "2"}),
    *({"JSM_NAMESPACE_SIZE": "6"}, {"FLUX_JOB_SIZE": "6"}),
]


@pytest.mark.parametrize("environment", CONTRADICTIONS, ids=lambda each: "-".join(each))
def test_workers_that_nobody_can_tell_apart_do_not_train_alone_unasked(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=list(environment)[0]):
        sok_embed.size()
    assert isinstance(sok_embed.init("local"), LocalCommunicator)
    assert sok_embed.size() == 1


@pytest.mark.parametrize(
    "environment",
    [
        {"PMI_SIZE": "2", "PMI_RANK": "0", "MPI_LOCALNRANKS": "2"},
        {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
        tf_config("worker", worker=2),
        tf_config("chief", chief=1, worker=2, ps=1),
        {"SLURM_NTASKS": "2", **SRUN},
        {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2", **SRUN},
    ],
    ids=["mpich", "torchrun", "tf_workers", "tf_chief", "srun", "srun_step"],
)
def test_workers_of_every_launcher_join(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999", **environment}.items():
        monkeypatch.setenv(name, value)
    met = []

    class Met(SecondOfThree):
        def __init__(self, workers: object, **options: object) -> None:
            met.append((workers, options))

    monkeypatch.setattr("sok_embed.communicators.tcp.TcpCommunicator", Met)
    options = {"timeout": 9.0, "pin_gpu": False, "levels": 2}
    assert isinstance(sok_embed.init(**options), Met)
    ((workers, received),) = met
    assert received == options
    assert workers.address == ("127.0.0.1", 29999) and workers.size in (2, 3)


def test_tcp_without_workers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected several workers.*sok-embed run"):
        sok_embed.init("tcp")


def test_another_exchange_is_refused() -> None:
    with pytest.raises(ValueError, match="exchange to be one of 'tcp', 'horovod'"):
        sok_embed.init(exchange="nccl")


def test_layers_refuse_to_be_made_where_init_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for layer in (
        lambda: sok_embed.DynamicEmbedding(2),
        lambda: sok_embed.All2AllDenseEmbedding(8, 2, 1, 1),
        lambda: sok_embed.AdaptiveEmbedding(2, static_buckets=8),
    ):
        with pytest.raises(ValueError, match="WORLD_SIZE"):
            layer()
    sok_embed.init("local")
    sok_embed.DynamicEmbedding(2)


@pytest.mark.filterwarnings("ignore:Expected a process that trains")
@pytest.mark.parametrize(
    "environment",
    [
        {"PMI_SIZE": "1"},
        {"PMI_SIZE": ""},
        {"WORLD_SIZE": "1", "RANK": "0"},
        tf_config("worker", worker=1),
        tf_config("chief", chief=1, ps=2),
        tf_config("evaluator", worker=4, evaluator=1),
        {"TF_CONFIG": "{}"},
        {**SRUN, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
        {"SLURM_NTASKS": "4"},
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": str(0xFFFFFFFA)},
        {**SRUN, "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
    ],
    ids=[
        *("one", "empty", "torchrun_of_one", "tf_worker", "tf_chief_and_servers"),
        *("tf_evaluator", "tf_nothing"),
        *("one_task", "salloc", "sbatch", "interactive_step", "step_of_one"),
    ],
)
def test_an_allocation_or_a_launcher_of_one_process_is_one_worker(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert sok_embed.size() == 1


def test_a_failed_init_leaves_the_communicator_that_was() -> None:
    sok_embed.init(SecondOfThree())
    with pytest.raises(ValueError, match="Received: 'nccl'"):
        sok_embed.init("nccl")
    assert sok_embed.size() == 3
