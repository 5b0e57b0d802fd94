"""Joins workers that an engine has started: Ray Train, and barrier tasks of Spark.

Such an engine tells a worker its place when it is asked, not by environment variables, and can
carry a few bytes between its workers. By them worker 0 says where all meet, and hands out a secret
that is new for each start.
"""

from __future__ import annotations

import json
import socket
import sys
from abc import ABC, abstractmethod
from typing import Any

from sok_embed.communicators.secret import new_secret
from sok_embed.communicators.workers import Workers


class NoMeeting(ValueError):  # noqa: N818
    """The engine has no way to say where its workers meet; their environment may."""


class _Engine(ABC):
    """One engine, asked by a process that it may have started.

    Attributes:
        name: The name of the engine, for messages.
    """

    name: str

    @abstractmethod
    def task(self) -> Any:
        """Returns the engine's description of this worker; `None` if it has not started it."""

    @abstractmethod
    def place(self, task: Any) -> tuple[int, int, int, int]:
        """Returns rank, number of workers, rank on this host and number of workers there."""

    @abstractmethod
    def start(self, task: Any) -> str:
        """Returns a text that differs between two starts of workers in one process."""

    @abstractmethod
    def host(self, task: Any) -> str:
        """Returns the address by which other workers reach this host."""

    @abstractmethod
    def of_worker_0(self, task: Any, text: str) -> str:
        """Returns the text of worker 0, of at most 1 KB. Collective."""


class _RayTrain(_Engine):
    """Workers of any trainer of Ray Train."""

    name = "Ray Train"

    def task(self) -> Any:
        train = sys.modules.get("ray.train")
        if train is None:
            return None
        try:
            context = train.get_context()
            context.get_world_size()
        except (AttributeError, RuntimeError, DeprecationWarning):
            return None  # a driver, an actor of another kind, a trial of Ray Tune; or an old Ray
        # Processes that another launcher has started, by a trainer of `num_workers=0`, are not
        # Ray's.
        return None if type(context).__name__ == "LocalTrainContext" else context

    def place(self, task: Any) -> tuple[int, int, int, int]:
        ranks = (task.get_world_rank(), task.get_world_size())
        return (*ranks, task.get_local_rank(), task.get_local_world_size())

    def start(self, task: Any) -> str:
        return ""  # Ray starts processes anew

    def host(self, task: Any) -> str:
        import ray

        return str(ray.util.get_node_ip_address())

    def of_worker_0(self, task: Any, text: str) -> str:
        try:
            from ray.train.collective import broadcast_from_rank_zero

            return str(broadcast_from_rank_zero(text if task.get_world_rank() == 0 else None))
        except (ImportError, RuntimeError) as error:
            raise NoMeeting(
                "Expected the second version of Ray Train, which has ray.train.collective, to say "
                f"where its workers meet. Received: {error} Use Ray 2.47 or later, and leave "
                "RAY_TRAIN_V2_ENABLED at 1."
            ) from error


class _SparkBarrier(_Engine):
    """The tasks of a barrier stage of Spark. Other tasks of Spark do not know each other."""

    name = "a barrier stage of Spark"

    def task(self) -> Any:
        spark = sys.modules.get("pyspark")
        if spark is None:
            return None
        context = spark.TaskContext.get()
        return context if isinstance(context, spark.BarrierTaskContext) else None

    def place(self, task: Any) -> tuple[int, int, int, int]:
        hosts = self._hosts(task)
        rank = task.partitionId()
        return rank, len(hosts), hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])

    def start(self, task: Any) -> str:
        return str(task.taskAttemptId())

    def host(self, task: Any) -> str:
        return self._hosts(task)[task.partitionId()]

    def of_worker_0(self, task: Any, text: str) -> str:
        return str(task.allGather(text if task.partitionId() == 0 else "")[0])

    @staticmethod
    def _hosts(task: Any) -> list[str]:
        return [each.address.rpartition(":")[0].strip("[]") for each in task.getTaskInfos()]


_ENGINES: tuple[_Engine, ...] = (_RayTrain(), _SparkBarrier())
# Keeps what workers have agreed on, by engine, start, rank and number of workers, so that a second
# call of `init` finds the same connections.
_met: dict[tuple[object, ...], Workers] = {}
_held: list[socket.socket] = []  # the sockets that keep ports for this process


def find_engine_workers() -> Workers | None:
    """Asks the engine which worker this process is, and worker 0 where all meet. Collective.

    Returns:
        This process among the workers; `None` if no engine has started it, or it alone.

    Raises:
        NoMeeting: For an engine without a way to say where workers meet.
    """
    for engine in _ENGINES:
        task = engine.task()
        if task is not None and engine.place(task)[1] > 1:
            return _met_by(engine, task)
    return None


def _met_by(engine: _Engine, task: Any) -> Workers:
    rank, size, local_rank, local_size = engine.place(task)
    key = (engine.name, engine.start(task), rank, size)
    if key not in _met:
        host = "127.0.0.1" if local_size == size else engine.host(task)
        offer = {"host": host, "port": _free_port(), "secret": new_secret()} if rank == 0 else {}
        met = json.loads(engine.of_worker_0(task, json.dumps(offer)))
        address = (met["host"], met["port"])
        _met[key] = Workers(rank, size, local_rank, local_size, address, engine.name, met["secret"])
    return _met[key]


def _free_port() -> int:
    """Returns a port at which this process may listen, and which no other process is given.

    The last of many workers may come much later, and meanwhile others ask for any port.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a listener that has it may share
    holder.bind(("", 0))
    _held.append(holder)
    return int(holder.getsockname()[1])
