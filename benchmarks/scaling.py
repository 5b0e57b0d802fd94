"""How does a training step grow with the workers: measured with up to 8, and by the cost model?

    python benchmarks/scaling.py
    python benchmarks/scaling.py --workers 2 4 --dim 64 --batch 4096

A `DistributedEmbedding` of equal tables that are spread by key, an id of each a example: one step
looks them up, and takes and applies the gradient of a sum, by SGD. The program starts 1, 2, 4 and 8
workers itself. Each has `--batch` examples (weak scaling), then its part of as many as the most
workers have together (strong scaling).

All workers run on this machine. Where they are more than its cores, the time of a step says how
they share cores, and nothing of as many machines. So what grows with the workers is measured apart:

- bytes that a worker sends a step, which are counted, beside those of the plan;
- the time of exchanges, of no bytes and of many, by which latency and bandwidth are fitted: those
  of two workers, since more of them share the cores, and a connection within a machine is made of
  the processor's time;
- the local part of a step as the processor's time in the program, not in the system, which does the
  sending: memory bandwidth, and a fixed part that the cost model has not, are fitted to it.

The program then prints what the cost model of `sok_embed.plan` says, with what was fitted, for up
to 256 machines on networks of 25 and 200 Gbit/s, whose latency nobody measures here (`--latency`).
Beside the model it prints the processor's time of exchanges of no bytes, which grows with the
number of workers, and which the model has not.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from _common import report
from _cost_fit import Fit, Line, Timed, fitted, fitted_line
from _scaling_worker import ids_of
from exchange import features_of

import sok_embed
from sok_embed.planning import Hardware, Plan, Usage
from sok_embed.planning.hardware import MESSAGES

EXCHANGED = (0, 2**14, 2**17, 2**20, 2**22)
PREDICTED_WORKERS = (16, 32, 64, 128, 256)
GIGABITS = (25, 200)
# The bytes that are counted may differ from the plan's by so much: owners of keys are a hash.
TARGET = 0.02


@dataclass(frozen=True)
class Cases:
    """The measured cases: equal tables, and ids by a law.

    Attributes:
        tables: The number of tables.
        dim: The length of a row.
        keys: Different ids of a table.
        dist: The law of the ids.
        batches: The number of different batches.
        seed: The seed of the ids.
    """

    tables: int
    dim: int
    keys: int
    dist: str
    batches: int
    seed: int


@functools.cache
def plan_of(cases: Cases, workers: int, batch: int) -> Plan:
    """Returns the plan of a step, with the distinct ids of the batches that are drawn."""
    tables = cases.tables if workers * batch <= 2**15 else 1  # all tables are alike
    ids = ids_of(vars(cases), workers, tables, batch)
    distinct = np.mean([len(np.unique(each)) for each in ids.reshape(-1, batch)])
    together = ids.transpose(1, 2, 0, 3).reshape(-1, workers * batch)
    of_all = np.mean([len(np.unique(each)) for each in together])
    features = features_of("key", cases.tables, cases.dim, workers)
    share = float(distinct) / batch
    usage = Usage(distinct={feature.table.name: share for feature in features})
    made = sok_embed.plan(features, workers=workers, batch_size=batch, optimizer="sgd", usage=usage)
    # Without this a plan assumes that workers have no ids in common.
    counted = [replace(table, distinct_of_all=round(float(of_all))) for table in made.tables]
    return replace(made, tables=tuple(counted))


def measured(cases: Cases, workers: int, batches: Sequence[int], repeats: int) -> dict[str, Any]:
    """Returns what so many workers tell: a list of exchanges, and one of steps, means over all."""
    asked = {**vars(cases), "batches_of": batches, "exchanged": EXCHANGED, "repeats": repeats}
    with tempfile.TemporaryDirectory() as folder:
        worker = Path(__file__).with_name("_scaling_worker.py")
        script = [sys.executable, str(worker), json.dumps(asked), folder]
        started = [sys.executable, "-m", "sok_embed", "run", "-np", str(workers), "--", *script]
        subprocess.run(started, check=True)
        told = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(workers)]
    steps = _means(each["steps"] for each in told)
    for number, step in enumerate(steps):
        step["most_bytes_sent"] = max(each["steps"][number]["bytes_sent"] for each in told)
    return {"exchanges": _means(each["exchanges"] for each in told), "steps": steps}


def _means(told: Iterable[list[dict[str, float]]]) -> list[dict[str, float]]:
    """Returns the means over the workers, for each measurement."""
    return [
        {name: statistics.mean(each[name] for each in same) for name in same[0]}
        for same in zip(*told, strict=True)
    ]


def fit_of(cases: Cases, found: dict[int, dict[str, Any]]) -> tuple[Fit, Line]:
    """Returns the cost model, and the processor's time of an exchange by its messages."""
    times = [Timed(each["sent"], each["seconds"]) for each in found[2]["exchanges"]]
    local = [
        Timed(plan_of(cases, workers, round(step["batch"])).loads[0].touched, step["user_seconds"])
        for workers, each in found.items()
        for step in each["steps"]
        if workers > 1  # a single worker lays out no rows for other workers
    ]
    messages = [
        Timed(workers - 1, each["cpu_seconds"])
        for workers, told in found.items()
        for each in told["exchanges"]
        if each["sent"] == 0
    ]
    return fitted(times, local), fitted_line(messages)


