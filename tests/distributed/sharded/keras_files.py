"""A worker that writes Keras files with others, loads those of other numbers, or is at fault.

    python keras_files.py FOLDER write
    python keras_files.py FOLDER read
    python keras_files.py FOLDER refuse
    python keras_files.py FOLDER die RANK

With n workers `write` leaves `<n>.keras` with what the workers held, also after more steps, and
what callbacks have chosen; `read` loads the files of all numbers and trains on; `refuse` leaves
what was raised where a worker was at fault, and whether the file of before is still there. With
`die` worker RANK is killed when it has written its rows for a second file.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

import held_state

import sok_embed
from sharded.checkpointing import WORKERS, model_in, note, train
from sok_embed import feature_column
from sok_embed.callbacks import AverageMetrics, EarlyStopping, ModelCheckpoint
from sok_embed.checkpoint import saving

# Scores of epochs, by the number of the worker modulo 2. The averages are best in the second epoch,
# those of worker 0 in the third, those of worker 1 in the first.
SCORES = np.array([[3.0, 0.1], [1.0, 1.0], [0.5, 3.0], [2.0, 2.0], [3.0, 0.0]])


class Scored(keras.callbacks.Callback):
    """Adds the scores of this worker to the logs; those of one worker are the averages of two."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        size, rank = sok_embed.size(), sok_embed.rank()
        scores = SCORES[epoch, np.arange(2)] if size == 1 else SCORES[epoch, [rank % 2]]
        logs["score"] = float(np.mean(scores))


