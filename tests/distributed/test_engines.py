"""Workers of Ray Train and of barrier stages of Spark, by stand-ins that answer as these do."""

from __future__ import annotations

import importlib
import socket
import sys
import types

import pytest

from sok_embed.communicators import engines
from sok_embed.communicators.engines import NoMeeting, find_engine_workers
from sok_embed.communicators.rendezvous_listener import bound
from sok_embed.communicators.secret import job_secret
from sok_embed.communicators.workers import Workers

# The package has a function of the module's name.
current = importlib.import_module("sok_embed.communicators.current")


@pytest.fixture(autouse=True)
def no_meeting_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_met", {})
    for name in ("ray", "ray.train", "ray.train.collective", "pyspark"):
        monkeypatch.delitem(sys.modules, name, raising=False)


class OfRay:
    """A worker of Ray Train, with the text that the engine's worker 0 has sent."""

    def __init__(self, rank: int, size: int, here: int, sent: list[str]) -> None:
        self.rank, self.size, self.here, self.sent = rank, size, here, sent

    def get_world_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.size

    def get_local_rank(self) -> int:
        return self.rank % self.here

    def get_local_world_size(self) -> int:
        return self.here

    def broadcast(self, text: str | None) -> str:
        assert (text is None) == (self.rank > 0)
        if text is not None:
            self.sent.append(text)
        return self.sent[-1]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        util = types.SimpleNamespace(get_node_ip_address=lambda: f"10.0.0.{self.rank}")
        monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(util=util))
        train = types.SimpleNamespace(get_context=lambda: self)
        monkeypatch.setitem(sys.modules, "ray.train", train)
        collective = types.SimpleNamespace(broadcast_from_rank_zero=self.broadcast)
        monkeypatch.setitem(sys.modules, "ray.train.collective", collective)


class OfSpark:
    """A task of Spark, and of a barrier stage if its class says so."""

    def __init__(self, rank: int, addresses: list[str], stage: int, sent: list[str]) -> None:
        self.rank, self.addresses, self.stage, self.sent = rank, addresses, stage, sent

    def partitionId(self) -> int:  # noqa: N802
        return self.rank

    def taskAttemptId(self) -> int:  # noqa: N802
        return 10 * self.stage + self.rank

    def getTaskInfos(self) -> list[types.SimpleNamespace]:  # noqa: N802
        return [types.SimpleNamespace(address=address) for address in self.addresses]

    def allGather(self, text: str) -> list[str]:  # noqa: N802
        if self.rank == 0:
            self.sent.append(text)
        return [self.sent[-1], *[""] * (len(self.addresses) - 1)]

    def install(self, monkeypatch: pytest.MonkeyPatch, in_barrier: bool = True) -> None:
        kind = types.SimpleNamespace(get=lambda: self)
        barrier = OfSpark if in_barrier else type("Another", (), {})
        spark = types.SimpleNamespace(TaskContext=kind, BarrierTaskContext=barrier)
        monkeypatch.setitem(sys.modules, "pyspark", spark)


def found(worker: OfRay | OfSpark, monkeypatch: pytest.MonkeyPatch) -> Workers:
    worker.install(monkeypatch)
    workers = find_engine_workers()
    assert workers is not None
    return workers


@pytest.mark.parametrize(("here", "host"), [(3, "127.0.0.1"), (2, "10.0.0.0")])
def test_workers_of_ray_meet_where_their_worker_0_says(here, host, monkeypatch) -> None:
    sent: list[str] = []
    all_workers = [found(OfRay(rank, 3, here, sent), monkeypatch) for rank in range(3)]
    assert [each.rank for each in all_workers] == [0, 1, 2]
    assert [each.local_rank for each in all_workers] == [rank % here for rank in range(3)]
    assert {(each.size, each.local_size) for each in all_workers} == {(3, here)}
    assert {(each.address, each.secret) for each in all_workers} == {
        (all_workers[0].address, all_workers[0].secret)
    }
    assert all_workers[0].address[0] == host
    assert len(job_secret({"SOK_EMBED_SECRET": all_workers[0].secret})) == 32
    assert all_workers[0].secret not in repr(all_workers[0])
    # A second call asks nobody, and another start has another secret.
    assert found(OfRay(2, 3, here, []), monkeypatch) == all_workers[2]
    engines._met.clear()
    assert found(OfRay(0, 3, here, []), monkeypatch).secret != all_workers[0].secret


def test_no_other_process_is_given_the_port_before_worker_0_listens(monkeypatch) -> None:
    place = found(OfRay(0, 2, 2, []), monkeypatch).address
    assert place is not None
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(place)
    for _ in range(2):  # as for a second call of init
        bound(socket.AF_INET, place, 2).close()


def test_tasks_of_a_barrier_stage_meet_anew_in_each_stage(monkeypatch) -> None:
    addresses, sent = ["10.0.0.1:4000", "10.0.0.2:4001", "10.0.0.1:4002"], []
    all_workers = [found(OfSpark(rank, addresses, 7, sent), monkeypatch) for rank in range(3)]
    places = [(each.rank, each.size, each.local_rank, each.local_size) for each in all_workers]
    assert places == [(0, 3, 0, 2), (1, 3, 0, 1), (2, 3, 1, 2)]
    assert {each.address for each in all_workers} == {("10.0.0.1", all_workers[0].address[1])}
    later = found(OfSpark(0, addresses, 8, sent), monkeypatch)
    assert later.secret != all_workers[0].secret
    OfSpark(1, addresses, 9, sent).install(monkeypatch, in_barrier=False)
    assert find_engine_workers() is None


def test_a_process_that_no_engine_has_placed_asks_its_launcher(monkeypatch) -> None:
    assert find_engine_workers() is None
    for error in (RuntimeError("not a worker"), DeprecationWarning("in a trial of Tune")):

        def refuse(error: Exception = error) -> None:
            raise error

        monkeypatch.setitem(sys.modules, "ray.train", types.SimpleNamespace(get_context=refuse))
        assert find_engine_workers() is None
    OfRay(0, 1, 1, []).install(monkeypatch)
    assert find_engine_workers() is None
    monkeypatch.delitem(sys.modules, "ray.train")
    OfSpark(0, ["10.0.0.1:1"], 1, []).install(monkeypatch)
    assert find_engine_workers() is None


def test_a_ray_without_a_collective_is_refused(monkeypatch) -> None:
    worker = OfRay(1, 2, 2, [])
    worker.install(monkeypatch)

    def refuse(data: object) -> None:
        raise RuntimeError("only in the second version")

    collective = types.SimpleNamespace(broadcast_from_rank_zero=refuse)
    monkeypatch.setitem(sys.modules, "ray.train.collective", collective)
    with pytest.raises(NoMeeting, match="Expected the second version of Ray Train.*Ray 2.47"):
        find_engine_workers()
    # Its workers may have what Ray's TensorflowTrainer or TorchTrainer sets.
    with pytest.raises(NoMeeting):
        current._workers()
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "a", "MASTER_PORT": 7}.items():
        monkeypatch.setenv(name, str(value))
    assert current._workers().address == ("a", 7)


def test_processes_of_a_trainer_of_no_workers_are_those_of_their_launcher(monkeypatch) -> None:
    local = type("LocalTrainContext", (OfRay,), {})
    local(1, 2, 2, []).install(monkeypatch)
    assert find_engine_workers() is None
