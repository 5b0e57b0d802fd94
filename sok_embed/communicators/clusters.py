"""Launchers that describe a cluster to each process: TensorFlow's, Vertex AI's, SageMaker's."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

from sok_embed.communicators.launcher_variables import Variables
from sok_embed.communicators.workers import Workers

# The tasks of TF_CONFIG that train, one process each, in the order of their ranks. A cluster has a
# chief or a master, two names for the same task.
_TF_TRAINERS = ("chief", "master", "worker")
_TF_EVALUATOR = "evaluator"
_TF_OTHERS = (_TF_EVALUATOR, "ps")
# The pools of Vertex AI, by their number: the primary replica, workers, parameter servers,
# evaluators.
_VERTEX_TRAINERS = ("workerpool0", "workerpool1")
_VERTEX_EVALUATOR = "workerpool3"
_VERTEX_OTHERS = ("workerpool2", _VERTEX_EVALUATOR)


def tensorflow_workers(variables: Variables) -> Workers | None:
    """Reads `TF_CONFIG`. An evaluator works alone, and a parameter server has no layers."""
    return _of_tasks(variables, "TF_CONFIG", _TF_TRAINERS, _TF_OTHERS, _TF_EVALUATOR)


def describes_cluster(variables: Variables) -> bool:
    """Returns False for a `TF_CONFIG` without a cluster, such as `{}`."""
    try:
        config = json.loads(variables.text("TF_CONFIG") or "{}")
    except ValueError:
        return True  # an error, which the one who reads it raises
    return not isinstance(config, dict) or bool(config.get("cluster"))


def is_of_vertex(variables: Variables) -> bool:
    """Returns whether `CLUSTER_SPEC` has the form of Vertex AI; others use the name, too."""
    try:
        config = json.loads(variables.text("CLUSTER_SPEC") or "{}")
    except ValueError:
        return False
    return isinstance(config, dict) and {"cluster", "task"} <= config.keys()


def vertex_workers(variables: Variables) -> Workers | None:
    """Reads `CLUSTER_SPEC`, which Vertex AI sets for any framework."""
    return _of_tasks(variables, "CLUSTER_SPEC", _VERTEX_TRAINERS, _VERTEX_OTHERS, _VERTEX_EVALUATOR)


def sagemaker_workers(variables: Variables) -> Workers | None:
    """Reads the hosts of SageMaker, which starts one process on each."""
    text, here = variables.text("SM_HOSTS"), variables.text("SM_CURRENT_HOST")
    try:
        hosts = sorted(str(host) for host in _checked(json.loads(text or ""), list))
    except (ValueError, TypeError) as error:
        raise variables.error(
            'SM_HOSTS to be JSON such as ["algo-1", "algo-2"]', f"{text!r} ({error})"
        ) from None
    if len(hosts) < 2:
        return None
    if here not in hosts:
        raise variables.error("SM_CURRENT_HOST to be one of SM_HOSTS", f"{here!r} and {text}")
    job = variables.text("TRAINING_JOB_NAME") or text or ""
    address = variables.address(len(hosts), 1, job, hosts[0])
    return variables.workers(hosts.index(here), len(hosts), 0, 1, address)


def _of_tasks(
    variables: Variables,
    name: str,
    trainers: Sequence[str],
    others: Sequence[str],
    evaluator: str,
) -> Workers | None:
    """Reads a description of a cluster by kinds of tasks, each a list of addresses."""
    text = variables.text(name)
    try:
        config = _checked(json.loads(text or ""), dict)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        kind, index = str(task.get("type", trainers[-1])), int(task.get("index", 0))
        addresses = {each: [str(one) for one in cluster.get(each, ())] for each in trainers}
        tasks = sum(len(each) for each in cluster.values())
    except (ValueError, TypeError, AttributeError) as error:
        raise variables.error(
            f'{name} to be JSON such as {{"cluster": {{"{trainers[-1]}": ["host:port", ...]}}, '
            f'"task": {{"type": "{trainers[-1]}", "index": 0}}}}',
            f"{name}={text!r} ({error})",
        ) from None
    all_trainers = [address for each in trainers for address in addresses[each]]
    if kind == evaluator and all_trainers:
        warnings.warn(
            f"Expected a process that trains with the others of {name}. Received: an evaluator, "
            f"which works alone, as worker 0 of 1, with {len(all_trainers)} others that train. It "
            "must not write where they do: have it read their checkpoints and evaluate, and leave "
            "out what trains and saves.",
            stacklevel=2,
        )
    if kind not in (*trainers, *others) and tasks > 1:
        raise variables.error(
            f"the task of {name} to be of a kind that trains ({', '.join(trainers)}) or of one "
            f"that does not ({', '.join(others)})",
            repr(kind),
        )
    if kind not in trainers or len(all_trainers) < 2:
        return None
    if not 0 <= index < len(addresses[kind]):
        raise variables.error(
            f"the task of {name} to be one of its cluster",
            f"{kind} {index} of {len(addresses[kind])}",
        )
    rank = sum(len(addresses[each]) for each in trainers[: trainers.index(kind)]) + index
    hosts = [address.rpartition(":")[0].strip("[]") for address in all_trainers]
    address = variables.given_address() or (hosts[0], _free_port(variables, name, all_trainers))
    local_rank = hosts[:rank].count(hosts[rank])
    return variables.workers(rank, len(hosts), local_rank, hosts.count(hosts[rank]), address)


def _free_port(variables: Variables, name: str, addresses: Sequence[str]) -> int:
    """Returns the port at which the workers of a cluster meet.

    TensorFlow's own servers listen at the ports in the cluster, once a strategy is made.
    """
    ports = (each.rpartition(":")[2] for each in addresses)
    taken = {variables.checked_port(f"each address of {name}", port) for port in ports}
    return variables.port_of(" ".join(addresses), taken)


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"it is a {type(value).__name__}")
    return value
