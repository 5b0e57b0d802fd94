"""A worker that trains and saves checkpoints, or restores those of other numbers of workers.

    python checkpointing.py FOLDER write
    python checkpointing.py FOLDER read
    python checkpointing.py FOLDER refuse
    python checkpointing.py FOLDER fit [die]

With n workers `write` leaves `<optimizer>-<n>`, of Adam a chain of checkpoints of changes that
were written while training went on, and what the workers held when it was saved and
after more steps; `read` restores each of these, trains it as far, and leaves what it held. With two
workers it also restores `converted`. The checkpoints lie in FOLDER, or below the
URL of SOK_CHECKPOINT_STORE; SOK_CHECKPOINT_WROTE says which numbers of workers have written, and
SOK_CHECKPOINT_READ which optimizers `read` restores: all, if it is not there. `refuse` leaves what
was raised where one worker or a file was at fault. `fit` backs up into `backup` and goes on from
there; with `die` the last worker is killed within the third epoch.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import held_state

import sok_embed
from sok_embed.checkpoint import Checkpoint, CheckpointManager
from sok_embed.checkpoint.state.dense import DenseState
from sok_embed.checkpoint.transfer import saves
from sok_embed.checkpoint.transfer.writing import RowsCapture

OPTIMIZERS = {"sgd": lambda: keras.optimizers.SGD(0.1), "adam": lambda: keras.optimizers.Adam(0.01)}
WORKERS = tuple(range(1, 1 + int(os.environ.get("SOK_CHECKPOINT_WORKERS", "3"))))
if "SOK_CHECKPOINT_WROTE" in os.environ:
    WORKERS = tuple(map(int, os.environ["SOK_CHECKPOINT_WROTE"].split()))

CONVERTED = 2  # so many workers restore `converted`, which is made of theirs


def model_in(folder: Path | None, optimizer: str, *, admissions: bool = True) -> Any:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    wrapped = sok_embed.DistributedOptimizer(OPTIMIZERS[optimizer]())
    return held_state.every_kind(folder, wrapped, dropout=0.0, admissions=admissions)


def train(model: Any, epochs: int = 2, callbacks: Sequence[Any] = ()) -> Any:
    """Trains on the same global batches, whatever the number of workers; returns the history."""
    rank, size = sok_embed.rank(), sok_embed.size()
    return model.fit(
        held_state.KEYS[rank::size],
        held_state.TARGETS[rank::size],
        batch_size=12 // size,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )


def note(path: Path, model: Any) -> None:
    held = held_state.held_by(model)
    np.savez(path.with_name(f"{path.name}.{sok_embed.rank()}"), **held)


def place(folder: Path, run: str) -> str:
    return f"{os.environ.get('SOK_CHECKPOINT_STORE', folder)}/{run}"


def write(folder: Path) -> None:
    size = sok_embed.size()
    for optimizer in OPTIMIZERS:
        run = f"{optimizer}-{size}"
        model = model_in(folder / f"storage-of-{run}", optimizer)
        if optimizer == "sgd":
            train(model)
            Checkpoint(model).save(place(folder, run))
        else:
            manager = CheckpointManager(
                Checkpoint(model), place(folder, run), save_on_background=True
            )
            # Changes of tables this small would be too long.
            manager._parent = lambda *_, manager=manager: manager._last
            for step in range(3):
                train(model, 1 if step else 2)
                manager.wait()
                saved = manager.save(step, incremental=True)
                note(folder / f"{run}.step-{step}", model)
            folder.joinpath(f"{run}.last").write_text(saved)
        note(folder / f"{run}.saved", model)
        train(model)
        if optimizer == "adam":
            manager.wait()
        note(folder / f"{run}.trained", model)


def read(folder: Path) -> None:
    size = sok_embed.size()
    for optimizer in os.environ.get("SOK_CHECKPOINT_READ", " ".join(OPTIMIZERS)).split():
        for wrote in WORKERS:
            run = f"{optimizer}-{wrote}"
            model = model_in(folder / f"storage-of-{run}-on-{size}", optimizer)
            last = folder / f"{run}.last"
            Checkpoint(model).restore(last.read_text() if last.exists() else place(folder, run))
            note(folder / f"{run}.restored-on-{size}", model)
            train(model)
            note(folder / f"{run}.trained-on-{size}", model)
    if size == CONVERTED:
        model = model_in(folder / "storage-of-converted", "adam")
        Checkpoint(model).restore(folder / "converted")
        note(folder / "converted.restored", model)


class KilledInThirdEpoch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch, sok_embed.rank() + 1) == (2, 1, sok_embed.size()):
            os.kill(os.getpid(), signal.SIGKILL)


def fit(folder: Path, *, die: bool = False) -> None:
    rank, size = sok_embed.rank(), sok_embed.size()
    model = model_in(folder / f"storage-of-{size}", "adam", admissions=False)
    # A save that is being written when a worker is killed would be none.
    backup = sok_embed.callbacks.BackupAndRestore(folder / "backup", save_on_background=not die)
    callbacks: list[Any] = [backup]
    first_run = os.environ.get("SOK_EMBED_RESTART", "0") == "0"
    if die and first_run:
        callbacks.append(KilledInThirdEpoch())
    history = train(model, 4, callbacks)
    np.savez(folder / f"fit-{size}.{rank}", epochs=history.epoch, **held_state.held_by(model))


def no_space(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refuse(folder: Path) -> None:
    """Notes what is raised, and whether model and files stay, where something is at fault."""
    rank = sok_embed.rank()
    model = model_in(folder / "storage", "sgd")
    checkpoint = Checkpoint(model)
    path = checkpoint.save(folder / "checkpoint")
    files = sorted(os.listdir(path))
    before = held_state.held_by(model)
    found: dict[str, Any] = {"files": files}

    def note_error(fault: str, call: Any) -> None:
        try:
            call()
            found[fault] = "nothing"
        except (OSError, ValueError, RuntimeError) as error:
            found[fault] = str(error)
        after = held_state.held_by(model)
        found[f"{fault}.same"] = all(np.array_equal(after[name], before[name]) for name in before)
        sok_embed.communicators.current().barrier()
        found[f"{fault}.files"] = sorted(os.listdir(path))

    model.optimizer.iterations.assign(7 * rank)
    before = held_state.held_by(model)
    note_error("steps", lambda: checkpoint.save(path))
    model.optimizer.iterations.assign(0)
    before = held_state.held_by(model)
    note_error("paths", lambda: checkpoint.save(f"{path}{'-of-another' if rank else ''}"))
    for fault, owner, name, faulty in (
        ("disk", RowsCapture, "write", 1),
        ("manifest", saves, "_finish", 0),
    ):
        failing = no_space if rank == faulty else getattr(owner, name)
        with mock.patch.object(owner, name, failing):
            note_error(fault, lambda: checkpoint.save(path))
    # Each process has a memory of its own.
    note_error("memory", lambda: checkpoint.save("memory://run"))
    sok_embed.communicators.current().barrier()
    (rows,) = Path(path).glob("rows-00002-*")
    whole = rows.read_bytes()
    if rank == 0:
        rows.write_bytes(whole[:-1] + b"?")
    sok_embed.communicators.current().barrier()
    note_error("rows", lambda: checkpoint.restore(path))
    if rank == 0:
        rows.write_bytes(whole)
    sok_embed.communicators.current().barrier()
    refuse_on_one_worker(folder, checkpoint, note_error)
    np.savez(folder / f"refusals.{rank}", **found)


def refuse_on_one_worker(folder: Path, checkpoint: Checkpoint, note_error: Any) -> None:
    """Has the housekeeping of a manager fail on worker 0, and a restore on worker 1."""
    rank = sok_embed.rank()
    manager = CheckpointManager(checkpoint, folder / "run")

    def no_step(found: Any = None) -> int:
        raise ValueError("no step")

    for fault, name, faulty, call in (
        ("step", "step", 1, manager.save),
        ("room", "_steps", 0, manager.save),
        ("last", "_steps", 0, manager.restore_or_initialize),
        ("all", "_steps", 0, manager.remove_all),
    ):
        owner = checkpoint if name == "step" else manager
        failing = no_step if name == "step" else no_space
        with mock.patch.object(owner, name, failing if rank == faulty else getattr(owner, name)):
            note_error(fault, call)
    path = folder / "checkpoint"
    read = DenseState.read
    with mock.patch.object(DenseState, "read", no_space if rank == 1 else read):
        note_error("half", lambda: checkpoint.restore(path))
    note_error("torn", lambda: checkpoint.save(path))
    checkpoint.restore(path)
    note_error("again", lambda: checkpoint.restore(path))


if __name__ == "__main__":
    sok_embed.init()
    tasks = {"write": write, "read": read, "refuse": refuse, "fit": fit}
    tasks[sys.argv[2]](Path(sys.argv[1]), **dict.fromkeys(sys.argv[3:], True))