class Noted(keras.callbacks.Callback):
    """Leaves what is held at the end of each epoch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        note(self.path.with_name(f"{self.path.name}-{epoch}"), self.model)


class Told(keras.callbacks.Callback):
    """Remembers the loss that an evaluation tells callbacks."""

    loss = 0.0

    def on_test_end(self, logs: Any = None) -> None:
        self.loss = logs["loss"]


def columns() -> keras.Model:
    """A model of a feature column with own rows, which has static rows in a weight."""
    keras.utils.clear_session(free_memory=False)
    item = feature_column.categorical_column_with_adaptive_embedding("item", 10, tf.int64)
    inputs = {"item": keras.Input((2,), dtype="int64", name="item"),
              "mask": keras.Input((2,), dtype="int32", name="mask")}  # fmt: skip
    layer = feature_column.DenseFeatures([feature_column.embedding_column(item, 4)], name="emb")
    output = keras.layers.Dense(1)(layer({"item": inputs["item"]}, {"item": inputs["mask"]}))
    model = keras.Model(inputs, output)
    model.compile(sok_embed.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    return model


def note_columns(path: Path, model: keras.Model) -> None:
    (table,) = model.get_layer("emb").tables.values()
    held = {f"own.{name}": each for name, each in held_state.contents_of(table).items()}
    held |= {f"variable.{i}": np.asarray(each) for i, each in enumerate(model.variables)}
    np.savez(path.with_name(f"{path.name}.{sok_embed.rank()}"), **held)


def write_columns(folder: Path) -> None:
    size, rank = sok_embed.size(), sok_embed.rank()
    model = columns()
    keys = np.abs(held_state.KEYS)[rank::size]
    given = {"item": keys, "mask": (keys % 3 == 0).astype(np.int32)}
    model.fit(given, held_state.TARGETS[rank::size], batch_size=12 // size, verbose=0)
    sok_embed.save_model(model, folder / f"columns-{size}.keras")
    note_columns(folder / f"columns-{size}.saved", model)


def write(folder: Path) -> None:
    size = sok_embed.size()
    model = model_in(None, "adam")
    train(model)
    sok_embed.save_model(model, folder / f"{size}.keras")
    note(folder / f"{size}.saved", model)
    train(model)
    note(folder / f"{size}.trained", model)
    choose(folder)
    write_columns(folder)


def choose(folder: Path) -> None:
    """Has callbacks choose epochs by the scores."""
    size, rank = sok_embed.size(), sok_embed.rank()
    model = model_in(None, "sgd")
    files = folder / f"chosen-by-{size}"
    stop = EarlyStopping(
        "score", patience=2, mode="min", restore_best_weights=True, directory=files / "best"
    )
    callbacks = [
        Scored(),
        Noted(folder / f"{size}.epoch"),
        ModelCheckpoint(
            files / "{epoch}-{score:.2f}.keras", monitor="score", mode="min", save_best_only=True
        ),
        ModelCheckpoint(files / "all.weights.h5", save_weights_only=True, save_freq=2),
        stop,
        # What follows sees the averages: it has all workers take one learning rate.
        AverageMetrics(),
        keras.callbacks.ReduceLROnPlateau("score", 0.5, patience=1, mode="min", min_delta=0.3),
    ]
    history = train(model, len(SCORES), callbacks)
    note(folder / f"{size}.restored", model)
    chosen = {"epochs": history.epoch, "stopped": stop.stopped_epoch, "best": stop.best_epoch}
    chosen |= {"scores": history.history["score"], "losses": history.history["loss"]}
    chosen["rates"] = history.history["learning_rate"]
    given = held_state.KEYS[rank::size], held_state.TARGETS[rank::size]
    told = Told()
    for name, callbacks in (("own", [told]), ("averaged", [AverageMetrics(), told])):
        model.evaluate(*given, batch_size=4, verbose=0, callbacks=callbacks)
        chosen[name] = told.loss
    np.savez(folder / f"{size}.chosen.{rank}", **chosen)


def read(folder: Path) -> None:
    size = sok_embed.size()
    for wrote in WORKERS:
        run = f"{wrote}-on-{size}"
        loaded = keras.saving.load_model(folder / f"{wrote}.keras")
        note(folder / f"{run}.loaded", loaded)
        model = model_in(None, "adam")
        model.load_weights(folder / f"{wrote}.keras")
        note(folder / f"{run}.weights", model)
        train(model)
        note(folder / f"{run}.trained", model)
        loaded = keras.saving.load_model(folder / f"columns-{wrote}.keras")
        note_columns(folder / f"columns-{run}.loaded", loaded)
        best = model_in(None, "sgd")
        (file,) = (folder / f"chosen-by-{wrote}").glob("2-*.keras")
        best.load_weights(file)
        note(folder / f"{run}.best", best)
        last = model_in(None, "sgd")
        last.load_weights(folder / f"chosen-by-{wrote}" / "all.weights.h5")
        note(folder / f"{run}.last", last)


def no_space(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refuse(folder: Path) -> None:
    """Notes what is raised where a worker is at fault, and what is left in the folder."""
    rank = sok_embed.rank()
    model = model_in(None, "sgd")
    files = folder / "files"
    if rank == 0:
        files.mkdir()
    path = files / "model.keras"
    sok_embed.communicators.current().barrier()
    sok_embed.save_model(model, path)
    whole = path.read_bytes()
    found: dict[str, Any] = {}

    def note_error(fault: str, call: Any) -> None:
        try:
            call()
            found[fault] = "nothing"
        except (OSError, ValueError, RuntimeError) as error:
            found[fault] = str(error)
        sok_embed.communicators.current().barrier()
        found[f"{fault}.same"] = os.listdir(files) == ["model.keras"] and (
            path.read_bytes() == whole
        )
        sok_embed.communicators.current().barrier()

    def save() -> None:
        sok_embed.save_model(model, path)

    def fit(**logs: float) -> None:
        class Logs(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, given: Any = None) -> None:
                given.update(logs)

        best = ModelCheckpoint(path, monitor="loss", save_best_only=True)
        train(model, 1, [Logs(), best])

    model.optimizer.iterations.assign(rank)
    note_error("steps", save)
    model.optimizer.iterations.assign(0)
    note_error("paths", lambda: sok_embed.save_model(model, f"{path}{'.keras' * rank}"))
    note_error(
        "ending", lambda: sok_embed.save_model(model, files / ("m.h5" if rank else "m.keras"))
    )
    for fault, owner, name, faulty in (
        ("rows", saving, "write_rows", 1),
        ("keras_saving", keras.saving, "save_model", 0),
        ("folder", saving, "locked_folder", 0),
        ("seen", saving.os.path, "isdir", 1),
    ):
        failing = (lambda _: False) if fault == "seen" else no_space
        own = failing if rank == faulty else getattr(owner, name)
        with mock.patch.object(owner, name, own):
            note_error(fault, save)
    note_error("names", lambda: fit(**{"of_worker_1": 1.0} if rank else {}))
    # Keras empties a file before it asks for anything.
    note_error("keras", lambda: model.save(folder / f"emptied-{rank}.keras"))
    note_error("weights", lambda: model.save_weights(folder / f"emptied-{rank}.weights.h5"))
    callbacks = keras.callbacks
    for fault, callback in (
        ("directory", EarlyStopping("loss", restore_best_weights=True)),
        ("keras_callback", callbacks.ModelCheckpoint(path)),
        ("keras_stopping", callbacks.EarlyStopping("loss", restore_best_weights=True)),
    ):
        note_error(fault, lambda callback=callback: train(model, 1, [callback]))
    stored = model_in(folder / "storage", "sgd")
    note_error("stored", lambda: sok_embed.save_model(stored, path))
    note_error("stored_fit", lambda: train(stored, 1, [ModelCheckpoint(path)]))
    np.savez(folder / f"refusals.{rank}", **found)


def die(folder: Path, rank: str) -> None:
    model = model_in(None, "sgd")
    sok_embed.save_model(model, folder / "model.keras")
    train(model)
    write_rows = saving.write_rows

    def killed(*given: Any) -> None:
        write_rows(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(
        saving, "write_rows", killed if sok_embed.rank() == int(rank) else write_rows
    ):
        sok_embed.save_model(model, folder / "model.keras")


if __name__ == "__main__":
    sok_embed.init()
    tasks = {"write": write, "read": read, "refuse": refuse, "die": die}
    tasks[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
