"""Has processes that save checkpoints be killed at random moments, and looks at what they leave.

    python killed_saves.py FOLDER KILLS WORKERS [SEED]

What a table holds at a step is a function of the step, so that it can be replayed. The workers
save every step, whole or changes alone, in the background or not, compact and prune. After each
kill the newest whole checkpoint must load and be the state of its step, which is no older than the
last one that was told to be whole. TensorFlow is imported once: workers are forks of this process,
which itself never runs an op.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint, CheckpointManager, compact

ROWS, DIM = 30_000, 8


def changed_by(step: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The keys that a step sets to its number, and those that it removes then."""
    chance = np.random.default_rng(step)
    return chance.integers(0, ROWS, ROWS // 8), chance.integers(0, ROWS, ROWS // 16)


def replayed(step: int) -> npt.NDArray[np.float32]:
    """The rows after a step, `[ROWS]`: the number in all elements of each; 0: there is none."""
    rows = np.zeros(ROWS, np.float32)
    for each in range(1, step + 1):
        keys, removed = changed_by(each)
        rows[keys] = each
        rows[removed] = 0
    return rows


def things() -> tuple[Any, Any, Checkpoint]:
    """A table, an optimizer that counts steps, and their checkpoint."""
    table = sok.DynamicEmbedding(DIM, seed=1, name="rows").table
    optimizer = keras.optimizers.SGD()
    return table, optimizer, Checkpoint(table=table, optimizer=optimizer)


def apply(table: Any, step: int) -> None:
    """Makes a step; each worker changes the rows that are its own."""
    keys, removed = changed_by(step)
    own = [_own(table, each) for each in (np.unique(keys), np.unique(removed))]
    table.assign(own[0], np.full([len(own[0]), DIM], step, np.float32))
    table.remove(own[1])


def _own(table: Any, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    owners = table.owners_of(keys)
    return keys if owners is None else keys[owners == sok.rank()]


def work(folder: Path, out: int, seed: int) -> None:
    """Trains and saves until somebody kills this process; tells the steps that are whole."""
    sok.init()
    chance = random.Random(seed)  # the same on all workers
    table, optimizer, checkpoint = things()
    manager = CheckpointManager(
        checkpoint, folder, max_to_keep=3, max_deltas=5, save_on_background=chance.random() < 0.5
    )
    manager.restore_or_initialize()
    step = int(optimizer.iterations)
    os.write(out, b"%d\n" % step)
    while True:
        step += 1
        apply(table, step)
        optimizer.iterations.assign(step)
        manager.save(incremental=chance.random() < 0.8)
        if chance.random() < 0.5:
            manager.wait()
            os.write(out, b"%d\n" % step)
        if chance.random() < 0.2:
            manager.wait()
            if sok.rank() == 0:
                compact(chance.choice(manager.checkpoints))
            sok.communicators.current().barrier()


def start(folder: Path, workers: int, seed: int) -> tuple[list[int], list[int]]:
    """Forks workers. Returns their processes and the pipes that tell their steps."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    processes, pipes = [], []
    for rank in range(workers):
        pipe, out = os.pipe()
        process = os.fork()
        if process == 0:
            if workers > 1:
                os.environ |= {
                    "RANK": str(rank), "WORLD_SIZE": str(workers), "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                }  # fmt: skip
            try:
                work(folder, out, seed)
            except BaseException as error:  # one that was killed is an error of the others
                if not isinstance(error, ConnectionError | RuntimeError):
                    sys.stderr.write(f"worker {rank}: {type(error).__name__}: {error}\n")
                os._exit(1)
        os.close(out)
        processes.append(process)
        pipes.append(pipe)
    return processes, pipes


def look(folder: Path, told: int) -> int:
    """Checks the newest checkpoint in a process of its own, and saves the step after it.

    Returns:
        That step.
    """
    pipe, out = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            table, optimizer, checkpoint = things()
            manager = CheckpointManager(checkpoint, folder, max_to_keep=3)
            manager.restore_or_initialize()
            step = int(optimizer.iterations)
            assert step >= told, (step, told)
            assert_replayed(table, step)
            apply(table, step + 1)
            optimizer.iterations.assign(step + 1)
            manager.save()
            assert not leftovers(folder), leftovers(folder)
            os.write(out, b"%d\n" % (step + 1))
            status = 0
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os._exit(status)
    os.close(out)
    with os.fdopen(pipe) as lines:
        step = lines.read()
    _, ended = os.waitpid(process, 0)
    if ended != 0:
        raise SystemExit(f"the newest checkpoint of '{folder}' is not what it should be")
    return int(step)


def assert_replayed(table: Any, step: int) -> None:
    """The table of one worker holds what it should after a step."""
    keys, embeddings = (np.asarray(each) for each in table.export()[:2])
    found = np.zeros([ROWS, DIM], np.float32)
    found[keys] = embeddings
    expected = replayed(step)
    assert len(keys) == len(np.unique(keys)) == np.count_nonzero(expected), f"step {step}"
    assert (found == expected[:, None]).all(), f"step {step}"


def leftovers(folder: Path) -> list[str]:
    """Names that are no part of a whole checkpoint."""
    from sok_embed.checkpoint.files import manifest

    found = [path.name for path in folder.iterdir() if not (path / manifest.NAME).exists()]
    for path in folder.iterdir():
        if path.name not in found:
            found += sorted({each.name for each in path.iterdir()} - manifest.read(path).names)
    return found


def main(folder: Path, kills: int, workers: int, seed: int) -> None:
    """Kills workers again and again."""
    chance = random.Random(seed)
    step = 0
    for kill in range(kills):
        processes, pipes = start(folder, workers, chance.randrange(2**31))
        with os.fdopen(pipes[0]) as lines:
            first = lines.readline()
            time.sleep(chance.uniform(0.0, 0.3 * (1 + workers)))
            for process in processes:
                os.kill(process, signal.SIGKILL)
            statuses = [os.waitpid(process, 0)[1] for process in processes]
            told = [int(line) for line in (first, *lines.read().split())]
        for pipe in pipes[1:]:
            os.close(pipe)
        if any(status != signal.SIGKILL for status in statuses):
            raise SystemExit(f"kill {kill}: a worker has ended by itself")
        if told[0] != step:
            raise SystemExit(f"kill {kill}: went on from step {told[0]} and not from {step}")
        step = look(folder, max(told))
    print(f"{kills} kills of {workers} workers, {step} steps")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int((*sys.argv, "0")[4]))