def report_exchanges(found: dict[int, dict[str, Any]], hardware: Hardware) -> None:
    """Prints the times of exchanges, beside the model's."""
    for workers, told in found.items():
        for each in told["exchanges"]:
            ms, cpu_ms = each["seconds"] * 1e3, each["cpu_seconds"] * 1e3
            model_ms = (hardware.latency + each["sent"] / hardware.bandwidth) * 1e3
            report(
                {
                    "benchmark": "scaling",
                    "kind": "exchange",
                    "workers": workers,
                    "sent": each["sent"],
                    "ms": ms,
                    "cpu_ms": cpu_ms,
                    "model_ms": model_ms,
                },
                f"{workers} workers, an exchange, {each['sent']:,.0f} bytes sent by each: "
                f"{ms:.3f} ms, {cpu_ms:.3f} ms of the processor; model {model_ms:.3f} ms",
            )


def report_steps(cases: Cases, found: dict[int, dict[str, Any]], fit: Fit) -> float:
    """Prints steps, beside the model's; returns the largest error of the plan's bytes."""
    cores, worst = len(os.sched_getaffinity(0)), 0.0
    for workers, told in found.items():
        for step in told["steps"]:
            batch = round(step["batch"])
            load = plan_of(cases, workers, batch).loads[0]
            error = step["bytes_sent"] / load.sent - 1 if load.sent else 0.0
            worst = max(worst, abs(error))
            local = fit.fixed_seconds + load.touched / fit.hardware.memory_bandwidth
            # One worker has nobody to exchange with.
            model = fit.step_seconds(*load[:3]) if workers > 1 else local
            case = {
                "workers": workers,
                "batch": batch,
                "exchanges": step["exchanges"],
                "bytes_sent": step["bytes_sent"],
                "most_bytes_sent": step["most_bytes_sent"],
                "planned_bytes_sent": load.sent,
                "ms": step["seconds"] * 1e3,
                "user_ms": step["user_seconds"] * 1e3,
                "model_ms": model * 1e3,
                "model_local_ms": local * 1e3,
            }
            shared = "" if workers <= cores else f" on {cores} cores"
            report(
                {"benchmark": "scaling", "kind": "step", **case},
                f"{workers} worker{'s' * (workers > 1)}, a step, {batch} examples on each: "
                f"{case['bytes_sent']:,.0f} bytes sent, the plan's {load.sent:,} ({error:+.2%}); "
                f"local part {case['user_ms']:.2f} ms of the processor, model "
                f"{case['model_local_ms']:.2f}; step {case['ms']:.2f} ms{shared}, model "
                f"{case['model_ms']:.2f}",
            )
    return worst


def report_fit(fit: Fit, of_messages: Line) -> None:
    """Prints the parameters."""
    hardware = fit.hardware
    report(
        {
            "benchmark": "scaling",
            "kind": "fit",
            "bandwidth": hardware.bandwidth,
            "latency": hardware.latency,
            "memory_bandwidth": hardware.memory_bandwidth,
            "fixed_seconds": fit.fixed_seconds,
            "message_seconds": of_messages.each,
        },
        f"Fitted, within this machine: bandwidth {hardware.bandwidth / 1e9:.2f} GB/s, latency "
        f"{hardware.latency * 1e6:.0f} us, memory bandwidth {hardware.memory_bandwidth / 1e9:.2f} "
        f"GB/s. In no plan: {fit.fixed_seconds * 1e3:.2f} ms a step, and "
        f"{of_messages.each * 1e6:.1f} us of the processor a message",
    )


def report_predicted(
    cases: Cases, examples: dict[str, int], fit: Fit, of_messages: Line, latency: float
) -> None:
    """Prints the model's steps of many machines.

    Args:
        cases: The measured cases.
        examples: The number of examples on each worker for `"weak"`, on all together for
            `"strong"`.
        fit: The fitted memory bandwidth and fixed time.
        of_messages: The processor's time of an exchange.
        latency: The latency of the network, in seconds.
    """
    for scaling, count in examples.items():
        for workers in PREDICTED_WORKERS:
            batch = count if scaling == "weak" else count // workers
            if batch == 0:
                continue
            plan = plan_of(cases, workers, batch)
            ms = {}
            for gigabits in GIGABITS:
                hardware = Hardware(gigabits / 8 * 1e9, latency, fit.hardware.memory_bandwidth)
                ms[gigabits] = replace(plan, hardware=hardware).step_seconds * 1e3
            beside = fit.fixed_seconds + MESSAGES * (workers - 1) * of_messages.each
            load = plan.loads[0]
            local = load.touched / fit.hardware.memory_bandwidth * 1e3
            told = ", ".join(f"{value:.2f} ms on {speed} Gbit/s" for speed, value in ms.items())
            report(
                {
                    "benchmark": "scaling",
                    "kind": "predicted",
                    "scaling": scaling,
                    "workers": workers,
                    "batch": batch,
                    "planned_bytes_sent": load.sent,
                    "model_ms": ms,
                    "local_ms": local,
                    "beside_ms": beside * 1e3,
                },
                f"{workers} workers, {scaling} scaling, {batch} examples on each: the model says "
                f"{load.sent:,} bytes sent, {told}, of which {local:.2f} ms local; beside the "
                f"model {beside * 1e3:.2f} ms of messages and fixed costs",
            )


def main() -> int:
    """Measures, fits and predicts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1, 2, 4, 8], help="2 and more among them"
    )
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--dim", type=int, default=16, help="floats a row")
    parser.add_argument("--keys", type=int, default=100_000, help="different ids of a table")
    parser.add_argument("--dist", choices=["uniform", "zipf"], default="zipf")
    parser.add_argument("--batch", type=int, default=2048, help="examples on each worker")
    parser.add_argument("--batches", type=int, default=4, help="different ones")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--latency", type=float, default=Hardware().latency, help="of the networks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="exit with status 1 for other bytes")
    arguments = parser.parse_args()
    if 2 not in arguments.workers or max(arguments.workers) < 3:
        parser.error(
            f"Expected 2 and a larger number among --workers. Received: {arguments.workers}. "
            "Latency and bandwidth are those of 2, and the cost of a message takes more."
        )
    cases = Cases(
        arguments.tables,
        arguments.dim,
        arguments.keys,
        arguments.dist,
        arguments.batches,
        arguments.seed,
    )
    together = arguments.batch * max(arguments.workers)
    found = {}
    for workers in sorted(set(arguments.workers)):
        batches = sorted({arguments.batch, together // workers})
        found[workers] = measured(cases, workers, batches, arguments.repeats)
        raw = {"benchmark": "scaling", "kind": "measured", "workers": workers, **found[workers]}
        report(raw, f"{workers} workers: measured")
    fit, of_messages = fit_of(cases, found)
    report_fit(fit, of_messages)
    report_exchanges(found, fit.hardware)
    worst = report_steps(cases, found, fit)
    examples = {"weak": arguments.batch, "strong": together}
    report_predicted(cases, examples, fit, of_messages, arguments.latency)
    return int(arguments.check and worst > TARGET)


if __name__ == "__main__":
    sys.exit(main())
